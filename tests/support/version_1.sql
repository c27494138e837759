-- The tables of version 1, for the tests that upgrade them.
--
-- Applied to an empty database it builds it; applied to one that holds dl_jobs and dl_job_events as they were before
-- the columns below, it upgrades them in place, with their rows; applied twice it does no harm. `dataloader migrate`
-- applies it in one transaction, with search_path set to the schema that holds the queue.

DO $$
BEGIN
    IF to_regtype('dl_status') IS NULL THEN
        CREATE TYPE dl_status AS ENUM ('queued', 'running', 'succeeded', 'failed', 'canceled', 'lost');
    END IF;
    -- Where a queued job waits. timed: not due yet, or not sorted yet; ready: may be claimed; parked: its key is busy.
    IF to_regtype('dl_place') IS NULL THEN
        CREATE TYPE dl_place AS ENUM ('timed', 'ready', 'parked');
    END IF;
END $$;

CREATE TABLE IF NOT EXISTS dl_jobs (
    job_id           uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    queue            text        NOT NULL,
    task             text        NOT NULL,
    args             jsonb       NOT NULL DEFAULT '{}',
    idempotency_key  text        UNIQUE,
    lock_key         text        NOT NULL,
    partition_key    text        NOT NULL DEFAULT '',
    priority         int         NOT NULL DEFAULT 100,
    available_at     timestamptz NOT NULL DEFAULT now(),
    status           dl_status   NOT NULL DEFAULT 'queued',
    attempt          int         NOT NULL DEFAULT 0,
    max_attempts     int         NOT NULL DEFAULT 5,
    lease_ttl_sec    int         NOT NULL DEFAULT 60,
    lease_expires_at timestamptz,
    heartbeat_at     timestamptz,
    cancel_requested bool        NOT NULL DEFAULT false,
    progress         jsonb       NOT NULL DEFAULT '{}',
    error            text,
    producer         text,
    consumer_group   text,
    created_at       timestamptz NOT NULL DEFAULT now(),
    started_at       timestamptz,
    finished_at      timestamptz,
    CONSTRAINT dl_jobs_chk_positive CHECK (priority >= 0 AND attempt >= 0 AND max_attempts >= 0 AND lease_ttl_sec > 0)
);

-- Room on each page, so that a heartbeat's new row version stays beside the old one and touches no index (HOT).
ALTER TABLE dl_jobs SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

ALTER TABLE dl_jobs
    -- Drawn by the worker at each claim: whose words count. Kept when the run ends, so that its owner can be told apart.
    ADD COLUMN IF NOT EXISTS run_id uuid,
    ADD COLUMN IF NOT EXISTS place dl_place NOT NULL DEFAULT 'timed',
    -- Set aside because no live worker knows its task; taken back when one that does appears.
    ADD COLUMN IF NOT EXISTS stray bool NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS worker text,
    ADD COLUMN IF NOT EXISTS result jsonb,
    ADD COLUMN IF NOT EXISTS traceback text,
    -- Of queue, task and args as they were asked for: tells a repeated request from another one with the same key.
    ADD COLUMN IF NOT EXISTS request_hash text,
    -- Unique among waiting and running jobs only, beside the idempotency key, which is unique for ever.
    ADD COLUMN IF NOT EXISTS live_key text,
    ADD COLUMN IF NOT EXISTS time_limit_sec int,
    -- This job's own retry policy; NULL: its task's.
    ADD COLUMN IF NOT EXISTS retry jsonb,
    -- Where the next try goes on, as the pipeline said it last.
    ADD COLUMN IF NOT EXISTS checkpoint jsonb,
    -- How often a process of its own died under it.
    ADD COLUMN IF NOT EXISTS crashes int NOT NULL DEFAULT 0,
    -- The job whose run asked for this one.
    ADD COLUMN IF NOT EXISTS parent_id uuid;

CREATE TABLE IF NOT EXISTS dl_job_events (
    event_id bigserial   PRIMARY KEY,
    job_id   uuid        NOT NULL REFERENCES dl_jobs (job_id) ON DELETE CASCADE,
    queue    text        NOT NULL,
    ts       timestamptz NOT NULL DEFAULT now(),
    kind     text        NOT NULL,
    payload  jsonb       DEFAULT '{}'
);

-- now() is when the transaction began, which may be before an event of a transaction that it waited for.
ALTER TABLE dl_job_events
    ALTER COLUMN payload SET DEFAULT '{}',
    SET (autovacuum_vacuum_insert_scale_factor = 0.1);

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

-- What pipelines log and print, a line a row. No foreign key: logs have a retention of their own.
CREATE TABLE IF NOT EXISTS dl_job_logs (
    log_id  bigserial   PRIMARY KEY,
    job_id  uuid        NOT NULL,
    attempt int         NOT NULL,
    ts      timestamptz NOT NULL,
    level   text        NOT NULL,
    stream  text        NOT NULL,
    line    text        NOT NULL
);
CREATE INDEX IF NOT EXISTS dl_job_logs_job_idx ON dl_job_logs (job_id, log_id);

-- One row a schema change that was applied.
CREATE TABLE IF NOT EXISTS dl_schema (
    version     int         NOT NULL,
    fingerprint text        NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Jobs that were running before runs were fenced: of two with one key the later lease stays, and the other try does not
-- count. One without a lease is given one that has run out, for the reaper to find.
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

-- A queued job stands in exactly one of these three. The order of the first is the order of claims.
CREATE INDEX IF NOT EXISTS dl_jobs_ready_idx ON dl_jobs (queue, priority, created_at, job_id)
    WHERE status = 'queued' AND place = 'ready';
CREATE INDEX IF NOT EXISTS dl_jobs_timed_idx ON dl_jobs (available_at)
    WHERE status = 'queued' AND place = 'timed';
CREATE INDEX IF NOT EXISTS dl_jobs_parked_idx ON dl_jobs (lock_key, priority, created_at, job_id)
    WHERE status = 'queued' AND place = 'parked';

-- The truth about keys: no two running jobs share one, whatever else goes wrong.
CREATE UNIQUE INDEX IF NOT EXISTS dl_jobs_running_key_idx ON dl_jobs (lock_key) WHERE status = 'running';

CREATE UNIQUE INDEX IF NOT EXISTS dl_jobs_live_key_idx ON dl_jobs (live_key)
    WHERE live_key IS NOT NULL AND status IN ('queued', 'running');

-- Lists, newest first.
CREATE INDEX IF NOT EXISTS dl_jobs_created_idx ON dl_jobs (created_at, job_id);

-- Without it every deleted job costs a scan of the journal.
CREATE INDEX IF NOT EXISTS dl_job_events_job_idx ON dl_job_events (job_id, event_id);

-- SECURITY DEFINER, because a service that may only INSERT INTO dl_jobs must be able to; the search path is pinned to
-- the one this file was applied with.
CREATE OR REPLACE FUNCTION dl_jobs_inserted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, clock_timestamp(), 'queued',
           jsonb_strip_nulls(jsonb_build_object('status', 'queued', 'attempt', attempt, 'producer', producer))
      FROM fresh
     WHERE status = 'queued';
    PERFORM pg_notify('dl_jobs', queue) FROM (SELECT DISTINCT queue FROM fresh WHERE status = 'queued') queues;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION dl_jobs_became_ready() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_notify('dl_jobs', NEW.queue);  -- the server sends one of several equal ones in a transaction
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION dl_jobs_to_the_gate() RETURNS trigger
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    NEW.place := 'timed';
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION dl_jobs_to_the_start() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    NEW.attempt := CASE OLD.status WHEN 'running' THEN greatest(OLD.attempt - 1, 0) ELSE 0 END;
    NEW.cancel_requested := false;
    NEW.lease_expires_at := NULL;
    NEW.finished_at := NULL;
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    VALUES (NEW.job_id, NEW.queue, clock_timestamp(), 'requeue',
            jsonb_build_object('status', 'queued', 'attempt', NEW.attempt, 'reason', 'by_hand'));
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER dl_jobs_notify_ins AFTER INSERT ON dl_jobs
    REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION dl_jobs_inserted();

-- The conditions stand in WHEN, so that claims, heartbeats and ends pay no call.
CREATE OR REPLACE TRIGGER dl_jobs_notify_upd AFTER UPDATE ON dl_jobs
    FOR EACH ROW
    WHEN (NEW.status = 'queued' AND (OLD.status <> 'queued' OR NEW.available_at <> OLD.available_at))
    EXECUTE FUNCTION dl_jobs_became_ready();

-- Someone who knows nothing of places puts a job back, or moves its time: it is sorted again.
CREATE OR REPLACE TRIGGER dl_jobs_gate BEFORE UPDATE ON dl_jobs
    FOR EACH ROW
    WHEN (NEW.status = 'queued' AND NEW.place = OLD.place AND NEW.place <> 'timed'
          AND (OLD.status <> 'queued' OR NEW.available_at <> OLD.available_at))
    EXECUTE FUNCTION dl_jobs_to_the_gate();

-- Someone sets a finished or running job to queued by hand: it gets what a retry or a release would have given it. Our
-- own statements either move its place or end its lease.
CREATE OR REPLACE TRIGGER dl_jobs_put_back BEFORE UPDATE ON dl_jobs
    FOR EACH ROW
    WHEN (NEW.status = 'queued' AND OLD.status <> 'queued' AND NEW.place = OLD.place
          AND (OLD.status <> 'running' OR NEW.lease_expires_at IS NOT NULL))
    EXECUTE FUNCTION dl_jobs_to_the_start();

-- What stands here. `dataloader migrate` adds a line with the fingerprint of this file; by hand there is none.
INSERT INTO dl_schema (version, fingerprint)
SELECT 1, 'by hand'
 WHERE NOT EXISTS (SELECT FROM dl_schema WHERE version >= 1);
