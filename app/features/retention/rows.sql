-- Retention: deletes old finished jobs, and old partitions of events and logs. The maintenance leader does so in small
-- batches with a short lock timeout, so that no other transaction waits for long.

-- name: is_retention_paused
-- Whether the schema was upgraded from version 0, whose jobs were never deleted.
SELECT EXISTS (SELECT FROM dl_schema WHERE version = 0);

-- name: finished_jobs_due
-- Finished jobs that are older than the retention period of their status and task, oldest first, behind the position `after_…`.
-- Jobs that end at one time are few: sorting by `job_id` reads no more than these in addition, if nothing sorts all (`enable_sort`).
SELECT set_config('lock_timeout', '500ms', true), set_config('statement_timeout', '10s', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true);

WITH RECURSIVE kinds AS (
    (SELECT status, task FROM dl_jobs
      WHERE status IN ('succeeded', 'failed', 'canceled', 'lost')
        AND (status, task) >= (%(after_status)s::dl_status, %(after_task)s::text)
      ORDER BY status, task LIMIT 1)
    UNION ALL
    SELECT next.status, next.task
      FROM kinds
           CROSS JOIN LATERAL (SELECT j.status, j.task FROM dl_jobs j
                                WHERE j.status IN ('succeeded', 'failed', 'canceled', 'lost')
                                  AND (j.status, j.task) > (kinds.status, kinds.task)
                                ORDER BY j.status, j.task LIMIT 1) next
), limits AS MATERIALIZED (
    SELECT k.status, k.task,
           clock_timestamp() - make_interval(secs => coalesce(
               (%(by_task)s::jsonb -> k.task ->> k.status::text)::float8,
               (%(by_status)s::jsonb ->> k.status::text)::float8)) AS before,
           CASE WHEN (k.status, k.task) = (%(after_status)s::dl_status, %(after_task)s::text)
                THEN %(after_finished_at)s::timestamptz ELSE '-infinity' END AS after_finished_at
      FROM (SELECT * FROM kinds LIMIT 10000) k
)
SELECT o.job_id, o.status::text, o.task, o.finished_at::text
  FROM limits
       CROSS JOIN LATERAL (SELECT j.job_id, j.status, j.task, j.finished_at
                             FROM dl_jobs j
                            WHERE j.status = limits.status AND j.task = limits.task
                              AND j.status IN ('succeeded', 'failed', 'canceled', 'lost')
                              AND j.finished_at < limits.before
                              AND (j.finished_at, j.job_id) > (limits.after_finished_at, %(after_job_id)s::uuid)
                            ORDER BY j.finished_at, j.job_id
                            LIMIT %(limit)s::int) o
 LIMIT %(limit)s::int;

-- name: delete_finished
-- Delete these jobs with their events. A job that was retried meanwhile or is locked stays; so does one with unfinished
-- follow-ups, and one whose result may be read.
SELECT set_config('lock_timeout', '500ms', true), set_config('statement_timeout', '10s', true);

WITH open_graphs AS MATERIALIZED (  -- looked up once each: a graph has up to ten thousand jobs
    SELECT graph_id
      FROM (SELECT DISTINCT graph_id FROM dl_jobs WHERE job_id = ANY (%(job_ids)s::uuid[]) OFFSET 0) g
     WHERE dl_is_result_needed(NULL, graph_id)
), old AS MATERIALIZED (
    SELECT job_id
      FROM dl_jobs j
     WHERE job_id = ANY (%(job_ids)s::uuid[]) AND status::text NOT IN ('queued', 'running')
       AND NOT EXISTS (SELECT FROM dl_jobs c
                        WHERE c.parent_id = j.job_id AND c.parent_id IS NOT NULL AND c.status::text IN ('queued', 'running'))
       AND (j.graph_id IS NULL OR j.graph_id <> ALL (ARRAY(SELECT graph_id FROM open_graphs))
                                  AND NOT dl_is_result_needed(j.job_id, j.graph_id))
       FOR UPDATE SKIP LOCKED
)
DELETE FROM dl_jobs WHERE job_id = ANY (ARRAY(SELECT job_id FROM old)) RETURNING job_id, status::text, task;

-- name: create_partitions
SELECT dl_create_partitions(%(parent)s::text, make_interval(secs => %(span_sec)s::float8), make_interval(secs => %(ahead_sec)s::float8));

-- name: advance_sequence
SELECT dl_advance_sequence(%(parent)s::text);

-- name: drop_partitions
SELECT dl_drop_partitions(%(parent)s::text, make_interval(secs => %(keep_sec)s::float8), %(dry_run)s::bool);
