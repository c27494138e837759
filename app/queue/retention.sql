-- What is got rid of: jobs that ended long ago, and parts of the journal and of the logs. By whoever keeps house, one
-- process at a time, a few at a time, and never waiting for anybody.

-- name: keep_house
-- Is it our turn? The lock is the session's, so the answer holds as long as the connection does.
SELECT pg_try_advisory_lock(1684828527, 4);

-- name: retention_held
-- Do the tables come from before versions? Nothing was ever deleted from those.
SELECT EXISTS (SELECT FROM dl_schema WHERE version = 0);

-- name: retire_keys
-- First step: the keys of what is about to be deleted are written down. "Unique for ever" outlives the job.
SELECT set_config('lock_timeout', '500ms', true), set_config('statement_timeout', '10s', true),
       set_config('enable_seqscan', 'off', true);

WITH RECURSIVE kinds AS (
    (SELECT status, task FROM dl_jobs
      WHERE status IN ('succeeded', 'failed', 'canceled', 'lost') ORDER BY status, task LIMIT 1)
    UNION ALL
    SELECT next.status, next.task
      FROM kinds
           CROSS JOIN LATERAL (SELECT j.status, j.task FROM dl_jobs j
                                WHERE j.status IN ('succeeded', 'failed', 'canceled', 'lost')
                                  AND (j.status, j.task) > (kinds.status, kinds.task)
                                ORDER BY j.status, j.task LIMIT 1) next
), ages AS MATERIALIZED (
    SELECT k.status, k.task,
           clock_timestamp() - make_interval(secs => coalesce(
               (%(of_tasks)s::jsonb -> k.task ->> k.status::text)::float8,
               (%(of_all)s::jsonb ->> k.status::text)::float8)) AS before
      FROM (SELECT * FROM kinds LIMIT 10000) k
), old AS MATERIALIZED (
    SELECT o.*
      FROM ages
           CROSS JOIN LATERAL (SELECT j.job_id, j.status, j.task, j.queue, j.args, j.idempotency_key, j.request_hash
                                 FROM dl_jobs j
                                WHERE j.status = ages.status AND j.task = ages.task
                                  AND j.status IN ('succeeded', 'failed', 'canceled', 'lost')
                                  AND j.finished_at < ages.before
                                ORDER BY j.finished_at
                                LIMIT %(most)s::int) o
     LIMIT %(most)s::int
), retired AS (
    INSERT INTO dl_retired_keys (key_hash, job_id, status, request_hash)
    SELECT dl_key_hash(idempotency_key), job_id, status, coalesce(request_hash, dl_request_hash(queue, task, args))
      FROM old
     WHERE idempotency_key IS NOT NULL AND NOT %(dry)s::bool
        ON CONFLICT (key_hash) DO UPDATE SET status = excluded.status
    RETURNING job_id
)
SELECT job_id, status::text, task, (SELECT count(*) FROM retired) AS keys FROM old;

-- name: delete_ended
-- Second step, when the first has been committed: the jobs themselves, with their journal. One that was retried meanwhile,
-- or is held by somebody, stays; so does one that jobs which have not ended were asked for by.
SELECT set_config('lock_timeout', '500ms', true), set_config('statement_timeout', '10s', true);

WITH old AS MATERIALIZED (
    SELECT job_id
      FROM dl_jobs j
     WHERE job_id = ANY (%(job_ids)s::uuid[]) AND status::text NOT IN ('queued', 'running')
       AND NOT EXISTS (SELECT FROM dl_jobs c
                        WHERE c.parent_id = j.job_id AND c.parent_id IS NOT NULL AND c.status::text IN ('queued', 'running'))
       FOR UPDATE SKIP LOCKED
)
DELETE FROM dl_jobs WHERE job_id = ANY (ARRAY(SELECT job_id FROM old)) RETURNING job_id, status::text, task;

-- name: unretire_keys
-- A job that was not deleted after all keeps its key itself.
DELETE FROM dl_retired_keys k
 USING dl_jobs j
 WHERE k.job_id = ANY (%(job_ids)s::uuid[]) AND j.job_id = ANY (ARRAY[k.job_id]);

-- name: forget_keys
-- Keys that were retired long ago, where somebody has said that "for ever" may end.
WITH old AS (
    SELECT key_hash FROM dl_retired_keys
     WHERE retired_at < clock_timestamp() - make_interval(secs => %(keep_sec)s::float8)
     ORDER BY retired_at LIMIT %(most)s::int
)
DELETE FROM dl_retired_keys WHERE key_hash IN (SELECT key_hash FROM old) RETURNING 1;

-- name: make_parts
SELECT dl_make_parts(%(parent)s::text, make_interval(secs => %(span_sec)s::float8), make_interval(secs => %(ahead_sec)s::float8));

-- name: move_on
SELECT dl_move_on(%(parent)s::text);

-- name: drop_parts
SELECT dl_drop_parts(%(parent)s::text, make_interval(secs => %(keep_sec)s::float8), %(dry)s::bool);
