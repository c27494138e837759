-- A process proves once for all its runs that it lives, and the progress of running jobs has rows of its own.

CREATE TABLE dl_heartbeats (
    worker_id uuid        NOT NULL,
    seen_at   timestamptz NOT NULL,
    rss_bytes bigint,
    PRIMARY KEY (worker_id, seen_at)
) WITH (autovacuum_analyze_threshold = 100000, autovacuum_vacuum_threshold = 10000);

CREATE TABLE dl_progress (
    progress_id bigserial   PRIMARY KEY,
    job_id      uuid        NOT NULL,
    run_id      uuid        NOT NULL,
    ts          timestamptz NOT NULL,
    progress    jsonb       NOT NULL
) PARTITION BY RANGE (progress_id);
CREATE INDEX dl_progress_job_idx ON dl_progress (job_id, progress_id);
CREATE TABLE dl_progress_default PARTITION OF dl_progress DEFAULT;

-- The first partition: today and tomorrow. schema.sql has the function that creates the next ones.
DO $$
DECLARE
    today timestamp := date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC');
    part  text := 'dl_progress_' || to_char(today, 'YYYYMMDD');
    first bigint := extract(epoch FROM today) * 100000;  -- an id begins with the time
BEGIN
    EXECUTE format('CREATE TABLE %I (LIKE dl_progress INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)'
                   ' WITH (autovacuum_vacuum_insert_scale_factor = 0.1)', part);
    EXECUTE format('ALTER TABLE dl_progress ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', part,
                   first, first + 2 * 86400 * 100000::bigint);
    PERFORM setval(pg_get_serial_sequence('dl_progress', 'progress_id'), first);
END $$;

-- Replaced by one that has another parameter.
DROP FUNCTION IF EXISTS dl_promote_due(text);

-- Processes of older versions call functions that read the new tables: who may use dl_workers may use these.
DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT a.grantee::regrole::text AS role, bool_or(a.privilege_type = 'INSERT') AS may_write
          FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
         WHERE c.oid = 'dl_workers'::regclass AND a.grantee NOT IN (0, c.relowner)
         GROUP BY a.grantee
    LOOP
        EXECUTE format('GRANT SELECT ON dl_heartbeats, dl_progress TO %s', granted.role);
        IF granted.may_write THEN
            EXECUTE format('GRANT INSERT, DELETE ON dl_heartbeats TO %s', granted.role);
            EXECUTE format('GRANT INSERT ON dl_progress TO %s', granted.role);
            EXECUTE format('GRANT USAGE ON SEQUENCE dl_progress_progress_id_seq TO %s', granted.role);
        END IF;
    END LOOP;
END $$;
