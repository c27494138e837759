-- The settings of queues, and what worker processes report and fetch.

-- name: queue_settings
SELECT queue, state, concurrency, per_worker, note, changed_by, changed_at, fair, share,
       (SELECT coalesce(jsonb_object_agg(w.fair_key, w.weight), '{}') FROM dl_fair_weights w WHERE w.queue = q.queue)::text
  FROM dl_queues q
 ORDER BY queue;

-- name: queue_names
-- Queues that have ready jobs, settings, live workers or recently recorded depths; at most `limit`.
SELECT DISTINCT queue
  FROM (SELECT dl_ready_queues(1000) AS queue
        UNION ALL SELECT queue FROM dl_queues
        UNION ALL SELECT unnest(queues) FROM dl_live_workers()
        UNION ALL SELECT dl_recorded_queues()) known
 WHERE queue IS NOT NULL AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
 ORDER BY queue
 LIMIT %(limit)s::int;

-- name: known_names
-- Queues and tasks that registered workers or rows of features name, next to those of `queue_names`.
SELECT 'queue' AS kind, unnest(queues) FROM dl_workers
UNION SELECT 'task', unnest(tasks) FROM dl_workers
UNION SELECT kind, name FROM dl_recorded_names();

-- name: live_workers
-- The distinct sets of queues and tasks that live worker processes serve, and their labels.
SELECT DISTINCT queues, tasks, NOT draining AND NOT stopping AS claims, labels::text, unserved_tasks::text
  FROM dl_live_workers();

-- name: report_and_fetch
-- prepared
-- Store the report of a worker process, unless `attempts` is NULL, and return the settings of its queues. The row without a
-- queue says whether the process is drained. Of each attempt the report has the time of the report.
WITH reported AS (
    UPDATE dl_workers
       SET listener = %(listener)s::text,
           running_attempts = (SELECT coalesce(jsonb_agg(report || jsonb_build_object('reported_at', clock_timestamp())), '[]')
                                 FROM jsonb_array_elements(%(attempts)s::jsonb) report),
           queue_threads = %(queue_threads)s::jsonb, stopping = %(stopping)s::bool,
           threads = coalesce((SELECT sum(n::int) FROM jsonb_each_text(%(queue_threads)s::jsonb) AS t (queue, n)), threads)
     WHERE worker_id = %(worker_id)s::uuid AND %(attempts)s::jsonb IS NOT NULL
)
SELECT NULL AS queue, NULL AS state, NULL AS concurrency, NULL AS per_worker, NULL AS fair, draining
  FROM dl_workers WHERE worker_id = %(worker_id)s::uuid
 UNION ALL
SELECT queue, state, concurrency, per_worker, fair, NULL FROM dl_queues WHERE queue = ANY (%(queues)s::text[]);

-- name: acquire_maintenance_lock
-- Become the maintenance leader for as long as this session lasts.
SELECT pg_try_advisory_lock(1684828527, 5);

-- name: is_maintenance_lock_held
-- prepared
-- Whether a process is the maintenance leader: cheaper than a query of pg_locks. The lock is shared with others that ask, and
-- released at once, not with the transaction: a process that tries to lead meanwhile would find it taken.
SELECT NOT CASE WHEN pg_try_advisory_lock_shared(1684828527, 5)
                THEN pg_advisory_unlock_shared(1684828527, 5) ELSE false END;

-- name: database_time
SELECT clock_timestamp();
