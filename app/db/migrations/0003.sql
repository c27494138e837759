-- Tables from before versions, of 0.1.0 and of 0.2.0 become those of version 3, with their rows.
-- Functions and triggers are not made here: `migrate` applies those of schema.sql after the last migration.

-- Partitions are created and dropped under this lock, before any table is locked.
SELECT pg_advisory_xact_lock(1684828527, 3);

DO $$
BEGIN
    IF to_regtype('dl_place') IS NULL THEN
        CREATE TYPE dl_place AS ENUM ('timed', 'ready', 'parked', 'waiting', 'limited');  -- the last two are of version 5
    END IF;
    IF to_regtype('dl_request') IS NULL THEN
        CREATE TYPE dl_request AS (
            n bigint, job_id uuid, queue text, task text, lock_key text, args jsonb, idempotency_key text,
            partition_key text, priority int, available_at timestamptz, max_attempts int, lease_ttl_sec int,
            producer text, consumer_group text, live_key text, time_limit_sec int, retry jsonb, parent_id uuid,
            webhook jsonb, traceparent text, field text, fault text
        );
    END IF;
END $$;

-- ── Jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────────

CREATE OR REPLACE FUNCTION dl_new_id() RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL SAFE
    RETURN (overlay(lpad(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint), 15, '0') PLACING '7' FROM 13 FOR 0)
            || substr(gen_random_uuid()::text, 20))::uuid;

ALTER TABLE dl_jobs SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05,
    toast.autovacuum_vacuum_scale_factor = 0.05,
    toast.autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_cost_delay = 0
);

ALTER TABLE dl_jobs ALTER COLUMN job_id SET DEFAULT dl_new_id();  -- random before

ALTER TABLE dl_jobs
    ADD COLUMN IF NOT EXISTS run_id uuid,
    ADD COLUMN IF NOT EXISTS place dl_place NOT NULL DEFAULT 'timed',
    ADD COLUMN IF NOT EXISTS stray bool NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS worker text,
    ADD COLUMN IF NOT EXISTS result jsonb,
    ADD COLUMN IF NOT EXISTS traceback text,
    ADD COLUMN IF NOT EXISTS request_hash text,
    ADD COLUMN IF NOT EXISTS live_key text,
    ADD COLUMN IF NOT EXISTS time_limit_sec int,
    ADD COLUMN IF NOT EXISTS retry jsonb,
    ADD COLUMN IF NOT EXISTS checkpoint jsonb,
    ADD COLUMN IF NOT EXISTS crashes int NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS parent_id uuid,
    ADD COLUMN IF NOT EXISTS worker_id uuid,
    ADD COLUMN IF NOT EXISTS webhook jsonb,
    ADD COLUMN IF NOT EXISTS traceparent text;

-- ── Partitioned events and job logs: the old tables become the first partitions ─────────────────────────────────────

DO $$
DECLARE
    old record;
BEGIN
    -- A statement trigger replaces the foreign key of the events.
    FOR old IN SELECT conrelid::regclass AS name, conname FROM pg_constraint
                WHERE contype = 'f' AND confrelid = 'dl_jobs'::regclass AND conparentid = 0
                  AND (conrelid = 'dl_job_events'::regclass
                       OR conrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'dl_job_events'::regclass)) LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', old.name, old.conname);
    END LOOP;
END $$;

DO $$
DECLARE
    parent text;
    old    record;
BEGIN
    FOREACH parent IN ARRAY ARRAY['dl_job_events', 'dl_job_logs'] LOOP
        IF (SELECT relkind FROM pg_class WHERE oid = to_regclass(parent)) = 'r' THEN
            EXECUTE format('ALTER TABLE %I RENAME TO %I', parent, parent || '_before');
            FOR old IN SELECT conname AS name FROM pg_constraint
                        WHERE conrelid = to_regclass(parent || '_before') AND starts_with(conname, parent) LOOP
                EXECUTE format('ALTER TABLE %I RENAME CONSTRAINT %I TO %I', parent || '_before', old.name,
                               parent || '_before' || substr(old.name, length(parent) + 1));
            END LOOP;
            FOR old IN SELECT relname AS name FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
                        WHERE x.indrelid = to_regclass(parent || '_before') AND starts_with(relname, parent)
                          AND NOT starts_with(relname, parent || '_before') LOOP
                EXECUTE format('ALTER INDEX %I RENAME TO %I', old.name,
                               parent || '_before' || substr(old.name, length(parent) + 1));
            END LOOP;
        END IF;
    END LOOP;
END $$;

CREATE SEQUENCE IF NOT EXISTS dl_job_events_event_id_seq;
CREATE TABLE IF NOT EXISTS dl_job_events (
    event_id bigint      PRIMARY KEY DEFAULT nextval('dl_job_events_event_id_seq'),
    job_id   uuid        NOT NULL,
    queue    text        NOT NULL,
    ts       timestamptz NOT NULL DEFAULT now(),
    kind     text        NOT NULL,
    payload  jsonb       DEFAULT '{}'
) PARTITION BY RANGE (event_id);
ALTER SEQUENCE dl_job_events_event_id_seq OWNED BY dl_job_events.event_id;

CREATE SEQUENCE IF NOT EXISTS dl_job_logs_log_id_seq;
CREATE TABLE IF NOT EXISTS dl_job_logs (
    log_id  bigint      PRIMARY KEY DEFAULT nextval('dl_job_logs_log_id_seq'),
    job_id  uuid        NOT NULL,
    attempt int         NOT NULL,
    ts      timestamptz NOT NULL,
    level   text        NOT NULL,
    stream  text        NOT NULL,
    line    text        NOT NULL
) PARTITION BY RANGE (log_id);
ALTER SEQUENCE dl_job_logs_log_id_seq OWNED BY dl_job_logs.log_id;

DO $$
DECLARE
    parent  text;
    last_id bigint;
BEGIN
    FOREACH parent IN ARRAY ARRAY['dl_job_events', 'dl_job_logs'] LOOP
        IF to_regclass(parent || '_default') IS NULL THEN
            EXECUTE format('CREATE TABLE %I PARTITION OF %I DEFAULT', parent || '_default', parent);
        END IF;
        IF to_regclass(parent || '_before') IS NOT NULL
           AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass(parent || '_before')) THEN
            EXECUTE format('SELECT last_value FROM %s', pg_get_serial_sequence(
                        parent, CASE parent WHEN 'dl_job_logs' THEN 'log_id' ELSE 'event_id' END)) INTO last_id;
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (MINVALUE) TO (%s)', parent, parent || '_before',
                           greatest(last_id + 1, (extract(epoch FROM date_trunc('day', now() AT TIME ZONE 'UTC')
                                                                     AT TIME ZONE 'UTC') * 100000)::bigint));
        END IF;
    END LOOP;
END $$;

CREATE INDEX IF NOT EXISTS dl_job_logs_job_idx ON dl_job_logs (job_id, log_id);
CREATE INDEX IF NOT EXISTS dl_job_events_job_idx ON dl_job_events (job_id, event_id);

-- ── Versions ────────────────────────────────────────────────────────────────────────────────────────────────────────

-- Tables from before versions with jobs get a row of version 0: workers delete none of these jobs until a setting says so.
DO $$
BEGIN
    IF to_regclass('dl_schema') IS NULL THEN
        CREATE TABLE dl_schema (
            version     int         NOT NULL,
            fingerprint text        NOT NULL,
            applied_at  timestamptz NOT NULL DEFAULT clock_timestamp()
        );
        INSERT INTO dl_schema (version, fingerprint)
        SELECT 0, 'tables without versions'
         WHERE EXISTS (SELECT FROM dl_jobs) OR EXISTS (SELECT FROM dl_job_events);
    END IF;
END $$;

ALTER TABLE dl_schema ADD COLUMN IF NOT EXISTS serves_from int;

-- ── Rows ────────────────────────────────────────────────────────────────────────────────────────────────────────────

-- Jobs that ran before attempts were fenced: of two with one lock key the later lease stays, and the other attempt does
-- not count. One without a lease gets an expired one, for the reaper.
WITH ranked AS (
    SELECT job_id, queue, attempt,
           row_number() OVER (PARTITION BY lock_key ORDER BY lease_expires_at DESC NULLS LAST, job_id) AS turn
      FROM dl_jobs
     WHERE status = 'running'
), second AS (
    UPDATE dl_jobs j
       SET status = CASE WHEN j.cancel_requested THEN 'canceled' ELSE 'queued' END::dl_status,
           attempt = CASE WHEN j.cancel_requested THEN j.attempt ELSE greatest(j.attempt - 1, 0) END,
           finished_at = CASE WHEN j.cancel_requested THEN clock_timestamp() END,
           place = 'timed', lease_expires_at = NULL, heartbeat_at = NULL
      FROM ranked
     WHERE j.job_id = ranked.job_id AND ranked.turn > 1
    RETURNING j.job_id, j.queue, j.status, j.attempt
)
INSERT INTO dl_job_events (job_id, queue, kind, payload)
SELECT job_id, queue, CASE status WHEN 'canceled' THEN 'canceled' ELSE 'requeue' END,
       jsonb_build_object('reason', 'upgrade', 'status', status, 'attempt', attempt)
  FROM second;

UPDATE dl_jobs SET lease_expires_at = now() WHERE status = 'running' AND lease_expires_at IS NULL;

-- Queued jobs whose cancel was requested by a plain UPDATE, or that may have no attempt.
WITH ended AS (
    UPDATE dl_jobs
       SET status = CASE WHEN cancel_requested THEN 'canceled' ELSE 'failed' END::dl_status,
           error = CASE WHEN cancel_requested THEN error ELSE 'max_attempts is 0: the job may have no attempt' END,
           place = 'timed', stray = false, finished_at = clock_timestamp()
     WHERE status = 'queued' AND (cancel_requested OR max_attempts < 1)
    RETURNING job_id, queue, status, attempt
)
INSERT INTO dl_job_events (job_id, queue, kind, payload)
SELECT job_id, queue, status::text, jsonb_build_object('reason', 'upgrade', 'status', status, 'attempt', attempt)
  FROM ended;

-- Names that do not fit into the indexes.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_constraint WHERE conname = 'dl_jobs_chk_sizes' AND conrelid = 'dl_jobs'::regclass) THEN
        WITH unfit AS (
            UPDATE dl_jobs
               SET status = 'failed', finished_at = clock_timestamp(), lease_expires_at = NULL,
                   error = 'queue or task has more than 1,000 bytes, or lock_key more than 2,000'
             WHERE status IN ('queued', 'running')
               AND (octet_length(queue) > 1000 OR octet_length(task) > 1000 OR octet_length(lock_key) > 2000)
            RETURNING job_id, queue, attempt
        )
        INSERT INTO dl_job_events (job_id, queue, kind, payload)
        SELECT job_id, queue, 'failed', jsonb_build_object('reason', 'upgrade', 'status', 'failed', 'attempt', attempt)
          FROM unfit;
        ALTER TABLE dl_jobs ADD CONSTRAINT dl_jobs_chk_sizes
            CHECK (octet_length(queue) <= 1000 AND octet_length(task) <= 1000 AND octet_length(lock_key) <= 2000) NOT VALID;
    END IF;
END $$;

-- ── Indexes ─────────────────────────────────────────────────────────────────────────────────────────────────────────

CREATE INDEX IF NOT EXISTS dl_jobs_ready_idx ON dl_jobs (queue, priority, created_at, job_id)
    WHERE status = 'queued' AND place = 'ready';
CREATE INDEX IF NOT EXISTS dl_jobs_timed_idx ON dl_jobs (available_at)
    WHERE status = 'queued' AND place = 'timed';
CREATE INDEX IF NOT EXISTS dl_jobs_parked_idx ON dl_jobs (lock_key, priority, created_at, job_id)
    WHERE status = 'queued' AND place = 'parked';
CREATE UNIQUE INDEX IF NOT EXISTS dl_jobs_running_key_idx ON dl_jobs (lock_key) WHERE status = 'running';
CREATE UNIQUE INDEX IF NOT EXISTS dl_jobs_live_key_idx ON dl_jobs (live_key)
    WHERE live_key IS NOT NULL AND status IN ('queued', 'running');
CREATE INDEX IF NOT EXISTS dl_jobs_stray_idx ON dl_jobs (queue, task) WHERE status = 'queued' AND stray;
CREATE INDEX IF NOT EXISTS dl_jobs_created_idx ON dl_jobs (created_at, job_id);
CREATE INDEX IF NOT EXISTS dl_jobs_ended_idx ON dl_jobs (status, task, finished_at)
    WHERE status IN ('succeeded', 'failed', 'canceled', 'lost');
CREATE INDEX IF NOT EXISTS dl_jobs_ended_badly_idx ON dl_jobs (created_at, job_id)
    WHERE status IN ('failed', 'canceled', 'lost');
CREATE INDEX IF NOT EXISTS dl_jobs_parent_idx ON dl_jobs (parent_id, created_at) WHERE parent_id IS NOT NULL;

-- ── Other tables ────────────────────────────────────────────────────────────────────────────────────────────────────

CREATE TABLE IF NOT EXISTS dl_workers (
    worker_id     uuid        PRIMARY KEY,
    name          text        NOT NULL,
    version       text        NOT NULL,
    queues        text[]      NOT NULL,
    tasks         text[]      NOT NULL,
    threads       int         NOT NULL,
    heartbeat_sec float8      NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE UNLOGGED TABLE IF NOT EXISTS dl_watch (
    queue     text NOT NULL,
    worker_id uuid NOT NULL,
    asleep    bool NOT NULL,
    PRIMARY KEY (queue, worker_id)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

CREATE TABLE IF NOT EXISTS dl_queues (
    queue       text        PRIMARY KEY,
    state       text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'paused', 'draining')),
    concurrency int         CHECK (concurrency >= 1),
    per_worker  int         CHECK (per_worker >= 1),
    note        text,
    changed_by  text,
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE IF NOT EXISTS dl_bulk (
    bulk_id          uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    action           text        NOT NULL CHECK (action IN ('cancel', 'retry', 'delete', 'reprioritise')),
    filter           jsonb       NOT NULL,
    priority         int         CHECK (priority >= 0),
    expected         bigint      NOT NULL,
    state            text        NOT NULL DEFAULT 'waiting'
                                 CHECK (state IN ('waiting', 'running', 'done', 'canceled', 'stopped', 'failed')),
    cancel_requested bool        NOT NULL DEFAULT false,
    looked           bigint      NOT NULL DEFAULT 0,
    matched          bigint      NOT NULL DEFAULT 0,
    changed          bigint      NOT NULL DEFAULT 0,
    seen_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_id          uuid        NOT NULL DEFAULT 'ffffffff-ffff-ffff-ffff-ffffffffffff',
    tries            int         NOT NULL DEFAULT 0,
    asked_by         text,
    error            text,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at       timestamptz,
    finished_at      timestamptz
);

CREATE TABLE IF NOT EXISTS dl_rollups (
    span   int         NOT NULL,
    at     timestamptz NOT NULL,
    queue  text        NOT NULL,
    task   text        NOT NULL,
    what   text        NOT NULL,
    bucket int         NOT NULL,
    n      bigint      NOT NULL,
    sec    float8      NOT NULL DEFAULT 0,
    PRIMARY KEY (span, at, queue, task, what, bucket)
);

CREATE TABLE IF NOT EXISTS dl_depths (
    at               timestamptz NOT NULL,
    queue            text        NOT NULL,
    ready            bigint      NOT NULL,
    timed            bigint      NOT NULL,
    parked           bigint      NOT NULL,
    running          bigint      NOT NULL,
    oldest_ready_sec float8,
    PRIMARY KEY (at, queue)
);

CREATE TABLE IF NOT EXISTS dl_last_runs (
    task     text        NOT NULL,
    event_id bigint      NOT NULL,
    job_id   uuid        NOT NULL,
    queue    text        NOT NULL,
    ended_at timestamptz NOT NULL,
    outcome  text        NOT NULL,
    attempt  int,
    ran_sec  float8,
    PRIMARY KEY (task, event_id)
);

CREATE TABLE IF NOT EXISTS dl_rollup_state (
    one     bool           PRIMARY KEY DEFAULT true CHECK (one),
    unread  int8multirange NOT NULL,
    safe    bigint         NOT NULL DEFAULT 0,
    probe   bigint         NOT NULL DEFAULT 0,
    writers text[]         NOT NULL DEFAULT '{}',
    depths_at timestamptz  NOT NULL DEFAULT '-infinity',
    pruned_at timestamptz  NOT NULL DEFAULT '-infinity'
);

CREATE TABLE IF NOT EXISTS dl_webhooks (
    webhook_id       uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    url              text        NOT NULL,
    events           text[]      NOT NULL DEFAULT '{job.succeeded,job.failed,job.canceled,job.lost}',
    queue            text,
    task             text,
    description      text        NOT NULL DEFAULT '',
    secret           text        NOT NULL,
    old_secret       text,
    old_secret_until timestamptz,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    disabled_at      timestamptz,
    disabled_why     text,
    failures         int         NOT NULL DEFAULT 0,
    failing_since    timestamptz,
    rest_until       timestamptz
);

CREATE TABLE IF NOT EXISTS dl_deliveries (
    delivery_id  uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    webhook_id   uuid        REFERENCES dl_webhooks (webhook_id) ON DELETE CASCADE,
    url          text,
    target       text        NOT NULL,
    job_id       uuid,
    event        text        NOT NULL,
    body         text        NOT NULL,
    state        text        NOT NULL DEFAULT 'waiting',
    tries        int         NOT NULL DEFAULT 0,
    first_try    int         NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at       timestamptz DEFAULT clock_timestamp(),
    claim_id     uuid,
    delivered_at timestamptz,
    CONSTRAINT dl_deliveries_chk_where CHECK ((webhook_id IS NULL) <> (url IS NULL))
);

CREATE TABLE IF NOT EXISTS dl_delivery_tries (
    delivery_id uuid        NOT NULL REFERENCES dl_deliveries (delivery_id) ON DELETE CASCADE,
    n           int         NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    status      int,
    duration_ms float8      NOT NULL,
    answer      text        NOT NULL DEFAULT '',
    error       text,
    PRIMARY KEY (delivery_id, n)
);

CREATE TABLE IF NOT EXISTS dl_alert_rules (
    rule_id     uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    name        text        NOT NULL UNIQUE,
    kind        text        NOT NULL CHECK (kind IN ('failure_rate', 'no_success', 'queue_age', 'stalled', 'dead_worker')),
    queue       text,
    task        text,
    threshold   float8      NOT NULL CHECK (threshold >= 0),
    window_sec  float8      NOT NULL CHECK (window_sec > 0),
    min_runs    int         NOT NULL DEFAULT 1 CHECK (min_runs > 0),
    active      bool        NOT NULL DEFAULT true,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE IF NOT EXISTS dl_alerts (
    alert_id uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    rule_id  uuid,
    kind     text        NOT NULL,
    name     text        NOT NULL,
    subject  text        NOT NULL,
    queue    text,
    task     text,
    value    float8,
    detail   text        NOT NULL,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz
);

CREATE TABLE IF NOT EXISTS dl_standstills (
    job_id  uuid        PRIMARY KEY,
    run_id  uuid,
    digest  text        NOT NULL,
    since   timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE IF NOT EXISTS dl_api_keys (
    key_id       text        PRIMARY KEY,
    name         text        NOT NULL,
    digest       bytea       NOT NULL,
    scopes       text[]      NOT NULL,
    tasks        text[],
    queues       text[],
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by   text        NOT NULL,
    expires_at   timestamptz,
    last_used_at timestamptz,
    revoked_at   timestamptz,
    CONSTRAINT dl_api_keys_chk_scopes
        CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['read', 'trigger', 'operate', 'admin']),
    CONSTRAINT dl_api_keys_chk_limits
        CHECK (tasks IS NULL AND queues IS NULL OR scopes <@ ARRAY['read', 'trigger'])
);

CREATE TABLE IF NOT EXISTS dl_signing_secrets (
    purpose text        PRIMARY KEY,
    secret  bytea       NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE IF NOT EXISTS dl_audit (
    audit_id   bigserial   PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    action     text        NOT NULL,
    actor      text        NOT NULL,
    key_id     text,
    via        text        NOT NULL,
    address    text,
    request_id text,
    subject    text        NOT NULL,
    subject_id text,
    before     jsonb,
    after      jsonb,
    db_user    text        NOT NULL DEFAULT session_user
);

ALTER TABLE dl_workers
    ADD COLUMN IF NOT EXISTS draining  bool NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS listener  text,
    ADD COLUMN IF NOT EXISTS rss_bytes bigint,
    ADD COLUMN IF NOT EXISTS doing     jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN IF NOT EXISTS queue_threads jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN IF NOT EXISTS stopping  bool NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS boot_id text,
    ADD COLUMN IF NOT EXISTS pid_namespace  text,
    ADD COLUMN IF NOT EXISTS time_namespace text,
    ADD COLUMN IF NOT EXISTS pid            int,
    ADD COLUMN IF NOT EXISTS start_time     bigint,
    ADD COLUMN IF NOT EXISTS lock_file      text,
    ADD COLUMN IF NOT EXISTS child_tasks    text[] NOT NULL DEFAULT '{}',
    ADD COLUMN IF NOT EXISTS worker_name    text,
    ADD COLUMN IF NOT EXISTS incarnation    bigint,
    ADD COLUMN IF NOT EXISTS superseded_by  uuid,
    ADD COLUMN IF NOT EXISTS takeover_at    timestamptz,
    ADD COLUMN IF NOT EXISTS dead_at        timestamptz;

CREATE INDEX IF NOT EXISTS dl_bulk_created_idx ON dl_bulk (created_at, bulk_id);
CREATE INDEX IF NOT EXISTS dl_bulk_open_idx ON dl_bulk (created_at) WHERE state IN ('waiting', 'running');
CREATE INDEX IF NOT EXISTS dl_deliveries_due_idx ON dl_deliveries (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS dl_deliveries_webhook_idx ON dl_deliveries (webhook_id, created_at, delivery_id);
CREATE INDEX IF NOT EXISTS dl_deliveries_created_idx ON dl_deliveries (created_at, delivery_id);
CREATE INDEX IF NOT EXISTS dl_deliveries_job_idx ON dl_deliveries (job_id);
CREATE UNIQUE INDEX IF NOT EXISTS dl_alerts_firing_idx
    ON dl_alerts (coalesce(rule_id, '00000000-0000-0000-0000-000000000000'), kind, subject) WHERE ended_at IS NULL;
CREATE INDEX IF NOT EXISTS dl_alerts_began_idx ON dl_alerts (began_at, alert_id);
CREATE INDEX IF NOT EXISTS dl_audit_subject_idx ON dl_audit (subject_id, audit_id);
CREATE INDEX IF NOT EXISTS dl_audit_at_idx ON dl_audit USING brin (at);

-- Statistics of all queues and tasks together.
INSERT INTO dl_rollups (span, at, queue, task, what, bucket, n, sec)
SELECT -span, at, '', '', what, bucket, sum(n), sum(sec)
  FROM dl_rollups
 WHERE span > 0 AND NOT EXISTS (SELECT FROM dl_rollups WHERE span < 0)
 GROUP BY span, at, what, bucket
    ON CONFLICT DO NOTHING;

-- Of older events only the latest are aggregated.
INSERT INTO dl_rollup_state (unread)
SELECT int8multirange(int8range(coalesce((SELECT max(event_id) FROM dl_job_events), 0) - 100000, NULL))
    ON CONFLICT DO NOTHING;
