-- Who waits to be rung for a queue. See dl_notify_queue in schema.sql for the other half, and decision 15 for why nothing is lost.

-- name: notify_waiting_queues
-- Once a second, by one process: every queue in which a job waits to be claimed is rung for. Whoever listens and was not
-- rung by the one who made the job, for whatever reason, is late by a second and no more.
WITH RECURSIVE queues AS (
    (SELECT queue FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT j.queue FROM dl_jobs j
             WHERE j.status = 'queued' AND j.wait_state = 'ready' AND j.queue > queues.queue
             ORDER BY j.queue LIMIT 1)
      FROM queues
     WHERE queues.queue IS NOT NULL
)
SELECT count(pg_notify('dl_jobs', queue)) FROM (SELECT queue FROM queues WHERE queue IS NOT NULL LIMIT 500) waiting;

-- name: set_needs_notification
-- A process says whether it is to be rung for a queue. Nothing is lost with this mark that is not looked for anyway, so the
-- commit does not wait for the disk.
SELECT set_config('synchronous_commit', 'off', true);

INSERT INTO dl_notify_state (queue, worker_id, needs_notification)
SELECT queue, %(worker_id)s::uuid, %(needs_notification)s::bool FROM unnest(%(queues)s::text[]) AS q (queue) ORDER BY queue
    ON CONFLICT (queue, worker_id) DO UPDATE SET needs_notification = excluded.needs_notification;

-- name: has_no_silent_insert
-- Has everybody ended who made a job of this queue and rang for nobody? Then a look from now on sees all of theirs, and
-- whoever comes later sees our mark.
SELECT pg_try_advisory_xact_lock(1684828530, hashtext(%(queue)s::text));

-- name: clear_notify_state
-- Marks of this process, or of processes that have not been seen for long.
DELETE FROM dl_notify_state w
 WHERE w.worker_id = %(worker_id)s::uuid
    OR NOT EXISTS (SELECT FROM dl_workers k
                    WHERE k.worker_id = w.worker_id
                      AND k.seen_at > clock_timestamp() - make_interval(secs => 6 * k.heartbeat_sec));
