-- The database server.

-- name: server_facts
SELECT current_setting('server_version'), current_database(), current_user, pg_database_size(current_database()), pg_postmaster_start_time(),
       s.version, s.applied_at
  FROM dl_schema s
 ORDER BY s.version DESC, s.applied_at DESC
 LIMIT 1;
