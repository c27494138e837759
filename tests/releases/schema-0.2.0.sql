-- The whole present schema of dataloader. Needs PostgreSQL 15 or newer, and no extension.
--
-- Applied to an empty database it builds it; applied to one that holds dl_jobs and dl_job_events as they were before
-- the columns below, it upgrades them in place, with their rows; applied twice it does no harm. `dataloader migrate`
-- applies it in one transaction, with search_path set to the schema that holds the queue.

-- Who moves parts holds this lock and then looks at tables; whoever holds tables must not wait for it any more.
DO $$ BEGIN PERFORM pg_advisory_xact_lock(1684828527, 3); END $$;

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

-- A job's id begins with the time (to the microsecond; RFC 9562, version 7), so that jobs that come together
-- stand together in every index that has it, and a claim of hundreds touches few pages of them. The rest is chance. No
-- more than one expression, which the planner puts in the place of the call.
CREATE OR REPLACE FUNCTION dl_new_id() RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL SAFE
    RETURN (overlay(lpad(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint), 15, '0') PLACING '7' FROM 13 FOR 0)
            || substr(gen_random_uuid()::text, 20))::uuid;

GRANT EXECUTE ON FUNCTION dl_new_id() TO PUBLIC;  -- a plain INSERT draws one with the rights of who sends it

CREATE TABLE IF NOT EXISTS dl_jobs (
    job_id           uuid        PRIMARY KEY DEFAULT dl_new_id(),
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

-- Room on each page, so that a heartbeat's new row version stays beside the old one and touches no index (HOT). What is
-- wide stands in the TOAST table, where a heartbeat that does not change it leaves it as it is. What ends and is deleted
-- is cleaned up soon, and statistics follow the work of a minute.
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

ALTER TABLE dl_jobs ALTER COLUMN job_id SET DEFAULT dl_new_id();  -- by chance alone before

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

-- The journal and the jobs' logs grow with every move and every line, and are got rid of by the part: a part holds the
-- rows of some days and is dropped whole. The numbers tell the time: the first one of a part is a hundred thousand times
-- the second since 1970 with which its time begins, and the sequence is moved there when that time comes. So the primary
-- key is the column alone, as it always was. (They stay below 2^53, and are no strange numbers to a reader of JSON.)
--
-- Tables of before become the first part of the new ones, where they are and as they are.
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
    job_id   uuid        NOT NULL,  -- of dl_jobs, and deleted with it: see dl_job_events_of_jobs
    queue    text        NOT NULL,
    ts       timestamptz NOT NULL DEFAULT now(),  -- may be before an event of a transaction that it waited for
    kind     text        NOT NULL,
    payload  jsonb       DEFAULT '{}'
) PARTITION BY RANGE (event_id);
ALTER SEQUENCE dl_job_events_event_id_seq OWNED BY dl_job_events.event_id;

-- What pipelines log and print, a line a row. No foreign key: logs have a retention of their own.
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

-- Parts are made, moved to and dropped by whoever keeps house, who need not own the tables. Each function is one short
-- transaction, gives up after a tenth of a second where a lock cannot be had, and then says so.
CREATE OR REPLACE FUNCTION dl_first_id(at timestamptz) RETURNS bigint
    LANGUAGE sql IMMUTABLE RETURN (extract(epoch FROM at) * 100000)::bigint;

CREATE OR REPLACE FUNCTION dl_parts(parent text) RETURNS TABLE (part text, low bigint, high bigint)
    LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT c.relname::text,
           coalesce(substring(bound FROM $r$FROM \('?(-?\d+)$r$)::bigint, -1), substring(bound FROM $r$TO \('?(\d+)$r$)::bigint
      FROM pg_inherits i
           JOIN pg_class c ON c.oid = i.inhrelid
           CROSS JOIN LATERAL pg_get_expr(c.relpartbound, c.oid) AS bound
     WHERE i.inhparent = to_regclass(parent) AND bound <> 'DEFAULT'
     ORDER BY 2
$$;

-- Make parts until they reach `ahead` beyond now, each `span` long. The default one is for numbers that somebody chose.
-- Answers with the names of what was made.
CREATE OR REPLACE FUNCTION dl_make_parts(parent text, span interval, ahead interval) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    day    interval := interval '1 day';
    least_span interval := CASE WHEN pg_has_role(session_user, current_user, 'MEMBER') THEN interval '1 second'
                                ELSE interval '1 hour' END;
    low    bigint;
    begins timestamptz := greatest(
        (SELECT to_timestamp(max(high) / 100000.0) FROM dl_parts(parent)),
        CASE WHEN span >= day THEN date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
             ELSE to_timestamp(floor(extract(epoch FROM clock_timestamp()) / extract(epoch FROM span))
                               * extract(epoch FROM span)) END);
    part   text;
BEGIN
    IF parent NOT IN ('dl_job_events', 'dl_job_logs') THEN
        RAISE EXCEPTION 'nothing of ours stands in parts by the name of %', parent;
    END IF;
    -- Whoever owns the tables may do as he likes; who only keeps house fills no catalogue with tables.
    IF NOT span BETWEEN least_span AND interval '31 days' OR ahead > interval '31 days' THEN
        RAISE EXCEPTION 'parts of %, made % ahead; an hour to 31 days would do', span, ahead;
    END IF;
    WHILE begins < clock_timestamp() + ahead LOOP
        low := dl_first_id(begins);
        part := parent || '_' || to_char(begins AT TIME ZONE 'UTC',
                                         CASE WHEN span >= day THEN 'YYYYMMDD' ELSE 'YYYYMMDD"t"HH24MISS' END);
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)'
                       ' WITH (autovacuum_vacuum_insert_scale_factor = 0.1)', part, parent);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', parent, part, low,
                       dl_first_id(begins + span));
        RETURN NEXT part;
        begins := begins + span;
    END LOOP;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN;
END $$;

-- Move the sequence to the part that now belongs to. Never back: whoever does it holds the lock.
CREATE OR REPLACE FUNCTION dl_move_on(parent text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    sequence text := pg_get_serial_sequence(parent, CASE parent WHEN 'dl_job_logs' THEN 'log_id' ELSE 'event_id' END);
    now_id   bigint := dl_first_id(clock_timestamp());
    due      record;
    reached  bigint;
BEGIN
    IF parent NOT IN ('dl_job_events', 'dl_job_logs') THEN
        RAISE EXCEPTION 'nothing of ours stands in parts by the name of %', parent;
    END IF;
    PERFORM pg_advisory_xact_lock(1684828527, 3);
    SELECT * INTO due FROM dl_parts(parent) p WHERE p.low <= now_id AND now_id < p.high;
    EXECUTE format('SELECT last_value FROM %s', sequence) INTO reached;
    IF due.low IS NULL OR reached >= due.low THEN
        RETURN NULL;
    END IF;
    PERFORM setval(sequence, due.low);
    RETURN due.part;
END $$;

-- Drop the parts whose rows are all older than `keep`. The one that is being written to stays, and so does any that a
-- transaction has open. What is locked meanwhile is the journal, not the jobs.
-- Less than a day is for those alone who could drop the tables themselves: what the service's account did a moment ago
-- stays in the journal, whoever has taken it over.
CREATE OR REPLACE FUNCTION dl_drop_parts(parent text, keep interval, dry bool) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    column_of text := CASE parent WHEN 'dl_job_logs' THEN 'log_id' ELSE 'event_id' END;
    age       interval := CASE WHEN pg_has_role(session_user, current_user, 'MEMBER') THEN keep
                               ELSE greatest(keep, interval '1 day') END;
    reached   bigint;
    old       record;
    newest    timestamptz;
    over      bool;
BEGIN
    IF parent NOT IN ('dl_job_events', 'dl_job_logs') THEN
        RAISE EXCEPTION 'nothing of ours stands in parts by the name of %', parent;
    END IF;
    EXECUTE format('SELECT last_value FROM %s', pg_get_serial_sequence(parent, column_of)) INTO reached;
    FOR old IN SELECT * FROM dl_parts(parent) p WHERE p.high <= reached ORDER BY p.low LOOP
        EXECUTE format('SELECT max(ts) FROM (SELECT ts FROM %I ORDER BY %I DESC LIMIT 1000) last', old.part, column_of)
           INTO newest;
        CONTINUE WHEN coalesce(newest, to_timestamp(least(old.high, 25340230080000000) / 100000.0))
                      >= clock_timestamp() - age;
        IF NOT dry THEN
            -- The last look is taken under the lock: nobody can have written to it since.
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', old.part);
            EXECUTE format('SELECT coalesce(max(ts) < clock_timestamp() - $1, true)'
                           ' FROM (SELECT ts FROM %I ORDER BY %I DESC LIMIT 1000) last', old.part, column_of)
               INTO over USING age;
            CONTINUE WHEN NOT over;
            EXECUTE format('DROP TABLE %I', old.part);
        END IF;
        RETURN NEXT old.part;
        EXIT WHEN NOT dry;  -- one at a time: a lock on the whole journal is not held for longer than it takes
    END LOOP;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN;
END $$;

REVOKE EXECUTE ON FUNCTION dl_make_parts(text, interval, interval), dl_move_on(text), dl_drop_parts(text, interval, bool)
  FROM PUBLIC;

DO $$
DECLARE
    parent  text;
    reached bigint;
BEGIN
    FOREACH parent IN ARRAY ARRAY['dl_job_events', 'dl_job_logs'] LOOP
        IF to_regclass(parent || '_default') IS NULL THEN
            EXECUTE format('CREATE TABLE %I PARTITION OF %I DEFAULT', parent || '_default', parent);
        END IF;
        IF to_regclass(parent || '_before') IS NOT NULL
           AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass(parent || '_before')) THEN
            EXECUTE format('SELECT last_value FROM %s', pg_get_serial_sequence(
                        parent, CASE parent WHEN 'dl_job_logs' THEN 'log_id' ELSE 'event_id' END)) INTO reached;
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (MINVALUE) TO (%s)', parent, parent || '_before',
                           greatest(reached + 1, dl_first_id(date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC')));
        END IF;
        PERFORM dl_make_parts(parent, interval '6 days', interval '1 day');
        PERFORM dl_move_on(parent);
    END LOOP;
END $$;

-- The journal belongs to the jobs as with a foreign key, but for a whole statement at once: a key asks once for each line,
-- and locks its job each time, which was a seventh of all that a job costs here. Whoever has just changed the jobs that it
-- writes about says so (dl.ours), and is believed.
--
-- What these functions ask is planned once in a session, and their plans must serve tables of any size: made while there
-- were a few jobs, a scan would be gone through for each line. So it is switched off, here and in the others below.
DO $$
DECLARE
    old record;
BEGIN
    -- Only where there is one: it takes the journal from all who read it.
    FOR old IN SELECT conrelid::regclass AS part, conname AS name FROM pg_constraint
                WHERE contype = 'f' AND confrelid = 'dl_jobs'::regclass AND conparentid = 0
                  AND (conrelid = 'dl_job_events'::regclass
                       OR conrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'dl_job_events'::regclass)) LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', old.part, old.name);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION dl_job_events_of_jobs() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    unknown uuid := (SELECT f.job_id FROM fresh f
                      WHERE (SELECT j.job_id FROM dl_jobs j WHERE j.job_id = f.job_id FOR KEY SHARE) IS NULL LIMIT 1);
BEGIN
    IF unknown IS NOT NULL THEN
        RAISE foreign_key_violation USING MESSAGE = format('there is no job %s to write of in the journal', unknown),
              CONSTRAINT = 'dl_job_events_of_jobs', TABLE = 'dl_job_events', COLUMN = 'job_id';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dl_job_events_of_jobs AFTER INSERT ON dl_job_events
    REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT WHEN (current_setting('dl.ours', true) IS DISTINCT FROM 'yes')
    EXECUTE FUNCTION dl_job_events_of_jobs();

CREATE OR REPLACE FUNCTION dl_jobs_deleted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        DELETE FROM dl_job_events;  -- it may be among the truncated ones, and then that is not allowed again
    ELSE
        DELETE FROM dl_job_events e USING gone WHERE e.job_id = ANY (ARRAY[gone.job_id]);
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dl_jobs_del AFTER DELETE ON dl_jobs
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION dl_jobs_deleted();
CREATE OR REPLACE TRIGGER dl_jobs_trunc AFTER TRUNCATE ON dl_jobs
    FOR EACH STATEMENT EXECUTE FUNCTION dl_jobs_deleted();

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

CREATE INDEX IF NOT EXISTS dl_job_logs_job_idx ON dl_job_logs (job_id, log_id);

-- One row a schema change that was applied. A process of an older version starts on these tables if they serve it:
-- `serves_from` is the oldest version that was tried with them; NULL: nobody says so.
CREATE TABLE IF NOT EXISTS dl_schema (
    version     int         NOT NULL,
    fingerprint text        NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

ALTER TABLE dl_schema ADD COLUMN IF NOT EXISTS serves_from int;

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

-- Those that were set aside for want of a worker that knows their task: few, and looked for by each that starts.
CREATE INDEX IF NOT EXISTS dl_jobs_stray_idx ON dl_jobs (queue, task) WHERE status = 'queued' AND stray;

-- Lists, newest first.
CREATE INDEX IF NOT EXISTS dl_jobs_created_idx ON dl_jobs (created_at, job_id);

-- What has ended, the longest ago first, for each status and task: the order in which it is deleted. Made at the end of a
-- job's life, so claims and heartbeats pay nothing.
CREATE INDEX IF NOT EXISTS dl_jobs_ended_idx ON dl_jobs (status, task, finished_at)
    WHERE status IN ('succeeded', 'failed', 'canceled', 'lost');

-- Without it every deleted job costs a scan of the journal.
CREATE INDEX IF NOT EXISTS dl_job_events_job_idx ON dl_job_events (job_id, event_id);

-- Keys of jobs that were deleted: "unique for ever" outlives the job. What a second request is told, and no more.
CREATE TABLE IF NOT EXISTS dl_retired_keys (
    key_hash     bytea       PRIMARY KEY,  -- of the idempotency key
    job_id       uuid        NOT NULL,
    status       dl_status   NOT NULL,     -- how the job had ended
    request_hash text        NOT NULL,
    retired_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS dl_retired_keys_at_idx ON dl_retired_keys (retired_at);

CREATE OR REPLACE FUNCTION dl_key_hash(key text) RETURNS bytea
    LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN sha256(convert_to(key, 'UTF8'));

-- Of a request: what must be the same for two of them to be one.
CREATE OR REPLACE FUNCTION dl_request_hash(queue text, task text, args jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN encode(sha256(convert_to(jsonb_build_array(queue, task, args)::text, 'UTF8')), 'hex');

-- Which process waits to be rung for a queue (asleep), and which will look again by itself (not asleep: it has more to do
-- than threads). Lost when the server crashes, as are the connections of those who wrote it.
CREATE UNLOGGED TABLE IF NOT EXISTS dl_watch (
    queue     text NOT NULL,
    worker_id uuid NOT NULL,
    asleep    bool NOT NULL,
    PRIMARY KEY (queue, worker_id)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- Ring for a queue, unless it is certain that somebody will look after this transaction has committed. Every notification
-- wakes every listening session of the database and keeps all other commits that notify waiting until its own is on the
-- disk; decision 15 goes through each order in which this and a worker that falls asleep may meet.
--
-- Whoever stays silent holds the queue's lock (shared) until the end of his transaction. A worker that has said it falls
-- asleep looks once more after it has had that lock for itself.
CREATE OR REPLACE FUNCTION dl_ring(wanted text) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    -- In an older snapshot the marks would be those of another time.
    IF current_setting('transaction_isolation') = 'read committed'
       AND NOT EXISTS (SELECT FROM dl_watch w WHERE w.queue = wanted AND w.asleep) THEN
        PERFORM pg_advisory_xact_lock_shared(1684828530, hashtext(wanted));
        IF dl_will_look(wanted) THEN
            RETURN;
        END IF;
    END IF;
    PERFORM pg_notify('dl_jobs', wanted);  -- the server sends one of several equal ones in a transaction
END $$;

-- Nobody is asleep; and either a live process is awake on the queue, or nobody serves it and a job of somebody else waits
-- there already, for which was rung and is rung again every second as long as it waits.
CREATE OR REPLACE FUNCTION dl_will_look(wanted text) RETURNS bool
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    awake bool;
    alive bool;
BEGIN
    IF EXISTS (SELECT FROM dl_watch w WHERE w.queue = wanted AND w.asleep) THEN
        RETURN false;
    END IF;
    SELECT coalesce(bool_or(wanted = ANY (w.queues)), false), count(*) > 0
      INTO awake, alive
      FROM dl_workers w
     WHERE w.seen_at > clock_timestamp() - make_interval(secs => 3 * w.heartbeat_sec);
    IF NOT alive THEN
        RETURN false;
    ELSIF awake THEN
        -- Each of those that live and serve it must have said so: one that has not may be of an older version, or new.
        RETURN NOT EXISTS (SELECT FROM dl_workers w
                            WHERE wanted = ANY (w.queues)
                              AND w.seen_at > clock_timestamp() - make_interval(secs => 3 * w.heartbeat_sec)
                              AND NOT EXISTS (SELECT FROM dl_watch v
                                               WHERE v.queue = wanted AND v.worker_id = w.worker_id));
    END IF;
    RETURN coalesce((SELECT j.created_at < now() AND j.xmin <> pg_current_xact_id()::xid
                       FROM dl_jobs j
                      WHERE j.queue = wanted AND j.status = 'queued' AND j.place = 'ready'
                      ORDER BY j.priority, j.created_at, j.job_id
                      LIMIT 1), false)
        OR coalesce((SELECT j.queue = wanted AND j.created_at < now() AND j.xmin <> pg_current_xact_id()::xid
                       FROM dl_jobs j
                      WHERE j.status = 'queued' AND j.place = 'timed' AND j.available_at <= (SELECT clock_timestamp())
                      ORDER BY j.available_at
                      LIMIT 1), false);
END $$;

-- SECURITY DEFINER, because a service that may only INSERT INTO dl_jobs must be able to; the search path is pinned to
-- the one this file was applied with.
CREATE OR REPLACE FUNCTION dl_jobs_inserted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET dl.ours = 'yes' SET enable_seqscan = off AS $$
BEGIN
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, clock_timestamp(), 'queued',
           CASE WHEN producer IS NULL THEN jsonb_build_object('status', 'queued', 'attempt', attempt, 'task', task)
                ELSE jsonb_build_object('status', 'queued', 'attempt', attempt, 'task', task, 'producer', producer) END
      FROM fresh
     WHERE status = 'queued';
    -- A key whose job was deleted is as taken as any. Looked at after the insert, which may have waited for the deletion.
    IF EXISTS (SELECT FROM fresh f
                WHERE f.idempotency_key IS NOT NULL
                  AND EXISTS (SELECT FROM dl_retired_keys k WHERE k.key_hash = dl_key_hash(f.idempotency_key) OFFSET 0)) THEN
        RAISE unique_violation USING MESSAGE = 'an idempotency_key belongs to a job that was deleted',
              CONSTRAINT = 'dl_retired_keys_pkey', TABLE = 'dl_retired_keys';
    END IF;
    PERFORM dl_ring(queue) FROM (SELECT DISTINCT queue FROM fresh WHERE status = 'queued' ORDER BY queue) queues;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION dl_jobs_became_ready() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM dl_ring(NEW.queue);
    RETURN NULL;
END $$;

-- Someone puts a job back, or moves its time, and says nothing of its place: it stands where its time says. (If its key is
-- busy, a claim will park it.) One that was finished or running gets what a retry or a release would have given it. Our
-- own statements either move its place or end its lease.
CREATE OR REPLACE FUNCTION dl_jobs_moved_by_hand() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET dl.ours = 'yes' AS $$
BEGIN
    NEW.place := CASE WHEN NEW.available_at <= clock_timestamp() THEN 'ready' ELSE 'timed' END;
    IF OLD.status <> 'queued' AND (OLD.status <> 'running' OR NEW.lease_expires_at IS NOT NULL) THEN
        NEW.attempt := CASE OLD.status WHEN 'running' THEN greatest(OLD.attempt - 1, 0) ELSE 0 END;
        NEW.cancel_requested := false;
        NEW.lease_expires_at := NULL;
        NEW.finished_at := NULL;
        INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
        VALUES (NEW.job_id, NEW.queue, clock_timestamp(), 'requeue',
                jsonb_build_object('status', 'queued', 'attempt', NEW.attempt, 'reason', 'by_hand'));
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION dl_jobs_placed() RETURNS trigger
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    NEW.place := 'ready';
    RETURN NEW;
END $$;

-- A job that is due when it comes stands among the ready ones at once, whoever inserts it: to be sorted in later it would
-- need another version of its row, in all indexes.
CREATE OR REPLACE TRIGGER dl_jobs_place BEFORE INSERT ON dl_jobs
    FOR EACH ROW
    WHEN (NEW.status = 'queued' AND NEW.place = 'timed' AND NEW.available_at <= clock_timestamp())
    EXECUTE FUNCTION dl_jobs_placed();

CREATE OR REPLACE TRIGGER dl_jobs_notify_ins AFTER INSERT ON dl_jobs
    REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION dl_jobs_inserted();

-- The conditions stand in WHEN, so that claims, heartbeats and ends pay no call.
CREATE OR REPLACE TRIGGER dl_jobs_notify_upd AFTER UPDATE ON dl_jobs
    FOR EACH ROW
    WHEN (NEW.status = 'queued' AND (OLD.status <> 'queued' OR NEW.available_at <> OLD.available_at))
    EXECUTE FUNCTION dl_jobs_became_ready();

CREATE OR REPLACE TRIGGER dl_jobs_gate BEFORE UPDATE ON dl_jobs
    FOR EACH ROW
    WHEN (NEW.status = 'queued' AND NEW.place = OLD.place
          AND (OLD.status <> 'queued' OR NEW.available_at <> OLD.available_at))
    EXECUTE FUNCTION dl_jobs_moved_by_hand();
DROP TRIGGER IF EXISTS dl_jobs_put_back ON dl_jobs;  -- of before
DROP FUNCTION IF EXISTS dl_jobs_to_the_gate();
DROP FUNCTION IF EXISTS dl_jobs_to_the_start();

-- ── operating it ───────────────────────────────────────────────────────────────────────────────────────────────────

-- Lists of what went wrong, and bulk retries. Only a job that ends badly has an entry, so a success pays nothing.
CREATE INDEX IF NOT EXISTS dl_jobs_ended_badly_idx ON dl_jobs (created_at, job_id)
    WHERE status IN ('failed', 'canceled', 'lost');

-- The jobs that a job's run asked for. Only those have an entry.
CREATE INDEX IF NOT EXISTS dl_jobs_parent_idx ON dl_jobs (parent_id, created_at) WHERE parent_id IS NOT NULL;

-- What people have ruled about queues. A queue without a row is open and has no limit.
CREATE TABLE IF NOT EXISTS dl_queues (
    queue       text        PRIMARY KEY,
    -- paused: nothing is claimed; draining: nor are new jobs taken over HTTP.
    state       text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'paused', 'draining')),
    concurrency int         CHECK (concurrency >= 1),  -- jobs at once in all processes together; NULL: no limit
    per_worker  int         CHECK (per_worker >= 1),   -- jobs at once in each process; NULL: as many as it has threads
    note        text,
    changed_by  text,
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- How many jobs of a queue may be claimed now; NULL: any number. A claim takes no more than that. Volatile, so that the
-- running ones are counted by a fresh look, once the lock is held: two claimers never both take the last place.
CREATE OR REPLACE FUNCTION dl_room(wanted text) RETURNS int
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    ruled record;
BEGIN
    SELECT q.state, q.concurrency INTO ruled FROM dl_queues q WHERE q.queue = wanted;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF ruled.state <> 'open' THEN
        RETURN 0;
    END IF;
    IF ruled.concurrency IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM pg_advisory_xact_lock(1684828528, hashtext(wanted));
    RETURN greatest(0, ruled.concurrency
                       - (SELECT count(*) FROM dl_jobs j WHERE j.status = 'running' AND j.queue = wanted)::int);
END $$;

ALTER TABLE dl_workers
    ADD COLUMN IF NOT EXISTS draining  bool NOT NULL DEFAULT false,  -- it was told to claim nothing more
    ADD COLUMN IF NOT EXISTS listener  text,                         -- whether it hears notifications
    ADD COLUMN IF NOT EXISTS rss_bytes bigint,                       -- its memory, children left out
    -- Of each run at its last heartbeat: run_id, how old its progress is, and how far its stop has come.
    ADD COLUMN IF NOT EXISTS doing     jsonb NOT NULL DEFAULT '[]';

-- Whether a job fits a filter of lists and bulk operations: one meaning for both. It is one expression, so that the
-- planner puts it in the place of the call and sees what it may use an index for.
CREATE OR REPLACE FUNCTION dl_job_fits(j dl_jobs, wanted jsonb) RETURNS bool
    LANGUAGE sql STABLE
    RETURN (wanted ->> 'status' IS NULL OR j.status::text = ANY ((wanted ->> 'status')::text[]))
       AND (wanted ->> 'queue' IS NULL OR j.queue = wanted ->> 'queue')
       AND (wanted ->> 'task' IS NULL OR j.task = wanted ->> 'task')
       AND (wanted ->> 'lock_key' IS NULL OR j.lock_key = wanted ->> 'lock_key')
       AND (wanted ->> 'partition_key' IS NULL OR j.partition_key = wanted ->> 'partition_key')
       AND (wanted ->> 'producer' IS NULL OR j.producer = wanted ->> 'producer')
       AND (wanted ->> 'created_from' IS NULL OR j.created_at >= (wanted ->> 'created_from')::timestamptz)
       AND (wanted ->> 'created_to' IS NULL OR j.created_at < (wanted ->> 'created_to')::timestamptz)
       AND (wanted ->> 'started_from' IS NULL OR j.started_at >= (wanted ->> 'started_from')::timestamptz)
       AND (wanted ->> 'started_to' IS NULL OR j.started_at < (wanted ->> 'started_to')::timestamptz)
       AND (wanted ->> 'finished_from' IS NULL OR j.finished_at >= (wanted ->> 'finished_from')::timestamptz)
       AND (wanted ->> 'finished_to' IS NULL OR j.finished_at < (wanted ->> 'finished_to')::timestamptz)
       AND (wanted ->> 'text' IS NULL OR strpos(lower(j.args::text), lower(wanted ->> 'text')) > 0
            OR strpos(lower(coalesce(j.error, '')), lower(wanted ->> 'text')) > 0);

-- Operations on all jobs that fit a filter, done in batches by any process that has time for it.
CREATE TABLE IF NOT EXISTS dl_bulk (
    bulk_id          uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    action           text        NOT NULL CHECK (action IN ('cancel', 'retry', 'delete', 'reprioritise')),
    filter           jsonb       NOT NULL,
    priority         int         CHECK (priority >= 0),  -- what reprioritise sets
    expected         bigint      NOT NULL,               -- more jobs than that are never touched
    state            text        NOT NULL DEFAULT 'waiting'
                                 CHECK (state IN ('waiting', 'running', 'done', 'canceled', 'stopped', 'failed')),
    cancel_requested bool        NOT NULL DEFAULT false,
    looked           bigint      NOT NULL DEFAULT 0,
    matched          bigint      NOT NULL DEFAULT 0,
    changed          bigint      NOT NULL DEFAULT 0,
    -- Newer jobs than this one have been seen to. A batch moves it in its own transaction, so that after a crash the
    -- next process goes on exactly here. It begins where the operation was asked for: later jobs are not meant.
    seen_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_id          uuid        NOT NULL DEFAULT 'ffffffff-ffff-ffff-ffff-ffffffffffff',
    tries            int         NOT NULL DEFAULT 0,  -- batches in a row that failed
    asked_by         text,
    error            text,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at       timestamptz,
    finished_at      timestamptz
);
CREATE INDEX IF NOT EXISTS dl_bulk_created_idx ON dl_bulk (created_at, bulk_id);
CREATE INDEX IF NOT EXISTS dl_bulk_open_idx ON dl_bulk (created_at) WHERE state IN ('waiting', 'running');

-- What happened in each minute, quarter and hour, by queue and task, folded from the journal. One line a number:
-- what = queued, started, succeeded, failed, canceled, lost, retried (bucket 0), or waited, ran (bucket: the logarithm of
-- the seconds, see dl_bucket).
CREATE TABLE IF NOT EXISTS dl_rollups (
    span   int         NOT NULL,  -- seconds: 60, 900, 3600; negative: of all queues and tasks together, which are ''
    at     timestamptz NOT NULL,  -- when it began
    queue  text        NOT NULL,
    task   text        NOT NULL,
    what   text        NOT NULL,
    bucket int         NOT NULL,
    n      bigint      NOT NULL,
    sec    float8      NOT NULL DEFAULT 0,  -- the seconds that were waited or ran, added up
    PRIMARY KEY (span, at, queue, task, what, bucket)
);

-- Those of all together came later: what is there already is added up once.
INSERT INTO dl_rollups (span, at, queue, task, what, bucket, n, sec)
SELECT -span, at, '', '', what, bucket, sum(n), sum(sec)
  FROM dl_rollups
 WHERE span > 0 AND NOT EXISTS (SELECT FROM dl_rollups WHERE span < 0)
 GROUP BY span, at, what, bucket
    ON CONFLICT DO NOTHING;

-- Half powers of two from 5 ms on: a percentile read from the buckets is at most a fifth off.
CREATE OR REPLACE FUNCTION dl_bucket(sec float8) RETURNS int
    LANGUAGE sql IMMUTABLE
    RETURN least(60, ceil(2 * ln(greatest(sec, 0.005) / 0.005) / ln(2)))::int;

-- How many jobs stood where, looked at once a minute.
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

-- The last ends of each task, a few of each.
CREATE TABLE IF NOT EXISTS dl_last_runs (
    task     text        NOT NULL,
    event_id bigint      NOT NULL,
    job_id   uuid        NOT NULL,
    queue    text        NOT NULL,
    ended_at timestamptz NOT NULL,
    outcome  text        NOT NULL,  -- succeeded, failed, canceled, lost, retried
    attempt  int,
    ran_sec  float8,
    PRIMARY KEY (task, event_id)
);

-- How far the journal has been folded. Events are committed out of the order of their numbers, so what is still unread
-- is a set of ranges. A gap is given up once all who might still fill it have ended: those who held the journal's lock
-- when a later event was already there.
CREATE TABLE IF NOT EXISTS dl_rollup_state (
    one     bool           PRIMARY KEY DEFAULT true CHECK (one),
    unread  int8multirange NOT NULL,
    safe    bigint         NOT NULL DEFAULT 0,   -- no event up to this one will appear any more
    probe   bigint         NOT NULL DEFAULT 0,   -- the same will be known of this one when all of these have ended:
    writers text[]         NOT NULL DEFAULT '{}',
    depths_at timestamptz  NOT NULL DEFAULT '-infinity',
    pruned_at timestamptz  NOT NULL DEFAULT '-infinity'
);
-- Of a journal that is there already only the end is folded: nobody looks at charts of a time before there were any.
INSERT INTO dl_rollup_state (unread)
SELECT int8multirange(int8range(coalesce((SELECT max(event_id) FROM dl_job_events), 0) - 100000, NULL))
    ON CONFLICT DO NOTHING;

-- ── Being told ──────────────────────────────────────────────────────────────────────────────────────────────────────

ALTER TABLE dl_jobs
    -- Where its own end is to be told, {"url": …, "events": […]}, beside those who asked for all jobs of a kind.
    ADD COLUMN IF NOT EXISTS webhook jsonb,
    -- The W3C trace context of the request that asked for it: its tries are part of that trace.
    ADD COLUMN IF NOT EXISTS traceparent text;

-- Who wants to be told of what. A webhook without a queue or a task is told of all of them.
CREATE TABLE IF NOT EXISTS dl_webhooks (
    webhook_id       uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    url              text        NOT NULL,
    events           text[]      NOT NULL DEFAULT '{job.succeeded,job.failed,job.canceled,job.lost}',
    queue            text,
    task             text,
    description      text        NOT NULL DEFAULT '',
    secret           text        NOT NULL,
    -- After a rotation both sign for a while, so that a receiver may change over when it likes.
    old_secret       text,
    old_secret_until timestamptz,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Nothing is written for it any more; by a person, or because it has failed for too long.
    disabled_at      timestamptz,
    disabled_why     text,
    failures         int         NOT NULL DEFAULT 0,  -- in a row
    failing_since    timestamptz,
    rest_until       timestamptz                      -- a receiver that is down is left alone for a while
);

-- What is to be told, written in the transaction that made it true. No foreign key to the job: what was told outlives it.
CREATE TABLE IF NOT EXISTS dl_deliveries (
    delivery_id  uuid        PRIMARY KEY DEFAULT gen_random_uuid(),  -- the same in each try
    webhook_id   uuid        REFERENCES dl_webhooks (webhook_id) ON DELETE CASCADE,
    url          text,                                               -- of a job's own webhook
    target       text        NOT NULL,                               -- whom a hanging receiver holds up: itself alone
    job_id       uuid,
    event        text        NOT NULL,
    body         text        NOT NULL,
    state        text        NOT NULL DEFAULT 'waiting',             -- waiting, delivered, given_up
    tries        int         NOT NULL DEFAULT 0,
    first_try    int         NOT NULL DEFAULT 0,                     -- how many there were when it was last asked for
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at       timestamptz DEFAULT clock_timestamp(),              -- while it is being sent: when its sender is given up
    claim_id     uuid,
    delivered_at timestamptz,
    CONSTRAINT dl_deliveries_chk_where CHECK ((webhook_id IS NULL) <> (url IS NULL))
);
CREATE INDEX IF NOT EXISTS dl_deliveries_due_idx ON dl_deliveries (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS dl_deliveries_webhook_idx ON dl_deliveries (webhook_id, created_at, delivery_id);
CREATE INDEX IF NOT EXISTS dl_deliveries_created_idx ON dl_deliveries (created_at, delivery_id);
CREATE INDEX IF NOT EXISTS dl_deliveries_job_idx ON dl_deliveries (job_id);

CREATE TABLE IF NOT EXISTS dl_delivery_tries (
    delivery_id uuid        NOT NULL REFERENCES dl_deliveries (delivery_id) ON DELETE CASCADE,
    n           int         NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    status      int,
    duration_ms float8      NOT NULL,
    answer      text        NOT NULL DEFAULT '',  -- its first bytes
    error       text,
    PRIMARY KEY (delivery_id, n)
);

-- Writes down whom to tell of these jobs' moves. Called by the statements that end a run or a wait, only when there is
-- somebody to tell: the question costs them nothing a job. The rows are seen as those statements have left them.
CREATE OR REPLACE FUNCTION dl_tell(moved uuid[]) RETURNS bigint
    LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    written bigint;
BEGIN
    WITH told AS (
        SELECT j.*, 'job.' || CASE j.status WHEN 'queued' THEN 'retrying' ELSE j.status::text END AS event
          FROM dl_jobs j
         WHERE j.job_id = ANY (moved)
           AND (j.status NOT IN ('queued', 'running') OR j.status = 'queued' AND j.error IS NOT NULL)
    ), whom AS (
        SELECT t.job_id, w.webhook_id, NULL AS url, w.webhook_id::text AS target
          FROM told t
               JOIN dl_webhooks w ON w.disabled_at IS NULL AND t.event = ANY (w.events)
                                     AND coalesce(w.queue = t.queue, true) AND coalesce(w.task = t.task, true)
        UNION ALL
        SELECT job_id, NULL, webhook ->> 'url', left(substring(webhook ->> 'url' FROM '^[^/]*//[^/?#]*'), 300)
          FROM told
         WHERE webhook ->> 'url' LIKE 'http%//%'
           AND coalesce(webhook -> 'events' ? event, event <> 'job.retrying')
    )
    INSERT INTO dl_deliveries (webhook_id, url, target, job_id, event, body)
    SELECT whom.webhook_id, whom.url, whom.target, t.job_id, t.event,
           jsonb_build_object(
               'type', t.event,
               'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'data', jsonb_build_object(
                   'job_id', t.job_id, 'queue', t.queue, 'task', t.task, 'status', t.status, 'attempt', t.attempt,
                   'max_attempts', t.max_attempts, 'lock_key', t.lock_key, 'partition_key', t.partition_key,
                   'idempotency_key', t.idempotency_key, 'producer', t.producer, 'consumer_group', t.consumer_group,
                   'created_at', t.created_at, 'started_at', t.started_at, 'finished_at', t.finished_at,
                   'available_at', CASE t.status WHEN 'queued' THEN t.available_at END,
                   'error', left(t.error, 2000), 'progress', dl_text_within(t.progress, 65536)::jsonb,
                   'result', dl_text_within(t.result, 65536)::jsonb))::text
      FROM whom JOIN told t USING (job_id);
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written > 0 THEN
        PERFORM pg_notify('dl_control', 'deliver');
    END IF;
    RETURN written;
END $$;

-- When somebody is to be told that something goes wrong. Looked at every few seconds, by one process at a time.
CREATE TABLE IF NOT EXISTS dl_alert_rules (
    rule_id     uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    name        text        NOT NULL UNIQUE,
    kind        text        NOT NULL CHECK (kind IN ('failure_rate', 'no_success', 'queue_age', 'stalled', 'dead_worker')),
    queue       text,
    task        text,
    threshold   float8      NOT NULL CHECK (threshold >= 0),   -- a share of 1, or seconds
    window_sec  float8      NOT NULL CHECK (window_sec > 0),
    min_runs    int         NOT NULL DEFAULT 1 CHECK (min_runs > 0),
    active      bool        NOT NULL DEFAULT true,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What fires, and what has fired. One line from its beginning to its end: that it was told is remembered here.
CREATE TABLE IF NOT EXISTS dl_alerts (
    alert_id uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    rule_id  uuid,
    kind     text        NOT NULL,
    name     text        NOT NULL,
    subject  text        NOT NULL,  -- the task, queue, job or worker it is about
    queue    text,
    task     text,
    value    float8,
    detail   text        NOT NULL,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz
);
CREATE UNIQUE INDEX IF NOT EXISTS dl_alerts_firing_idx
    ON dl_alerts (coalesce(rule_id, '00000000-0000-0000-0000-000000000000'), kind, subject) WHERE ended_at IS NULL;
CREATE INDEX IF NOT EXISTS dl_alerts_began_idx ON dl_alerts (began_at, alert_id);

-- When the rules were last looked at, so that one process of many does it.
CREATE TABLE IF NOT EXISTS dl_alert_round (
    one       bool        PRIMARY KEY DEFAULT true CHECK (one),
    looked_at timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO dl_alert_round DEFAULT VALUES ON CONFLICT DO NOTHING;

-- Since when the progress of a running job is what it is, as far as rules want to know it.
CREATE TABLE IF NOT EXISTS dl_standstills (
    job_id  uuid        PRIMARY KEY,
    run_id  uuid,
    digest  text        NOT NULL,
    since   timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE OR REPLACE FUNCTION dl_tell_alerts(alerts uuid[], event text) RETURNS bigint
    LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    written bigint;
BEGIN
    INSERT INTO dl_deliveries (webhook_id, target, event, body)
    SELECT w.webhook_id, w.webhook_id::text, dl_tell_alerts.event,
           jsonb_build_object(
               'type', dl_tell_alerts.event,
               'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'data', jsonb_build_object(
                   'alert_id', a.alert_id, 'rule_id', a.rule_id, 'kind', a.kind, 'name', a.name, 'subject', a.subject,
                   'queue', a.queue, 'task', a.task, 'value', a.value, 'detail', a.detail, 'began_at', a.began_at,
                   'ended_at', a.ended_at))::text
      FROM dl_alerts a
           JOIN dl_webhooks w ON w.disabled_at IS NULL AND dl_tell_alerts.event = ANY (w.events)
                                 AND coalesce(w.queue = a.queue, true) AND coalesce(w.task = a.task, true)
     WHERE a.alert_id = ANY (alerts);
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written > 0 THEN
        PERFORM pg_notify('dl_control', 'deliver');
    END IF;
    RETURN written;
END $$;

-- ── Who may, and who did ────────────────────────────────────────────────────────────────────────────────────────────

-- Keys of the API. What is kept of a key is a digest, from which nobody gets it back.
CREATE TABLE IF NOT EXISTS dl_api_keys (
    key_id       text        PRIMARY KEY,
    name         text        NOT NULL,
    digest       bytea       NOT NULL,
    scopes       text[]      NOT NULL,
    tasks        text[],     -- NULL: may trigger all of them
    queues       text[],     -- likewise
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by   text        NOT NULL,
    expires_at   timestamptz,
    last_used_at timestamptz,
    revoked_at   timestamptz,
    CONSTRAINT dl_api_keys_chk_scopes
        CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['read', 'trigger', 'operate', 'admin']),
    -- A limit that some other scope goes round would be none.
    CONSTRAINT dl_api_keys_chk_limits
        CHECK (tasks IS NULL AND queues IS NULL OR scopes <@ ARRAY['read', 'trigger'])
);

-- What browsers' sessions are signed with, unless DL_SESSION_SECRET says it: the same for all processes.
CREATE TABLE IF NOT EXISTS dl_signing_secrets (
    purpose text        PRIMARY KEY,
    secret  bytea       NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Who did what, from where, to what, and what it changed. No foreign keys: it outlives what it speaks of.
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
    -- Whoever may write to the database may claim to be anybody; this is whom the server knows him as.
    db_user    text        NOT NULL DEFAULT session_user
);
CREATE INDEX IF NOT EXISTS dl_audit_subject_idx ON dl_audit (subject_id, audit_id);
CREATE INDEX IF NOT EXISTS dl_audit_at_idx ON dl_audit USING brin (at);

-- Written by whoever says for whom he acts, in dl.act of his transaction; all else, such as claims, heartbeats and ends,
-- pays for one look at that setting. Arguments: the subject, the column that names it, columns that do not count,
-- columns whose values are not shown: of an object the keys that differ are, of anything else that it differs.
CREATE OR REPLACE FUNCTION dl_audit_row() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    act    jsonb := current_setting('dl.act')::jsonb;
    uncounted text[] := string_to_array(TG_ARGV[2], ',');
    unshown   text[] := string_to_array(TG_ARGV[3], ',');
    older  jsonb := CASE WHEN TG_OP = 'INSERT' THEN '{}' ELSE to_jsonb(OLD) - uncounted END;
    newer  jsonb := CASE WHEN TG_OP = 'DELETE' THEN '{}' ELSE to_jsonb(NEW) - uncounted END;
    before jsonb;
    after  jsonb;
BEGIN
    SELECT jsonb_object_agg(key, CASE WHEN key <> ALL (unshown) THEN older -> key ELSE dl_audit_outline(older -> key, newer -> key) END),
           jsonb_object_agg(key, CASE WHEN key <> ALL (unshown) THEN newer -> key ELSE dl_audit_outline(newer -> key, older -> key) END)
      INTO before, after
      FROM jsonb_object_keys(older || newer) key
     WHERE (older -> key) IS DISTINCT FROM (newer -> key)
       AND coalesce(older -> key, 'null') IS DISTINCT FROM coalesce(newer -> key, 'null');
    IF after IS NOT NULL THEN
        INSERT INTO dl_audit (action, actor, key_id, via, address, request_id, subject, subject_id, before, after)
        VALUES (act ->> 'action', act ->> 'actor', act ->> 'key_id', act ->> 'via', act ->> 'address',
                act ->> 'request_id', TG_ARGV[0], coalesce(to_jsonb(NEW), to_jsonb(OLD)) ->> TG_ARGV[1],
                CASE WHEN TG_OP <> 'INSERT' THEN before END, CASE WHEN TG_OP <> 'DELETE' THEN after END);
    END IF;
    RETURN NULL;
END $$;

-- A value that is not shown: of an object the keys that the other one lacks or has otherwise.
CREATE OR REPLACE FUNCTION dl_audit_outline(mine jsonb, other jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN jsonb_typeof(mine) IS DISTINCT FROM 'object' THEN CASE WHEN mine IS NOT NULL THEN '"…"'::jsonb END
        ELSE (SELECT coalesce(jsonb_agg(key ORDER BY key), '[]')
                FROM jsonb_object_keys(mine) key
               WHERE CASE jsonb_typeof(other) WHEN 'object' THEN (other -> key) IS DISTINCT FROM (mine -> key) ELSE true END)
    END
$$;

-- Of many jobs put in at once there is one line: each has its own in the journal.
CREATE OR REPLACE FUNCTION dl_audit_jobs_inserted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    act  jsonb := current_setting('dl.act')::jsonb;
    made bigint := (SELECT count(*) FROM fresh);
BEGIN
    IF made = 1 OR act ? 'each' THEN  -- one, as nearly always, or several that are each somebody's own
        INSERT INTO dl_audit (action, actor, key_id, via, address, request_id, subject, subject_id, after)
        SELECT w.act ->> 'action', w.act ->> 'actor', w.act ->> 'key_id', w.act ->> 'via', w.act ->> 'address',
               w.act ->> 'request_id', 'job', f.job_id::text,
               jsonb_strip_nulls(jsonb_build_object(
                   'queue', queue, 'task', task, 'lock_key', lock_key, 'priority', priority, 'available_at', available_at,
                   'idempotency_key', idempotency_key, 'producer', producer))
          FROM fresh f, coalesce(act -> 'each' -> f.job_id::text, act - 'each') w (act)
         WHERE w.act <> '{}';
    ELSIF made > 1 THEN
        INSERT INTO dl_audit (action, actor, key_id, via, address, request_id, subject, after)
        SELECT act ->> 'action', act ->> 'actor', act ->> 'key_id', act ->> 'via', act ->> 'address', act ->> 'request_id',
               'job',
               jsonb_build_object('jobs', made, 'queues', jsonb_agg(DISTINCT queue), 'tasks', jsonb_agg(DISTINCT task))
          FROM fresh;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dl_jobs_audit_ins AFTER INSERT ON dl_jobs
    REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT WHEN (current_setting('dl.act', true) <> '') EXECUTE FUNCTION dl_audit_jobs_inserted();

CREATE OR REPLACE TRIGGER dl_jobs_audit AFTER UPDATE OR DELETE ON dl_jobs
    FOR EACH ROW WHEN (current_setting('dl.act', true) <> '')
    EXECUTE FUNCTION dl_audit_row('job', 'job_id',
        'place,stray,run_id,worker,lease_expires_at,heartbeat_at,started_at,finished_at,crashes,request_hash',
        'args,progress,result,error,traceback,checkpoint,webhook');  -- a webhook's URL may have a token in it

CREATE OR REPLACE TRIGGER dl_queues_audit AFTER INSERT OR UPDATE OR DELETE ON dl_queues
    FOR EACH ROW WHEN (current_setting('dl.act', true) <> '')
    EXECUTE FUNCTION dl_audit_row('queue', 'queue', 'changed_by,changed_at', '');

CREATE OR REPLACE TRIGGER dl_bulk_audit AFTER INSERT OR UPDATE OF cancel_requested ON dl_bulk
    FOR EACH ROW WHEN (current_setting('dl.act', true) <> '')
    EXECUTE FUNCTION dl_audit_row('bulk', 'bulk_id', 'looked,matched,changed,seen_at,seen_id,tries,asked_by,created_at', '');

CREATE OR REPLACE TRIGGER dl_workers_audit AFTER UPDATE OF draining ON dl_workers
    FOR EACH ROW WHEN (current_setting('dl.act', true) <> '')
    EXECUTE FUNCTION dl_audit_row('worker', 'worker_id', 'seen_at,doing,rss_bytes,listener', '');

CREATE OR REPLACE TRIGGER dl_api_keys_audit AFTER INSERT OR UPDATE OR DELETE ON dl_api_keys
    FOR EACH ROW WHEN (current_setting('dl.act', true) <> '')
    EXECUTE FUNCTION dl_audit_row('key', 'key_id', 'key_id,created_at,last_used_at', 'digest');

-- A URL may have a token in it, so it is not shown.
CREATE OR REPLACE TRIGGER dl_webhooks_audit AFTER INSERT OR UPDATE OR DELETE ON dl_webhooks
    FOR EACH ROW WHEN (current_setting('dl.act', true) <> '')
    EXECUTE FUNCTION dl_audit_row('webhook', 'webhook_id', 'webhook_id,created_at,failures,failing_since,rest_until',
                                  'url,secret,old_secret');

CREATE OR REPLACE TRIGGER dl_deliveries_audit AFTER UPDATE OF first_try ON dl_deliveries
    FOR EACH ROW WHEN (current_setting('dl.act', true) <> '')
    EXECUTE FUNCTION dl_audit_row('delivery', 'delivery_id', 'due_at,claim_id', 'url,body');

CREATE OR REPLACE TRIGGER dl_alert_rules_audit AFTER INSERT OR UPDATE OR DELETE ON dl_alert_rules
    FOR EACH ROW WHEN (current_setting('dl.act', true) <> '')
    EXECUTE FUNCTION dl_audit_row('alert_rule', 'rule_id', 'rule_id,created_at', '');

-- Old lines go by this function alone: a role that may call it cannot take away what was done a moment ago.
CREATE OR REPLACE FUNCTION dl_audit_prune(keep interval, most int) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    WITH old AS (
        SELECT audit_id FROM dl_audit
         WHERE at < clock_timestamp() - greatest(keep, interval '1 day')
         ORDER BY audit_id LIMIT most
    ), gone AS (
        DELETE FROM dl_audit a USING old WHERE a.audit_id = old.audit_id RETURNING 1
    )
    SELECT count(*) FROM gone
$$;
REVOKE ALL ON FUNCTION dl_audit_prune(interval, int) FROM PUBLIC;

-- Names that fit into the indexes they will stand in. Without this a longer one is taken in, since no index holds a job
-- that is not due yet; and then each statement that would move it on fails, and with it all others it would have moved.
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

-- jsonb that anybody may have written, as text for those who must read it: whole, or {"$dropped": why} where it cannot be
-- had or has more than `most` bytes. A few bytes such as 1e131071 are 128 KB of text, so that a small row can hold more
-- than a text may: then the cast fails, and with it whatever statement it stands in, such as every claim of a queue. What
-- is small and not packed cannot do that, and is spared the call, for the first of these functions is inlined.
CREATE OR REPLACE FUNCTION dl_text_within(value jsonb, most int) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    whole text;
BEGIN
    IF jsonb_path_exists(value, '$.** ? (@.type() == "number" && (@.abs() >= 1e310 || (@.abs() < 1e-310 && @ != 0)))') THEN
        RETURN jsonb_build_object('$dropped', 'a number in it has more than 310 digits');
    END IF;
    IF pg_column_size(value) / 8 <= most THEN  -- else it is not even unpacked
        whole := value::text;
    END IF;
    IF octet_length(whole) <= most THEN
        RETURN whole;
    END IF;
    RETURN jsonb_build_object('$dropped', format('more than %s bytes of JSON', most));
EXCEPTION WHEN program_limit_exceeded OR out_of_memory OR internal_error THEN
    RETURN jsonb_build_object('$dropped', 'more JSON than a text can hold');
END $$;

CREATE OR REPLACE FUNCTION dl_text(value jsonb, most int DEFAULT 67108864) RETURNS text LANGUAGE sql STABLE
    RETURN CASE WHEN pg_column_size(value) < 2000 AND pg_column_compression(value) IS NULL THEN value::text
                WHEN value IS NOT NULL THEN dl_text_within(value, most) END;

-- ── enqueueing from SQL, one and many ───────────────────────────────────────────────────────────────────────────────

-- Requests for jobs as rows with the defaults filled in, each with what is wrong with it. A value that cannot be cast is an
-- error here; dl_enqueue_many finds out whose it was. The limits are those of the HTTP API.
DO $$
BEGIN
    IF to_regtype('dl_request') IS NULL THEN
        CREATE TYPE dl_request AS (
            n bigint, job_id uuid, queue text, task text, lock_key text, args jsonb, idempotency_key text,
            partition_key text, priority int, available_at timestamptz, max_attempts int, lease_ttl_sec int,
            producer text, consumer_group text, live_key text, time_limit_sec int, retry jsonb, parent_id uuid,
            webhook jsonb, traceparent text, field text, fault text
        );
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dl_asked(jobs jsonb) RETURNS SETOF dl_request
    LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT i.n, dl_new_id(), r.queue, r.task, r.lock_key, coalesce(nullif(r.args, 'null'), '{}'), r.idempotency_key,
           coalesce(r.partition_key, ''), coalesce(r.priority, 100), r.available_at, coalesce(r.max_attempts, 5),
           coalesce(r.lease_ttl_sec, 60), r.producer, r.consumer_group, r.live_key, r.time_limit_sec,
           nullif(r.retry, 'null'), r.parent_id, nullif(r.webhook, 'null'), r.traceparent, f.field,
           CASE WHEN f.field IS NULL THEN NULL
                WHEN f.field = '$fault' THEN i.item ->> '$fault'
                WHEN f.field = '' THEN 'is no JSON object'
                WHEN f.field IN ('queue', 'task', 'lock_key') AND i.item -> f.field IS NULL THEN 'is required'
                WHEN f.field IN ('queue', 'task', 'lock_key', 'idempotency_key', 'live_key', 'partition_key', 'producer',
                                 'consumer_group')
                THEN 'must be a text that is not empty, of at most 2000 bytes in UTF-8'
                WHEN f.field IN ('args', 'retry', 'webhook') THEN 'must be a JSON object'
                WHEN f.field = 'priority' THEN 'must be 0 or more'
                WHEN f.field = 'available_at' THEN 'must be a time between the years 1 and 9999'
                WHEN f.field IN ('max_attempts', 'lease_ttl_sec', 'time_limit_sec')
                THEN 'must be 1 or more'
                ELSE 'is no field of this request; leave it out' END
      FROM jsonb_array_elements(jobs) WITH ORDINALITY AS i (item, n)
           CROSS JOIN LATERAL jsonb_to_record(CASE jsonb_typeof(i.item) WHEN 'object' THEN i.item ELSE '{}' END)
                              AS r (queue text, task text, lock_key text, args jsonb, idempotency_key text, partition_key text,
                                    priority int, available_at timestamptz, max_attempts int, lease_ttl_sec int,
                                    producer text, consumer_group text, live_key text, time_limit_sec int, retry jsonb,
                                    parent_id uuid, webhook jsonb, traceparent text)
           CROSS JOIN LATERAL (SELECT
               CASE WHEN jsonb_typeof(i.item) <> 'object' THEN ''
                    WHEN i.item ? '$fault' THEN '$fault'
                    WHEN i.item - '{queue,task,lock_key,args,idempotency_key,partition_key,priority,available_at,max_attempts,lease_ttl_sec,producer,consumer_group,live_key,time_limit_sec,retry,parent_id,webhook,traceparent}'::text[] <> '{}'
                    THEN (SELECT min(key) FROM jsonb_object_keys(i.item - '{queue,task,lock_key,args,idempotency_key,partition_key,priority,available_at,max_attempts,lease_ttl_sec,producer,consumer_group,live_key,time_limit_sec,retry,parent_id,webhook,traceparent}'::text[]) key)
                    WHEN coalesce(btrim(r.queue, E' \t\n\r\f\v'), '') = '' OR octet_length(r.queue) > 2000 THEN 'queue'
                    WHEN coalesce(btrim(r.task, E' \t\n\r\f\v'), '') = '' OR octet_length(r.task) > 2000 THEN 'task'
                    WHEN coalesce(btrim(r.lock_key, E' \t\n\r\f\v'), '') = '' OR octet_length(r.lock_key) > 2000 THEN 'lock_key'
                    WHEN jsonb_typeof(r.args) NOT IN ('object', 'null') THEN 'args'
                    WHEN btrim(r.idempotency_key, E' \t\n\r\f\v') = '' OR octet_length(r.idempotency_key) > 2000 THEN 'idempotency_key'
                    WHEN btrim(r.live_key, E' \t\n\r\f\v') = '' OR octet_length(r.live_key) > 2000 THEN 'live_key'
                    WHEN octet_length(r.partition_key) > 2000 THEN 'partition_key'
                    WHEN r.priority < 0 THEN 'priority'
                    WHEN r.available_at < '0001-01-01' OR r.available_at >= '9999-12-31' THEN 'available_at'
                    WHEN r.max_attempts < 1 THEN 'max_attempts'
                    WHEN r.lease_ttl_sec < 1 THEN 'lease_ttl_sec'
                    WHEN r.time_limit_sec < 1 THEN 'time_limit_sec'
                    WHEN octet_length(r.producer) > 2000 THEN 'producer'
                    WHEN octet_length(r.consumer_group) > 2000 THEN 'consumer_group'
                    WHEN jsonb_typeof(r.retry) NOT IN ('object', 'null') THEN 'retry'
                    WHEN jsonb_typeof(r.webhook) NOT IN ('object', 'null') THEN 'webhook' END AS field
              OFFSET 0) f  -- worked out once
$$;

-- Put many jobs into the queue, in the caller's own transaction: a JSON array of objects with the fields of the HTTP API's
-- trigger. One row a request, in their order, with its outcome:
--   created, exists   job_id and status are those of the job that now stands for the request
--   conflict          the idempotency key belongs to a job (job_id) with another queue, task or args
--   invalid           field and detail say what is wrong
--   left_out          nothing is wrong with it; but `whole` was asked for, and something is with another one
-- With `whole`, either all of them are created or exist, or none is made.
CREATE OR REPLACE FUNCTION dl_enqueue_many(jobs jsonb, whole bool DEFAULT false)
    RETURNS TABLE (n bigint, outcome text, job_id uuid, status text, field text, detail text)
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    told  jsonb := jobs;
    one   record;
    asked dl_request[];  -- all of them
    todo  dl_request[];  -- those for which nothing stands yet
    made  jsonb;         -- the ids of those that were made, as keys: looked up for each, where a join would have to guess
    found jsonb := '{}'; -- n -> [job_id, status, same] of what stands for the others
    more  jsonb;
    new   uuid[];
    tries int := 0;
BEGIN
    IF jsonb_typeof(told) IS DISTINCT FROM 'array' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a JSON array of requests is needed';
    END IF;
    BEGIN
        SELECT coalesce(array_agg(a), '{}') INTO asked FROM dl_asked(told) a;
    EXCEPTION WHEN data_exception THEN
        -- Some value is not of its type. One by one, to find out whose.
        told := '[]';
        FOR one IN SELECT i.item FROM jsonb_array_elements(jobs) WITH ORDINALITY AS i (item, n) ORDER BY i.n LOOP
            BEGIN
                PERFORM count(a) FROM dl_asked(jsonb_build_array(one.item)) a;
                told := told || jsonb_build_array(one.item);
            EXCEPTION WHEN data_exception THEN
                told := told || jsonb_build_array(jsonb_build_object('$fault', SQLERRM));
            END;
        END LOOP;
        SELECT array_agg(a) INTO asked FROM dl_asked(told) a;
    END;

    BEGIN
        SELECT array_agg(a), '{}' INTO todo, made FROM unnest(asked) a WHERE a.field IS NULL;
        WHILE cardinality(todo) > 0 LOOP
            tries := tries + 1;
            IF tries > 20 THEN
                RAISE serialization_failure USING MESSAGE = 'keys of this batch come and go; try again';
            END IF;
            -- In the order of the keys: two batches that have some in common wait for each other in one direction only.
            WITH new AS (
                INSERT INTO dl_jobs (job_id, queue, task, args, idempotency_key, lock_key, partition_key, priority,
                                     available_at, max_attempts, lease_ttl_sec, producer, consumer_group, live_key,
                                     time_limit_sec, retry, parent_id, webhook, traceparent, request_hash, place,
                                     created_at)
                SELECT a.job_id, a.queue, a.task, a.args, a.idempotency_key, a.lock_key, a.partition_key, a.priority,
                       coalesce(a.available_at, clock_timestamp()), a.max_attempts, a.lease_ttl_sec, a.producer,
                       a.consumer_group, a.live_key, a.time_limit_sec, a.retry, a.parent_id, a.webhook, a.traceparent,
                       CASE WHEN a.idempotency_key IS NOT NULL THEN dl_request_hash(a.queue, a.task, a.args) END,
                       CASE WHEN a.available_at > clock_timestamp() THEN 'timed' ELSE 'ready' END::dl_place,
                       now() + a.n * interval '1 microsecond'  -- so that they are claimed in their order
                  FROM unnest(todo) a
                 WHERE CASE WHEN a.idempotency_key IS NULL THEN true
                            ELSE NOT EXISTS (SELECT FROM dl_retired_keys k
                                              WHERE k.key_hash = dl_key_hash(a.idempotency_key)
                                             OFFSET 0) END
                 ORDER BY a.idempotency_key, a.live_key, a.n
                    ON CONFLICT DO NOTHING
                RETURNING job_id
            )
            SELECT array_agg(job_id) INTO new FROM new;
            IF tries = 1 AND cardinality(new) = cardinality(asked) THEN  -- as nearly always: all are sound, and new
                RETURN QUERY SELECT a.n, 'created', a.job_id, 'queued', NULL::text, NULL::text FROM unnest(asked) a ORDER BY a.n;
                RETURN;
            END IF;
            SELECT coalesce(jsonb_object_agg(id, true), '{}') INTO more FROM unnest(new) id;
            made := made || more;
            SELECT array_agg(a) INTO todo FROM unnest(todo) a WHERE NOT made ? a.job_id::text;
            EXIT WHEN todo IS NULL;

            -- What is there instead. Nothing: it was deleted, or has ended, meanwhile.
            SELECT coalesce(jsonb_object_agg(l.n, coalesce(k.said, r.said, v.said))
                            FILTER (WHERE coalesce(k.said, r.said, v.said) IS NOT NULL), '{}')
              INTO more
              FROM unnest(todo) l
                   LEFT JOIN LATERAL (
                       SELECT jsonb_build_array(j.job_id, j.status,
                                  coalesce(j.request_hash, dl_request_hash(j.queue, j.task, j.args))
                                  = dl_request_hash(l.queue, l.task, l.args)) AS said
                         FROM dl_jobs j WHERE j.idempotency_key = l.idempotency_key LIMIT 1) k ON true
                   LEFT JOIN LATERAL (
                       SELECT jsonb_build_array(h.job_id, h.status,
                                  h.request_hash = dl_request_hash(l.queue, l.task, l.args)) AS said
                         FROM dl_retired_keys h WHERE h.key_hash = dl_key_hash(l.idempotency_key) LIMIT 1) r ON true
                   LEFT JOIN LATERAL (
                       SELECT jsonb_build_array(j.job_id, j.status, true) AS said
                         FROM dl_jobs j
                        WHERE j.live_key = l.live_key AND j.status IN ('queued', 'running') LIMIT 1) v ON true;
            found := found || more;
            SELECT array_agg(a) INTO todo FROM unnest(todo) a WHERE NOT found ? a.n::text;
        END LOOP;
        IF whole AND (EXISTS (SELECT FROM unnest(asked) a WHERE a.field IS NOT NULL)
                      OR EXISTS (SELECT FROM jsonb_each(found) f WHERE NOT (f.value ->> 2)::bool)) THEN
            RAISE EXCEPTION USING ERRCODE = 'DL001';  -- what this block has written is undone
        END IF;
    EXCEPTION WHEN SQLSTATE 'DL001' THEN
        -- Nor is there what stood for a request within this batch.
        SELECT coalesce(jsonb_object_agg(f.key, f.value), '{}')
          INTO found
          FROM jsonb_each(found) f
         WHERE NOT made ? (f.value ->> 0);
        made := '{}';
    END;

    RETURN QUERY
    SELECT a.n,
           CASE WHEN a.field IS NOT NULL THEN 'invalid'
                WHEN made ? a.job_id::text THEN 'created'
                WHEN f IS NULL THEN 'left_out'
                WHEN (f ->> 2)::bool THEN 'exists'
                ELSE 'conflict' END,
           CASE WHEN made ? a.job_id::text THEN a.job_id ELSE (f ->> 0)::uuid END,
           CASE WHEN made ? a.job_id::text THEN 'queued' ELSE f ->> 1 END,
           nullif(nullif(a.field, '$fault'), ''), a.fault
      FROM unnest(asked) a
           CROSS JOIN LATERAL (SELECT found -> a.n::text AS f) instead
     ORDER BY a.n;
END $$;

-- Put one job into the queue, in the caller's own transaction; returns its id, or that of the job that stands for the
-- request already. What cannot be is an error: 22023 for a value, 23505 for an idempotency key of another request.
CREATE OR REPLACE FUNCTION dl_enqueue(
    queue text, task text, lock_key text, args jsonb DEFAULT '{}', idempotency_key text DEFAULT NULL,
    partition_key text DEFAULT '', priority int DEFAULT 100, available_at timestamptz DEFAULT NULL,
    max_attempts int DEFAULT 5, lease_ttl_sec int DEFAULT 60, producer text DEFAULT NULL,
    consumer_group text DEFAULT NULL, live_key text DEFAULT NULL, time_limit_sec int DEFAULT NULL,
    retry jsonb DEFAULT NULL, parent_id uuid DEFAULT NULL
) RETURNS uuid
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    told record;
BEGIN
    SELECT m.* INTO told
      FROM dl_enqueue_many(jsonb_build_array(jsonb_build_object(
               'queue', queue, 'task', task, 'lock_key', lock_key, 'args', args, 'idempotency_key', idempotency_key,
               'partition_key', partition_key, 'priority', priority, 'available_at', available_at,
               'max_attempts', max_attempts, 'lease_ttl_sec', lease_ttl_sec, 'producer', producer,
               'consumer_group', consumer_group, 'live_key', live_key, 'time_limit_sec', time_limit_sec,
               'retry', retry, 'parent_id', parent_id))) m;
    IF told.outcome = 'invalid' THEN
        RAISE invalid_parameter_value USING MESSAGE = coalesce(told.field || ' ', '') || told.detail;
    ELSIF told.outcome = 'conflict' THEN
        RAISE unique_violation
              USING MESSAGE = format('idempotency_key %L belongs to job %s, which has another queue, task or args',
                                     idempotency_key, told.job_id),
                    DETAIL = told.job_id::text;
    END IF;
    RETURN told.job_id;
END $$;

-- Whoever may call these may put any job into any queue, and nothing else.
REVOKE EXECUTE ON FUNCTION dl_asked(jsonb), dl_enqueue_many(jsonb, bool), dl_will_look(text), dl_ring(text),
       dl_enqueue(text, text, text, jsonb, text, text, int, timestamptz, int, int, text, text, text, int, jsonb, uuid)
  FROM PUBLIC;

-- What acts with the owner's rights, and whatever it may call, looks for temporary tables and types last. Without being
-- told it would do so first, and find there whatever its caller has put for it, triggers, checks and all.
-- And nobody may call what acts so but the owner, until somebody is named: roles.sql does. Triggers fire all the same.
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT p.oid::regprocedure AS signature, p.prosecdef AS strong FROM pg_proc p
         WHERE (p.prosecdef OR p.proconfig::text LIKE '%search_path=%') AND p.proname LIKE 'dl\_%'
           AND p.pronamespace = quote_ident(current_schema())::regnamespace
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', found.signature, current_schema());
        IF found.strong THEN
            EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', found.signature);
        END IF;
    END LOOP;
END $$;

-- What stands here. `dataloader migrate` adds a line with the fingerprint of this file; by hand there is none.
INSERT INTO dl_schema (version, fingerprint, serves_from)
SELECT 2, 'by hand', 1
 WHERE NOT EXISTS (SELECT FROM dl_schema WHERE version >= 2);
