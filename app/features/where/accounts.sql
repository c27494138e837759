-- Accounts of attempts, and their totals by task and day.

-- name: write_accounts
-- Write the accounts of attempts, and of those that have ended add the figures to the totals of the day, once.
WITH written AS (
    SELECT a.*
      FROM jsonb_to_recordset(%(accounts)s::jsonb) AS a (
               run_id uuid, job_id uuid, task text, attempt int, has_ended bool, wall_sec float8, cpu_sec float8,
               peak_memory_mb float8, memory_gb_sec float8, rows bigint, bytes bigint, cost float8, account text)
), kept AS (
    INSERT INTO dl_accounts AS k (run_id, job_id, task, attempt, written_at, ended_at, wall_sec, cpu_sec, peak_memory_mb,
                                  memory_gb_sec, rows, bytes, cost, account)
    SELECT run_id, job_id, task, attempt, clock_timestamp(), CASE WHEN has_ended THEN clock_timestamp() END, wall_sec, cpu_sec,
           peak_memory_mb, memory_gb_sec, rows, bytes, cost, account
      FROM written
     ORDER BY run_id
        ON CONFLICT (run_id) DO UPDATE
       SET (written_at, ended_at, wall_sec, cpu_sec, peak_memory_mb, memory_gb_sec, rows, bytes, cost, account)
         = (EXCLUDED.written_at, EXCLUDED.ended_at, EXCLUDED.wall_sec, EXCLUDED.cpu_sec, EXCLUDED.peak_memory_mb,
            EXCLUDED.memory_gb_sec, EXCLUDED.rows, EXCLUDED.bytes, EXCLUDED.cost, EXCLUDED.account)
     WHERE k.ended_at IS NULL
    RETURNING k.*
)
INSERT INTO dl_account_days AS d (day, task, attempts, wall_sec, cpu_sec, memory_gb_sec, rows, bytes, cost)
SELECT (ended_at AT TIME ZONE 'UTC')::date, task, count(*), sum(wall_sec), coalesce(sum(cpu_sec), 0), coalesce(sum(memory_gb_sec), 0),
       sum(rows), sum(bytes), coalesce(sum(cost), 0)
  FROM kept
 WHERE ended_at IS NOT NULL
 GROUP BY 1, 2
 ORDER BY 1, 2
    ON CONFLICT (day, task) DO UPDATE
   SET (attempts, wall_sec, cpu_sec, memory_gb_sec, rows, bytes, cost)
     = (d.attempts + EXCLUDED.attempts, d.wall_sec + EXCLUDED.wall_sec, d.cpu_sec + EXCLUDED.cpu_sec,
        d.memory_gb_sec + EXCLUDED.memory_gb_sec, d.rows + EXCLUDED.rows, d.bytes + EXCLUDED.bytes, d.cost + EXCLUDED.cost);

-- name: accounts_of_job
-- The accounts of a job's attempts, the last one first.
SELECT run_id, job_id, task, attempt, ended_at, wall_sec, cpu_sec, peak_memory_mb, memory_gb_sec, rows, bytes, cost, account
  FROM dl_accounts
 WHERE job_id = %(job_id)s::uuid
 ORDER BY attempt DESC, written_at DESC
 LIMIT %(limit)s::int;

-- name: usual_accounts
-- The last accounts of attempts at a task that succeeded, but for this job's.
SELECT a.run_id, a.job_id, a.task, a.attempt, a.ended_at, a.wall_sec, a.cpu_sec, a.peak_memory_mb, a.memory_gb_sec, a.rows, a.bytes, a.cost,
       a.account
  FROM (SELECT * FROM dl_accounts
         WHERE task = %(task)s::text AND ended_at IS NOT NULL AND job_id IS DISTINCT FROM %(job_id)s::uuid
         ORDER BY ended_at DESC
         LIMIT 10 * %(limit)s::int) a
 WHERE EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = a.job_id AND j.status = 'succeeded' AND j.run_id = a.run_id)
 ORDER BY a.ended_at DESC
 LIMIT %(limit)s::int;

-- name: lost_accounts
-- The accounts of attempts that have ended without an end of their account, since their worker processes have died. A process that lives writes
-- the account of an attempt each minute, or when it has become a tenth older. The time of the attempt includes that until its loss was found.
SELECT a.run_id, a.job_id, a.task, a.attempt, a.ended_at,
       a.wall_sec + greatest(0, extract(epoch FROM ended.at - a.written_at))::float8 AS wall_sec,
       a.cpu_sec, a.peak_memory_mb, a.memory_gb_sec, a.rows, a.bytes, a.cost, a.account
  FROM dl_accounts a
       LEFT JOIN dl_jobs j ON j.job_id = ANY (ARRAY[a.job_id])
       LEFT JOIN LATERAL (SELECT max(e.ts) AS at
                            FROM dl_job_events e
                           WHERE e.job_id = a.job_id AND e.payload ->> 'run_id' = a.run_id::text
                             AND e.kind IN ('done', 'failed', 'canceled', 'lost', 'requeue')) ended ON true
 WHERE a.ended_at IS NULL AND a.written_at < clock_timestamp() - make_interval(secs => greatest(300, a.wall_sec / 5))
   AND NOT coalesce(j.status = 'running' AND j.run_id = a.run_id, false)
 ORDER BY a.run_id
 LIMIT %(limit)s::int;

-- name: account_days
-- Totals by task and day, the newest first.
SELECT day, task, attempts, wall_sec, cpu_sec, memory_gb_sec, rows, bytes, cost
  FROM dl_account_days
 WHERE day > (clock_timestamp() AT TIME ZONE 'UTC')::date - %(days)s::int AND (%(task)s::text IS NULL OR task = %(task)s::text)
 ORDER BY day DESC, cpu_sec DESC, task
 LIMIT %(limit)s::int;

-- name: account_totals
-- Totals of this day by task, for metrics.
SELECT task, attempts, wall_sec, cpu_sec, memory_gb_sec, rows, bytes, cost
  FROM dl_account_days
 WHERE day = (clock_timestamp() AT TIME ZONE 'UTC')::date
 ORDER BY cpu_sec DESC, task
 LIMIT %(limit)s::int;

-- name: prune_accounts
-- Among the next accounts delete those of jobs that do not exist any more. Returns the last one, and how many were deleted.
WITH scanned AS MATERIALIZED (
    SELECT run_id, job_id, written_at
      FROM dl_accounts
     WHERE run_id > %(after_run)s::uuid
     ORDER BY run_id
     LIMIT %(max_rows)s::int
), deleted AS (
    DELETE FROM dl_accounts a
     USING scanned s
     WHERE a.run_id = s.run_id AND s.written_at < clock_timestamp() - interval '1 minute'
       AND NOT EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = ANY (ARRAY[s.job_id]))
    RETURNING a.run_id
)
SELECT (SELECT max(run_id::text)::uuid FROM scanned), (SELECT count(*) FROM deleted);

-- name: prune_account_days
DELETE FROM dl_account_days WHERE day < (clock_timestamp() AT TIME ZONE 'UTC')::date - %(days)s::int;
