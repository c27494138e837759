-- What maintenance does for jobs of all queues. Rules as in jobs.sql.

-- name: repair_blocked
-- prepared
-- queued -> queued: repairs lost wake-ups. Among the next keys after `after` that have blocked jobs, the first job of each key
-- that no run holds, in the table or by a session lock, becomes ready, unless one of `repaired_jobs` is ready with the key. If
-- another process repairs at this moment, this one does nothing. The rows are the keys whose job became ready; `cursor` is the
-- last scanned key, `made_ready` has the ids of the jobs, with spaces between them.
WITH RECURSIVE keys AS (
    (SELECT lock_key FROM dl_jobs
      WHERE status = 'queued' AND wait_state = 'blocked' AND lock_key > %(after)s::text
        AND pg_try_advisory_xact_lock(1684828527, 0)
      ORDER BY lock_key LIMIT 1)
    UNION ALL
    SELECT (SELECT j.lock_key FROM dl_jobs j
             WHERE j.status = 'queued' AND j.wait_state = 'blocked' AND j.lock_key > keys.lock_key
             ORDER BY j.lock_key LIMIT 1)
      FROM keys
     WHERE keys.lock_key IS NOT NULL
), batch AS MATERIALIZED (
    (SELECT lock_key FROM keys WHERE lock_key IS NOT NULL LIMIT %(max_keys)s::int)
    UNION ALL  -- a key may be the empty text, and nothing is before it
    (SELECT lock_key FROM dl_jobs
      WHERE %(after)s::text = '' AND status = 'queued' AND wait_state = 'blocked' AND lock_key = '' LIMIT 1)
), held AS MATERIALIZED (
    SELECT (classid::bigint << 32) | objid::bigint AS hash
      FROM pg_locks
     WHERE locktype = 'advisory' AND objsubid = 1 AND granted
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
), free AS MATERIALIZED (
    SELECT lock_key
      FROM batch
     WHERE lock_key NOT IN (SELECT m.lock_key FROM dl_jobs m
                             WHERE m.job_id = ANY (%(repaired_jobs)s::uuid[]) AND m.status::text = 'queued' AND m.wait_state::text = 'ready')
       AND NOT EXISTS (SELECT FROM dl_jobs r WHERE r.lock_key BETWEEN batch.lock_key AND batch.lock_key AND r.status = 'running' OFFSET 0)
       AND hashtext(lock_key)::bigint NOT IN (SELECT hash FROM held)
)
SELECT set_config('dl.cursor', coalesce((SELECT max(lock_key) FROM batch), ''), true),
       set_config('dl.free_keys', coalesce(jsonb_agg(lock_key), '[]')::text, true)
  FROM free
 WHERE pg_try_advisory_xact_lock(1684828526, hashtext(lock_key));

SELECT current_setting('dl.cursor') AS cursor, unblocked.lock_key, current_setting('dl.made_ready', true) AS made_ready
  FROM (VALUES (1)) AS single (n)
       LEFT JOIN dl_unblock_next(ARRAY(SELECT jsonb_array_elements_text(current_setting('dl.free_keys')::jsonb)))
                 AS unblocked (lock_key) ON true;

-- name: expire
-- prepared
-- queued -> canceled: jobs that have not started by their `expires_at`, at most 500. A claim passes over them.
WITH old AS MATERIALIZED (
    SELECT job_id, lock_key
      FROM dl_jobs
     WHERE status = 'queued' AND expires_at <= (SELECT clock_timestamp())
     ORDER BY expires_at
     LIMIT 500
)
SELECT set_config('dl.expired_jobs', (SELECT coalesce(string_agg(job_id::text, ','), '') FROM old), true),
       count(pg_advisory_xact_lock(1684828526, hash))
  FROM (SELECT DISTINCT hashtext(lock_key) AS hash FROM old ORDER BY 1 OFFSET 0) ordered;

WITH old AS MATERIALIZED (
    SELECT job_id, waits_on
      FROM dl_jobs
     WHERE job_id = ANY (string_to_array(current_setting('dl.expired_jobs', true), ',')::uuid[])
       AND status::text = 'queued' AND expires_at <= clock_timestamp()
     ORDER BY job_id
       FOR NO KEY UPDATE SKIP LOCKED
), expired AS (
    UPDATE dl_jobs j
       SET status = 'canceled', wait_state = 'scheduled', waits_on = NULL, unknown_task = false, finished_at = clock_timestamp(),
           error = 'it had not started by ' || j.expires_at
      FROM old
     WHERE j.job_id = ANY (ARRAY[old.job_id])
    RETURNING j.job_id, j.queue, j.lock_key, j.attempt, j.error, j.webhook, old.waits_on AS woken_for
), events AS (
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, clock_timestamp(), 'canceled',
           jsonb_build_object('status', 'canceled', 'attempt', attempt, 'reason', 'expired', 'error', error)
      FROM expired
)
SELECT count(*)::int,
       (SELECT count(*) FROM dl_unblock_next((SELECT array_agg(DISTINCT lock_key) FROM expired))) AS unblocked,
       (SELECT dl_jobs_ended(job_ids => array_agg(job_id), has_webhook => bool_or(webhook IS NOT NULL),
                             woken_for => array_agg(woken_for) FILTER (WHERE woken_for IS NOT NULL))
          FROM expired) AS woken
  FROM expired;

-- name: has_ready_jobs
-- This and the following are asked in one statement with those of other duties: see Duty.has_work.
SELECT EXISTS (SELECT FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready');

-- name: has_blocked_jobs
SELECT EXISTS (SELECT FROM dl_jobs WHERE status = 'queued' AND wait_state = 'blocked');

-- name: has_expired_jobs
SELECT EXISTS (SELECT FROM dl_jobs WHERE status = 'queued' AND expires_at <= (SELECT clock_timestamp()));

-- name: promote_overdue
-- Makes ready what has been due for however long: claims behind a position do so only with what fell due in the last ten seconds. No queue
-- is the one that is claimed from, so each is notified.
SELECT dl_promote_due('');

-- name: find_first_ready
-- The position of the first ready job of a queue that a process can claim, and how many seconds the search took: as long as that of a claim
-- from the front, so behind the first one too. If there is none, the position of a job with `quiet_priority` that was created five seconds ago:
-- no older one is ready.
SELECT coalesce(ready.positions[1:1][1:3], CASE WHEN %(quiet_priority)s::text IS NOT NULL THEN
           ARRAY[[%(quiet_priority)s::text, (clock_timestamp() - interval '5 s')::text, '00000000-0000-0000-0000-000000000000']] END) AS position,
       extract(epoch FROM clock_timestamp() - statement_timestamp())::float8 AS took_sec
  FROM (SELECT array_agg(ARRAY[r.priority::text, r.created_at::text, r.job_id::text]) AS positions
          FROM (SELECT j.priority, j.created_at, j.job_id
                  FROM dl_jobs j
                 WHERE j.queue = %(queue)s::text AND j.status = 'queued' AND j.wait_state = 'ready' AND j.task = ANY (%(tasks)s::text[])
                   AND (j.expires_at IS NULL OR j.expires_at > clock_timestamp())
                 ORDER BY j.priority, j.created_at, j.job_id
                 LIMIT 100) r) ready;
