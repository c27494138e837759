-- Operations on all jobs that fit a filter, in batches. A batch is one transaction: it holds the operation's row, changes
-- some jobs, and moves the mark on. Whoever dies in it leaves no trace, and the next one goes on at the mark.

-- name: ask_bulk
INSERT INTO dl_bulk (action, filter, priority, expected, asked_by)
VALUES (%(action)s::text, %(filter)s::jsonb, %(priority)s::int, %(expected)s::bigint, %(by)s::text)
RETURNING bulk_id, pg_notify('dl_control', 'bulk');

-- name: bulk
SELECT bulk_id, action, filter::text, priority, expected, state, cancel_requested, looked, matched, changed, seen_at, seen_id,
       asked_by, error, created_at, started_at, finished_at
  FROM dl_bulk
 WHERE bulk_id = %(bulk_id)s::uuid;

-- name: bulk_list
SELECT bulk_id, action, filter::text, priority, expected, state, cancel_requested, looked, matched, changed, seen_at, seen_id,
       asked_by, error, created_at, started_at, finished_at
  FROM dl_bulk
 ORDER BY created_at DESC, bulk_id DESC
 LIMIT %(limit)s::int;

-- name: next_bulk
-- The oldest operation that is not over; and begin it.
UPDATE dl_bulk
   SET state = CASE WHEN cancel_requested THEN 'canceled' ELSE 'running' END,
       started_at = coalesce(started_at, clock_timestamp()),
       finished_at = CASE WHEN cancel_requested THEN clock_timestamp() END
 WHERE bulk_id = (SELECT bulk_id FROM dl_bulk
                   WHERE state IN ('waiting', 'running') ORDER BY created_at, bulk_id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING bulk_id, action, filter::text, priority, expected, state, cancel_requested, looked, matched, changed, seen_at,
          seen_id, asked_by, error, created_at, started_at, finished_at;

-- name: cancel_bulk
UPDATE dl_bulk SET cancel_requested = true
 WHERE bulk_id = %(bulk_id)s::uuid AND state IN ('waiting', 'running')
RETURNING bulk_id;

-- name: end_bulk
UPDATE dl_bulk SET state = %(state)s::text, error = %(error)s::text, finished_at = clock_timestamp()
 WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running'
RETURNING bulk_id;

-- name: fail_bulk_batch
-- A batch failed. It is tried again by whoever comes; after ten times in a row the operation has failed.
UPDATE dl_bulk
   SET tries = tries + 1, error = %(error)s::text,
       state = CASE WHEN tries >= 9 THEN 'failed' ELSE state END,
       finished_at = CASE WHEN tries >= 9 THEN clock_timestamp() END
 WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running';

-- name: bulk_cancel
-- queued -> canceled; running: the flag, of which a trigger notifies its worker. Like `cancel`, for many.
SELECT bulk_id FROM dl_bulk
 WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running' AND (seen_at, seen_id) = (%(at)s::timestamptz, %(id)s::uuid)
   FOR UPDATE;

SELECT count(pg_advisory_xact_lock(1684828526, hash))
  FROM (SELECT DISTINCT hashtext(lock_key) AS hash
          FROM dl_jobs
         WHERE job_id = ANY (%(job_ids)s::uuid[]) AND status::text = 'queued'
         ORDER BY 1 OFFSET 0) ordered;

WITH op AS MATERIALIZED (
    SELECT bulk_id FROM dl_bulk
     WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running' AND (seen_at, seen_id) = (%(at)s::timestamptz, %(id)s::uuid)
), meant AS MATERIALIZED (
    SELECT j.job_id
      FROM dl_jobs j
     WHERE j.job_id = ANY (%(job_ids)s::uuid[]) AND EXISTS (SELECT FROM op)
       AND (j.status::text = 'queued' OR j.status::text = 'running' AND NOT j.cancel_requested)
       AND dl_job_fits(j, %(filter)s::jsonb)
     ORDER BY j.job_id
       FOR NO KEY UPDATE
), canceled AS (
    UPDATE dl_jobs j
       SET status = CASE WHEN j.status = 'queued' THEN 'canceled'::dl_status ELSE j.status END,
           finished_at = CASE WHEN j.status = 'queued' THEN clock_timestamp() END,
           place = 'timed', stray = false, cancel_requested = true
      FROM meant
     WHERE j.job_id = ANY (ARRAY[meant.job_id])
    RETURNING j.job_id, j.queue, j.lock_key, j.status, j.attempt, j.webhook
), next AS (
    SELECT p.job_id
      FROM (SELECT DISTINCT lock_key FROM canceled WHERE status = 'canceled') freed
           CROSS JOIN LATERAL (SELECT job_id
                                 FROM dl_jobs
                                WHERE lock_key = freed.lock_key AND status = 'queued' AND place = 'parked'
                                  AND job_id <> ALL (%(job_ids)s::uuid[])
                                ORDER BY priority, created_at, job_id
                                LIMIT 1
                                  FOR NO KEY UPDATE SKIP LOCKED) p
     WHERE NOT EXISTS (SELECT FROM dl_jobs r WHERE r.lock_key = freed.lock_key AND r.status = 'running' OFFSET 0)
), woken AS (
    UPDATE dl_jobs j SET place = 'ready' FROM next WHERE j.job_id = ANY (ARRAY[next.job_id]) RETURNING j.queue
), journal AS (
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, clock_timestamp(), 'canceled', jsonb_build_object('status', status, 'attempt', attempt)
      FROM canceled
     WHERE status = 'canceled'
), on_ AS (
    UPDATE dl_bulk b
       SET seen_at = %(to_at)s::timestamptz, seen_id = %(to_id)s::uuid, tries = 0, error = NULL,
           looked = looked + %(looked)s::int, matched = matched + %(matched)s::int,
           changed = changed + (SELECT count(*) FROM canceled)
     WHERE b.bulk_id IN (SELECT bulk_id FROM op)
    RETURNING b.changed
)
SELECT (SELECT changed FROM on_),
       (SELECT count(dl_ring(queue)) FROM (SELECT DISTINCT queue FROM woken) w) AS woken,
       (SELECT dl_tell(array_agg(job_id)) FROM canceled WHERE status = 'canceled'
           AND (webhook IS NOT NULL OR (SELECT EXISTS (SELECT FROM dl_webhooks WHERE disabled_at IS NULL)))) AS told;

-- name: bulk_retry
-- failed | canceled | lost -> queued, like `retry`. Of several with one live key the newest.
SELECT bulk_id FROM dl_bulk
 WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running' AND (seen_at, seen_id) = (%(at)s::timestamptz, %(id)s::uuid)
   FOR UPDATE;

WITH op AS MATERIALIZED (
    SELECT bulk_id FROM dl_bulk
     WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running' AND (seen_at, seen_id) = (%(at)s::timestamptz, %(id)s::uuid)
), held AS MATERIALIZED (
    SELECT j.job_id, j.live_key, j.created_at
      FROM dl_jobs j
     WHERE j.job_id = ANY (%(job_ids)s::uuid[]) AND EXISTS (SELECT FROM op)
       AND j.status::text IN ('failed', 'canceled', 'lost') AND dl_job_fits(j, %(filter)s::jsonb)
       AND NOT EXISTS (SELECT FROM dl_jobs other
                        WHERE other.live_key = j.live_key AND other.status IN ('queued', 'running'))
     ORDER BY j.job_id
       FOR NO KEY UPDATE
), meant AS MATERIALIZED (
    SELECT job_id
      FROM (SELECT *, row_number() OVER (PARTITION BY coalesce(live_key, job_id::text) ORDER BY created_at DESC) AS turn
              FROM held) ranked
     WHERE turn = 1
), again AS (
    UPDATE dl_jobs j
       SET status = 'queued', place = 'ready', attempt = 0, crashes = 0, cancel_requested = false,
           available_at = clock_timestamp(), error = NULL, traceback = NULL, result = NULL, progress = '{}',
           started_at = NULL, finished_at = NULL, heartbeat_at = NULL
      FROM meant
     WHERE j.job_id = ANY (ARRAY[meant.job_id])
    RETURNING j.job_id, j.queue
), journal AS (
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, clock_timestamp(), 'requeue',
           jsonb_build_object('status', 'queued', 'attempt', 0, 'reason', 'retry')
      FROM again
)
UPDATE dl_bulk b
   SET seen_at = %(to_at)s::timestamptz, seen_id = %(to_id)s::uuid, tries = 0, error = NULL,
       looked = looked + %(looked)s::int, matched = matched + %(matched)s::int,
       changed = changed + (SELECT count(*) FROM again)
 WHERE b.bulk_id IN (SELECT bulk_id FROM op)
RETURNING b.changed;

-- name: bulk_delete
-- Finished jobs go, with their journals and logs.
SELECT bulk_id FROM dl_bulk
 WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running' AND (seen_at, seen_id) = (%(at)s::timestamptz, %(id)s::uuid)
   FOR UPDATE;

WITH op AS MATERIALIZED (
    SELECT bulk_id FROM dl_bulk
     WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running' AND (seen_at, seen_id) = (%(at)s::timestamptz, %(id)s::uuid)
), meant AS MATERIALIZED (
    SELECT j.job_id
      FROM dl_jobs j
     WHERE j.job_id = ANY (%(job_ids)s::uuid[]) AND EXISTS (SELECT FROM op)
       AND j.status::text IN ('succeeded', 'failed', 'canceled', 'lost') AND dl_job_fits(j, %(filter)s::jsonb)
     ORDER BY j.job_id
       FOR UPDATE
), gone AS (
    DELETE FROM dl_jobs j USING meant WHERE j.job_id = ANY (ARRAY[meant.job_id]) RETURNING j.job_id
), lines AS (
    DELETE FROM dl_job_logs WHERE job_id IN (SELECT job_id FROM gone)
)
UPDATE dl_bulk b
   SET seen_at = %(to_at)s::timestamptz, seen_id = %(to_id)s::uuid, tries = 0, error = NULL,
       looked = looked + %(looked)s::int, matched = matched + %(matched)s::int,
       changed = changed + (SELECT count(*) FROM gone)
 WHERE b.bulk_id IN (SELECT bulk_id FROM op)
RETURNING b.changed;

-- name: bulk_reprioritise
-- queued -> queued, with another priority.
SELECT bulk_id FROM dl_bulk
 WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running' AND (seen_at, seen_id) = (%(at)s::timestamptz, %(id)s::uuid)
   FOR UPDATE;

WITH op AS MATERIALIZED (
    SELECT bulk_id, priority FROM dl_bulk
     WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running' AND (seen_at, seen_id) = (%(at)s::timestamptz, %(id)s::uuid)
), meant AS MATERIALIZED (
    SELECT j.job_id, j.priority AS before, op.priority
      FROM dl_jobs j, op
     WHERE j.job_id = ANY (%(job_ids)s::uuid[]) AND j.status::text = 'queued' AND j.priority <> op.priority
       AND dl_job_fits(j, %(filter)s::jsonb)
     ORDER BY j.job_id
       FOR NO KEY UPDATE OF j
), moved AS (
    UPDATE dl_jobs j SET priority = meant.priority FROM meant WHERE j.job_id = ANY (ARRAY[meant.job_id])
    RETURNING j.job_id, j.queue, j.attempt, meant.before, j.priority
), journal AS (
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, clock_timestamp(), 'edited',
           jsonb_build_object('status', 'queued', 'attempt', attempt, 'reason', 'edited',
                              'before', jsonb_build_object('priority', before),
                              'after', jsonb_build_object('priority', priority))
      FROM moved
)
UPDATE dl_bulk b
   SET seen_at = %(to_at)s::timestamptz, seen_id = %(to_id)s::uuid, tries = 0, error = NULL,
       looked = looked + %(looked)s::int, matched = matched + %(matched)s::int,
       changed = changed + (SELECT count(*) FROM moved)
 WHERE b.bulk_id IN (SELECT bulk_id FROM op)
RETURNING b.changed;

-- name: prune_bulk
DELETE FROM dl_bulk WHERE finished_at < clock_timestamp() - interval '90 days';
