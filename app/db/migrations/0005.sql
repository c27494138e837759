-- Limits: how many jobs may run, and how many may start in a time.
-- `migrate` has committed the new values of dl_wait_state before this: see app/db/schema.py.

ALTER TABLE dl_jobs ADD COLUMN limits jsonb, ADD COLUMN waits_on text;

CREATE INDEX dl_jobs_limited_idx ON dl_jobs (waits_on, queue, wait_state, priority, created_at, job_id)
    WHERE status = 'queued' AND waits_on IS NOT NULL;

ALTER TABLE dl_queue_depths ADD COLUMN limited bigint NOT NULL DEFAULT 0;

ALTER TYPE dl_enqueue_request ADD ATTRIBUTE limits jsonb;

-- dl_enqueue has a parameter more. Who may execute the old one may execute the new one, which schema.sql replaces.
DO $$
DECLARE
    old     regprocedure := to_regprocedure('dl_enqueue(text, text, text, jsonb, text, text, int, timestamptz, int, int, text,'
                                            ' text, text, int, jsonb, uuid)');
    grantee regrole;
BEGIN
    IF old IS NULL THEN
        RETURN;
    END IF;
    CREATE FUNCTION dl_enqueue(
        queue text, task text, lock_key text, args jsonb, idempotency_key text, partition_key text, priority int,
        available_at timestamptz, max_attempts int, lease_ttl_sec int, producer text, consumer_group text, live_key text,
        time_limit_sec int, retry jsonb, parent_id uuid, limits jsonb
    ) RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid';
    FOR grantee IN SELECT a.grantee FROM pg_proc p, aclexplode(p.proacl) a
                    WHERE p.oid = old AND a.privilege_type = 'EXECUTE' AND a.grantee <> 0 LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION dl_enqueue(text, text, text, jsonb, text, text, int, timestamptz, int, int,'
                       ' text, text, text, int, jsonb, uuid, jsonb) TO %s', grantee);
    END LOOP;
    EXECUTE format('DROP FUNCTION %s', old);
END $$;

CREATE TABLE dl_limits (
    name        text        PRIMARY KEY CHECK (name <> '' AND octet_length(name) <= 200),
    concurrency int         CHECK (concurrency >= 0),
    rate        int         CHECK (rate >= 1),
    per_sec     float8      CHECK (per_sec > 0 AND per_sec <= 2678400),
    burst       int         CHECK (burst >= 1),
    note        text,
    changed_by  text,
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT dl_limits_chk_rate CHECK ((rate IS NULL) = (per_sec IS NULL) AND (burst IS NULL OR rate IS NOT NULL))
);

CREATE TABLE dl_limit_starts (
    name text        PRIMARY KEY,
    tat  timestamptz NOT NULL
) WITH (fillfactor = 50);
