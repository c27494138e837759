-- Queues and workers as people rule them, and how they do.

-- name: rule_queue
-- Say what shall hold for a queue, and tell all workers. NULL: as it was; `unlimit` names the limits that go.
WITH ruled AS (
    INSERT INTO dl_queues AS q (queue, state, concurrency, per_worker, note, changed_by)
    VALUES (%(queue)s::text, coalesce(%(state)s::text, 'open'), %(concurrency)s::int, %(per_worker)s::int, %(note)s::text,
            %(by)s::text)
        ON CONFLICT (queue) DO UPDATE
       SET state = coalesce(%(state)s::text, q.state),
           concurrency = CASE WHEN 'concurrency' <> ALL (%(unlimit)s::text[])
                              THEN coalesce(excluded.concurrency, q.concurrency) END,
           per_worker = CASE WHEN 'per_worker' <> ALL (%(unlimit)s::text[])
                             THEN coalesce(excluded.per_worker, q.per_worker) END,
           note = CASE WHEN %(state)s::text IS NULL THEN coalesce(excluded.note, q.note) ELSE excluded.note END,
           changed_by = excluded.changed_by, changed_at = clock_timestamp()
    RETURNING *
)
SELECT queue, state, concurrency, per_worker, note, changed_by, changed_at,
       pg_notify('dl_control', 'queue ' || left(queue, 2000))
  FROM ruled;

-- name: queue_rules
SELECT queue, state, concurrency, per_worker, note, changed_by, changed_at FROM dl_queues ORDER BY queue;

-- name: queue_names
-- Of queues that have ready jobs, rules, live workers, or were counted in the last minutes; up to `most`.
WITH RECURSIVE ready AS (
    (SELECT queue FROM dl_jobs WHERE status = 'queued' AND place = 'ready' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT j.queue FROM dl_jobs j
             WHERE j.status = 'queued' AND j.place = 'ready' AND j.queue > ready.queue
             ORDER BY j.queue LIMIT 1)
      FROM ready
     WHERE ready.queue IS NOT NULL
)
SELECT DISTINCT queue
  FROM (SELECT * FROM (SELECT queue FROM ready LIMIT 1000) r
        UNION ALL SELECT queue FROM dl_queues
        UNION ALL SELECT unnest(queues) FROM dl_workers WHERE seen_at > clock_timestamp() - make_interval(secs => 3 * heartbeat_sec)
        UNION ALL SELECT queue FROM dl_depths WHERE at = (SELECT max(at) FROM dl_depths)) known
 WHERE queue IS NOT NULL AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
 ORDER BY queue
 LIMIT %(most)s::int;

-- name: queue_depths
-- What stands in each of these queues. Ready ones are counted along their index up to `bound`; running ones all; of those
-- that are not due or whose key is busy the numbers are the last minute's.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

WITH running AS MATERIALIZED (
    SELECT queue, count(*) AS n FROM dl_jobs WHERE status = 'running' GROUP BY queue
), threads AS MATERIALIZED (
    SELECT q.queue, count(*) AS workers
      FROM dl_workers w CROSS JOIN LATERAL unnest(w.queues) q (queue)
     WHERE w.seen_at > clock_timestamp() - make_interval(secs => 3 * w.heartbeat_sec) AND NOT w.draining
     GROUP BY q.queue
)
SELECT names.queue, least(ready.n, %(bound)s::int), ready.n > %(bound)s::int, coalesce(running.n, 0),
       coalesce(d.timed, 0), coalesce(d.parked, 0), greatest(d.ready, 0), d.at, coalesce(threads.workers, 0),
       coalesce(q.state, 'open'), q.concurrency, q.per_worker, q.note, q.changed_by, q.changed_at
  FROM unnest(%(queues)s::text[]) AS names (queue)
       CROSS JOIN LATERAL (SELECT count(*) AS n
                             FROM (SELECT FROM dl_jobs j
                                    WHERE j.queue = names.queue AND j.status = 'queued' AND j.place = 'ready'
                                    LIMIT %(bound)s::int + 1) few) ready
       LEFT JOIN running ON running.queue = names.queue
       LEFT JOIN threads ON threads.queue = names.queue
       LEFT JOIN dl_depths d ON d.queue = names.queue AND d.at = (SELECT max(at) FROM dl_depths)
       LEFT JOIN dl_queues q ON q.queue = names.queue
 ORDER BY names.queue;

-- name: drain_worker
-- Tell a worker process to claim nothing more, or to claim again.
WITH told AS (
    UPDATE dl_workers SET draining = %(draining)s::bool WHERE worker_id = %(worker_id)s::uuid RETURNING worker_id, draining
)
SELECT draining, pg_notify('dl_control', CASE WHEN draining THEN 'drain ' ELSE 'undrain ' END || worker_id) FROM told;

-- name: worker_lines
-- The worker processes that were seen of late, the living first, and what each of them runs.
WITH running AS MATERIALIZED (
    SELECT job_id, queue, task, attempt, started_at, heartbeat_at, worker FROM dl_jobs WHERE status = 'running' LIMIT 10000
)
SELECT w.worker_id, w.name, w.version, w.queues, w.tasks, w.threads, w.started_at, w.seen_at,
       w.seen_at > clock_timestamp() - make_interval(secs => 3 * w.heartbeat_sec) AND w.dead_at IS NULL AS alive, w.draining, w.listener,
       w.rss_bytes,
       coalesce((SELECT jsonb_agg(jsonb_build_object('job_id', r.job_id, 'queue', r.queue, 'task', r.task,
                                                     'attempt', r.attempt, 'started_at', r.started_at,
                                                     'heartbeat_at', r.heartbeat_at)
                                  ORDER BY r.started_at)
                   FROM running r WHERE r.worker = w.name), '[]')::text
  FROM dl_workers w
 ORDER BY alive DESC, w.started_at DESC
 LIMIT 1000;

-- name: live_workers
-- What live worker processes serve, each kind of them once.
SELECT DISTINCT queues, tasks, NOT draining AND NOT stopping AS claims
  FROM dl_workers
 WHERE seen_at > clock_timestamp() - make_interval(secs => 3 * heartbeat_sec);

-- name: worker_rules
-- What a worker process is told: the rules of its queues, and (the row without a queue) whether it is to drain. It tells
-- how it does meanwhile; NULL: it did so a moment ago.
WITH me AS (
    UPDATE dl_workers
       SET listener = %(listener)s::text, rss_bytes = %(rss_bytes)s::bigint, doing = %(doing)s::jsonb,
           queue_threads = %(queue_threads)s::jsonb, stopping = %(stopping)s::bool,
           threads = coalesce((SELECT sum(n::int) FROM jsonb_each_text(%(queue_threads)s::jsonb) AS t (queue, n)), threads)
     WHERE worker_id = %(worker_id)s::uuid AND %(doing)s::jsonb IS NOT NULL
)
SELECT NULL AS queue, NULL AS state, NULL AS concurrency, NULL AS per_worker, draining
  FROM dl_workers WHERE worker_id = %(worker_id)s::uuid
 UNION ALL
SELECT queue, state, concurrency, per_worker, NULL FROM dl_queues WHERE queue = ANY (%(queues)s::text[]);

-- name: lead
-- Be the one process that does the chores, for as long as this session lasts.
SELECT pg_try_advisory_lock(1684828527, 5);

-- name: led
-- Is there one? A session lock of two numbers.
SELECT EXISTS (SELECT FROM pg_locks
                WHERE locktype = 'advisory' AND classid = 1684828527 AND objid = 5 AND objsubid = 2 AND granted
                  AND database = (SELECT oid FROM pg_database WHERE datname = current_database()));
