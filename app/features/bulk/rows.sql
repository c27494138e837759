-- Bulk operations on all jobs that match a filter, in batches. A batch is one transaction: it locks the operation's row,
-- changes some jobs, and advances the cursor. If the process dies, the batch is rolled back, and another process repeats it.

-- define: bulk_columns
       bulk_id, action, filter::text, priority, per_minute, max_jobs, args_patch::text, expected, state, cancel_requested, scanned,
       matched, changed, cursor_at, requested_by, error, created_at, started_at, finished_at, next_step_at

-- define: lock_operation
SELECT bulk_id FROM dl_bulk
 WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running' AND (cursor_at, cursor_id) = (%(from_at)s::timestamptz, %(from_id)s::uuid)
   FOR UPDATE;

-- define: operation
operation AS MATERIALIZED (
    SELECT bulk_id, action, priority, args_patch
      FROM dl_bulk
     WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running' AND (cursor_at, cursor_id) = (%(from_at)s::timestamptz, %(from_id)s::uuid)
)

-- define: advanced_cursor
       cursor_at = %(to_at)s::timestamptz, cursor_id = %(to_id)s::uuid, failed_batches = 0, error = NULL,
       scanned = scanned + %(scanned)s::int, matched = matched + %(matched)s::int,

-- name: create_bulk
-- The cursor of redrive starts before all jobs, that of the others after all.
INSERT INTO dl_bulk (action, filter, priority, expected, requested_by, per_minute, max_jobs, args_patch, cursor_at, cursor_id)
VALUES (%(action)s::text, %(filter)s::jsonb, %(priority)s::int, %(expected)s::bigint, %(requested_by)s::text,
        %(per_minute)s::int, %(max_jobs)s::bigint, %(args_patch)s::jsonb,
        CASE %(action)s::text WHEN 'redrive' THEN '1970-01-01 00:00:00+00' ELSE clock_timestamp() END,
        CASE %(action)s::text WHEN 'redrive' THEN '00000000-0000-0000-0000-000000000000'::uuid
                              ELSE 'ffffffff-ffff-ffff-ffff-ffffffffffff' END)
RETURNING bulk_id, pg_notify('dl_control', 'bulk');

-- name: get_bulk
SELECT
       -- include: bulk_columns
  FROM dl_bulk
 WHERE bulk_id = %(bulk_id)s::uuid;

-- name: list_bulk
SELECT
       -- include: bulk_columns
  FROM dl_bulk
 ORDER BY created_at DESC, bulk_id DESC
 LIMIT %(limit)s::int;

-- name: lease_bulk
-- prepared
-- Start or continue the oldest unfinished operation whose next step is due, or finish it if its cancel is requested.
UPDATE dl_bulk
   SET state = CASE WHEN cancel_requested THEN 'canceled' ELSE 'running' END,
       started_at = coalesce(started_at, clock_timestamp()),
       finished_at = CASE WHEN cancel_requested THEN clock_timestamp() END
 WHERE bulk_id = (SELECT bulk_id FROM dl_bulk
                   WHERE state IN ('waiting', 'running')
                     AND (next_step_at IS NULL OR next_step_at <= clock_timestamp() OR cancel_requested)
                   ORDER BY created_at, bulk_id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING cursor_id,
       -- include: bulk_columns;

-- name: next_bulk_step
-- prepared
SELECT extract(epoch FROM min(next_step_at) - clock_timestamp())::float8 FROM dl_bulk WHERE state IN ('waiting', 'running');

-- name: open_breakers
-- Of these tasks, those whose circuit breaker is open. One that is half open needs a job to close it.
SELECT task FROM dl_breakers WHERE state = 'open' AND task = ANY (%(tasks)s::text[]) ORDER BY task;

-- name: patched_args
-- The args that the jobs would have.
SELECT job_id, task, dl_json_text(CASE jsonb_typeof(args) WHEN 'object' THEN args || %(args_patch)s::jsonb ELSE args END)
  FROM dl_jobs
 WHERE job_id = ANY (%(job_ids)s::uuid[]);

-- name: cancel_bulk
UPDATE dl_bulk SET cancel_requested = true
 WHERE bulk_id = %(bulk_id)s::uuid AND state IN ('waiting', 'running')
RETURNING bulk_id;

-- name: finish_bulk
UPDATE dl_bulk SET state = %(state)s::text, error = %(error)s::text, finished_at = clock_timestamp()
 WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running'
RETURNING bulk_id;

-- name: fail_bulk_batch
-- Count a failed batch, which is then repeated; after ten failures in a row the operation fails.
UPDATE dl_bulk
   SET failed_batches = failed_batches + 1, error = %(error)s::text,
       state = CASE WHEN failed_batches >= 9 THEN 'failed' ELSE state END,
       finished_at = CASE WHEN failed_batches >= 9 THEN clock_timestamp() END
 WHERE bulk_id = %(bulk_id)s::uuid AND state = 'running';

-- name: bulk_cancel
-- As `cancel`, of the jobs that still match.
-- include: lock_operation

WITH
-- include: operation
, canceled AS MATERIALIZED (
    SELECT bulk_id, dl_cancel_jobs(%(job_ids)s::uuid[], %(filter)s::jsonb) AS jobs FROM operation
)
UPDATE dl_bulk b SET
       -- include: advanced_cursor
       changed = changed + canceled.jobs
  FROM canceled
 WHERE b.bulk_id = canceled.bulk_id
RETURNING b.changed;

-- name: bulk_retry
-- As `retry`, of the jobs that still match; also the step of a redrive, which merges its patch into the jobs' args, and after which the next
-- step is `pause_sec` later, if it has changed any job.
-- include: lock_operation

WITH
-- include: operation
, requeued AS MATERIALIZED (
    SELECT bulk_id, coalesce(cardinality(dl_retry_jobs(%(job_ids)s::uuid[], action, %(filter)s::jsonb, args_patch)), 0) AS jobs FROM operation
)
UPDATE dl_bulk b SET
       -- include: advanced_cursor
       changed = changed + requeued.jobs,
       next_step_at = CASE WHEN requeued.jobs > 0 THEN clock_timestamp() + make_interval(secs => %(pause_sec)s::float8)
                           ELSE next_step_at END
  FROM requeued
 WHERE b.bulk_id = requeued.bulk_id
RETURNING b.changed;

-- name: bulk_delete
-- Delete finished jobs, with their events and logs; not those whose result a job of their graph may read.
-- include: lock_operation

WITH
-- include: operation
, targets AS MATERIALIZED (
    SELECT j.job_id
      FROM dl_jobs j
     WHERE j.job_id = ANY (%(job_ids)s::uuid[]) AND EXISTS (SELECT FROM operation)
       AND j.status::text IN ('succeeded', 'failed', 'canceled', 'lost') AND dl_job_matches(j, %(filter)s::jsonb)
       AND (j.graph_id IS NULL OR NOT dl_is_result_needed(j.job_id, j.graph_id))
     ORDER BY j.job_id
       FOR UPDATE
), deleted AS (
    DELETE FROM dl_jobs j USING targets WHERE j.job_id = ANY (ARRAY[targets.job_id]) RETURNING j.job_id
), deleted_logs AS (
    DELETE FROM dl_job_logs WHERE job_id IN (SELECT job_id FROM deleted)
)
UPDATE dl_bulk b SET
       -- include: advanced_cursor
       changed = changed + (SELECT count(*) FROM deleted)
 WHERE b.bulk_id IN (SELECT bulk_id FROM operation)
RETURNING b.changed;

-- name: bulk_reprioritise
-- queued -> queued, with another priority.
-- include: lock_operation

WITH
-- include: operation
, targets AS MATERIALIZED (
    SELECT j.job_id, j.priority AS before, operation.priority
      FROM dl_jobs j, operation
     WHERE j.job_id = ANY (%(job_ids)s::uuid[]) AND j.status::text = 'queued' AND j.priority <> operation.priority
       AND dl_job_matches(j, %(filter)s::jsonb)
     ORDER BY j.job_id
       FOR NO KEY UPDATE OF j
), changed_jobs AS (
    UPDATE dl_jobs j SET priority = targets.priority FROM targets WHERE j.job_id = ANY (ARRAY[targets.job_id])
    RETURNING j.job_id, j.queue, j.attempt, targets.before, j.priority
), events AS (
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, clock_timestamp(), 'edited',
           jsonb_build_object('status', 'queued', 'attempt', attempt, 'reason', 'edited',
                              'before', jsonb_build_object('priority', before),
                              'after', jsonb_build_object('priority', priority))
      FROM changed_jobs
)
UPDATE dl_bulk b SET
       -- include: advanced_cursor
       changed = changed + (SELECT count(*) FROM changed_jobs)
 WHERE b.bulk_id IN (SELECT bulk_id FROM operation)
RETURNING b.changed;

-- name: prune_bulk
DELETE FROM dl_bulk WHERE finished_at < clock_timestamp() - interval '90 days';

-- name: has_bulk_operations
SELECT EXISTS (SELECT FROM dl_bulk WHERE state IN ('waiting', 'running'));
