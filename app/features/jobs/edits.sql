-- Edits of queued jobs, and deletion of finished ones.

-- name: copied_fields
-- What a clone takes over from its original.
SELECT jsonb_build_object(
           -- fields of a job: copied
       )::text
  FROM dl_jobs
 WHERE job_id = %(job_id)s::uuid;

-- name: edit_job
-- queued -> queued, with other values. A parameter that is NULL leaves its column unchanged; `clear` lists the columns that
-- become NULL. Only the given version of the row is changed. request_hash stays that of the original request, so that a
-- producer that repeats it gets this job; a row that another service wrote gets its hash here.
WITH old AS MATERIALIZED (
    SELECT job_id, priority, available_at, args, max_attempts, lease_ttl_sec, time_limit_sec, retry, partition_key,
           coalesce(request_hash, encode(sha256(convert_to(jsonb_build_array(queue, task, args)::text, 'UTF8')), 'hex'))
           AS original_hash
      FROM dl_jobs
     WHERE job_id = %(job_id)s::uuid AND status::text = 'queued' AND xmin::text = %(version)s::text
       FOR NO KEY UPDATE
), edited AS (
    UPDATE dl_jobs j
       SET priority = coalesce(%(priority)s::int, j.priority),
           available_at = coalesce(%(available_at)s::timestamptz, j.available_at),
           unknown_task = j.unknown_task AND %(available_at)s::timestamptz IS NULL,
           args = coalesce(%(args)s::jsonb, j.args),
           request_hash = CASE WHEN %(args)s::jsonb IS NULL THEN j.request_hash ELSE old.original_hash END,
           max_attempts = greatest(coalesce(%(max_attempts)s::int, j.max_attempts), j.attempt),
           lease_ttl_sec = coalesce(%(lease_ttl_sec)s::int, j.lease_ttl_sec),
           time_limit_sec = CASE WHEN 'time_limit_sec' <> ALL (%(clear)s::text[])
                                 THEN coalesce(%(time_limit_sec)s::int, j.time_limit_sec) END,
           retry = CASE WHEN 'retry' <> ALL (%(clear)s::text[]) THEN coalesce(%(retry)s::jsonb, j.retry) END,
           partition_key = coalesce(%(partition_key)s::text, j.partition_key)
      FROM old
     WHERE j.job_id = old.job_id
    RETURNING j.*
), changes AS (
    SELECT jsonb_object_agg(b.key, b.value) AS before, jsonb_object_agg(b.key, a.value) AS after
      FROM old
           JOIN edited e USING (job_id)
           CROSS JOIN LATERAL jsonb_each(to_jsonb(old) - 'job_id' - 'original_hash') b
           JOIN LATERAL jsonb_each(to_jsonb(e)) a ON a.key = b.key AND a.value IS DISTINCT FROM b.value
), events AS (
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT e.job_id, e.queue, clock_timestamp(), 'edited',
           jsonb_build_object('status', 'queued', 'attempt', e.attempt, 'reason', 'edited',
                              'before', changes.before, 'after', changes.after)
      FROM edited e, changes
     WHERE changes.before IS NOT NULL
)
SELECT job_id FROM edited;

-- name: delete_job
-- Delete a finished job with its events and logs, unless a job of its graph may read its result. Its idempotency key can be used again.
WITH deleted AS (
    DELETE FROM dl_jobs
     WHERE job_id = %(job_id)s::uuid AND status::text IN ('succeeded', 'failed', 'canceled', 'lost')
       AND (%(version)s::text IS NULL OR xmin::text = %(version)s::text)
       AND (graph_id IS NULL OR NOT dl_is_result_needed(job_id, graph_id))
    RETURNING job_id
), deleted_logs AS (
    DELETE FROM dl_job_logs WHERE job_id IN (SELECT job_id FROM deleted)
)
SELECT job_id FROM deleted;
