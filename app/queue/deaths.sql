-- Worker processes: how one makes itself known, and how the jobs of a dead one are taken over. A process is named by its
-- worker_id, drawn at each start; what it records about itself lets others prove its death.

-- name: register_worker
-- A beat. The answer has a row for each process that this one may outlive: those of its host, and those with its name;
-- and in each, or in one row without another process: whether its own name was taken over, and whether the process was
-- unknown. A first beat lets the others of the host know of the process at once.
WITH me AS (
    INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec, queue_threads,
                            boot_id, pid_namespace, time_namespace, pid, start_time, lock_file, child_tasks, worker_name, incarnation)
    VALUES (%(worker_id)s::uuid, %(name)s::text, %(version)s::text, %(queues)s::text[], %(tasks)s::text[],
            %(threads)s::int, %(heartbeat_sec)s::float8, %(queue_threads)s::jsonb, %(boot_id)s::text, %(pid_namespace)s::text,
            %(time_namespace)s::text, %(pid)s::int, %(start_time)s::bigint, %(lock_file)s::text,
            %(child_tasks)s::text[], %(worker_name)s::text,
            CASE WHEN %(worker_name)s::text IS NOT NULL
                 THEN 1 + (SELECT coalesce(max(incarnation), 0) FROM dl_workers WHERE worker_name = %(worker_name)s::text) END)
        ON CONFLICT (worker_id) DO UPDATE SET seen_at = clock_timestamp()
    RETURNING superseded_by, incarnation, xmax = 0 AS is_new
)
SELECT me.superseded_by IS NOT NULL, me.is_new, me.incarnation,
       w.worker_id, w.name, w.boot_id, w.pid_namespace, w.time_namespace, w.pid, w.start_time, w.lock_file,
       w.worker_name, w.listener, w.heartbeat_sec, w.stopping,
       CASE WHEN me.is_new AND %(boot_id)s::text IS NOT NULL THEN pg_notify('dl_control', 'started ' || %(boot_id)s::text) END
  FROM me
       LEFT JOIN dl_workers w
              ON w.worker_id <> %(worker_id)s::uuid
             AND w.dead_at IS NULL
             AND (w.boot_id = %(boot_id)s::text AND w.pid_namespace = %(pid_namespace)s::text
                  AND w.time_namespace = %(time_namespace)s::text
                  OR w.worker_name = %(worker_name)s::text);

-- name: deregister_worker
-- This one, and any that has not been seen for a day.
DELETE FROM dl_workers
 WHERE worker_id = %(worker_id)s::uuid OR seen_at < clock_timestamp() - interval '1 day';

-- name: request_beat
-- Ask a process to beat now; the time from which on a beat is an answer.
SELECT clock_timestamp(), pg_notify('dl_control', 'beat ' || %(worker_id)s::text);

-- name: supersede_worker
-- Take over the name of a process that has not beaten since it was asked to. Either this or its beat comes first, for both
-- change its row: it finds its name taken, or is found alive. No row: it is not there any more.
WITH taken AS (
    UPDATE dl_workers
       SET superseded_by = %(by)s::uuid
     WHERE worker_id = %(worker_id)s::uuid AND seen_at <= %(asked_at)s::timestamptz
    RETURNING worker_id
)
SELECT EXISTS (SELECT FROM taken) FROM dl_workers WHERE worker_id = %(worker_id)s::uuid;

-- name: begin_takeover
-- One process at a time takes over a dead one's jobs; another may after some seconds, should that one die over it. No row:
-- another does so now, or it is done.
UPDATE dl_workers
   SET takeover_at = clock_timestamp()
 WHERE worker_id = %(worker_id)s::uuid AND dead_at IS NULL
   AND (takeover_at IS NULL OR takeover_at < clock_timestamp() - make_interval(secs => %(again_sec)s::float8))
RETURNING worker_id;

-- name: held_attempts
-- The runs that a process holds, and which of them may have a process of their own.
SELECT j.job_id, j.run_id, j.lock_key, j.task = ANY (w.child_tasks) AS may_have_child
  FROM dl_workers w
       JOIN dl_jobs j ON j.worker_id = w.worker_id AND j.status = 'running'
 WHERE w.worker_id = %(worker_id)s::uuid;

-- name: end_worker_sessions
-- End the queue's own sessions of a process, of which each has its worker_id in its name. How many are left? Of those that
-- this account may not end, too.
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
-- Nothing is left of a dead process: neither sessions nor runs. Its row stays for lists and alerts, as that of any process
-- that fell silent.
WITH marks AS (
    DELETE FROM dl_notify_state WHERE worker_id = %(worker_id)s::uuid
)
UPDATE dl_workers SET dead_at = clock_timestamp() WHERE worker_id = %(worker_id)s::uuid;
