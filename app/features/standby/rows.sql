-- How far a server is, for reads from a standby.

-- name: replication_position
-- Return the position in the log of what a statement sees here, in bytes; on a standby also the commit time of the last
-- transaction that it has replayed; and the server's clock.
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END - '0/0')::bigint,
       extract(epoch FROM pg_last_xact_replay_timestamp())::float8,
       extract(epoch FROM clock_timestamp())::float8;
