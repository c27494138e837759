-- Why a job waits, or runs for so long: the facts, each bounded.

-- name: why_queued
-- What there is to say about a waiting job, in one row. The session lock of its key may be held by somebody whose job is
-- not in the table: a run that lost its lease and goes on, or a service that shares the key.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH job AS (
    SELECT j.*, hashtext(j.lock_key)::bigint AS hash FROM dl_jobs j WHERE j.job_id = %(job_id)s::uuid
), serving AS MATERIALIZED (
    -- Threads and busy ones of the job's queue alone. A run that lost its lease still has its thread: the database does
    -- not count it as running any more, so its process reports it.
    SELECT w.draining, w.stopping, job.task = ANY (w.tasks) AS knows, rule.per_worker,
           coalesce((w.queue_threads ->> job.queue)::int, w.threads) AS threads,
           (SELECT count(*) FROM dl_jobs r
             WHERE r.status = 'running' AND r.worker = w.name AND r.queue = job.queue)
           + (SELECT count(*) FROM jsonb_array_elements(w.doing) AS held
               WHERE held ->> 'queue' = job.queue AND held ->> 'stopping' = 'lease_lost'
                 AND NOT EXISTS (SELECT FROM dl_jobs r WHERE r.status = 'running' AND r.worker = w.name
                                                         AND r.run_id::text = held ->> 'run_id')) AS busy
      FROM dl_workers w CROSS JOIN job LEFT JOIN dl_queues rule ON rule.queue = job.queue
     WHERE job.queue = ANY (w.queues) AND w.seen_at > clock_timestamp() - make_interval(secs => 3 * w.heartbeat_sec)
), workers AS MATERIALIZED (
    SELECT *, least(threads, per_worker) AS capacity, knows AND NOT draining AND NOT stopping AS eligible FROM serving
)
SELECT clock_timestamp() AS now, job.place::text, job.stray, job.available_at, job.created_at, job.queue, job.task,
       job.lock_key, job.attempt,
       holder.job_id AS holder, holder.worker AS holder_worker,
       (SELECT e.ts FROM dl_job_events e WHERE e.job_id = holder.job_id AND e.kind = 'picked'
         ORDER BY e.event_id DESC LIMIT 1) AS holder_since,
       session.pid, session.application_name, session.since AS session_since,
       coalesce(q.state, 'open') AS state, q.note, q.changed_by, q.changed_at, q.concurrency, q.per_worker,
       (SELECT count(*) FROM dl_jobs r WHERE r.status = 'running' AND r.queue = job.queue) AS running,
       (SELECT count(*) FROM workers) AS workers,
       (SELECT count(*) FROM workers WHERE knows) AS knowing,
       (SELECT count(*) FROM workers WHERE knows AND stopping) AS stopping,
       (SELECT count(*) FROM workers WHERE eligible) AS eligible,
       (SELECT coalesce(sum(capacity), 0)::int FROM workers WHERE eligible) AS threads,
       (SELECT coalesce(sum(least(busy, capacity)), 0)::int FROM workers WHERE eligible) AS busy,
       (SELECT count(*) FROM workers WHERE eligible AND per_worker <= threads AND busy >= per_worker) AS at_per_worker,
       (SELECT count(*)
          FROM (SELECT FROM dl_jobs a
                 WHERE job.place = 'ready' AND a.queue = job.queue AND a.status = 'queued' AND a.place = 'ready'
                   AND (a.priority, a.created_at, a.job_id) < (job.priority, job.created_at, job.job_id)
                 LIMIT %(bound)s::int + 1) ahead) AS ahead,
       (SELECT count(*)
          FROM (SELECT FROM dl_jobs a
                 WHERE job.place = 'parked' AND a.lock_key = job.lock_key AND a.status = 'queued' AND a.place = 'parked'
                   AND (a.priority, a.created_at, a.job_id) < (job.priority, job.created_at, job.job_id)
                 LIMIT %(bound)s::int + 1) ahead) AS ahead_of_key,
       (SELECT count(*) FROM dl_workers w
         WHERE w.seen_at > clock_timestamp() - make_interval(secs => 3 * w.heartbeat_sec)) AS workers_anywhere
  FROM job
       LEFT JOIN LATERAL (SELECT h.job_id, h.worker FROM dl_jobs h
                           WHERE h.lock_key = job.lock_key AND h.status = 'running' AND h.job_id <> job.job_id) holder ON true
       LEFT JOIN LATERAL (SELECT l.pid, a.application_name, coalesce(a.xact_start, a.state_change) AS since
                            FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
                           WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
                             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                             AND (l.classid::bigint << 32) | l.objid::bigint = job.hash
                           LIMIT 1) session ON holder.job_id IS NULL
       LEFT JOIN dl_queues q ON q.queue = job.queue;

-- name: why_running
SELECT clock_timestamp() AS now, j.queue, j.task, j.attempt, j.max_attempts, j.worker, j.heartbeat_at, j.lease_expires_at,
       j.lease_ttl_sec, j.cancel_requested, j.time_limit_sec, j.error,
       (SELECT max(e.ts) FROM dl_job_events e WHERE e.job_id = j.job_id AND e.kind = 'picked') AS began_at,
       (SELECT min(e.ts) FROM dl_job_events e
         WHERE e.job_id = j.job_id AND e.kind = 'cancel_requested'
           AND e.event_id > (SELECT max(p.event_id) FROM dl_job_events p
                              WHERE p.job_id = j.job_id AND p.kind = 'picked')) AS asked_at,
       w.worker_id, w.seen_at, w.seen_at > clock_timestamp() - make_interval(secs => 3 * w.heartbeat_sec) AS alive,
       (SELECT said ->> 'rung' FROM jsonb_array_elements(w.doing) said WHERE said ->> 'run_id' = j.run_id::text) AS rung,
       (SELECT said ->> 'stopping' FROM jsonb_array_elements(w.doing) said WHERE said ->> 'run_id' = j.run_id::text) AS stopping,
       (SELECT (said ->> 'progress_age_sec')::float8 FROM jsonb_array_elements(w.doing) said
         WHERE said ->> 'run_id' = j.run_id::text AND j.progress <> '{}')  -- many tasks never tell any
       + extract(epoch FROM clock_timestamp() - w.seen_at)::float8 AS progress_age
  FROM dl_jobs j
       LEFT JOIN LATERAL (SELECT * FROM dl_workers k WHERE k.name = j.worker ORDER BY k.seen_at DESC LIMIT 1) w ON true
 WHERE j.job_id = %(job_id)s::uuid AND j.status::text = 'running';
