-- Facts that explain why a job waits or still runs. Each is read from a bounded number of rows.

-- name: waiting_facts
-- Facts about a waiting job, in one row. A session without a running job may hold the lock of its key: an attempt that lost
-- its lease and is still running, or another service that uses the key.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH job AS (
    SELECT j.*, hashtext(j.lock_key)::bigint AS hash FROM dl_jobs j WHERE j.job_id = %(job_id)s::uuid
), serving AS MATERIALIZED (
    -- Threads and busy threads for the job's queue. An attempt that lost its lease still occupies its thread, but its job
    -- no longer runs in the database: its process reports it in running_attempts.
    SELECT w.draining, w.stopping, w.tasks, job.task = ANY (w.tasks) AS knows, rule.per_worker,
           w.labels, w.unserved_tasks -> job.task AS requires,
           coalesce((w.queue_threads ->> job.queue)::int, w.threads) AS threads,
           (SELECT count(*) FROM dl_jobs r
             WHERE r.status = 'running' AND coalesce(r.worker_id = w.worker_id, r.worker = w.name) AND r.queue = job.queue)
           + (SELECT count(*) FROM jsonb_array_elements(w.running_attempts) AS report
               WHERE report ->> 'queue' = job.queue AND report ->> 'stop_reason' = 'lease_lost'
                 AND NOT EXISTS (SELECT FROM dl_jobs r WHERE r.status = 'running' AND r.worker = w.name
                                                         AND r.run_id::text = report ->> 'run_id')) AS busy,
           -- A process of which nothing runs claims one job, however high its memory is.
           EXISTS (SELECT FROM jsonb_array_elements(w.running_attempts) AS report
                    WHERE (report ->> 'memory_high')::bool) AS memory_high
      FROM dl_live_workers() w CROSS JOIN job LEFT JOIN dl_queues rule ON rule.queue = job.queue
     WHERE job.queue = ANY (w.queues)
), workers AS MATERIALIZED (
    SELECT *, least(threads, per_worker) AS capacity, knows AND NOT draining AND NOT stopping AS eligible FROM serving
)
SELECT clock_timestamp() AS now, job.wait_state::text, job.unknown_task, job.available_at, job.queue, job.task,
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
       (SELECT coalesce(sum(CASE WHEN memory_high THEN capacity ELSE least(busy, capacity) END), 0)::int
          FROM workers WHERE eligible) AS busy,
       (SELECT count(*) FROM workers WHERE eligible AND per_worker <= threads AND busy >= per_worker) AS at_per_worker,
       (SELECT count(*) FROM workers WHERE eligible AND memory_high) AS memory_high,
       (SELECT count(*)
          FROM (SELECT FROM dl_jobs a
                 WHERE job.wait_state = 'ready' AND a.queue = job.queue AND a.status = 'queued' AND a.wait_state = 'ready'
                   AND (a.priority, a.created_at, a.job_id) < (job.priority, job.created_at, job.job_id)
                 LIMIT %(max_ahead)s::int + 1) ahead) AS ahead,
       (SELECT count(*)
          FROM (SELECT FROM dl_jobs a
                 WHERE job.wait_state = 'blocked' AND a.lock_key = job.lock_key AND a.status = 'queued' AND a.wait_state = 'blocked'
                   AND (a.priority, a.created_at, a.job_id) < (job.priority, job.created_at, job.job_id)
                 LIMIT %(max_ahead)s::int + 1) ahead) AS blocked_ahead,
       (SELECT count(*) FROM dl_live_workers()) AS workers_anywhere,
       job.waits_on, coalesce((job.limits ->> job.waits_on)::int, 1) AS weight,
       (SELECT count(*)
          FROM (SELECT FROM dl_jobs a
                 WHERE job.wait_state = 'limited' AND a.waits_on = job.waits_on AND a.queue = job.queue AND a.status = 'queued'
                   AND a.wait_state = 'limited'
                   AND (a.priority, a.created_at, a.job_id) < (job.priority, job.created_at, job.job_id)
                 LIMIT %(max_ahead)s::int + 1) ahead) AS limited_ahead,
       (SELECT requires::text FROM workers WHERE requires IS NOT NULL LIMIT 1) AS requires,
       ARRAY(SELECT DISTINCT labels::text FROM workers LIMIT 100) AS labels,
       ARRAY(SELECT DISTINCT task FROM serving CROSS JOIN LATERAL unnest(tasks) t (task)
              WHERE NOT EXISTS (SELECT FROM serving WHERE knows)) AS known_tasks
  FROM job
       LEFT JOIN LATERAL (SELECT h.job_id, h.worker FROM dl_jobs h
                           WHERE h.lock_key BETWEEN job.lock_key AND job.lock_key AND h.status = 'running' AND h.job_id <> job.job_id) holder ON true
       LEFT JOIN LATERAL (SELECT l.pid, a.application_name, coalesce(a.xact_start, a.state_change) AS since
                            FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
                           WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
                             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                             AND (l.classid::bigint << 32) | l.objid::bigint = job.hash
                           LIMIT 1) session ON holder.job_id IS NULL
       LEFT JOIN dl_queues q ON q.queue = job.queue;

-- name: turn_facts
-- Of a ready job in a fair queue: what distinguishes tenants, its tenant, how many of the tenant's jobs are before it, how many run,
-- and how many tenants wait with its priority, at most a thousand. No row: the queue serves by age.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true);

WITH RECURSIVE job AS (
    SELECT j.queue, j.priority, j.fair_key, j.created_at, j.job_id, q.fair
      FROM dl_jobs j JOIN dl_queues q ON q.queue = j.queue AND q.fair IS NOT NULL
     WHERE j.job_id = %(job_id)s::uuid AND j.fair_key IS NOT NULL
), tenants AS (
    (SELECT j.fair_key FROM dl_jobs j, job
      WHERE j.queue = job.queue AND j.priority = job.priority AND j.status = 'queued' AND j.wait_state = 'ready'
        AND j.fair_key IS NOT NULL
      ORDER BY j.fair_key LIMIT 1)
    UNION ALL
    SELECT (SELECT j.fair_key FROM dl_jobs j, job
             WHERE j.queue = job.queue AND j.priority = job.priority AND j.status = 'queued' AND j.wait_state = 'ready'
               AND j.fair_key > t.fair_key
             ORDER BY j.fair_key LIMIT 1)
      FROM tenants t WHERE t.fair_key IS NOT NULL
)
SELECT job.fair, job.fair_key,
       (SELECT count(*)::int
          FROM (SELECT FROM dl_jobs a
                 WHERE a.queue = job.queue AND a.priority = job.priority AND a.fair_key = job.fair_key AND a.status = 'queued'
                   AND a.wait_state = 'ready' AND (a.created_at, a.job_id) < (job.created_at, job.job_id)
                 LIMIT %(max_ahead)s::int + 1) ahead),
       (SELECT count(*)::int FROM dl_jobs r WHERE r.status = 'running' AND r.queue = job.queue AND r.fair_key = job.fair_key),
       (SELECT count(*)::int FROM (SELECT FROM tenants WHERE fair_key IS NOT NULL LIMIT 1000) t)
  FROM job;

-- name: running_facts
SELECT clock_timestamp() AS now, j.task, j.attempt, j.max_attempts, j.worker,
       dl_last_heartbeat(j.status, j.worker_id, j.heartbeat_at), dl_lease_end(j.worker_id, j.lease_expires_at, j.heartbeat_at, j.lease_ttl_sec), j.cancel_requested,
       (SELECT max(e.ts) FROM dl_job_events e WHERE e.job_id = j.job_id AND e.kind = 'picked') AS started_at,
       coalesce((SELECT min(e.ts) FROM dl_job_events e
                  WHERE e.job_id = j.job_id AND e.kind = 'cancel_requested'
                    AND e.event_id > (SELECT max(p.event_id) FROM dl_job_events p
                                       WHERE p.job_id = j.job_id AND p.kind = 'picked')),
                (SELECT coalesce((report ->> 'reported_at')::timestamptz, w.seen_at) - make_interval(secs => (report ->> 'stop_age_sec')::float8)  -- no event: a time limit
                   FROM jsonb_array_elements(w.running_attempts) report
                  WHERE report ->> 'run_id' = j.run_id::text)) AS stop_requested_at,
       w.worker_id, w.last_beat_at, w.last_beat_at > clock_timestamp() - make_interval(secs => 3 * w.heartbeat_sec) AS alive,
       (SELECT report ->> 'stop_step' FROM jsonb_array_elements(w.running_attempts) report WHERE report ->> 'run_id' = j.run_id::text) AS stop_step,
       (SELECT report ->> 'stop_reason' FROM jsonb_array_elements(w.running_attempts) report WHERE report ->> 'run_id' = j.run_id::text) AS stopping,
       extract(epoch FROM clock_timestamp() - dl_progress_changed_at(j.job_id, j.run_id))::float8 AS progress_age
  FROM dl_jobs j
       LEFT JOIN LATERAL (SELECT k.*, dl_last_beat(k.worker_id, k.seen_at) AS last_beat_at
                            FROM dl_workers k WHERE k.name = j.worker ORDER BY last_beat_at DESC LIMIT 1) w ON true
 WHERE j.job_id = %(job_id)s::uuid AND j.status::text = 'running';

-- name: queues_of_task
-- Queues of a task, and whether a job of it is among the first that are ready: the queues of its latest attempts, and of `queues`
-- those where one is.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH ready AS (
    SELECT listed.queue
      FROM unnest(%(queues)s::text[]) AS listed (queue)
     WHERE EXISTS (SELECT FROM (SELECT j.task FROM dl_jobs j
                                 WHERE j.queue = listed.queue AND j.status = 'queued' AND j.wait_state = 'ready'
                                 ORDER BY j.priority, j.created_at, j.job_id LIMIT %(max_jobs)s::int) first
                    WHERE first.task = %(task)s::text)
)
SELECT queue, queue IN (SELECT queue FROM ready)
  FROM (SELECT queue FROM ready UNION SELECT queue FROM dl_recent_runs WHERE task = %(task)s::text) found
 ORDER BY queue;

-- name: unknown_tasks_of_queue
-- Tasks of deferred jobs in a queue: no live worker of the queue knows them.
SELECT task, count(*)
  FROM dl_jobs
 WHERE queue = %(queue)s::text AND status = 'queued' AND unknown_task
 GROUP BY task
 ORDER BY 2 DESC
 LIMIT %(max_tasks)s::int;
