-- What a process asks of the server itself.

-- name: ping
SELECT 1;

-- name: read_only_reason
-- Why a transaction of this session cannot write; null: it can. A transaction on a standby is read-only too.
SELECT CASE WHEN pg_is_in_recovery() THEN 'the server takes no writes: it is a standby'
            WHEN current_setting('transaction_read_only')::bool
            THEN 'the database takes no writes: default_transaction_read_only is on (source: '
                 || (SELECT source FROM pg_settings WHERE name = 'default_transaction_read_only') || ')'
       END;

-- name: is_commit_waiting
-- Whether commits wait for a synchronous standby that is not there. Sessions of other roles may not be seen.
SELECT EXISTS (SELECT FROM pg_stat_activity
                WHERE wait_event = 'SyncRep' AND query_start < clock_timestamp() - interval '5 seconds')
 WHERE current_setting('synchronous_standby_names') <> '';

-- name: schema_version
-- Read as JSON: tables of an older version have no column `serves_from`.
SELECT version, fingerprint, (to_jsonb(recorded) ->> 'serves_from')::int AS serves_from
  FROM dl_schema AS recorded
 ORDER BY version DESC, applied_at DESC
 LIMIT 1;

-- name: replication_position
-- Return the position in the log of what a statement sees here, in bytes; on a standby also the commit time of the last
-- transaction that it has replayed; and the server's clock.
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END - '0/0')::bigint,
       extract(epoch FROM pg_last_xact_replay_timestamp())::float8,
       extract(epoch FROM clock_timestamp())::float8;
