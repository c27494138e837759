-- Queues and worker processes, as operators read and change them.

-- name: change_queue_settings
-- Change the settings of a queue and notify all workers. A parameter that is NULL leaves its column unchanged; `remove` lists the
-- settings to remove. `weights` sets those of tenants; null removes one.
INSERT INTO dl_queues AS q (queue, state, concurrency, per_worker, fair, share, note, changed_by)
VALUES (%(queue)s::text, coalesce(%(state)s::text, 'open'), %(concurrency)s::int, %(per_worker)s::int, %(fair)s::text,
        %(share)s::float8, %(note)s::text, %(changed_by)s::text)
    ON CONFLICT (queue) DO UPDATE
   SET state = coalesce(%(state)s::text, q.state),
       concurrency = CASE WHEN 'concurrency' <> ALL (%(remove)s::text[]) THEN coalesce(excluded.concurrency, q.concurrency) END,
       per_worker = CASE WHEN 'per_worker' <> ALL (%(remove)s::text[]) THEN coalesce(excluded.per_worker, q.per_worker) END,
       fair = CASE WHEN 'fair' <> ALL (%(remove)s::text[]) THEN coalesce(excluded.fair, q.fair) END,
       share = CASE WHEN 'share' <> ALL (%(remove)s::text[]) THEN coalesce(excluded.share, q.share) END,
       note = CASE WHEN %(state)s::text IS NULL THEN coalesce(excluded.note, q.note) ELSE excluded.note END,
       changed_by = excluded.changed_by, changed_at = clock_timestamp();

WITH removed AS (
    DELETE FROM dl_fair_weights w USING jsonb_each(%(weights)s::jsonb) AS given (fair_key, weight)
     WHERE w.queue = %(queue)s::text AND w.fair_key = given.fair_key AND given.weight = 'null'
)
INSERT INTO dl_fair_weights (queue, fair_key, weight)
SELECT %(queue)s::text, given.fair_key, given.weight::int FROM jsonb_each(%(weights)s::jsonb) AS given (fair_key, weight)
 WHERE given.weight <> 'null'
    ON CONFLICT (queue, fair_key) DO UPDATE SET weight = excluded.weight;

SELECT queue, state, concurrency, per_worker, note, changed_by, changed_at, fair, share,
       (SELECT coalesce(jsonb_object_agg(w.fair_key, w.weight), '{}') FROM dl_fair_weights w WHERE w.queue = q.queue)::text,
       pg_notify('dl_control', 'queue ' || left(queue, 2000))
  FROM dl_queues q
 WHERE queue = %(queue)s::text;

-- name: queue_depths
-- The depths of these queues. Ready jobs are counted along their index up to `max_exact`, running ones completely; the
-- numbers of scheduled, blocked, limited and waiting jobs are those recorded in the last minute.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

WITH running AS MATERIALIZED (
    SELECT queue, count(*) AS n FROM dl_jobs WHERE status = 'running' GROUP BY queue
), serving AS MATERIALIZED (
    SELECT q.queue, count(*) AS workers
      FROM dl_live_workers() w CROSS JOIN LATERAL unnest(w.queues) q (queue)
     WHERE NOT w.draining
     GROUP BY q.queue
)
SELECT listed.queue, coalesce(q.state, 'open'), q.concurrency, q.per_worker, q.note, q.changed_by, q.changed_at,
       q.fair, q.share,
       (SELECT coalesce(jsonb_object_agg(w.fair_key, w.weight), '{}') FROM dl_fair_weights w WHERE w.queue = listed.queue)::text,
       coalesce(q.state, 'open') <> 'open' AND running.n IS NULL AS is_drained,
       CASE WHEN ready.n <= %(max_exact)s::int THEN ready.n ELSE greatest(%(max_exact)s::int, d.ready) END AS ready,
       ready.n <= %(max_exact)s::int AS ready_exact, coalesce(d.scheduled, 0), coalesce(d.blocked, 0), coalesce(d.limited, 0), coalesce(d.waiting, 0), coalesce(running.n, 0),
       coalesce(serving.workers, 0), d.at
  FROM unnest(%(queues)s::text[]) AS listed (queue)
       CROSS JOIN LATERAL (SELECT count(*) AS n
                             FROM (SELECT FROM dl_jobs j
                                    WHERE j.queue = listed.queue AND j.status = 'queued' AND j.wait_state = 'ready'
                                    LIMIT %(max_exact)s::int + 1) limited) ready
       LEFT JOIN running ON running.queue = listed.queue
       LEFT JOIN serving ON serving.queue = listed.queue
       LEFT JOIN dl_queue_depths d ON d.queue = listed.queue AND d.at = (SELECT max(at) FROM dl_queue_depths)
       LEFT JOIN dl_queues q ON q.queue = listed.queue
 ORDER BY listed.queue;

-- name: next_jobs
-- The first ready jobs of a queue in the order of claims. In a fair queue each tenant's jobs are in this order.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

SELECT job_id, task, priority, fair_key, unknown_task, greatest(created_at, available_at) AS ready_since
  FROM dl_jobs
 WHERE queue = %(queue)s::text AND status = 'queued' AND wait_state = 'ready'
 ORDER BY priority, created_at, job_id
 LIMIT %(limit)s::int;

-- name: waiting_tenants
-- The tenants of a fair queue among its first ready jobs and its running ones, those with the most ready jobs first.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

WITH ready AS (
    SELECT coalesce(fair_key, '') AS tenant, count(*) AS n
      FROM (SELECT fair_key FROM dl_jobs
             WHERE queue = %(queue)s::text AND status = 'queued' AND wait_state = 'ready'
             ORDER BY priority, created_at, job_id
             LIMIT %(max_exact)s::int) first
     GROUP BY 1
), running AS (
    SELECT coalesce(fair_key, '') AS tenant, count(*) AS n
      FROM dl_jobs
     WHERE status = 'running' AND queue = %(queue)s::text
     GROUP BY 1
)
SELECT coalesce(ready.tenant, running.tenant), coalesce(ready.n, 0), coalesce(running.n, 0), coalesce(w.weight, 1)
  FROM ready
       FULL JOIN running ON running.tenant = ready.tenant
       LEFT JOIN dl_fair_weights w ON w.queue = %(queue)s::text AND w.fair_key = coalesce(ready.tenant, running.tenant)
 ORDER BY 2 DESC, 3 DESC, 1
 LIMIT %(limit)s::int;

-- name: drain_worker
-- Make a worker process stop claiming jobs, or claim again.
WITH changed AS (
    UPDATE dl_workers SET draining = %(draining)s::bool WHERE worker_id = %(worker_id)s::uuid RETURNING worker_id, draining
)
SELECT draining, pg_notify('dl_control', CASE WHEN draining THEN 'drain ' ELSE 'undrain ' END || worker_id) FROM changed;

-- name: drain_host
-- The same for the processes of a host, whose names are its own and a number.
WITH changed AS (
    UPDATE dl_workers SET draining = %(draining)s::bool
     WHERE worker_id = ANY (%(worker_ids)s::uuid[]) RETURNING worker_id, draining
)
SELECT worker_id, pg_notify('dl_control', CASE WHEN draining THEN 'drain ' ELSE 'undrain ' END || worker_id) FROM changed;

-- name: worker_statuses
-- Registered worker processes with their running jobs, live ones first.
WITH running AS MATERIALIZED (
    SELECT job_id, queue, task, attempt, started_at, dl_last_heartbeat(status, worker_id, heartbeat_at) AS heartbeat_at, worker, worker_id,
           CASE WHEN checkpoint IS NULL  -- since the start of this attempt; started_at is that of the first
                THEN greatest(0, extract(epoch FROM clock_timestamp()
                     - coalesce((SELECT e.ts FROM dl_job_events e WHERE e.job_id = j.job_id AND e.kind = 'picked'
                                  ORDER BY e.event_id DESC LIMIT 1), started_at)))
                ELSE 0 END AS loss_sec
      FROM dl_jobs j WHERE status = 'running' LIMIT 10000
)
SELECT w.worker_id, w.name, w.version, w.queues, w.tasks, w.threads, cardinality(jobs.running) AS busy, w.started_at,
       coalesce(beat.seen_at, w.seen_at),
       coalesce(beat.seen_at, w.seen_at) > clock_timestamp() - make_interval(secs => 3 * w.heartbeat_sec) AND w.dead_at IS NULL AS alive,
       w.draining, w.listener, coalesce(beat.rss_bytes, w.rss_bytes), jobs.running, w.pid, w.queue_threads::text, w.stopping, jobs.would_lose_sec, w.labels::text,
       w.unserved_tasks::text, w.release
  FROM dl_workers w
       LEFT JOIN LATERAL (SELECT h.seen_at, h.rss_bytes FROM dl_heartbeats h WHERE h.worker_id = w.worker_id
                           ORDER BY h.seen_at DESC LIMIT 1) beat ON true
       CROSS JOIN LATERAL (SELECT coalesce(array_agg((to_jsonb(r) - 'worker' - 'worker_id' - 'loss_sec')::text ORDER BY r.started_at), '{}') AS running,
                                  coalesce(round(sum(r.loss_sec), 1), 0)::float8 AS would_lose_sec
                             FROM running r
                            -- A process of 0.3.0 claims without its id. A name may come again: it is that of a host and a process.
                            WHERE coalesce(r.worker_id = w.worker_id, r.worker = w.name)) jobs
 ORDER BY alive DESC, w.started_at DESC
 LIMIT 1000;

-- name: lock_queue
-- For an undo.
SELECT FROM dl_queues WHERE queue = %(subject_id)s::text FOR NO KEY UPDATE;

-- name: lock_worker
-- For an undo.
SELECT FROM dl_workers WHERE worker_id = %(subject_id)s::uuid FOR NO KEY UPDATE;
