-- The question where a run is, and the answer of its worker process. Nothing is written while nothing is asked.

-- name: ask_where
-- Ask the process of a run, unless an answer is there that is younger than `max_age_sec`. Returns that answer, and the time.
WITH known AS (
    SELECT answer FROM dl_where
     WHERE run_id = %(run_id)s::uuid AND answered_at > clock_timestamp() - %(max_age_sec)s * interval '1 second'
)
SELECT (SELECT answer FROM known), clock_timestamp(),
       CASE WHEN NOT EXISTS (SELECT FROM known) THEN pg_notify('dl_control', 'where ' || %(run_id)s::text) END;

-- name: read_where
SELECT answer FROM dl_where WHERE run_id = %(run_id)s::uuid AND answered_at >= %(asked_at)s::timestamptz;

-- name: answer_where
-- Write the answers for these runs, and delete those that are too old to be of use.
WITH old AS MATERIALIZED (
    SELECT run_id FROM dl_where
     WHERE answered_at < clock_timestamp() - interval '1 minute' AND run_id <> ALL (%(run_ids)s::uuid[])
       FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM dl_where w USING old WHERE w.run_id = old.run_id
)
INSERT INTO dl_where AS w (run_id, answer, answered_at)
SELECT run_id, answer, clock_timestamp()
  FROM unnest(%(run_ids)s::uuid[], %(answers)s::text[]) AS a (run_id, answer)
 ORDER BY run_id
    ON CONFLICT (run_id) DO UPDATE SET answer = EXCLUDED.answer, answered_at = EXCLUDED.answered_at;

-- name: where_worker
-- The worker process of a run: when it last sent a heartbeat, and whether notifications reach it.
SELECT w.listener, extract(epoch FROM clock_timestamp() - dl_last_beat(w.worker_id, w.seen_at))::float8
  FROM dl_jobs j JOIN dl_workers w ON w.worker_id = j.worker_id
 WHERE j.job_id = %(job_id)s::uuid AND j.status = 'running' AND j.run_id = %(run_id)s::uuid;

-- name: where_running
-- Running jobs, those first that have run longest, of a queue and a task if they are given.
SELECT j.job_id, j.status::text, j.run_id, j.attempt, j.worker, j.task, j.queue, j.max_attempts,
       extract(epoch FROM clock_timestamp() - coalesce(
           (SELECT max(e.ts) FROM dl_job_events e WHERE e.job_id = j.job_id AND e.kind = 'picked'), j.started_at))::float8,
       dl_current_progress(j.status, j.job_id, j.run_id, j.heartbeat_at, j.progress)::text
  FROM dl_jobs j
 WHERE j.status = 'running' AND j.run_id IS NOT NULL
   AND (%(queue)s::text IS NULL OR j.queue = %(queue)s::text) AND (%(task)s::text IS NULL OR j.task = %(task)s::text)
 ORDER BY j.started_at, j.job_id
 LIMIT %(limit)s::int;

-- name: ask_where_all
-- Ask the processes of these runs, but for those with an answer that is younger than `max_age_sec`.
SELECT clock_timestamp(), count(pg_notify('dl_control', 'where ' || asked.run_id))
  FROM unnest(%(run_ids)s::uuid[]) AS asked (run_id)
 WHERE NOT EXISTS (SELECT FROM dl_where w
                    WHERE w.run_id = asked.run_id AND w.answered_at > clock_timestamp() - %(max_age_sec)s * interval '1 second');

-- name: read_where_all
-- The answers for these runs that are at most `max_age_sec` older than the question.
SELECT run_id, answer
  FROM dl_where
 WHERE run_id = ANY (%(run_ids)s::uuid[]) AND answered_at > %(asked_at)s::timestamptz - %(max_age_sec)s * interval '1 second';
