-- What has happened before the demo. The embedded server's account is a superuser: triggers are off, which would write the events of
-- these jobs as of now.

-- name: demo_jobs
-- Jobs that have ended, oldest first, with the events of their attempts, and what these have reported.
SELECT set_config('session_replication_role', 'replica', true);

INSERT INTO dl_jobs (job_id, queue, task, args, lock_key, partition_key, available_at, status, attempt, max_attempts, error,
                     error_fingerprint, created_at, started_at, finished_at, run_id, worker, result, progress, warnings, logical_at,
                     interval_start, interval_end)
SELECT job_id, queue, task, args, lock_key, partition_key, created_at, status::dl_status, attempt, 3, error, fingerprint, created_at,
       started_at, finished_at, run_id, worker, result, progress, warnings, logical_at, interval_start, interval_end
  FROM jsonb_to_recordset(%(jobs)s::jsonb) AS j (
       job_id uuid, queue text, task text, args jsonb, lock_key text, partition_key text, status text, attempt int, error text,
       fingerprint text, created_at timestamptz, started_at timestamptz, finished_at timestamptz, run_id uuid, worker text, result jsonb,
       progress jsonb, warnings int, logical_at timestamptz, interval_start timestamptz, interval_end timestamptz);

INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
SELECT e.job_id, j.queue, e.ts, e.kind, e.payload || jsonb_build_object('task', j.task)
  FROM jsonb_to_recordset(%(events)s::jsonb) AS e (job_id uuid, ts timestamptz, kind text, payload jsonb)
       JOIN dl_jobs j USING (job_id)
 ORDER BY e.ts;

INSERT INTO dl_job_logs (job_id, attempt, ts, level, stream, line)
SELECT * FROM jsonb_to_recordset(%(logs)s::jsonb) AS l (job_id uuid, attempt int, ts timestamptz, level text, stream text, line text);

INSERT INTO dl_checks (task, name, at, job_id, attempt, partition_key, value, low, high, median, outcome, detail)
SELECT * FROM jsonb_to_recordset(%(checks)s::jsonb) AS c (
       task text, name text, at timestamptz, job_id uuid, attempt int, partition_key text, value float8, low float8, high float8,
       median float8, outcome text, detail text);

INSERT INTO dl_dataset_events (dataset, kind, task, at, job_id, partition_key, rows)
SELECT * FROM jsonb_to_recordset(%(datasets)s::jsonb) AS d (
       dataset text, kind text, task text, at timestamptz, job_id uuid, partition_key text, rows bigint);

WITH made AS (
    SELECT * FROM jsonb_to_recordset(%(accounts)s::jsonb) AS a (
           run_id uuid, job_id uuid, task text, attempt int, ended_at timestamptz, wall_sec float8, cpu_sec float8, rows bigint, bytes bigint,
           cost float8, account text)
), kept AS (
    INSERT INTO dl_accounts (run_id, job_id, task, attempt, written_at, ended_at, wall_sec, cpu_sec, rows, bytes, cost, account)
    SELECT run_id, job_id, task, attempt, ended_at, ended_at, wall_sec, cpu_sec, rows, bytes, cost, account FROM made WHERE account IS NOT NULL
)
INSERT INTO dl_account_days AS d (day, task, attempts, wall_sec, cpu_sec, memory_gb_sec, rows, bytes, cost)
SELECT (ended_at AT TIME ZONE 'UTC')::date, task, count(*), sum(wall_sec), sum(cpu_sec), 0, sum(rows), sum(bytes), sum(cost)
  FROM made
 GROUP BY 1, 2
    ON CONFLICT (day, task) DO UPDATE
   SET (attempts, wall_sec, cpu_sec, rows, bytes, cost)
     = (d.attempts + EXCLUDED.attempts, d.wall_sec + EXCLUDED.wall_sec, d.cpu_sec + EXCLUDED.cpu_sec, d.rows + EXCLUDED.rows,
        d.bytes + EXCLUDED.bytes, d.cost + EXCLUDED.cost);

INSERT INTO dl_slices (task, partition_key, interval_start, interval_end, state, job_id, runs, rows, succeeded_at, succeeded_job, changed_at)
SELECT task, partition_key, interval_start, interval_end, status::dl_status, job_id, 1, (result ->> 'rows')::bigint, finished_at, job_id,
       finished_at
  FROM jsonb_to_recordset(%(jobs)s::jsonb) AS j (
       job_id uuid, task text, partition_key text, status text, finished_at timestamptz, result jsonb, interval_start timestamptz,
       interval_end timestamptz)
 WHERE partition_key <> ''
    ON CONFLICT (task, partition_key) DO NOTHING;

-- name: demo_schedules
-- Their schedules, which the worker process has declared by now, have made them.
SELECT set_config('session_replication_role', 'replica', true);

INSERT INTO dl_firings (schedule_id, fire_at, due_at, outcome, job_id, made_by, made_at)
SELECT s.schedule_id, j.logical_at, j.logical_at, 'made', j.job_id, 'clock', j.created_at
  FROM dl_jobs j JOIN dl_schedules s ON s.task = j.task
 WHERE j.logical_at IS NOT NULL AND j.schedule_id IS NULL
    ON CONFLICT DO NOTHING;

UPDATE dl_jobs j SET schedule_id = s.schedule_id FROM dl_schedules s WHERE s.task = j.task AND j.logical_at IS NOT NULL AND j.schedule_id IS NULL;

SELECT count(*) FROM dl_schedules;

-- name: demo_depths
-- How many jobs waited and ran in each minute of the last day; and a table of the warehouse, which build.margins fills.
CREATE SCHEMA mart;

CREATE TABLE mart.margins (last_article bigint, margin float8);

INSERT INTO dl_queue_depths (at, queue, ready, scheduled, blocked, running, oldest_ready_sec)
SELECT at, queue, waiting, 0, waiting / 3, least(threads, running), waiting * 8
  FROM (SELECT at, queue, threads, round(greatest(0, threads * (0.25 + 0.2 * sin(minute / 97.0)) + hash %% 3 - 0.5))::int AS running,
               (CASE WHEN hour BETWEEN 2 AND 4 THEN 4 ELSE 0 END + greatest(0, hash %% 7 - 5))::int AS waiting
          FROM generate_series(date_trunc('minute', clock_timestamp()) - interval '1 day',
                               date_trunc('minute', clock_timestamp()) - interval '1 minute', interval '1 minute') AS m (at)
               CROSS JOIN (VALUES ('etl.default', 8), ('report.default', 6), ('export.default', 2)) AS q (queue, threads)
               CROSS JOIN LATERAL (SELECT extract(epoch FROM at) / 60 AS minute, extract(hour FROM at AT TIME ZONE 'UTC') AS hour,
                                          abs(hashtext(at::text || queue)) AS hash) t) minutes
    ON CONFLICT DO NOTHING;

-- name: demo_start_earlier
-- A running job has started so many seconds earlier, and has reported its progress since.
SELECT set_config('session_replication_role', 'replica', true);

UPDATE dl_job_events e SET ts = ts - make_interval(secs => %(sec)s::float8) WHERE job_id = %(job_id)s::uuid;

UPDATE dl_jobs
   SET created_at = created_at - make_interval(secs => %(sec)s::float8), available_at = available_at - make_interval(secs => %(sec)s::float8),
       started_at = started_at - make_interval(secs => %(sec)s::float8)
 WHERE job_id = %(job_id)s::uuid;

-- With ids below those of the rows that it has saved itself.
INSERT INTO dl_progress (progress_id, job_id, run_id, ts, progress)
SELECT (SELECT min(progress_id) FROM dl_progress) - steps + n, job_id, run_id, started_at + n * interval '10 seconds',
       jsonb_build_object('processed', round(%(done)s::float8 * (n::float8 / steps) * (1 - 0.1 * sin(n / 9.0) * (1 - n::float8 / steps)))::bigint,
                          'total', %(rows)s::bigint, 'unit', %(unit)s::text)
  FROM dl_jobs
       CROSS JOIN LATERAL (SELECT greatest(1, floor(%(sec)s::float8 / 10))::int AS steps) s
       CROSS JOIN LATERAL generate_series(0, steps - 1) AS n
 WHERE job_id = %(job_id)s::uuid AND status = 'running'
 ORDER BY n;
