-- Circuit breakers of tasks. See the table of schema.sql.

-- name: declare_breakers
-- Creates or updates the breakers that tasks of this process declare, unless a person has changed their numbers.
INSERT INTO dl_breakers AS b (task, failures, window_sec, resume_sec, is_declared)
SELECT d.task, d.failures, d.window_sec, d.resume_sec, true
  FROM jsonb_to_recordset(%(breakers)s::jsonb) AS d (task text, failures int, window_sec int, resume_sec int)
 ORDER BY d.task
    ON CONFLICT (task) DO UPDATE
   SET failures = excluded.failures, window_sec = excluded.window_sec, resume_sec = excluded.resume_sec, is_declared = true
 WHERE (b.is_declared OR b.failures IS NULL)
   AND (b.failures, b.window_sec, b.resume_sec) IS DISTINCT FROM (excluded.failures, excluded.window_sec, excluded.resume_sec);

-- name: set_breaker
-- Create or change a breaker. Without `failures` its numbers stay. With a state: opened until `probe_at`, or without it until a person
-- closes it, or closed, which wakes the jobs that wait.
INSERT INTO dl_breakers AS b (task, failures, window_sec, resume_sec, state, opened_at, probe_at, reason, changed_by)
VALUES (%(task)s::text, %(failures)s::int, %(window_sec)s::int, coalesce(%(resume_sec)s::int, 300),
        coalesce(%(state)s::text, 'closed'), CASE WHEN %(state)s::text <> 'closed' THEN clock_timestamp() END,
        %(probe_at)s::timestamptz, %(reason)s::text, %(changed_by)s::text)
    ON CONFLICT (task) DO UPDATE
   SET failures = coalesce(%(failures)s::int, b.failures),
       window_sec = CASE WHEN %(failures)s::int IS NULL THEN b.window_sec ELSE %(window_sec)s::int END,
       resume_sec = coalesce(%(resume_sec)s::int, b.resume_sec),
       is_declared = b.is_declared AND %(failures)s::int IS NULL AND %(resume_sec)s::int IS NULL,
       state = coalesce(%(state)s::text, b.state),
       failed_in_row = CASE WHEN %(state)s::text IS NULL THEN b.failed_in_row ELSE 0 END,
       opened_at = CASE WHEN %(state)s::text <> 'closed' THEN coalesce(b.opened_at, clock_timestamp()) WHEN %(state)s::text IS NULL THEN b.opened_at END,
       probe_at = CASE WHEN %(state)s::text IS NULL THEN b.probe_at ELSE excluded.probe_at END,
       reason = CASE WHEN %(state)s::text IS NULL THEN b.reason ELSE %(reason)s::text END,
       changed_by = CASE WHEN %(state)s::text IS NULL THEN b.changed_by ELSE excluded.changed_by END,
       changed_at = clock_timestamp();

SELECT count(*) FROM dl_wake_limited(ARRAY['task:' || %(task)s::text]);

-- name: delete_breaker
-- Delete a breaker. Jobs that wait for it may start; a worker that starts creates it again if its task declares one.
WITH deleted AS (
    DELETE FROM dl_breakers WHERE task = %(task)s::text RETURNING task
)
SELECT set_config('dl.deleted', (SELECT count(*) FROM deleted)::text, true);

SELECT count(*) FROM dl_wake_limited(ARRAY['task:' || %(task)s::text]);

SELECT current_setting('dl.deleted')::int;

-- name: breakers
-- Breakers, those that are not closed first: at most `max_rows`; with `task` that one alone. Waiting jobs are counted up to
-- `max_waiting`.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true);

SELECT b.task, b.state, b.failures, b.window_sec, b.resume_sec, b.failed_in_row, b.opened_at, b.probe_at, b.reason, b.is_declared,
       b.changed_by, b.changed_at, w.waiting, w.waiting <= %(max_waiting)s::int AS waiting_exact
  FROM dl_breakers b
       CROSS JOIN LATERAL (SELECT count(*) AS waiting
                             FROM (SELECT FROM dl_jobs j
                                    WHERE j.waits_on = 'task:' || b.task AND j.status = 'queued' AND j.wait_state = 'limited'
                                    LIMIT %(max_waiting)s::int + 1) j) w
 WHERE %(task)s::text IS NULL OR b.task = %(task)s::text
 ORDER BY b.state = 'closed', b.task
 LIMIT %(max_rows)s::int;

-- name: probe_breakers
-- prepared
-- open -> half-open: breakers whose pause is over. One job of each task may start. Returns their tasks, and in a row of its own the
-- seconds until the next pause is over.
WITH due AS (
    SELECT task FROM dl_breakers WHERE state = 'open' AND probe_at <= clock_timestamp() ORDER BY task FOR NO KEY UPDATE SKIP LOCKED
), changed AS (
    UPDATE dl_breakers b SET state = 'half_open', probe_at = NULL, changed_at = clock_timestamp()
      FROM due WHERE b.task = due.task
    RETURNING b.task
)
SELECT set_config('dl.breakers', (SELECT coalesce(jsonb_agg(task), '[]')::text FROM changed), true);

SELECT count(*) FROM dl_wake_limited(ARRAY(SELECT 'task:' || t FROM jsonb_array_elements_text(current_setting('dl.breakers')::jsonb) t));

SELECT t AS task, NULL::float8 AS next_sec FROM jsonb_array_elements_text(current_setting('dl.breakers')::jsonb) t
UNION ALL
SELECT NULL, extract(epoch FROM min(probe_at) - clock_timestamp())::float8 FROM dl_breakers WHERE state = 'open';

-- name: lock_breaker
-- For an undo, which locks the row of a breaker before limits.
SELECT FROM dl_breakers WHERE task = %(subject_id)s::text FOR NO KEY UPDATE;

-- name: lock_missing_breaker
-- A missing breaker has no row to lock: this prevents that any is created.
LOCK TABLE dl_breakers IN SHARE ROW EXCLUSIVE MODE;
