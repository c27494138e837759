-- The sessions of an attempt on a server, and who blocks them. These statements run on any server that the settings name: they read the
-- catalog alone. State, times, wait and statement of a session are NULL for a role that may not see them (pg_read_all_stats).

-- name: where_sessions
-- The sessions of these names, in whichever database of the server. The name of an attempt has 56 characters; one that its task's own code gave
-- the session may follow it. `lock_on` is the relation that it waits for, or whose row; known in this database only.
SELECT left(a.application_name, 56), a.pid, a.datname, a.usename, a.state,
       extract(epoch FROM clock_timestamp() - a.state_change)::float8, extract(epoch FROM clock_timestamp() - a.xact_start)::float8,
       a.wait_event_type, a.wait_event, left(a.query, 4000),
       CASE WHEN a.wait_event_type = 'Lock' OR a.state IS NULL
            THEN (SELECT l.relation::regclass::text
                    FROM pg_locks l
                   WHERE l.pid = a.pid AND l.locktype IN ('relation', 'extend', 'page', 'tuple') AND (NOT l.granted OR l.locktype = 'tuple')
                     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                   ORDER BY l.granted
                   LIMIT 1) END,
       CASE WHEN a.wait_event_type = 'Lock' OR a.state IS NULL THEN to_json(pg_blocking_pids(a.pid)) ELSE '[]' END,
       pg_postmaster_start_time()::text, current_database()
  FROM pg_stat_activity a
 WHERE left(a.application_name, 56) = ANY (%(names)s::text[]) AND a.pid <> pg_backend_pid()
 ORDER BY a.pid
 LIMIT 20 * cardinality(%(names)s::text[]);

-- name: where_blockers
-- Those for which these sessions wait, and for which they wait themselves, up to the root. Each call of pg_blocking_pids stops the server's
-- lock manager for a moment, so that their number is bounded: the rest of a longer chain is not read.
WITH RECURSIVE chain (pid, waits_for) AS (
    SELECT waiting.pid, pg_blocking_pids(waiting.pid)
      FROM unnest(%(pids)s::int[]) AS waiting (pid)
    UNION
    SELECT blocking.pid, CASE WHEN blocking.pid > 0 THEN pg_blocking_pids(blocking.pid) ELSE '{}' END
      FROM chain CROSS JOIN LATERAL (SELECT DISTINCT unnest(chain.waits_for) AS pid) blocking
), sessions AS (
    SELECT DISTINCT ON (pid) pid, waits_for FROM (SELECT * FROM chain LIMIT 100) bounded
)
SELECT s.pid, a.application_name, a.usename, a.datname, a.backend_type, a.state,
       extract(epoch FROM clock_timestamp() - a.state_change)::float8, extract(epoch FROM clock_timestamp() - a.xact_start)::float8,
       to_json(s.waits_for)
  FROM sessions s LEFT JOIN pg_stat_activity a ON a.pid = s.pid
 ORDER BY s.waits_for <> '{}', a.xact_start, s.pid;

-- name: sample_sessions
-- What the sessions of these attempts do, for the sampler: as JSON, and the seconds that the server took for it.
SELECT coalesce((SELECT json_agg(json_build_array(
                            left(a.application_name, 56), a.datname = current_database(), a.pid, a.state, a.wait_event_type, a.wait_event, left(a.query, 1000),
                            extract(epoch FROM clock_timestamp() - a.query_start)::float8,
                            extract(epoch FROM clock_timestamp() - a.state_change)::float8))
                   FROM (SELECT * FROM pg_stat_activity
                          WHERE left(application_name, 56) = ANY (%(names)s::text[]) AND pid <> pg_backend_pid()
                          LIMIT 20 * cardinality(%(names)s::text[])) a), '[]'),
       extract(epoch FROM clock_timestamp() - statement_timestamp())::float8;
