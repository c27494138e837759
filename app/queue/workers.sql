-- Registration and heartbeats of worker processes, and the takeover of a dead one's jobs. A process has a worker_id of its
-- own for each start; what it records about itself lets others prove its death. Then which processes need notifications;
-- dl_notify_queue in schema.sql reads that, and decision 15 explains why no job is missed.

-- name: register_worker
-- Writes what a process records about itself, and notifies the other processes of its host.
WITH self AS (
    INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec, queue_threads,
                            boot_id, pid_namespace, time_namespace, pid, start_time, lock_file, child_tasks, worker_name, schedules,
                            labels, unserved_tasks, reaps, release, incarnation)
    VALUES (%(worker_id)s::uuid, %(name)s::text, %(version)s::text, %(queues)s::text[], %(tasks)s::text[],
            %(threads)s::int, %(heartbeat_sec)s::float8, %(queue_threads)s::jsonb, %(boot_id)s::text, %(pid_namespace)s::text,
            %(time_namespace)s::text, %(pid)s::int, %(start_time)s::bigint, %(lock_file)s::text,
            %(child_tasks)s::text[], %(worker_name)s::text, %(schedules)s::text[],
            %(labels)s::jsonb, %(unserved_tasks)s::jsonb, %(reaps)s::bool, %(code_release)s::text,
            CASE WHEN %(worker_name)s::text IS NOT NULL
                 THEN 1 + (SELECT coalesce(max(incarnation), 0) FROM dl_workers WHERE worker_name = %(worker_name)s::text) END)
        ON CONFLICT DO NOTHING
    RETURNING worker_id, boot_id
)
SELECT pg_notify('dl_control', concat_ws(' ', 'started', boot_id, worker_id)) FROM self WHERE boot_id IS NOT NULL;

-- name: record_heartbeat
-- prepared
-- After a heartbeat (`beat` in jobs.sql). Returns whether another process took over the name, and what there is to do: that there is no
-- maintenance leader, when the next schedule comes, that a process has sent no heartbeat for two of its intervals, so that leases may have
-- expired, that `idle_queues` have a job to claim, that
-- blocked jobs or updates of datasets wait, which a frozen leader does not handle, that a webhook delivery is due, and the version
-- of the settings. No row: the process is not registered. The row is changed seldom: `seen_at` is when it is changed next, a tenth of
-- the life of the process later, so that processes of older versions count it as alive; they do not know dl_heartbeats.
SELECT set_config('synchronous_commit', 'off', true);

UPDATE dl_workers
   SET seen_at = clock_timestamp()
                 + make_interval(secs => least(600, greatest(2 * heartbeat_sec, extract(epoch FROM clock_timestamp() - started_at) / 10)))
 WHERE worker_id = %(worker_id)s::uuid AND seen_at < clock_timestamp();

SELECT superseded_by IS NOT NULL, incarnation,
       -- The lock is released at once, not with the transaction: a process that is about to lead would find it taken.
       (SELECT NOT CASE WHEN pg_try_advisory_lock_shared(1684828527, 5)
                        THEN pg_advisory_unlock_shared(1684828527, 5) ELSE false END) AS is_led,
       due.next_schedule_in_sec,
       EXISTS (SELECT FROM dl_workers w
                     CROSS JOIN LATERAL (SELECT coalesce((SELECT h.seen_at FROM dl_heartbeats h WHERE h.worker_id = w.worker_id
                                                           ORDER BY h.seen_at DESC LIMIT 1), w.seen_at) AS seen_at) last
                WHERE w.dead_at IS NULL AND last.seen_at < clock_timestamp() - make_interval(secs => 2 * w.heartbeat_sec)
                  AND last.seen_at > clock_timestamp() - interval '1 hour') AS has_silent_workers,
       EXISTS (SELECT FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready' AND queue = ANY (%(idle_queues)s::text[]))
       OR EXISTS (SELECT FROM dl_jobs
                   WHERE status = 'queued' AND wait_state = 'scheduled' AND available_at <= (SELECT clock_timestamp())
                     AND %(idle_queues)s::text[] <> '{}') AS has_ready_jobs,
       EXISTS (SELECT FROM dl_jobs WHERE status = 'queued' AND wait_state = 'blocked')
       OR due.has_updates AS has_waiting_work,
       due.has_due_deliveries,
       -- A row's xmin changes with each change of it, also with one that commits after a later one.
       concat_ws(' ', draining, (SELECT string_agg(q.xmin::text, ' ' ORDER BY q.queue)
                                   FROM dl_queues q WHERE q.queue = ANY (self.queues))) AS settings_version
  FROM dl_workers self CROSS JOIN dl_due_work() due
 WHERE worker_id = %(worker_id)s::uuid;

-- name: prune_heartbeats
-- Only the last one of a process counts. A process that has sent none for an hour counts as last seen when its row was last changed.
DELETE FROM dl_heartbeats WHERE seen_at NOT BETWEEN clock_timestamp() - interval '1 hour' AND clock_timestamp() + interval '1 hour';

-- name: other_workers
-- prepared
-- The other processes whose death this one watches for: of its host the next `watched` that reap, by worker_id, after the last the
-- first again, or all; those that do not reap, as they watch for none; and those with its name.
WITH near AS (
    (SELECT worker_id, 1 AS turn FROM dl_workers
      WHERE worker_id > %(worker_id)s::uuid AND reaps AND dead_at IS NULL AND boot_id = %(boot_id)s::text
        AND pid_namespace = %(pid_namespace)s::text AND time_namespace = %(time_namespace)s::text
      ORDER BY worker_id LIMIT %(watched)s::int)
    UNION ALL
    (SELECT worker_id, 2 FROM dl_workers
      WHERE worker_id < %(worker_id)s::uuid AND reaps AND dead_at IS NULL AND boot_id = %(boot_id)s::text
        AND pid_namespace = %(pid_namespace)s::text AND time_namespace = %(time_namespace)s::text
      ORDER BY worker_id LIMIT %(watched)s::int)
), others AS (
    (SELECT worker_id FROM near ORDER BY turn, worker_id LIMIT %(watched)s::int)
    UNION
    SELECT worker_id FROM dl_workers
     WHERE NOT reaps AND worker_id <> %(worker_id)s::uuid AND dead_at IS NULL AND boot_id = %(boot_id)s::text
       AND pid_namespace = %(pid_namespace)s::text AND time_namespace = %(time_namespace)s::text
       AND %(reaps)s::bool
    UNION
    SELECT worker_id FROM dl_workers
     WHERE worker_name = %(worker_name)s::text AND worker_id <> %(worker_id)s::uuid AND dead_at IS NULL
       AND %(worker_name)s::text IS NOT NULL
)
SELECT w.worker_id, w.name, w.boot_id, w.pid_namespace, w.time_namespace, w.pid, w.start_time, w.lock_file,
       w.worker_name, w.listener, w.heartbeat_sec, w.stopping
  FROM others JOIN dl_workers w ON w.worker_id = ANY (ARRAY[others.worker_id]);

-- name: deregister_worker
-- Deletes this process, and any that has not been seen for a day, but none that holds a job: reapers look for those of dl_workers.
WITH deleted AS (
    DELETE FROM dl_workers w
     WHERE (worker_id = %(worker_id)s::uuid OR seen_at < clock_timestamp() - interval '1 day')
       AND NOT EXISTS (SELECT FROM dl_jobs j WHERE j.status = 'running' AND j.worker_id = w.worker_id)
    RETURNING worker_id
)
DELETE FROM dl_heartbeats h USING deleted WHERE h.worker_id = deleted.worker_id;

-- name: request_heartbeat
-- Requests a heartbeat from a process; returns the time from which on a heartbeat is the response.
SELECT clock_timestamp(), pg_notify('dl_control', 'heartbeat ' || %(worker_id)s::text);

-- name: supersede_worker
-- Takes over the name of a process that has sent no heartbeat since it was requested to. Both this and a heartbeat take its lock, so
-- one comes first: the process learns that its name is taken, or is found alive. No row: the process is gone.
SELECT pg_advisory_xact_lock(1684828534, hashtext(%(worker_id)s::text));

WITH superseded AS (
    UPDATE dl_workers
       SET superseded_by = %(by)s::uuid
     WHERE worker_id = %(worker_id)s::uuid AND dl_last_beat(worker_id, seen_at) <= %(requested_at)s::timestamptz
    RETURNING worker_id
)
SELECT EXISTS (SELECT FROM superseded) FROM dl_workers WHERE worker_id = %(worker_id)s::uuid;

-- name: begin_takeover
-- One process at a time takes over a dead one's jobs; after `exclusive_sec` another may, in case the first died meanwhile.
-- No row: another process is doing it, or it is done.
UPDATE dl_workers
   SET takeover_at = clock_timestamp()
 WHERE worker_id = %(worker_id)s::uuid AND dead_at IS NULL
   AND (takeover_at IS NULL OR takeover_at < clock_timestamp() - make_interval(secs => %(exclusive_sec)s::float8))
RETURNING worker_id;

-- name: held_attempts
-- The runs that a process holds, and which of them may have a process of their own.
SELECT j.job_id, j.run_id, j.lock_key, j.task = ANY (w.child_tasks) AS may_have_child
  FROM dl_workers w
       JOIN dl_jobs j ON j.worker_id = w.worker_id AND j.status = 'running'
 WHERE w.worker_id = %(worker_id)s::uuid;

-- name: end_worker_sessions
-- Ends the queue's own sessions of a process, which have its worker_id in their names. Returns how many were ended and how
-- many there were, including those that this account may not end.
WITH sessions AS MATERIALIZED (
    SELECT a.pid,
           coalesce((pg_has_role(a.usesysid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE'))
                    AND (NOT r.rolsuper OR current_setting('is_superuser') = 'on'), false) AS may_end
      FROM pg_stat_activity a LEFT JOIN pg_roles r ON r.oid = a.usesysid
     WHERE starts_with(a.application_name, 'dataloader-') AND right(a.application_name, 37) = ':' || %(worker_id)s::text
       AND a.pid <> pg_backend_pid()
)
SELECT count(*) FILTER (WHERE CASE WHEN may_end THEN pg_terminate_backend(pid) ELSE false END), count(*) FROM sessions;

-- name: end_takeover
-- Marks a process as dead whose sessions and runs are all gone. Its row stays for lists and alerts.
WITH notify_state AS (
    DELETE FROM dl_notify_state WHERE worker_id = %(worker_id)s::uuid
)
UPDATE dl_workers SET dead_at = clock_timestamp() WHERE worker_id = %(worker_id)s::uuid;

-- name: notify_waiting_queues
-- prepared
-- Notifies every queue with a ready job, but for queues that only processes with DL_LISTEN=off serve. The maintenance leader
-- does so once a second, so that a missed notification delays a job by at most a second.
SELECT count(pg_notify('dl_jobs', queue))
  FROM dl_ready_queues(500) AS waiting (queue)
 WHERE coalesce((SELECT bool_or(w.listener IS DISTINCT FROM 'off') FROM dl_live_workers() w
                  WHERE waiting.queue = ANY (w.queues) AND w.dead_at IS NULL), true);

-- name: set_needs_notification
-- Records whether this process needs notifications for queues. A lost row costs a delay of a second, so the commit does not
-- wait for the disk.
SELECT set_config('synchronous_commit', 'off', true);

INSERT INTO dl_notify_state (queue, worker_id, needs_notification)
SELECT queue, %(worker_id)s::uuid, %(needs_notification)s::bool FROM unnest(%(queues)s::text[]) AS q (queue) ORDER BY queue
    ON CONFLICT (queue, worker_id) DO UPDATE SET needs_notification = excluded.needs_notification;

-- name: has_no_silent_insert
-- Whether every transaction that inserted a job of this queue without a notification has ended. If so, a claim from now on
-- sees all their jobs, and later transactions see this process's row.
SELECT pg_try_advisory_xact_lock(1684828530, hashtext(%(queue)s::text));

-- name: clear_notify_state
-- Deletes the rows of this process and of processes that have not been seen for long.
DELETE FROM dl_notify_state s
 WHERE s.worker_id = %(worker_id)s::uuid
    OR NOT EXISTS (SELECT FROM dl_workers w
                    WHERE w.worker_id = s.worker_id
                      AND dl_last_beat(w.worker_id, w.seen_at) > clock_timestamp() - make_interval(secs => 6 * w.heartbeat_sec));
