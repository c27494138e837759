-- Facts about the database, as far as the queue's role can see them.

-- name: schema_objects
-- The definitions of all dl_ objects, without the name of the schema: columns, constraints, indexes, triggers, functions
-- and types. Partitions are left out, since they are created and dropped all the time.
WITH tables AS (
    SELECT c.oid, c.relname, c.relkind
      FROM pg_class c
     WHERE c.relnamespace = to_regnamespace(quote_ident(%(schema)s::text)) AND c.relkind IN ('r', 'p')
       AND starts_with(c.relname, 'dl_') AND NOT c.relispartition
), definitions AS (
    SELECT 'table' AS kind, relname::text AS name, CASE relkind WHEN 'p' THEN 'partitioned' ELSE 'plain' END AS definition, NULL AS problem FROM tables
    UNION ALL
    SELECT 'column', tables.relname || '.' || a.attname,
           format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
           || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), ''), NULL
      FROM tables JOIN pg_attribute a ON a.attrelid = tables.oid AND a.attnum > 0 AND NOT a.attisdropped
           LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    UNION ALL
    SELECT 'constraint', tables.relname || '.' || k.conname, replace(pg_get_constraintdef(k.oid), ' NOT VALID', ''), NULL
      FROM tables JOIN pg_constraint k ON k.conrelid = tables.oid AND k.contype IN ('c', 'f', 'p', 'u', 'x')
    UNION ALL
    SELECT 'index', i.relname, pg_get_indexdef(i.oid),
           CASE WHEN NOT x.indisvalid THEN 'is not valid' WHEN NOT x.indisready THEN 'is not ready' END
      FROM tables JOIN pg_index x ON x.indrelid = tables.oid JOIN pg_class i ON i.oid = x.indexrelid
    UNION ALL
    SELECT 'trigger', tables.relname || '.' || t.tgname, pg_get_triggerdef(t.oid),
           CASE WHEN t.tgenabled <> 'O' THEN 'is not enabled' END
      FROM tables JOIN pg_trigger t ON t.tgrelid = tables.oid AND NOT t.tgisinternal
    UNION ALL
    SELECT 'function', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
           md5(coalesce(p.prosrc, '') || coalesce(replace(pg_get_function_sqlbody(p.oid), quote_ident(%(schema)s::text) || '.', ''), '')) || CASE WHEN p.prosecdef THEN ' definer' ELSE '' END, NULL
      FROM pg_proc p
     WHERE p.pronamespace = to_regnamespace(quote_ident(%(schema)s::text)) AND starts_with(p.proname, 'dl_')
    UNION ALL
    SELECT 'type', t.typname, (SELECT string_agg(e.enumlabel, ' ' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid), NULL
      FROM pg_type t
     WHERE t.typnamespace = to_regnamespace(quote_ident(%(schema)s::text)) AND t.typtype = 'e' AND starts_with(t.typname, 'dl_')
    UNION ALL
    SELECT 'type', c.relname,
           (SELECT '(' || string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum) || ')'
              FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), NULL
      FROM pg_class c
     WHERE c.relnamespace = to_regnamespace(quote_ident(%(schema)s::text)) AND c.relkind = 'c' AND starts_with(c.relname, 'dl_')
)
SELECT kind || ' ' || replace(name, quote_ident(%(schema)s::text) || '.', ''), replace(definition, quote_ident(%(schema)s::text) || '.', ''), problem FROM definitions ORDER BY 1;

-- name: doctor_server
-- The server, the role, and the settings that affect the queue.
SELECT jsonb_build_object(
           'version', current_setting('server_version_num')::int,
           'version_text', current_setting('server_version'),
           'user', current_user,
           'database', current_database(),
           'encoding', getdatabaseencoding(),
           'superuser', (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
           'sees_others', pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
           'ends_others', pg_has_role(current_user, 'pg_signal_backend', 'USAGE'),
           'temporary_tables', has_database_privilege(current_database(), 'TEMPORARY'),
           'in_recovery', pg_is_in_recovery(),
           'now', extract(epoch FROM clock_timestamp()),
           'up_sec', extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()),
           'port', inet_server_port(),
           'connections', (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
           'role_limit', (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
           'database_limit', (SELECT datconnlimit FROM pg_database WHERE datname = current_database()),
           'frozen_age', (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()),
           'database_bytes', CASE WHEN has_database_privilege(current_database(), 'CONNECT') THEN pg_database_size(current_database()) END,
           'notification_queue_usage', pg_notification_queue_usage(),
           'standby_names', current_setting('synchronous_standby_names'),
           'waiting_commits', (SELECT count(*) FROM pg_stat_activity
                                WHERE wait_event = 'SyncRep' AND query_start < clock_timestamp() - interval '5 seconds'),
           'settings', (SELECT jsonb_object_agg(name, CASE WHEN source = 'session' AND name <> 'default_transaction_read_only' THEN reset_val ELSE setting END) FROM pg_settings WHERE name = ANY (%(names)s::text[])),
           'role_is_read_only', (SELECT setting = 'on' AND source IN ('user', 'database user') FROM pg_settings WHERE name = 'default_transaction_read_only'))::text;

-- name: doctor_rights
-- The missing privileges on the given tables, the schema and its sequences.
WITH required AS (
    SELECT * FROM unnest(%(tables)s::text[], %(rights)s::text[]) AS w (relation, privilege)
), qualified AS (
    SELECT relation, privilege, to_regclass(quote_ident(%(schema)s::text) || '.' || quote_ident(relation)) AS oid FROM required
)
SELECT relation, string_agg(privilege, ', ' ORDER BY privilege)
  FROM qualified
 WHERE oid IS NOT NULL
   AND NOT CASE WHEN privilege LIKE '%%(%%' THEN has_any_column_privilege(oid, split_part(privilege, ' ', 1))
                ELSE has_table_privilege(oid, privilege) END
 GROUP BY relation
UNION ALL
SELECT 'schema ' || %(schema)s::text, 'USAGE' WHERE NOT coalesce(has_schema_privilege(to_regnamespace(quote_ident(%(schema)s::text))::oid, 'USAGE'), false)
UNION ALL
SELECT 'sequence ' || c.relname, 'USAGE'
  FROM pg_class c
 WHERE c.relnamespace = to_regnamespace(quote_ident(%(schema)s::text)) AND c.relkind = 'S' AND starts_with(c.relname, 'dl_')
   AND CASE c.relkind WHEN 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE') ELSE false END
 ORDER BY 1;

-- name: doctor_tables
SELECT s.relname, s.n_live_tup, s.n_dead_tup,
       extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::float8,
       pg_total_relation_size(s.relid)
  FROM pg_stat_all_tables s
 WHERE s.schemaname = %(schema)s::text AND starts_with(s.relname, 'dl_')
 ORDER BY s.n_dead_tup DESC
 LIMIT 50;

-- name: doctor_transactions
-- What keeps vacuum from removing dead rows: transactions older than `older_sec`, prepared ones, and replication slots.
SELECT pid::text, coalesce(application_name, ''), coalesce(usename, ''), coalesce(state, ''),
       extract(epoch FROM clock_timestamp() - xact_start)::float8, left(coalesce(query, ''), 120), coalesce(datname = current_database(), false)
  FROM pg_stat_activity
 WHERE pid <> pg_backend_pid() AND xact_start < clock_timestamp() - make_interval(secs => %(older_sec)s::float8)
UNION ALL
SELECT 'prepared', gid, owner, 'prepared', extract(epoch FROM clock_timestamp() - prepared)::float8, '', database = current_database()
  FROM pg_prepared_xacts
 WHERE prepared < clock_timestamp() - make_interval(secs => %(older_sec)s::float8)
UNION ALL
SELECT 'slot', slot_name, '', CASE WHEN active THEN 'active' ELSE 'inactive' END, NULL, '', coalesce(database = current_database(), true)
  FROM pg_replication_slots
 WHERE age(coalesce(xmin, catalog_xmin)) > 10000000
 ORDER BY 5 DESC NULLS LAST
 LIMIT 20;

-- name: doctor_lock_holders
-- Sessions of others that have held locks on jobs or their table for longer than `older_sec`. Locks of reading and of vacuum are no obstacle.
SELECT l.pid, coalesce(a.application_name, ''), coalesce(a.usename, ''), coalesce(a.state, ''),
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8, left(coalesce(a.query, ''), 120), l.mode
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.relation = to_regclass(quote_ident(%(schema)s::text) || '.dl_jobs')
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.granted AND l.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock')
   AND NOT starts_with(a.application_name, 'dataloader-') AND a.xact_start < clock_timestamp() - make_interval(secs => %(older_sec)s::float8)
 ORDER BY a.xact_start
 LIMIT 20;

-- name: doctor_queue
-- Jobs that no worker will claim, and attempts that run too long. Each list is limited: the tasks of ready jobs are those of
-- the first `max_ready` of each queue. Workers mark the other jobs of unknown tasks.
WITH RECURSIVE live AS MATERIALIZED (
    SELECT name, queues, tasks, labels, unserved_tasks, reaps FROM dl_live_workers()
), queues AS (
    (SELECT queue FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT next.queue
      FROM queues CROSS JOIN LATERAL (SELECT j.queue FROM dl_jobs j
                                       WHERE j.status = 'queued' AND j.wait_state = 'ready' AND j.queue > queues.queue
                                       ORDER BY j.queue LIMIT 1) next
), waiting AS MATERIALIZED (
    SELECT DISTINCT queues.queue, first.task
      FROM queues CROSS JOIN LATERAL (SELECT j.task FROM dl_jobs j
                                       WHERE j.status = 'queued' AND j.wait_state = 'ready' AND j.queue = queues.queue
                                       ORDER BY j.priority, j.created_at, j.job_id LIMIT %(max_ready)s::int) first
), unknown_tasks AS (
    SELECT queue, task FROM dl_jobs WHERE status = 'queued' AND wait_state = 'scheduled' AND unknown_task LIMIT 500
), unserved AS MATERIALIZED (
    -- Of a queue that no worker serves only the queue is reported, unless a worker has deferred its jobs.
    SELECT DISTINCT w.task
      FROM (SELECT queue, task FROM waiting WHERE EXISTS (SELECT FROM live WHERE waiting.queue = ANY (live.queues))
            UNION SELECT queue, task FROM unknown_tasks) w
     WHERE NOT EXISTS (SELECT FROM live WHERE w.queue = ANY (live.queues) AND (w.task = ANY (live.tasks) OR live.unserved_tasks ? w.task))
)
SELECT jsonb_build_object(
           'live', (SELECT count(*) FROM live),
           'reaping', (SELECT count(*) FROM live WHERE reaps),
           'queues_without_worker', (SELECT coalesce(jsonb_agg(queue ORDER BY queue), '[]') FROM queues
                                      WHERE NOT EXISTS (SELECT FROM live WHERE queues.queue = ANY (live.queues))),
           'tasks_without_worker', (SELECT coalesce(jsonb_agg(task ORDER BY task), '[]') FROM unserved),
           'known_tasks', (SELECT coalesce(jsonb_agg(DISTINCT task), '[]') FROM live CROSS JOIN LATERAL unnest(tasks) t (task)
                            WHERE EXISTS (SELECT FROM unserved)),
           'labels_without_worker', (SELECT coalesce(jsonb_agg(DISTINCT jsonb_build_array(w.queue, w.task, live.unserved_tasks -> w.task)), '[]')
                                       FROM (SELECT queue, task FROM waiting UNION SELECT queue, task FROM unknown_tasks) w
                                            JOIN live ON w.queue = ANY (live.queues) AND live.unserved_tasks ? w.task
                                      WHERE NOT EXISTS (SELECT FROM live WHERE w.queue = ANY (live.queues) AND w.task = ANY (live.tasks))),
           'labels', (SELECT coalesce(jsonb_agg(DISTINCT jsonb_build_array(queue, labels)), '[]')
                        FROM live CROSS JOIN LATERAL unnest(queues) q (queue)),
           'expired', (SELECT coalesce(jsonb_agg(jsonb_build_array(job_id, worker, round(extract(epoch FROM clock_timestamp() - lease_end)))), '[]')
                         FROM (SELECT job_id, worker, lease_end
                                 FROM dl_jobs CROSS JOIN LATERAL dl_lease_end(worker_id, lease_expires_at, heartbeat_at, lease_ttl_sec) AS lease_end
                                WHERE status = 'running' AND lease_end < clock_timestamp() - interval '2 minutes' AND isfinite(lease_end) LIMIT 50) e),
           'odd_leases', (SELECT coalesce(jsonb_agg(jsonb_build_array(job_id, worker, lease_expires_at, heartbeat_at)), '[]')
                            FROM (SELECT job_id, worker, lease_expires_at, heartbeat_at FROM dl_jobs
                                   WHERE status = 'running'
                                     AND greatest(lease_expires_at, heartbeat_at)
                                         > clock_timestamp() + make_interval(hours => CASE WHEN worker_id IS NULL THEN 0 ELSE 1 END, secs => lease_ttl_sec + 60)
                                   LIMIT 50) o),
           'unstopped', (SELECT coalesce(jsonb_agg(jsonb_build_array(job_id, worker, left(error, 200))), '[]')
                           FROM (SELECT job_id, worker, error FROM dl_jobs
                                  WHERE status = 'running' AND (error IS NOT NULL OR cancel_requested AND dl_last_heartbeat(status, worker_id, heartbeat_at) > started_at + interval '10 minutes')
                                  LIMIT 50) u),
           'shared_names', (SELECT coalesce(jsonb_agg(jsonb_build_array(worker_name, workers) ORDER BY worker_name), '[]')
                              FROM (SELECT worker_name, jsonb_agg(name ORDER BY started_at) AS workers
                                      FROM dl_live_workers()
                                     WHERE worker_name IS NOT NULL AND superseded_by IS NULL AND dead_at IS NULL AND NOT stopping
                                     GROUP BY worker_name HAVING count(*) > 1) shared),
           'listeners', (SELECT coalesce(jsonb_agg(jsonb_build_array(host, listener, workers)), '[]')
                           FROM (SELECT split_part(name, ':', 1) AS host, listener, count(*) AS workers
                                   FROM dl_live_workers()
                                  WHERE listener IS NOT NULL AND dead_at IS NULL AND NOT stopping
                                  GROUP BY 1, 2 ORDER BY 1, 2 LIMIT 1000) of_host))::text;

-- name: doctor_lock_keys
-- Keys that blocked jobs wait for, held by sessions that run no such job.
WITH advisory_locks AS MATERIALIZED (
    SELECT ((l.classid::bigint << 32) | l.objid::bigint) AS hash, l.pid, a.application_name
      FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
     WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
), blocked AS MATERIALIZED (
    SELECT lock_key FROM dl_jobs WHERE status = 'queued' AND wait_state = 'blocked' ORDER BY lock_key LIMIT 2000
)
SELECT coalesce(jsonb_agg(DISTINCT jsonb_build_array(b.lock_key, h.pid, coalesce(h.application_name, ''))), '[]')::text
  FROM blocked b JOIN advisory_locks h ON h.hash = hashtext(b.lock_key)::bigint
 WHERE NOT EXISTS (SELECT FROM dl_jobs r WHERE r.lock_key BETWEEN b.lock_key AND b.lock_key AND r.status = 'running');
