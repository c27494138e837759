-- The sessions that an attempt opened on a server, by their application name. These statements run on any server that
-- the settings name: they read the catalog alone. The name of an attempt has 56 characters; one that its task's own code
-- gave the session may follow it.

-- name: attempt_sessions
-- The names among these that a session of this server has at this moment, in whichever of its databases.
SELECT DISTINCT name
  FROM pg_stat_activity,
       LATERAL (SELECT CASE WHEN starts_with(application_name, 'dataloader:') THEN left(application_name, 56)
                            ELSE application_name END AS name) session
 WHERE name = ANY (%(names)s::text[]);

-- name: end_attempt_sessions
-- Ends the sessions of these names and lists them. One session of another role would fail the whole statement (42501),
-- so the right to end it is looked up first.
WITH sessions AS MATERIALIZED (
    SELECT a.pid, s.name,
           coalesce((pg_has_role(a.usesysid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE'))
                    AND (NOT r.rolsuper OR current_setting('is_superuser') = 'on'), false) AS may_end
      FROM pg_stat_activity a LEFT JOIN pg_roles r ON r.oid = a.usesysid,
           LATERAL (SELECT CASE WHEN starts_with(a.application_name, 'dataloader:') THEN left(a.application_name, 56)
                                ELSE a.application_name END AS name) s
     WHERE s.name = ANY (%(names)s::text[]) AND a.pid <> pg_backend_pid()
)
SELECT pid, name, CASE WHEN may_end THEN pg_terminate_backend(pid) ELSE false END AS may_end FROM sessions;

-- name: end_former_sessions
-- Ends sessions with this session's application_name, which has the id of its worker process, and waits up to 2 s for each:
-- the process has lost their connections, and they may still hold the locks of its running jobs.
SELECT count(pg_terminate_backend(pid, 2000))
  FROM pg_stat_activity
 WHERE application_name = current_setting('application_name') AND starts_with(application_name, 'dataloader-claim:')
   AND pid <> pg_backend_pid()
   AND datname = current_database() AND usename = current_user;
