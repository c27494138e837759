-- What holds back the horizon of vacuum in this database. It reads the views of sessions, and two rows by their keys.

-- name: horizon_holders
-- The oldest holder of each kind, the oldest first. A snapshot counts in its own database only. A transaction with an id counts in each:
-- a snapshot that is taken while it is open keeps what was deleted since. Such a snapshot is no holder in its own right, since
-- ending its session would change nothing; nor is a VACUUM. The start and the state of a session are NULL for a role that
-- may see neither (pg_read_all_stats).
WITH sessions AS MATERIALIZED (
    SELECT a.pid, a.datid, a.datname, a.usename, a.application_name, a.state, a.xact_start, a.backend_xid, a.backend_xmin,
           a.datid IS NULL OR a.datname = current_database() AS is_here
      FROM pg_stat_activity a
     WHERE (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL) AND a.pid <> pg_backend_pid()
       AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
), prepared AS MATERIALIZED (
    SELECT transaction, gid, owner, database, prepared FROM pg_prepared_xacts
), open_ids AS MATERIALIZED (
    SELECT backend_xid AS xid FROM sessions WHERE backend_xid IS NOT NULL
    UNION ALL
    SELECT transaction FROM prepared
), holders AS (
    SELECT CASE WHEN s.datid IS NULL AND s.pid IN (SELECT pid FROM pg_stat_get_wal_senders())
                THEN 'standby' ELSE 'transaction' END AS kind,
           s.application_name AS name, s.usename AS owner, s.state, s.pid, s.datname AS database, s.xact_start AS since,
           greatest(age(s.backend_xid),
                    CASE WHEN s.is_here AND s.backend_xmin NOT IN (SELECT xid FROM open_ids) THEN age(s.backend_xmin) END) AS transactions
      FROM sessions s
    UNION ALL
    SELECT 'prepared', gid, owner, NULL, NULL, database, prepared, age(transaction) FROM prepared
    UNION ALL
    SELECT 'slot', r.slot_name, NULL, CASE WHEN r.active THEN 'active' ELSE 'inactive' END, r.active_pid, NULL, NULL, age(r.xmin)
      FROM pg_replication_slots r
     WHERE r.wal_status IS DISTINCT FROM 'lost' AND r.xmin NOT IN (SELECT xid FROM open_ids)
), oldest AS MATERIALIZED (
    SELECT DISTINCT ON (kind) * FROM holders WHERE transactions IS NOT NULL ORDER BY kind, transactions DESC, since NULLS LAST
)
SELECT h.kind, coalesce(h.name, ''), coalesce(h.owner, ''), coalesce(h.state, ''), h.pid, nullif(h.database, current_database()),
       extract(epoch FROM clock_timestamp() - h.since)::float8, h.transactions, j.job_id::text, j.task, j.attempt, w.name
  FROM oldest h
       LEFT JOIN LATERAL (SELECT d.job_id, d.task, CASE WHEN d.status = 'running' AND starts_with(d.run_id::text, split_part(h.name, ':', 3))
                                                        THEN d.attempt END AS attempt
                            FROM dl_jobs d
                           WHERE d.job_id = CASE WHEN h.kind = 'transaction' AND h.name ~ '^dataloader:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9a-f]{8}$'
                                                 THEN split_part(h.name, ':', 2)::uuid END
                           LIMIT 1) j ON true
       LEFT JOIN LATERAL (SELECT p.name
                            FROM dl_workers p
                           WHERE p.worker_id = CASE WHEN h.kind = 'transaction' AND h.name ~ '^dataloader-[a-z-]+:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                                                    THEN split_part(h.name, ':', 2)::uuid END
                           LIMIT 1) w ON true
 ORDER BY h.transactions DESC, h.since NULLS LAST;
