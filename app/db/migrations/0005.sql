-- Limits: how many jobs may run, and how many may start in a time.
-- `migrate` has committed the new values of dl_wait_state before this: see app/db/schema.py.

ALTER TABLE dl_jobs
    ADD COLUMN limits jsonb,
    ADD COLUMN waits_on text,
    ADD COLUMN graph_id uuid,
    ADD COLUMN graph_key text,
    ADD COLUMN need text,
    ADD COLUMN skipped bool;

CREATE INDEX dl_jobs_limited_idx ON dl_jobs (waits_on, queue, wait_state, priority, created_at, job_id)
    WHERE status = 'queued' AND waits_on IS NOT NULL;

CREATE INDEX dl_jobs_waiting_idx ON dl_jobs (queue) WHERE status = 'queued' AND wait_state = 'waiting';
CREATE INDEX dl_jobs_graph_idx ON dl_jobs (graph_id) WHERE graph_id IS NOT NULL;

ALTER TABLE dl_queue_depths ADD COLUMN limited bigint NOT NULL DEFAULT 0, ADD COLUMN waiting bigint NOT NULL DEFAULT 0;

ALTER TYPE dl_enqueue_request ADD ATTRIBUTE limits jsonb, ADD ATTRIBUTE after jsonb, ADD ATTRIBUTE need text;

-- dl_enqueue has more parameters. Who may execute the old one may execute the new one, which schema.sql replaces.
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
        time_limit_sec int, retry jsonb, parent_id uuid, limits jsonb, after jsonb, need text
    ) RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid';
    FOR grantee IN SELECT a.grantee FROM pg_proc p, aclexplode(p.proacl) a
                    WHERE p.oid = old AND a.privilege_type = 'EXECUTE' AND a.grantee <> 0 LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION dl_enqueue(text, text, text, jsonb, text, text, int, timestamptz, int, int,'
                       ' text, text, text, int, jsonb, uuid, jsonb, jsonb, text) TO %s', grantee);
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

CREATE TABLE dl_graphs (
    graph_id        uuid        PRIMARY KEY DEFAULT dl_new_id(),
    name            text        NOT NULL DEFAULT '',
    on_failure      text        NOT NULL DEFAULT 'cancel' CHECK (on_failure IN ('cancel', 'continue')),
    idempotency_key text        UNIQUE,
    created_by      text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE dl_edges (
    child_id  uuid NOT NULL,
    parent_id uuid NOT NULL,
    wants     text NOT NULL DEFAULT 'succeeded' CHECK (wants IN ('succeeded', 'ended', 'failed')),
    met       bool,
    PRIMARY KEY (child_id, parent_id)
);
CREATE INDEX dl_edges_parent_idx ON dl_edges (parent_id);
CREATE TABLE dl_graph_work (
    job_id uuid PRIMARY KEY,
    xid    xid8 NOT NULL DEFAULT pg_current_xact_id()
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX dl_graph_work_xid_idx ON dl_graph_work (xid);

-- schema.sql replaces the functions; a constraint trigger cannot be replaced.
CREATE FUNCTION dl_graph_work_done() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION dl_edges_added() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';

CREATE CONSTRAINT TRIGGER dl_graph_work_done AFTER INSERT ON dl_graph_work
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dl_graph_work_done();

CREATE CONSTRAINT TRIGGER dl_edges_added AFTER INSERT ON dl_edges
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (current_setting('dl.new_graph', true) IS DISTINCT FROM 'yes')
    EXECUTE FUNCTION dl_edges_added();
