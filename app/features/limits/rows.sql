-- Limits: how many jobs may run, and how many may start in a time. See the tables of schema.sql.

-- name: set_limit
-- Create or change a limit, under its lock, and wake the jobs that may start now. The second part sees what was committed
-- while the lock was waited for.
SELECT dl_lock_limits(ARRAY[%(name)s::text]);

INSERT INTO dl_limits (name, concurrency, rate, per_sec, burst, note, changed_by)
VALUES (%(name)s::text, %(concurrency)s::int, %(rate)s::int, %(per_sec)s::float8, %(burst)s::int, %(note)s::text,
        %(changed_by)s::text)
    ON CONFLICT (name) DO UPDATE
   SET concurrency = excluded.concurrency, rate = excluded.rate, per_sec = excluded.per_sec, burst = excluded.burst,
       note = excluded.note, changed_by = excluded.changed_by, changed_at = clock_timestamp();

SELECT count(*) FROM dl_wake_limited(dl_waiting_limits(%(name)s::text));

SELECT pg_notify('dl_control', 'limits');

-- name: delete_limit
-- Delete a limit. Jobs that wait for it may start. That of a backfill which has not ended stays.
SELECT dl_lock_limits(ARRAY[%(name)s::text]);

WITH deleted AS (
    DELETE FROM dl_limits
     WHERE name = %(name)s::text
       AND NOT EXISTS (SELECT FROM dl_backfills WHERE 'backfill:' || backfill_id = %(name)s::text AND state IN ('open', 'paused'))
    RETURNING name
), starts AS (
    DELETE FROM dl_limit_starts WHERE name = %(name)s::text
)
SELECT set_config('dl.deleted', (SELECT count(*) FROM deleted)::text, true);

SELECT count(*) FROM dl_wake_limited(dl_waiting_limits(%(name)s::text));

SELECT current_setting('dl.deleted')::int AS deleted, pg_notify('dl_control', 'limits');

-- name: limits
-- Limits, and names that running or waiting jobs use: what each allows, what is used, how many jobs wait, since when. Jobs that
-- wait are counted up to `max_waiting`. At most `max_names`; with `name` that one alone.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true);

WITH running AS MATERIALIZED (
    SELECT c.name, sum(c.weight)::int AS used
      FROM dl_jobs r CROSS JOIN LATERAL dl_job_limits(r.limits, r.queue, r.task) c
     WHERE r.status = 'running'
     GROUP BY c.name
), names AS (
    SELECT name FROM dl_limits
    UNION SELECT dl_awaited_limits(1000)
    UNION SELECT name FROM running WHERE EXISTS (SELECT FROM dl_limits l WHERE l.name = ANY (dl_limit_names(running.name)))
), listed AS MATERIALIZED (
    SELECT name FROM names WHERE %(name)s::text IS NULL OR name = %(name)s::text ORDER BY name LIMIT %(max_names)s::int
)
SELECT n.name, s.name, least(s.concurrency, b.concurrency), s.concurrency AS own_concurrency, s.rate, s.per_sec, s.burst, s.note, s.changed_by, s.changed_at, coalesce(r.used, 0),
       w.waiting, w.waiting <= %(max_waiting)s::int AS waiting_exact, w.waiting_since,
       CASE WHEN s.rate IS NOT NULL THEN
            greatest(0, date_part('epoch', (SELECT t.tat FROM dl_limit_starts t WHERE t.name = n.name) - clock_timestamp())
                        - (coalesce(s.burst, 1) - 1) * s.per_sec / s.rate) END AS next_start_in_sec
  FROM listed n
       LEFT JOIN LATERAL (SELECT * FROM dl_limits l WHERE l.name = ANY (dl_limit_names(n.name))
                           ORDER BY l.name = n.name DESC, length(l.name) DESC LIMIT 1) s ON true
       LEFT JOIN LATERAL (SELECT CASE state WHEN 'open' THEN 0 ELSE 1 END AS concurrency FROM dl_breakers
                           WHERE 'task:' || task = n.name AND state <> 'closed') b ON true
       LEFT JOIN running r ON r.name = n.name
       CROSS JOIN LATERAL (SELECT count(*) AS waiting, min(created_at) AS waiting_since
                             FROM (SELECT j.created_at FROM dl_jobs j
                                    WHERE j.waits_on = n.name AND j.status = 'queued' AND j.wait_state = 'limited'
                                    LIMIT %(max_waiting)s::int + 1) j) w
 ORDER BY n.name;

-- name: limit_names
SELECT name FROM dl_limits ORDER BY name LIMIT %(limit)s::int;

-- name: limits_of_queue
-- The limits that jobs of a queue wait for, with their number, by a loose scan of all that jobs wait for.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

SELECT n.name, w.waiting
  FROM dl_awaited_limits(%(max_names)s::int) AS n (name)
       CROSS JOIN LATERAL (SELECT count(*)::int AS waiting
                             FROM (SELECT FROM dl_jobs j
                                    WHERE j.waits_on = n.name AND j.queue = %(queue)s::text AND j.status = 'queued'
                                      AND j.wait_state = 'limited'
                                    LIMIT %(max_waiting)s::int) j) w
 WHERE w.waiting > 0
 ORDER BY w.waiting DESC, n.name;

-- name: limit_holders
-- The running jobs that count in a limit, longest first.
SELECT r.job_id, r.queue, r.task, c.weight, r.worker, r.started_at
  FROM dl_jobs r CROSS JOIN LATERAL dl_job_limits(r.limits, r.queue, r.task) c
 WHERE r.status = 'running' AND c.name = %(name)s::text
 ORDER BY r.started_at, r.job_id
 LIMIT %(limit)s::int;

-- name: wake_limited
-- prepared
-- queued -> queued: wakes jobs of the next limits after `after` that jobs wait for, as many as may start. Ends of runs do so
-- for limits without a rate, so there it is a repair. Returns each name, how many were woken, whether it has a rate, and the
-- seconds until its next start. If another process does this at the moment, nothing is done.
SELECT set_config('dl.limit_names', coalesce(CASE WHEN pg_try_advisory_xact_lock(1684828527, 8) THEN
           (SELECT jsonb_agg(name) FROM dl_awaited_limits(%(max_names)s::int, %(after)s::text) AS n (name)) END, '[]')::text, true);

SELECT dl_lock_limits(ARRAY(SELECT jsonb_array_elements_text(current_setting('dl.limit_names')::jsonb)));

SELECT n.name,
       (SELECT count(*)::int FROM dl_wake_limited(ARRAY[n.name])) AS woken,
       s.spacing IS NOT NULL AS has_rate,
       greatest(0, s.tat - date_part('epoch', clock_timestamp()) - (s.burst - 1) * s.spacing) AS next_start_in_sec
  FROM jsonb_array_elements_text(current_setting('dl.limit_names')::jsonb) WITH ORDINALITY AS n (name, position)
       LEFT JOIN LATERAL dl_limit_states(ARRAY[n.name]) s ON true
 ORDER BY n.position;

-- name: prune_limit_starts
-- Deletes the starts of rates that no longer delay anything, and looks that no longer count.
DELETE FROM dl_limit_looks WHERE taken_at < clock_timestamp() - interval '1 day';

DELETE FROM dl_limit_starts WHERE tat < clock_timestamp() - interval '1 day';

-- name: acquire_limit
-- Count calls of a running job in a rate: true if they may be made now, else the seconds to wait. NULL: there is no rate.
SELECT dl_lock_limits(ARRAY[%(name)s::text]);

WITH state AS MATERIALIZED (
    SELECT s.*, date_part('epoch', clock_timestamp()) AS now_at FROM dl_limit_states(ARRAY[%(name)s::text]) s
     WHERE s.spacing IS NOT NULL
), due AS MATERIALIZED (
    SELECT *, greatest(tat, now_at) + spacing * %(weight)s::int AS next_tat FROM state
), allowed AS (
    INSERT INTO dl_limit_starts AS t (name, tat)
    SELECT name, to_timestamp(next_tat) FROM due WHERE next_tat - now_at <= burst * spacing * 1.000001
        ON CONFLICT (name) DO UPDATE SET tat = excluded.tat
    RETURNING name
)
SELECT EXISTS (SELECT FROM allowed) AS allowed, due.next_tat - due.now_at - due.burst * due.spacing AS wait_sec, due.burst
  FROM due;

-- name: limits_of_task
-- Those of the limits `names` that a job of the task waits for, as far as it is among the first of them.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

SELECT listed.name
  FROM unnest(%(names)s::text[]) AS listed (name)
 WHERE EXISTS (SELECT FROM (SELECT j.task FROM dl_jobs j
                             WHERE j.waits_on = listed.name AND j.status = 'queued' LIMIT %(max_jobs)s::int) first
                WHERE first.task = %(task)s::text);

-- name: has_limited_jobs
SELECT EXISTS (SELECT FROM dl_jobs WHERE status = 'queued' AND waits_on IS NOT NULL);

-- name: has_open_breakers
SELECT EXISTS (SELECT FROM dl_breakers WHERE state <> 'closed');

-- name: lock_limit
-- For an undo. The advisory lock of its name also prevents that a missing limit is created.
SELECT dl_lock_limits(ARRAY[%(subject_id)s::text]);

SELECT FROM dl_limits WHERE name = %(subject_id)s::text FOR NO KEY UPDATE;
