-- The status, events and logs of jobs.

-- name: get_job_status
-- prepared
-- In the order of the fields of `JobStatus`: it is asked for far more often than the whole row, whose columns cost most of the time.
-- The progress is read in a row of its own: PostgreSQL would call dl_json_text, which uses it twice, and not expand it.
SELECT job_id, queue, task, status::text, attempt, started_at, finished_at, dl_last_heartbeat(status, worker_id, heartbeat_at), error,
       dl_json_text(newest.progress, 1048576)
  FROM dl_jobs j, LATERAL (SELECT dl_current_progress(status, job_id, run_id, heartbeat_at, j.progress) AS progress OFFSET 0) newest
 WHERE job_id = %(job_id)s::uuid;

-- name: job_events
SELECT event_id, job_id, queue, ts, kind, coalesce(payload, '{}')::text
  FROM dl_job_events
 WHERE job_id = %(job_id)s::uuid AND event_id > %(after)s::bigint
 ORDER BY event_id
 LIMIT %(limit)s::int;

-- name: write_logs
-- Lines of jobs' logs, in their order. With short timeouts: leases are renewed over the same connection.
SELECT set_config('lock_timeout', '500ms', true), set_config('statement_timeout', '5s', true);

INSERT INTO dl_job_logs (job_id, attempt, ts, level, stream, line, dropped)
SELECT job_id, attempt, (SELECT clock_timestamp()) - make_interval(secs => age), level, stream, line, nullif(dropped, 0)
  FROM unnest(%(job_ids)s::uuid[], %(attempts)s::int[], %(ages)s::float8[], %(levels)s::text[], %(streams)s::text[],
              %(lines)s::text[], %(dropped)s::int[]) WITH ORDINALITY AS lines (job_id, attempt, age, level, stream, line, dropped, n)
 ORDER BY n;

-- name: job_logs
-- The first lines after `after`, or the last ones with `tail`. A row without a log_id: the job exists and no line matches.
-- Complete: the job has ended, and its worker has had the time to write its last lines.
WITH job AS (
    SELECT job_id, status::text NOT IN ('queued', 'running')
                   AND coalesce(finished_at, '-infinity') < clock_timestamp() - interval '3 s' AS complete
      FROM dl_jobs
     WHERE job_id = %(job_id)s::uuid
), matching AS NOT MATERIALIZED (
    SELECT log_id, attempt, ts, level, stream, line
      FROM dl_job_logs
     WHERE job_id = %(job_id)s::uuid
       AND log_id > %(after)s::bigint
       AND (%(attempt)s::int IS NULL OR attempt = %(attempt)s::int)
       AND (%(levels)s::text[] IS NULL OR level = ANY (%(levels)s::text[]))
       AND (%(stream)s::text IS NULL OR stream = %(stream)s::text)
), page AS (
    (SELECT * FROM matching WHERE NOT %(tail)s::bool ORDER BY log_id LIMIT %(limit)s::int)
    UNION ALL  -- one of the two is empty: each walks the index from its own end
    (SELECT * FROM matching WHERE %(tail)s::bool ORDER BY log_id DESC LIMIT %(limit)s::int)
)
SELECT complete, log_id, attempt, ts, level, stream, line
  FROM job LEFT JOIN page ON true
 ORDER BY log_id;
