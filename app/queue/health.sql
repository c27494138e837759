-- How the database itself does, as far as the queue's own role may see it.

-- name: database_numbers
-- Dead and live rows of the queue's tables, the oldest transactions, how full the notification queue is, how many live
-- workers there are. Of other roles' sessions a role without pg_read_all_stats sees only that they are there.
SELECT jsonb_build_object(
           'tables', (SELECT coalesce(jsonb_agg(jsonb_build_array(s.relname, s.n_dead_tup, s.n_live_tup)), '[]')
                        FROM pg_stat_all_tables s
                       WHERE s.schemaname = %(schema)s::text AND s.relname IN ('dl_jobs', 'dl_job_events', 'dl_deliveries')),
           'oldest_transaction_sec', coalesce((SELECT extract(epoch FROM clock_timestamp() - min(a.xact_start))
                                                 FROM pg_stat_activity a
                                                WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
                                                  AND a.backend_type = 'client backend'), 0),
           'oldest_snapshot_xids', (SELECT coalesce(max(age(a.backend_xmin)), 0)
                                      FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid()),
           'notification_queue_usage', pg_notification_queue_usage(),
           'workers', (SELECT count(*) FROM dl_workers
                        WHERE seen_at > clock_timestamp() - make_interval(secs => 3 * heartbeat_sec)))::text;
