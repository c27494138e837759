-- The tables and functions that every job needs. They are a whole queue without any feature: jobs are enqueued, claimed,
-- renewed, settled, released, reaped, canceled and retried. Needs PostgreSQL 15 or newer, and no extension.

BEGIN;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_class WHERE relnamespace = quote_ident(current_schema())::regnamespace
                                      AND relname IN ('dl_jobs', 'dl_schema')) THEN
        RAISE EXCEPTION 'the schema % holds tables of dataloader already: run `dataloader migrate`', current_schema();
    END IF;
END $$;

-- Functions keep this search path: with pg_temp last, a caller's temporary tables cannot take the place of ours.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- ── Version ──────────────────────────────────────────────────────────────────────────────────────────────────────────

-- One row per applied version. Processes of version `serves_from` or newer work on these tables; NULL: only those of the
-- same version. A row of version 0 records that the tables held jobs before they had versions: workers delete none of
-- them until DL_RETENTION_ENABLED=true.
-- rights of the service: SELECT
CREATE TABLE dl_schema (
    version     int         NOT NULL,
    fingerprint text        NOT NULL,  -- of this file as `dataloader migrate` applied it; 'by hand': another program did
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    serves_from int
);
INSERT INTO dl_schema (version, fingerprint, serves_from) VALUES (14, 'by hand', 9);

-- ── Types ────────────────────────────────────────────────────────────────────────────────────────────────────────────

CREATE TYPE dl_status AS ENUM ('queued', 'running', 'succeeded', 'failed', 'canceled', 'lost');

-- What a queued job waits for. scheduled: its time, or to be promoted; ready: a worker; blocked: its lock key; waiting:
-- other jobs; limited: the limit `waits_on`.
CREATE TYPE dl_wait_state AS ENUM ('scheduled', 'ready', 'blocked', 'waiting', 'limited');

-- A request of dl_enqueue_many: its position, job id, the field with a problem, and its fields. An upgrade replaces it.
CREATE TYPE dl_enqueue_request AS (
    n bigint, job_id uuid, field text, problem text,
    -- fields of a job: attributes
);

-- A job id begins with the time (RFC 9562, version 7, to a quarter of a microsecond), so that jobs created together are
-- neighbours in every index that has it. A single expression: the planner inlines the call.
CREATE OR REPLACE FUNCTION dl_new_id() RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL SAFE
    RETURN (overlay(lpad(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint), 15, '0') PLACING '7' FROM 13 FOR 0)
            || substr(gen_random_uuid()::text, 20))::uuid;

-- Whether these may be a job's tags: 1 to 20 texts, each of 1 to 100 bytes. In PL/pgSQL: the planner would try to inline a
-- function in SQL for each statement that writes a job.
CREATE OR REPLACE FUNCTION dl_is_tag_list(tags text[]) RETURNS bool
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN cardinality(tags) BETWEEN 1 AND 20 AND array_ndims(tags) = 1
           AND (SELECT bool_and(coalesce(octet_length(tag) BETWEEN 1 AND 100, false)) FROM unnest(tags) AS tag);
END $$;

-- ── Jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_jobs (
    job_id           uuid          PRIMARY KEY DEFAULT dl_new_id(),
    queue            text          NOT NULL,
    task             text          NOT NULL,
    args             jsonb         NOT NULL DEFAULT '{}',
    idempotency_key  text          UNIQUE,
    lock_key         text          NOT NULL,
    partition_key    text          NOT NULL DEFAULT '',
    priority         int           NOT NULL DEFAULT 100,
    available_at     timestamptz   NOT NULL DEFAULT now(),
    status           dl_status     NOT NULL DEFAULT 'queued',
    attempt          int           NOT NULL DEFAULT 0,
    max_attempts     int           NOT NULL DEFAULT 5,
    lease_ttl_sec    int           NOT NULL DEFAULT 60,
    lease_expires_at timestamptz,
    heartbeat_at     timestamptz,
    cancel_requested bool          NOT NULL DEFAULT false,
    progress         jsonb         NOT NULL DEFAULT '{}',
    error            text,
    producer         text,
    consumer_group   text,
    created_at       timestamptz   NOT NULL DEFAULT now(),
    started_at       timestamptz,
    finished_at      timestamptz,
    -- The fence: drawn by the worker at each claim. Kept when the attempt ends, so that its owner can be identified.
    run_id           uuid,
    wait_state       dl_wait_state NOT NULL DEFAULT 'ready',
    unknown_task     bool          NOT NULL DEFAULT false,  -- deferred: no live worker knows the task
    worker           text,
    worker_id        uuid,          -- the process that runs the attempt, while it runs; NULL: the lease alone decides
    result           jsonb,
    traceback        text,
    request_hash     text,          -- of queue, task and args as requested: identifies a repeated request
    live_key         text,          -- unique among queued and running jobs only
    time_limit_sec   int,
    retry            jsonb,         -- this job's retry policy; NULL: its task's
    checkpoint       jsonb,         -- where the next attempt resumes
    crashes          int           NOT NULL DEFAULT 0,  -- how often a process of its own died under it
    parent_id        uuid,          -- the job whose attempt enqueued this one
    webhook          jsonb,         -- this job's own webhook: {"url": …, "events": […]}
    traceparent      text,          -- W3C trace context of the request: the attempts are part of its trace
    limits           jsonb,         -- {"name": weight}: what the job counts in each limit while it runs
    waits_on         text,          -- the limit that a limited job waits for, or that a ready job has been woken for
    graph_id         uuid,          -- the graph of a job with parents or children
    graph_key        text,          -- its name within the graph
    need             text,          -- 'any': it waits for the first parent that ends as it asks; NULL: for all
    skipped          bool,          -- canceled because a parent did not end as it asked
    -- The tenant that the job counts as where a queue serves tenants in turn.
    fair_key         text CHECK (octet_length(fair_key) <= 500),
    debounce_key     text,          -- while it is queued, triggers with this key change it and make no other job
    throttle_key     text,          -- unique: key and time window of a request of which each window has one job
    expires_at       timestamptz,   -- canceled if it has not started by then; NULL once it has
    error_fingerprint text,         -- of the last attempt's error: its class, and the function it came from
    schedule_id      uuid,          -- the schedule that made it
    backfill_id      uuid,          -- the backfill that made it
    logical_at       timestamptz,   -- the time it is for: the nominal time of its schedule, the end of its slice
    interval_start   timestamptz,   -- the data it is to load, up to interval_end
    interval_end     timestamptz,
    warnings         int,           -- how many data checks of the attempt that succeeded did not pass; NULL: none
    tags             text[],        -- by which people and programs find it
    CONSTRAINT dl_jobs_chk_positive CHECK (priority >= 0 AND attempt >= 0 AND max_attempts >= 0 AND lease_ttl_sec > 0),
    CONSTRAINT dl_jobs_chk_tags CHECK (tags IS NULL OR dl_is_tag_list(tags)),
    -- What fits into every index. Without it a job that no index holds yet would fail each statement that promotes it.
    CONSTRAINT dl_jobs_chk_sizes
        CHECK (octet_length(queue) <= 1000 AND octet_length(task) <= 1000 AND octet_length(lock_key) <= 2000)
) WITH (
    -- Free space on each page keeps a heartbeat's new row version on the page of the old one (HOT): no index changes.
    -- Wide values are in the TOAST table, where a heartbeat that does not change them leaves them. Dead rows are
    -- vacuumed soon, and statistics follow the work of a minute.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05,
    toast.autovacuum_vacuum_scale_factor = 0.05,
    toast.autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_cost_delay = 0
);

-- A queued job is in exactly one of the first three, or waits for a limit or for other jobs. The order of the first is that of claims.
CREATE INDEX dl_jobs_ready_idx ON dl_jobs (queue, priority, created_at, job_id)
    WHERE status = 'queued' AND wait_state = 'ready';
CREATE INDEX dl_jobs_scheduled_idx ON dl_jobs (available_at)
    WHERE status = 'queued' AND wait_state = 'scheduled';
CREATE INDEX dl_jobs_blocked_idx ON dl_jobs (lock_key, priority, created_at, job_id)
    WHERE status = 'queued' AND wait_state = 'blocked';

CREATE INDEX dl_jobs_limited_idx ON dl_jobs (waits_on, queue, wait_state, priority, created_at, job_id)
    WHERE status = 'queued' AND waits_on IS NOT NULL;

CREATE INDEX dl_jobs_waiting_idx ON dl_jobs (queue) WHERE status = 'queued' AND wait_state = 'waiting';
CREATE INDEX dl_jobs_graph_idx ON dl_jobs (graph_id) WHERE graph_id IS NOT NULL;

-- The ready jobs of each tenant, in their order.
CREATE INDEX dl_jobs_fair_idx ON dl_jobs (queue, priority, fair_key, created_at, job_id)
    WHERE status = 'queued' AND wait_state = 'ready' AND fair_key IS NOT NULL;
CREATE UNIQUE INDEX dl_jobs_debounce_key_idx ON dl_jobs (debounce_key) WHERE status = 'queued' AND debounce_key IS NOT NULL;
CREATE UNIQUE INDEX dl_jobs_throttle_key_idx ON dl_jobs (throttle_key) WHERE throttle_key IS NOT NULL;
CREATE INDEX dl_jobs_expires_idx ON dl_jobs (expires_at) WHERE status = 'queued' AND expires_at IS NOT NULL;

-- The live jobs of a schedule and of a backfill, and all jobs of a slice.
CREATE INDEX dl_jobs_schedule_idx ON dl_jobs (schedule_id, logical_at) WHERE schedule_id IS NOT NULL AND status IN ('queued', 'running');
CREATE INDEX dl_jobs_backfill_idx ON dl_jobs (backfill_id) WHERE backfill_id IS NOT NULL AND status IN ('queued', 'running');
CREATE INDEX dl_jobs_slice_idx ON dl_jobs (task, partition_key, created_at) WHERE live_key LIKE 'slice:%';

-- No two running jobs share a lock key, whatever else goes wrong. The running job of a key is looked up with BETWEEN, for which the
-- other index of lock keys does not serve: while a transaction of hours keeps vacuum from cleaning this one, plans with = prefer that
-- one, and read all finished jobs of the key.
CREATE UNIQUE INDEX dl_jobs_running_key_idx ON dl_jobs (lock_key) WHERE status = 'running';

CREATE UNIQUE INDEX dl_jobs_live_key_idx ON dl_jobs (live_key)
    WHERE live_key IS NOT NULL AND status IN ('queued', 'running');

-- Deferred jobs: few, and searched by each worker that starts.
CREATE INDEX dl_jobs_unknown_task_idx ON dl_jobs (queue, task) WHERE status = 'queued' AND unknown_task;

-- Lists, newest first.
CREATE INDEX dl_jobs_created_idx ON dl_jobs (created_at, job_id);

-- Finished jobs in the order of their deletion, oldest first, for each status and task.
CREATE INDEX dl_jobs_finished_idx ON dl_jobs (status, task, finished_at)
    WHERE status IN ('succeeded', 'failed', 'canceled', 'lost');

-- All jobs of a lock key, of whatever age.
-- An operator class of its own, so that no claim sorts by this index: a plan made on an empty table did, and read all jobs.
CREATE INDEX dl_jobs_lock_key_idx ON dl_jobs (lock_key text_pattern_ops, job_id);

-- The jobs of a tag, of whatever age.
CREATE INDEX dl_jobs_tags_idx ON dl_jobs USING gin (tags) WHERE tags IS NOT NULL;

-- Lists of unsuccessful jobs, and bulk retries.
CREATE INDEX dl_jobs_unsuccessful_idx ON dl_jobs (created_at, job_id)
    WHERE status IN ('failed', 'canceled', 'lost');

-- The follow-ups of a job.
CREATE INDEX dl_jobs_parent_idx ON dl_jobs (parent_id, created_at) WHERE parent_id IS NOT NULL;

-- What must be equal for two requests with one idempotency key to be the same request.
CREATE OR REPLACE FUNCTION dl_request_hash(queue text, task text, args jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN encode(sha256(convert_to(jsonb_build_array(queue, task, args)::text, 'UTF8')), 'hex');

-- Whether a running job's lease has expired, as its row alone says: for processes of older versions and other programs. Its owner
-- renews it at least once an hour, before it expires; dl_lease_end says when it ends by the heartbeats of its owner. Other services
-- may write any time into the row: a lease or heartbeat further in the future than its length and a day does not count.
CREATE OR REPLACE FUNCTION dl_is_lease_expired(lease_expires_at timestamptz, heartbeat_at timestamptz, lease_ttl_sec int)
    RETURNS bool LANGUAGE sql VOLATILE PARALLEL SAFE
    RETURN coalesce(lease_expires_at, '-infinity') < clock_timestamp()
        OR heartbeat_at < clock_timestamp() - make_interval(hours => 1, secs => lease_ttl_sec)
        OR least(lease_expires_at, coalesce(heartbeat_at, 'infinity'))
           > clock_timestamp() + make_interval(days => 1, secs => lease_ttl_sec);

-- Whether a job matches a filter of lists and bulk operations. A single expression: the planner inlines the call and
-- sees which index it may use.
CREATE OR REPLACE FUNCTION dl_job_matches(j dl_jobs, filter jsonb) RETURNS bool
    LANGUAGE sql STABLE
    RETURN -- fields of a filter

-- jsonb as text, or {"$dropped": reason} where the text is larger than `max_bytes` or cannot be made: a few bytes such as
-- 1e131071 are 128 KB of text, and a failing cast would fail the statement around it, such as every claim of a queue.
-- The second function is inlined and spares small values the call.
CREATE OR REPLACE FUNCTION dl_json_text_limited(value jsonb, max_bytes int) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    text_value text;
BEGIN
    IF jsonb_path_exists(value, '$.** ? (@.type() == "number" && (@.abs() >= 1e310 || (@.abs() < 1e-310 && @ != 0)))') THEN
        RETURN jsonb_build_object('$dropped', 'a number in it has more than 310 digits');
    END IF;
    IF pg_column_size(value) / 8 <= max_bytes THEN  -- else it is not even decompressed
        text_value := value::text;
    END IF;
    IF octet_length(text_value) <= max_bytes THEN
        RETURN text_value;
    END IF;
    RETURN jsonb_build_object('$dropped', format('more than %s bytes of JSON', max_bytes));
EXCEPTION WHEN program_limit_exceeded OR out_of_memory OR internal_error THEN
    RETURN jsonb_build_object('$dropped', 'more JSON than a text can hold');
END $$;

CREATE OR REPLACE FUNCTION dl_json_text(value jsonb, max_bytes int DEFAULT 67108864) RETURNS text LANGUAGE sql STABLE
    RETURN CASE WHEN pg_column_size(value) < 2000 AND pg_column_compression(value) IS NULL THEN value::text
                WHEN value IS NOT NULL THEN dl_json_text_limited(value, max_bytes) END;

-- ── Events, job logs and progress ────────────────────────────────────────────────────────────────────────────────────

-- These tables are partitioned by their ids, and old rows are removed by dropping whole partitions. Ids encode the time:
-- the first id of a partition is 100,000 times its start in seconds since 1970, and the sequence is advanced to it when
-- that time comes. So the primary key is the id alone. (Ids stay below 2^53, which JSON readers can represent.)

-- rights of the service: SELECT, INSERT
CREATE TABLE dl_job_events (
    event_id bigserial   PRIMARY KEY,
    job_id   uuid        NOT NULL,  -- of dl_jobs, and deleted with it: see dl_job_events_check_job
    queue    text        NOT NULL,
    ts       timestamptz NOT NULL DEFAULT now(),  -- may be before an event of a transaction that this one waited for
    kind     text        NOT NULL,
    payload  jsonb       DEFAULT '{}'
) PARTITION BY RANGE (event_id);
CREATE INDEX dl_job_events_job_idx ON dl_job_events (job_id, event_id);
CREATE TABLE dl_job_events_default PARTITION OF dl_job_events DEFAULT;

-- Captured output of pipelines, one row a line. No foreign key: logs have their own retention period.
-- rights of the service: SELECT, INSERT, DELETE
CREATE TABLE dl_job_logs (
    log_id  bigserial   PRIMARY KEY,
    job_id  uuid        NOT NULL,
    attempt int         NOT NULL,
    ts      timestamptz NOT NULL,
    level   text        NOT NULL,
    stream  text        NOT NULL,
    line    text        NOT NULL,
    dropped int         -- of a note: how many lines were left out before it
) PARTITION BY RANGE (log_id);
CREATE INDEX dl_job_logs_job_idx ON dl_job_logs (job_id, log_id);
CREATE TABLE dl_job_logs_default PARTITION OF dl_job_logs DEFAULT;

-- The progress of running jobs, one row a change: the newest one of a run counts. dl_jobs has it when the run has ended, and
-- whenever its owner renews the row. An update of the job's row each time would leave row versions that every reader of it
-- passes, as long as a transaction of hours keeps vacuum from removing them.
-- rights of the service: SELECT, INSERT
CREATE TABLE dl_progress (
    progress_id bigserial   PRIMARY KEY,
    job_id      uuid        NOT NULL,
    run_id      uuid        NOT NULL,
    ts          timestamptz NOT NULL,
    progress    jsonb       NOT NULL
) PARTITION BY RANGE (progress_id);
CREATE INDEX dl_progress_job_idx ON dl_progress (job_id, progress_id);
CREATE TABLE dl_progress_default PARTITION OF dl_progress DEFAULT;

-- The column with the ids of a partitioned table.
CREATE OR REPLACE FUNCTION dl_id_column(parent text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    id_column text := CASE parent WHEN 'dl_job_events' THEN 'event_id' WHEN 'dl_job_logs' THEN 'log_id'
                                  WHEN 'dl_progress' THEN 'progress_id' END;
BEGIN
    IF id_column IS NULL THEN
        RAISE EXCEPTION 'unknown partitioned table %; expected dl_job_events, dl_job_logs or dl_progress', parent;
    END IF;
    RETURN id_column;
END $$;

CREATE OR REPLACE FUNCTION dl_first_id_at(at timestamptz) RETURNS bigint
    LANGUAGE sql IMMUTABLE RETURN (extract(epoch FROM at) * 100000)::bigint;

-- No row written since `at` has an id below this one. Ids start again at each partition, so they are as old as its start: by seven days
-- at most, and here one more for a sequence that nothing has advanced yet.
CREATE OR REPLACE FUNCTION dl_lowest_id_since(at timestamptz) RETURNS bigint
    LANGUAGE sql IMMUTABLE RETURN dl_first_id_at(at) - 8 * 86400 * 100000::bigint;

CREATE OR REPLACE FUNCTION dl_partitions(parent text) RETURNS TABLE (part text, low bigint, high bigint)
    LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT c.relname::text,
           coalesce(substring(bound FROM $r$FROM \('?(-?\d+)$r$)::bigint, -1), substring(bound FROM $r$TO \('?(\d+)$r$)::bigint
      FROM pg_inherits i
           JOIN pg_class c ON c.oid = i.inhrelid
           CROSS JOIN LATERAL pg_get_expr(c.relpartbound, c.oid) AS bound
     WHERE i.inhparent = to_regclass(parent) AND bound <> 'DEFAULT'
     ORDER BY 2
$$;

-- Partitions are created, advanced to and dropped by the maintenance leader, who need not own the tables. Each function
-- is one short transaction; where a lock is not to be had within 100 ms it does nothing and returns no row.

-- Create partitions of length `span` until `ahead` from now; returns their names. The default partition takes ids that
-- another service chose.
CREATE OR REPLACE FUNCTION dl_create_partitions(parent text, span interval, ahead interval) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    day       interval := interval '1 day';
    min_span  interval := CASE WHEN pg_has_role(session_user, current_user, 'MEMBER') THEN interval '1 second'
                                ELSE interval '1 hour' END;
    low       bigint;
    starts_at timestamptz := greatest(
        (SELECT to_timestamp(max(high) / 100000.0) FROM dl_partitions(parent)),
        CASE WHEN span >= day THEN date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
             ELSE to_timestamp(floor(extract(epoch FROM clock_timestamp()) / extract(epoch FROM span))
                               * extract(epoch FROM span)) END);
    part      text;
BEGIN
    PERFORM dl_id_column(parent);  -- an error for any other table
    -- The owner may use any span; the service's account must not fill the catalogue with tables.
    IF NOT span BETWEEN min_span AND interval '31 days' OR ahead > interval '31 days' THEN
        RAISE EXCEPTION 'partitions of % created % ahead; allowed are an hour to 31 days', span, ahead;
    END IF;
    WHILE starts_at < clock_timestamp() + ahead LOOP
        low := dl_first_id_at(starts_at);
        part := parent || '_' || to_char(starts_at AT TIME ZONE 'UTC',
                                         CASE WHEN span >= day THEN 'YYYYMMDD' ELSE 'YYYYMMDD"t"HH24MISS' END);
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)'
                       ' WITH (autovacuum_vacuum_insert_scale_factor = 0.1)', part, parent);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', parent, part, low,
                       dl_first_id_at(starts_at + span));
        RETURN NEXT part;
        starts_at := starts_at + span;
    END LOOP;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN;
END $$;

-- Advance the sequence to the current partition, never back: the lock serializes callers.
CREATE OR REPLACE FUNCTION dl_advance_sequence(parent text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    sequence          text := pg_get_serial_sequence(parent, dl_id_column(parent));
    now_id            bigint := dl_first_id_at(clock_timestamp());
    current_partition record;
    last_id           bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(1684828527, 3);
    SELECT * INTO current_partition FROM dl_partitions(parent) p WHERE p.low <= now_id AND now_id < p.high;
    EXECUTE format('SELECT last_value FROM %s', sequence) INTO last_id;
    IF current_partition.low IS NULL OR last_id >= current_partition.low THEN
        RETURN NULL;
    END IF;
    PERFORM setval(sequence, current_partition.low);
    RETURN current_partition.part;
END $$;

-- Drop the oldest partition whose rows are all older than `period`; with `dry_run` return all of them instead. The current
-- partition stays, and so does one that a transaction has open. Only a role that could drop the tables itself may use a
-- period under a day: the service's account cannot remove the trace of what it just did.
CREATE OR REPLACE FUNCTION dl_drop_partitions(parent text, period interval, dry_run bool) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    column_of  text := dl_id_column(parent);
    min_age    interval := CASE WHEN pg_has_role(session_user, current_user, 'MEMBER') THEN period
                               ELSE greatest(period, interval '1 day') END;
    last_id    bigint;
    candidate  record;
    newest     timestamptz;
    is_expired bool;
BEGIN
    EXECUTE format('SELECT last_value FROM %s', pg_get_serial_sequence(parent, column_of)) INTO last_id;
    FOR candidate IN SELECT * FROM dl_partitions(parent) p WHERE p.high <= last_id ORDER BY p.low LOOP
        EXECUTE format('SELECT max(ts) FROM (SELECT ts FROM %I ORDER BY %I DESC LIMIT 1000) last', candidate.part, column_of)
           INTO newest;
        CONTINUE WHEN coalesce(newest, to_timestamp(least(candidate.high, 25340230080000000) / 100000.0))
                      >= clock_timestamp() - min_age;
        IF NOT dry_run THEN
            -- Tested again under the lock: no transaction can have written to it since.
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', candidate.part);
            EXECUTE format('SELECT coalesce(max(ts) < clock_timestamp() - $1, true)'
                           ' FROM (SELECT ts FROM %I ORDER BY %I DESC LIMIT 1000) last', candidate.part, column_of)
               INTO is_expired USING min_age;
            CONTINUE WHEN NOT is_expired;
            EXECUTE format('DROP TABLE %I', candidate.part);
        END IF;
        RETURN NEXT candidate.part;
        EXIT WHEN NOT dry_run;  -- one per transaction: the lock on the whole table is held no longer than one drop takes
    END LOOP;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN;
END $$;

-- The events' reference to dl_jobs, as a statement trigger: a foreign key would check and lock the job for each row, a
-- seventh of a job's cost. A statement of events whose jobs it has just changed skips the check: one within a trigger
-- (those of dl_jobs), and one for which dl.events_checked is set before it and reset after it, by set_config(…, true). An
-- error in between undoes that with the (sub)transaction. A
-- function's own SET of such a setting would reset it too, but only a superuser may declare that.
--
-- The queries of these functions are planned once per session, and the plans must serve tables of any size: sequential
-- scans are off, here and in the functions below.
CREATE OR REPLACE FUNCTION dl_job_events_check_job() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    unknown uuid := (SELECT f.job_id FROM inserted f
                      WHERE (SELECT j.job_id FROM dl_jobs j WHERE j.job_id = f.job_id FOR KEY SHARE) IS NULL LIMIT 1);
BEGIN
    IF unknown IS NOT NULL THEN
        RAISE foreign_key_violation USING MESSAGE = format('there is no job %s to record an event of', unknown),
              CONSTRAINT = 'dl_job_events_check_job', TABLE = 'dl_job_events', COLUMN = 'job_id';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dl_job_events_check_job AFTER INSERT ON dl_job_events
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0 AND current_setting('dl.events_checked', true) IS DISTINCT FROM 'yes')
    EXECUTE FUNCTION dl_job_events_check_job();

-- Deleting a job deletes its events.
CREATE OR REPLACE FUNCTION dl_jobs_deleted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    of_graphs record;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        DELETE FROM dl_job_events;  -- not TRUNCATE: it may be one of the tables of this TRUNCATE
        PERFORM dl_graph_jobs_deleted(NULL, NULL);
        RETURN NULL;
    END IF;
    DELETE FROM dl_job_events e USING deleted WHERE e.job_id = ANY (ARRAY[deleted.job_id]);
    SELECT array_agg(job_id) AS jobs, array_agg(graph_id) AS graphs INTO of_graphs FROM deleted WHERE graph_id IS NOT NULL;
    IF of_graphs.jobs IS NOT NULL THEN
        PERFORM dl_graph_jobs_deleted(of_graphs.jobs, of_graphs.graphs);
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dl_jobs_del AFTER DELETE ON dl_jobs
    REFERENCING OLD TABLE AS deleted
    FOR EACH STATEMENT EXECUTE FUNCTION dl_jobs_deleted();
CREATE OR REPLACE TRIGGER dl_jobs_trunc AFTER TRUNCATE ON dl_jobs
    FOR EACH STATEMENT EXECUTE FUNCTION dl_jobs_deleted();

-- ── Workers and queues ───────────────────────────────────────────────────────────────────────────────────────────────

-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_workers (
    worker_id        uuid        PRIMARY KEY,
    name             text        NOT NULL,
    version          text        NOT NULL,
    queues           text[]      NOT NULL,
    tasks            text[]      NOT NULL,
    threads          int         NOT NULL,
    queue_threads    jsonb       NOT NULL DEFAULT '{}',  -- queue -> threads that run its jobs
    heartbeat_sec    float8      NOT NULL,
    started_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- For processes of older versions: until when this one counts as seen. dl_heartbeats has its heartbeats.
    seen_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    draining         bool        NOT NULL DEFAULT false,  -- an operator stopped its claims
    stopping         bool        NOT NULL DEFAULT false,  -- the process is shutting down
    listener         text,                                -- state of its LISTEN connection
    rss_bytes        bigint,                              -- of processes of older versions; see dl_heartbeats
    -- Of each attempt that was asked to stop, or of all while the process lacks memory: run_id, stop reason, stop step.
    running_attempts jsonb       NOT NULL DEFAULT '[]',
    -- Identifies the process on its host, so that others there can prove its death. NULL: its lease alone decides.
    boot_id          text,
    pid_namespace    text,
    time_namespace   text,
    pid              int,
    start_time       bigint,                              -- in clock ticks after boot
    lock_file        text,                                -- locked by the process and by its children
    child_tasks      text[]      NOT NULL DEFAULT '{}',   -- tasks that run in a child process
    schedules        text[]      NOT NULL DEFAULT '{}',   -- schedules that its tasks declare
    labels           jsonb       NOT NULL DEFAULT '{}',   -- of the process, such as {"gpu": true}
    unserved_tasks   jsonb       NOT NULL DEFAULT '{}',   -- task -> the labels that it requires and the process lacks
    reaps            bool        NOT NULL DEFAULT true,   -- takes jobs of dead processes; false: DL_REAPER=false
    worker_name      text,                                -- DL_WORKER_NAME, which at most one process holds
    incarnation      bigint,                              -- how many processes held the name so far
    superseded_by    uuid,                                -- the process that took over its name
    takeover_at      timestamptz,                         -- when a process last began to take over its jobs
    dead_at          timestamptz,                         -- when its death was proved
    release          text,                                -- of the pipelines' code: DL_RELEASE, or a commit
    -- A row of another program must not break the pages that show all workers.
    CONSTRAINT dl_workers_chk_heartbeat CHECK (heartbeat_sec > 0 AND heartbeat_sec <= 86400),
    CONSTRAINT dl_workers_chk_json CHECK (jsonb_typeof(running_attempts) = 'array' AND jsonb_typeof(queue_threads) = 'object'
                                         AND jsonb_typeof(labels) = 'object' AND jsonb_typeof(unserved_tasks) = 'object')
-- Each vacuum or analyze would make all sessions plan their statements on it again; updates prune its pages, as long as these have
-- room for the next version of each row.
) WITH (fillfactor = 50, autovacuum_analyze_threshold = 100000, autovacuum_vacuum_threshold = 10000);

-- The heartbeats of processes: a process proves that it lives once for all its runs. A row a heartbeat; the newest one of a process
-- counts, and readers find it first. An update of one row would leave versions that all readers pass while a transaction of hours
-- keeps vacuum from removing them.
-- rights of the service: SELECT, INSERT, DELETE
CREATE TABLE dl_heartbeats (
    worker_id uuid        NOT NULL,
    seen_at   timestamptz NOT NULL,
    rss_bytes bigint,               -- the memory of the process, without child processes
    PRIMARY KEY (worker_id, seen_at)
) WITH (autovacuum_analyze_threshold = 100000, autovacuum_vacuum_threshold = 10000);

-- The last heartbeat of a process; `seen_at` is that of its row in dl_workers.
CREATE OR REPLACE FUNCTION dl_last_beat(of_worker uuid, seen_at timestamptz DEFAULT NULL) RETURNS timestamptz
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    -- A process of an older version has no other row.
    RETURN coalesce((SELECT h.seen_at FROM dl_heartbeats h WHERE h.worker_id = of_worker ORDER BY h.seen_at DESC LIMIT 1), seen_at);
END $$;

-- The processes whose last heartbeat is not older than three of their intervals.
CREATE OR REPLACE FUNCTION dl_live_workers() RETURNS SETOF dl_workers
    LANGUAGE plpgsql STABLE ROWS 10 SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT w.*
      FROM dl_workers w
     WHERE coalesce((SELECT h.seen_at FROM dl_heartbeats h WHERE h.worker_id = w.worker_id ORDER BY h.seen_at DESC LIMIT 1), w.seen_at)
           > clock_timestamp() - make_interval(secs => 3 * w.heartbeat_sec);
END $$;

-- ── Running jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────

-- When a running job may be taken from its owner: a run lives as long as its process sends heartbeats at least every lease_ttl_sec, and
-- renews its row before lease_expires_at, which it does seldom: a run that its process has forgotten ends, too. The row may be newer than
-- the last heartbeat: the job was just claimed, or a process of an older version renews it. Without a worker_id another program
-- has claimed the job, and heartbeat_at alone counts. Other services may write any time into the row: one that is further in the future than
-- a day (lease_expires_at without a worker_id: and its length) does not count.
CREATE OR REPLACE FUNCTION dl_lease_end(worker_id uuid, lease_expires_at timestamptz, heartbeat_at timestamptz, lease_ttl_sec int)
    RETURNS timestamptz LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    length interval := make_interval(secs => lease_ttl_sec);
    latest timestamptz := clock_timestamp() + interval '1 day';
BEGIN
    IF worker_id IS NOT NULL THEN
        RETURN least(coalesce(lease_expires_at, '-infinity'),
                     coalesce(greatest(CASE WHEN heartbeat_at <= latest THEN heartbeat_at END, dl_last_beat(worker_id)), '-infinity') + length);
    ELSIF lease_expires_at IS NULL OR least(lease_expires_at, coalesce(heartbeat_at, 'infinity')) > latest + length THEN
        RETURN '-infinity';
    END IF;
    RETURN least(lease_expires_at, heartbeat_at + length);
END $$;

-- When the owner of a job was last seen, if it runs; else as its row says.
CREATE OR REPLACE FUNCTION dl_last_heartbeat(status dl_status, worker_id uuid, heartbeat_at timestamptz) RETURNS timestamptz
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    IF status = 'running' AND worker_id IS NOT NULL THEN
        RETURN greatest(heartbeat_at, dl_last_beat(worker_id));
    END IF;
    RETURN heartbeat_at;
END $$;

-- The newest progress of a run among rows with ids of at least `low`. Pairs are compared and sorted, so that no plan walks the rows of
-- other jobs along the primary key. It is among the last ten of the job: a former run that has lost the job saves no more than one.
CREATE OR REPLACE FUNCTION dl_newest_progress(of_job uuid, of_run uuid, low bigint, OUT ts timestamptz, OUT progress jsonb)
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    SELECT last.ts, last.progress INTO ts, progress
      FROM (SELECT p.*
              FROM dl_progress p
             WHERE (p.job_id, p.progress_id) >= (of_job, low) AND (p.job_id, p.progress_id) <= (of_job, 9223372036854775807)
               AND p.progress_id >= low
             ORDER BY p.job_id DESC, p.progress_id DESC
             LIMIT 10) last
     WHERE last.run_id = of_run
     ORDER BY last.progress_id DESC
     LIMIT 1;
END $$;

-- When the progress of a run last changed. NULL: its task reports none, or the change is older than what is kept or without a time.
CREATE OR REPLACE FUNCTION dl_progress_changed_at(of_job uuid, of_run uuid) RETURNS timestamptz
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    changed_at timestamptz := (dl_newest_progress(of_job, of_run, 0)).ts;
BEGIN
    RETURN CASE WHEN isfinite(changed_at) THEN changed_at END;
END $$;

-- The progress of a job: what its run has saved since its row was renewed, or that of its row.
CREATE OR REPLACE FUNCTION dl_current_progress(status dl_status, of_job uuid, of_run uuid, heartbeat_at timestamptz, progress jsonb)
    RETURNS jsonb LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    newest record;
BEGIN
    IF status = 'running' AND isfinite(heartbeat_at) THEN
        SELECT * INTO newest FROM dl_newest_progress(of_job, of_run, dl_lowest_id_since(heartbeat_at));
        IF newest.ts > heartbeat_at THEN
            RETURN newest.progress;
        END IF;
    END IF;
    RETURN progress;
END $$;

-- Settings of queues. A queue without a row is open and has no limit.
-- rights of the service: SELECT, INSERT, UPDATE
CREATE TABLE dl_queues (
    queue       text        PRIMARY KEY,
    -- paused: nothing is claimed; draining: nor does the HTTP API accept new jobs.
    state       text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'paused', 'draining')),
    concurrency int         CHECK (concurrency >= 1),  -- running jobs in all processes together; NULL: no limit
    per_worker  int         CHECK (per_worker >= 1),   -- running jobs in each process; NULL: as many as it has threads
    note        text,
    changed_by  text,
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- What distinguishes tenants, which are served in turn: partition_key, producer, or args and a path. NULL: by age.
    fair        text        CHECK (fair ~ '^(partition_key|producer|args(\.[^.]+)+)$' AND octet_length(fair) <= 200),
    -- The part of the queue's threads that one tenant may have while others wait. NULL: 0.5.
    share       float8      CHECK (share > 0 AND share <= 1)
);

-- How many jobs a tenant of a fair queue may run for each job of another; without a row 1.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_fair_weights (
    queue    text NOT NULL,
    fair_key text NOT NULL CHECK (octet_length(fair_key) <= 500),
    weight   int  NOT NULL CHECK (weight BETWEEN 1 AND 1000),
    PRIMARY KEY (queue, fair_key)
);

-- How many jobs of a queue may be claimed now; NULL: any number. VOLATILE: running jobs are counted by a fresh snapshot
-- once the lock is held, so two claimers never both take the last slot.
CREATE OR REPLACE FUNCTION dl_free_slots(queue_name text) RETURNS int
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    settings record;
BEGIN
    SELECT q.state, q.concurrency INTO settings FROM dl_queues q WHERE q.queue = queue_name;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF settings.state <> 'open' THEN
        RETURN 0;
    END IF;
    IF settings.concurrency IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM pg_advisory_xact_lock(1684828528, hashtext(queue_name));
    RETURN greatest(0, settings.concurrency
                       - (SELECT count(*) FROM dl_jobs j WHERE j.status = 'running' AND j.queue = queue_name)::int);
END $$;

-- A claim that prefetches holds one of the four permits of its queue until its transaction ends. Without permits each of many claims would
-- read the rows that the others are claiming, and its snapshot would keep index entries of claimed rows, which the next claims read too.
-- A claim that gets no permit in a second continues without one: a claim whose client has stopped reading may hold it for longer.
CREATE OR REPLACE FUNCTION dl_take_claim_permit(queue_name text) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
BEGIN
    FOR n IN 0..3 LOOP
        IF pg_try_advisory_xact_lock(1684828533, hashtext(queue_name) # n) THEN
            RETURN;
        END IF;
    END LOOP;
    BEGIN
        PERFORM pg_advisory_xact_lock(1684828533, hashtext(queue_name) # floor(4 * random())::int);
    EXCEPTION WHEN lock_not_available THEN
        NULL;
    END;
END $$;

-- The next ready jobs of a fair queue, at most `wanted`: of the best priority, its tenants in turn, beginning behind `start_key`,
-- of which `start_used` jobs have been taken in this turn. Who has the fewest running jobs for its weight comes first; who has
-- its share of the queue's threads comes last, and only if all other tenants that wait have been looked at. Of each tenant the
-- oldest job is first that no other transaction has locked; it is locked. Sets dl.fair_turn to where the next call begins, and dl.fair_more to 1 if tenants were left out.
--
-- Each tenant costs one search in dl_jobs_fair_idx; how many jobs or tenants wait does not matter. A job without a tenant is found
-- among the first hundred of the queue. Claims of one queue follow each other, under the lock that dl_free_slots takes.
CREATE OR REPLACE FUNCTION dl_fair_candidates(queue_name text, known_tasks text[], wanted int, start_key text, start_used int)
    RETURNS TABLE (n int, job_id uuid)
    LANGUAGE plpgsql VOLATILE ROWS 20 SET search_path FROM CURRENT
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    max_running int;          -- of one tenant while others wait
    running     jsonb;        -- tenant -> running jobs, and those taken before this level
    taken_of    text[] := '{}';  -- the tenants of the jobs taken at this level
    visits      int;          -- how many tenants are looked at: some more than wanted, and those at their share, which come last
    no_tenant   uuid[] := ARRAY(SELECT front.job_id
                                  FROM (SELECT j.job_id, j.fair_key, j.task
                                          FROM dl_jobs j
                                         WHERE j.queue = queue_name AND j.status = 'queued' AND j.wait_state = 'ready'
                                         ORDER BY j.priority, j.created_at, j.job_id LIMIT 100) front
                                 WHERE front.fair_key IS NULL AND front.task = ANY (known_tasks));
    level       int := -1;
    levels      int := 0;
    tenants     text[];
    has_no_tenant bool;       -- jobs without a tenant are of this level; they count as those of the tenant ''
    is_circle   bool;         -- every tenant of the level has been looked at
    next_turn   text[] := ARRAY[start_key, start_used::text];
    has_turn    bool;         -- the tenant at which the last call ended has jobs left in its turn
    picked      record;
    last_pos    bigint;
    taken       int := 0;
    extra       int;          -- how much further to look at each tenant's jobs
    is_first    bool;         -- no job of a better priority was taken
    tried       uuid[] := '{}';
    is_locked   bool := false;  -- another transaction holds a job of the level: look behind it
BEGIN
    PERFORM pg_advisory_xact_lock(1684828528, hashtext(queue_name));
    PERFORM set_config('dl.fair_more', '0', true);
    max_running := (SELECT greatest(1, floor(coalesce((SELECT q.share FROM dl_queues q WHERE q.queue = queue_name), 0.5)
                                             * sum(coalesce((w.queue_threads ->> queue_name)::int, w.threads))))
                      FROM dl_live_workers() w
                     WHERE queue_name = ANY (w.queues));
    max_running := coalesce(max_running, 1);
    running := (SELECT coalesce(jsonb_object_agg(r.key, r.jobs), '{}')
                  FROM (SELECT coalesce(j.fair_key, '') AS key, count(*) AS jobs
                          FROM dl_jobs j WHERE j.status = 'running' AND j.queue = queue_name GROUP BY 1) r);
    visits := least(256, wanted + 8 + (SELECT count(*) FROM jsonb_each_text(running) r WHERE r.value::int >= max_running));
    has_turn := start_used < coalesce((SELECT w.weight FROM dl_fair_weights w WHERE w.queue = queue_name AND w.fair_key = start_key), 1);
    WHILE taken < wanted AND levels < 32 LOOP  -- one priority each time, or the same one again behind jobs that others have locked
        levels := levels + 1;
        is_first := taken = 0;
        running := running || (SELECT coalesce(jsonb_object_agg(t.key, coalesce((running ->> t.key)::int, 0) + t.jobs), '{}')
                                 FROM (SELECT u.key, count(*) AS jobs FROM unnest(taken_of) AS u (key) GROUP BY 1) t);
        taken_of := '{}';
        IF NOT is_locked THEN
            level := (SELECT min(l.priority)
                        FROM (SELECT (SELECT j.priority FROM dl_jobs j
                                       WHERE j.queue = queue_name AND j.status = 'queued' AND j.wait_state = 'ready'
                                         AND j.fair_key IS NOT NULL AND j.priority > level AND j.task = ANY (known_tasks)
                                       ORDER BY j.priority LIMIT 1) AS priority
                              UNION ALL
                              SELECT min(j.priority) FROM dl_jobs j WHERE j.job_id = ANY (no_tenant) AND j.priority > level) l);
        END IF;
        EXIT WHEN level IS NULL;
        has_no_tenant := EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = ANY (no_tenant) AND j.priority = level);
        WITH RECURSIVE behind AS (
            (SELECT j.fair_key FROM dl_jobs j
              WHERE j.queue = queue_name AND j.priority = level AND j.status = 'queued' AND j.wait_state = 'ready'
                AND j.fair_key > start_key ORDER BY j.fair_key LIMIT 1)
            UNION ALL
            SELECT (SELECT j.fair_key FROM dl_jobs j
                     WHERE j.queue = queue_name AND j.priority = level AND j.status = 'queued' AND j.wait_state = 'ready'
                       AND j.fair_key > b.fair_key ORDER BY j.fair_key LIMIT 1)
              FROM behind b WHERE b.fair_key IS NOT NULL
        ), before AS (
            (SELECT j.fair_key FROM dl_jobs j
              WHERE j.queue = queue_name AND j.priority = level AND j.status = 'queued' AND j.wait_state = 'ready'
                AND j.fair_key <= start_key ORDER BY j.fair_key LIMIT 1)
            UNION ALL
            SELECT (SELECT j.fair_key FROM dl_jobs j
                     WHERE j.queue = queue_name AND j.priority = level AND j.status = 'queued' AND j.wait_state = 'ready'
                       AND j.fair_key > b.fair_key AND j.fair_key <= start_key ORDER BY j.fair_key LIMIT 1)
              FROM before b WHERE b.fair_key IS NOT NULL
        )
        SELECT coalesce(array_agg(ring.fair_key), '{}') INTO tenants
          FROM (SELECT r.fair_key FROM (SELECT b.fair_key FROM behind b
                                        UNION ALL SELECT '' WHERE has_no_tenant
                                        UNION ALL SELECT b.fair_key FROM before b WHERE b.fair_key <> '' OR NOT has_no_tenant) r
                 WHERE r.fair_key IS NOT NULL LIMIT visits) ring;
        is_circle := cardinality(tenants) < visits;
        IF has_turn THEN
            tenants := start_key || array_remove(tenants, start_key);
        END IF;
        last_pos := -1;
        extra := CASE WHEN is_locked THEN 10 * cardinality(tried) ELSE 0 END;
        is_locked := false;
        FOR picked IN
            SELECT c.job_id, c.key, c.pos
              FROM (SELECT h.job_id, h.i, t.key, t.pos, coalesce(w.weight, 1) AS weight, coalesce((running ->> t.key)::int, 0) AS used
                      FROM unnest(tenants) WITH ORDINALITY AS t (key, pos)
                           LEFT JOIN LATERAL (SELECT f.weight FROM dl_fair_weights f WHERE f.queue = queue_name AND f.fair_key = t.key) w ON true
                           CROSS JOIN LATERAL (
                               SELECT head.job_id, row_number() OVER (ORDER BY head.created_at, head.job_id) AS i
                                 FROM ((SELECT j.job_id, j.created_at
                                          FROM dl_jobs j
                                         WHERE j.queue = queue_name AND j.priority = level AND j.status = 'queued' AND j.wait_state = 'ready'
                                           AND j.fair_key = t.key AND j.task = ANY (known_tasks) AND j.job_id <> ALL (tried)
                                           AND (j.expires_at IS NULL OR j.expires_at > clock_timestamp())
                                         ORDER BY j.created_at, j.job_id
                                         LIMIT extra + CASE WHEN cardinality(tenants) <= wanted THEN wanted
                                                            ELSE least(wanted, greatest(coalesce(w.weight, 1), 4)) END)
                                       UNION ALL
                                       SELECT j.job_id, j.created_at
                                         FROM dl_jobs j
                                        WHERE t.key = '' AND j.job_id = ANY (no_tenant) AND j.priority = level AND j.job_id <> ALL (tried)
                                          AND (j.expires_at IS NULL OR j.expires_at > clock_timestamp())) head) h) c
             WHERE is_circle OR c.used + c.i <= max_running
             ORDER BY c.used + c.i > max_running, (c.used + c.i - 1)::float8 / c.weight, c.pos, c.i
        LOOP
            EXIT WHEN taken = wanted;
            tried := tried || picked.job_id;
            PERFORM FROM dl_jobs j
              WHERE j.job_id = ANY (ARRAY[picked.job_id]) AND j.status::text = 'queued' AND j.wait_state::text = 'ready'
                FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                is_locked := true;
                CONTINUE;
            END IF;
            taken := taken + 1;
            taken_of := taken_of || picked.key;
            n := taken;
            job_id := picked.job_id;
            RETURN NEXT;
            IF is_first AND picked.pos > last_pos THEN
                next_turn := ARRAY[picked.key, CASE WHEN has_turn AND picked.key = start_key THEN start_used ELSE 0 END::text];
                last_pos := picked.pos;
            END IF;
            IF is_first AND picked.pos = last_pos THEN
                next_turn[2] := (next_turn[2]::int + 1)::text;
            END IF;
        END LOOP;
        CONTINUE WHEN is_locked AND taken < wanted;
        IF NOT is_circle THEN
            IF taken < wanted THEN
                PERFORM set_config('dl.fair_more', '1', true);
                IF taken = 0 THEN
                    next_turn := ARRAY[tenants[cardinality(tenants)], '1000000'];  -- its turn is over: more than any weight
                END IF;
            END IF;
            EXIT;
        END IF;
    END LOOP;
    PERFORM set_config('dl.fair_turn', to_jsonb(next_turn)::text, true);
END $$;

-- ── Notifications ────────────────────────────────────────────────────────────────────────────────────────────────────

-- Whether a worker process needs a notification for a queue, or claims again by itself (it has more jobs than threads).
-- A server crash empties it, and ends the connections of the processes that wrote it.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE UNLOGGED TABLE dl_notify_state (
    queue              text NOT NULL,
    worker_id          uuid NOT NULL,
    needs_notification bool NOT NULL,
    PRIMARY KEY (queue, worker_id)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- Notify the workers of a queue, unless a claim is certain to follow this transaction's commit. A notification wakes
-- every listening session and serializes commits across the WAL flush; decision 15 discusses each interleaving.
--
-- A claim is certain if no live process needs a notification, and either one of them serves the queue, or none does and an
-- older job waits there already, for which the maintenance leader notifies every second.
--
-- A transaction that skips the notification holds the queue's shared lock until it ends. A worker that has announced
-- that it needs notifications claims once more after it has held that lock exclusively.
CREATE OR REPLACE FUNCTION dl_notify_queue(queue_name text) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    is_notified bool := dl_notify_if_needed(queue_name);
BEGIN
END $$;

-- The work of dl_notify_queue, for functions that have its settings and the owner's rights: each setting of a function costs time.
-- Returns whether it has notified.
CREATE OR REPLACE FUNCTION dl_notify_if_needed(queue_name text) RETURNS bool
    LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    live record;
BEGIN
    -- An older snapshot would show an older state.
    IF current_setting('transaction_isolation') = 'read committed'
       AND NOT EXISTS (SELECT FROM dl_notify_state w WHERE w.queue = queue_name AND w.needs_notification) THEN
        PERFORM pg_advisory_xact_lock_shared(1684828530, hashtext(queue_name));
        SELECT count(*) AS processes, count(*) FILTER (WHERE serves) AS serving,
               -- One that has not announced its state is new.
               count(*) FILTER (WHERE serves AND NOT EXISTS (SELECT FROM dl_notify_state v
                                                              WHERE v.queue = queue_name AND v.worker_id = w.worker_id)) AS silent,
               EXISTS (SELECT FROM dl_notify_state v WHERE v.queue = queue_name AND v.needs_notification) AS needed
          INTO live
          -- Those of dl_live_workers(), which as a function that returns whole rows would be a quarter of the cost.
          FROM (SELECT p.worker_id, queue_name = ANY (p.queues) AS serves
                  FROM dl_workers p
                 WHERE coalesce((SELECT h.seen_at FROM dl_heartbeats h WHERE h.worker_id = p.worker_id ORDER BY h.seen_at DESC LIMIT 1), p.seen_at)
                       > clock_timestamp() - make_interval(secs => 3 * p.heartbeat_sec)) w;
        IF live.processes > 0 AND NOT live.needed AND live.silent = 0 THEN
            IF live.serving > 0 THEN
                RETURN false;
            END IF;
            IF coalesce((SELECT j.created_at < now() AND j.xmin <> pg_current_xact_id()::xid
                           FROM dl_jobs j
                          WHERE j.queue = queue_name AND j.status = 'queued' AND j.wait_state = 'ready'
                          ORDER BY j.priority, j.created_at, j.job_id
                          LIMIT 1), false)
               OR coalesce((SELECT j.queue = queue_name AND j.created_at < now() AND j.xmin <> pg_current_xact_id()::xid
                              FROM dl_jobs j
                             WHERE j.status = 'queued' AND j.wait_state = 'scheduled' AND j.available_at <= (SELECT clock_timestamp())
                             ORDER BY j.available_at
                             LIMIT 1), false) THEN
                RETURN false;
            END IF;
        END IF;
    END IF;
    PERFORM pg_notify('dl_jobs', queue_name);  -- the server sends equal ones of a transaction once
    RETURN true;
END $$;

-- Make the next blocked job of each of these lock keys ready, if no job runs with the key, and notify its queue. Returns
-- the keys whose job became ready; dl.made_ready has the ids of the jobs. The caller holds the keys' transaction locks,
-- (1684828526, hashtext(lock_key)).
CREATE OR REPLACE FUNCTION dl_unblock_next(lock_keys text[]) RETURNS SETOF text
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    WITH next AS (
        SELECT candidate.job_id
          FROM unnest(lock_keys) AS freed (lock_key)
               CROSS JOIN LATERAL (SELECT j.job_id
                                     FROM dl_jobs j
                                    WHERE j.lock_key = freed.lock_key AND j.status = 'queued' AND j.wait_state = 'blocked'
                                      AND NOT j.cancel_requested AND j.max_attempts > 0  -- else dl_jobs_before_update ends it
                                    ORDER BY j.priority, j.created_at, j.job_id
                                    LIMIT 1
                                      FOR NO KEY UPDATE SKIP LOCKED) candidate
         WHERE NOT EXISTS (SELECT FROM dl_jobs r WHERE r.lock_key BETWEEN freed.lock_key AND freed.lock_key AND r.status = 'running' OFFSET 0)
    ), unblocked AS (
        UPDATE dl_jobs j SET wait_state = 'ready' FROM next WHERE j.job_id = ANY (ARRAY[next.job_id])
        RETURNING j.queue, j.lock_key, set_config('dl.made_ready', concat_ws(' ', current_setting('dl.made_ready', true), j.job_id), true)
    ), notified AS (
        SELECT count(dl_notify_queue(q.queue)) FROM (SELECT DISTINCT queue FROM unblocked ORDER BY queue) q
    )
    SELECT u.lock_key FROM unblocked u, notified;
END $$;

-- ── Hooks ───────────────────────────────────────────────────────────────────────────────────────────────────────────

-- What the statements and functions of the core call for features, whose schema.sql replaces these functions.

-- Of jobs that a claim has locked, in the order of their claim, those that may not start now: they become limited. The claim
-- passes on the wake-ups of jobs that were woken for `woken_names` and cannot start. `names_limits`: one of the jobs names a limit.
CREATE OR REPLACE FUNCTION dl_apply_limits(job_ids uuid[], woken_names text[], names_limits bool) RETURNS SETOF uuid
    LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN;
END $$;

-- Whether a limit may keep any job from its start, so that claims call dl_apply_limits.
CREATE OR REPLACE FUNCTION dl_uses_limits() RETURNS bool
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN false;
END $$;

-- Called last by each statement that ends runs or waits, when the rows have their new state. Returns how many jobs became ready.
--   job_ids     jobs that have ended, or are retried after a failure
--   has_webhook whether one of these has a webhook of its own
--   runs        jobs whose run has ended: what it counted in limits is free
--   counted     those of them whose attempt has succeeded or failed by itself
--   woken_for   limits for which jobs had been woken that do not start
--   reports     what the runs have reported of their data
CREATE OR REPLACE FUNCTION dl_jobs_ended(
    job_ids uuid[] DEFAULT NULL, has_webhook bool DEFAULT false, runs uuid[] DEFAULT NULL, counted uuid[] DEFAULT NULL,
    woken_for text[] DEFAULT NULL, reports jsonb DEFAULT NULL
) RETURNS int
    LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN 0;
END $$;

-- A job has another status than `old_status`. Called for each job that a plain UPDATE changes, and by claims and settlements for
-- jobs that failed, or have a graph or a live key.
CREATE OR REPLACE FUNCTION dl_job_status_changed(job dl_jobs, old_status dl_status) RETURNS void
    LANGUAGE plpgsql VOLATILE AS $$
BEGIN
END $$;

-- Jobs with a live key were inserted.
CREATE OR REPLACE FUNCTION dl_jobs_created(job_ids uuid[]) RETURNS void
    LANGUAGE plpgsql VOLATILE AS $$
BEGIN
END $$;

-- Jobs of graphs were deleted; NULL: all jobs.
CREATE OR REPLACE FUNCTION dl_graph_jobs_deleted(job_ids uuid[], graph_ids uuid[]) RETURNS void
    LANGUAGE plpgsql VOLATILE AS $$
BEGIN
END $$;

-- What features have to do, for the heartbeat of a process.
CREATE OR REPLACE FUNCTION dl_due_work(OUT next_schedule_in_sec float8, OUT has_updates bool, OUT has_due_deliveries bool)
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    next_schedule_in_sec := NULL;
    has_updates := false;
    has_due_deliveries := false;
END $$;

-- Queues whose depths were recorded last.
CREATE OR REPLACE FUNCTION dl_recorded_queues() RETURNS SETOF text
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN;
END $$;

-- The names of queues and tasks in rows of features: `queue` or `task`, and the name.
CREATE OR REPLACE FUNCTION dl_recorded_names() RETURNS TABLE (kind text, name text)
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN;
END $$;

-- What is wrong with the limits of a request; NULL: nothing.
CREATE OR REPLACE FUNCTION dl_limits_problem(limits jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN limits IS NOT NULL THEN 'cannot be used: this queue has no limits' END;

-- What is wrong with the parents of a request; NULL: nothing.
CREATE OR REPLACE FUNCTION dl_after_problem(after jsonb, need text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN after IS NOT NULL OR need IS NOT NULL THEN 'cannot be used: this queue has no graphs' END;

-- Makes a job of this transaction wait for others.
CREATE OR REPLACE FUNCTION dl_set_parents(child uuid, after jsonb, need_text text) RETURNS void
    LANGUAGE sql RETURN NULL;

-- The queues that have ready jobs, at most so many, by a loose scan of their index.
CREATE OR REPLACE FUNCTION dl_ready_queues(max_queues int) RETURNS SETOF text
    LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
    WITH RECURSIVE queues AS (
        (SELECT queue FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready' ORDER BY queue LIMIT 1)
        UNION ALL
        SELECT (SELECT j.queue FROM dl_jobs j
                 WHERE j.status = 'queued' AND j.wait_state = 'ready' AND j.queue > queues.queue
                 ORDER BY j.queue LIMIT 1)
          FROM queues
         WHERE queues.queue IS NOT NULL
    )
    SELECT queue FROM queues WHERE queue IS NOT NULL LIMIT max_queues
$$;

-- ── Claims ───────────────────────────────────────────────────────────────────────────────────────────────────────────

-- queued -> queued: jobs of all queues that are due become ready; the other queues are notified. `since`: only those that have fallen due
-- since then, where a transaction of hours keeps entries of promoted jobs in front of them. Returns the position right before the
-- promoted jobs of `claimed_queue`; NULL: there are none.
CREATE OR REPLACE FUNCTION dl_promote_due(claimed_queue text, since timestamptz DEFAULT '-infinity') RETURNS text[]
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    of_queue record;
    first    text[];
    unused   text := set_config('dl.own_update', 'on', true);  -- no trigger has anything to do
BEGIN
    FOR of_queue IN
        WITH due AS (
            SELECT job_id
              FROM dl_jobs
             WHERE status = 'queued' AND wait_state = 'scheduled' AND available_at <= (SELECT clock_timestamp()) AND available_at >= since
             ORDER BY available_at
             LIMIT 500
               FOR NO KEY UPDATE SKIP LOCKED
        ), promoted AS (
            UPDATE dl_jobs j SET wait_state = 'ready' FROM due WHERE j.job_id = ANY (ARRAY[due.job_id])
            RETURNING j.queue, j.priority, j.created_at
        )
        SELECT queue, min(priority) AS priority, min(created_at) AS created_at FROM promoted GROUP BY queue
    LOOP
        IF of_queue.queue = claimed_queue THEN
            first := ARRAY[of_queue.priority::text, (of_queue.created_at - interval '1 microsecond')::text, '00000000-0000-0000-0000-000000000000'];
        ELSE
            PERFORM dl_notify_queue(of_queue.queue);
        END IF;
    END LOOP;
    unused := set_config('dl.own_update', '', true);
    RETURN first;
END $$;

-- queued -> running: claims up to `wanted` ready jobs of the queue, the best priority and the oldest first. What only some claims
-- need is behind an IF: a claim of a queue that uses no feature is two statements.
--   scan_limit          how many ready jobs to look at: more than `wanted` where many keys are busy
--   after               where the claim starts (ClaimStart in app/queue/claims.py), one of
--                       - a position, (priority, created_at, job_id): at the ready jobs behind it. The front is the one before all.
--                         Where a transaction of hours keeps the index from being cleaned, the way from there to the first live
--                         row is long.
--                       - a position, and then job ids: at these jobs alone, those of them that are ready
--                       - with `in_turn` (tenant, jobs): behind this tenant, of which so many jobs have had their turn
--   promotes            makes ready first what is due: from the front all, else only what has fallen due in the last seconds
--   takes_session_locks takes the session locks of the keys too, for the life of each run: a former owner that lost its lease but
--                       not its session still holds one, and the job is blocked. They outlive a claim that fails: its sender must
--                       then close the session.
--   min_lease_sec       what the process can renew in time: a shorter lease is lengthened to that, in the row too, which reapers
--                       and renewals read
-- The search locks rows, and tries their keys. All later statements have a newer snapshot, under the locks of the keys: jobs whose
-- key is busy are blocked. A paused queue yields no job, and a limited one no more than it has free slots; a job whose limit is full
-- becomes limited. A process that was frozen while another took over its name claims nothing: it has not learned of that yet.
-- Returns the claimed jobs and then one row without a job, the hint for the next claim (ClaimHint):
--   skipped             ready jobs that were scanned and not started, because they were blocked or limited or another transaction had
--                       their key locked, and jobs that were woken in their place: more may be ready, claim again at once
--   next_due_sec        until the next scheduled job
--   next_after          `after` of the next claim: behind the last job that was started
--   blocked_keys        the keys whose jobs were blocked
CREATE OR REPLACE FUNCTION dl_claim(
    queue_name text, known_tasks text[], wanted int, scan_limit int, after text[], in_turn bool, promotes bool,
    run_ids uuid[], worker_name text, own_id uuid, takes_session_locks bool, min_lease_sec int, code_release text DEFAULT NULL
) RETURNS TABLE (
    job_id uuid, run_id uuid, task text, args text, lock_key text, key_hash bigint, priority int, attempt int, max_attempts int,
    lease_ttl_sec int, producer text, progress text, checkpoint text, time_limit_sec int, retry text, crashes int,
    traceparent text, waited_sec float8, partition_key text, logical_at timestamptz, interval_start timestamptz,
    interval_end timestamptz, skipped int, next_due_sec float8, next_after text[], blocked_keys text[]
)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    has_position bool := NOT in_turn AND after[1]::int >= 0;  -- it does not start at the front
    -- Behind a position: what fell due earlier is promoted by claims and scans from the front.
    due_since    timestamptz := CASE WHEN has_position THEN clock_timestamp() - interval '10 s' ELSE '-infinity' END;
    listed_ids   uuid[] := after[4:];
    position     text[] := after;
    promoted_at  text[];         -- the position right before the jobs that this claim has promoted
    is_before    bool;           -- that is before `after`: the search begins there
    found        record;         -- the first ready jobs whose keys no other transaction has locked, in their order
    ids          uuid[];         -- those of them that may start
    keys         text[];         -- the lock keys of `ids`
    busy         uuid[] := '{}';  -- jobs whose key is busy
    limited      uuid[] := '{}';  -- jobs whose limit is full
    woken_for    text[];         -- limits for which busy jobs had been woken
    started      int := 0;
    last_n       int;            -- the place in `found` of the last job that was started
    unused       text;           -- what set_config returns: an assignment costs less than PERFORM
BEGIN
    -- Promote what is due.
    IF promotes THEN
        promoted_at := dl_promote_due(queue_name, due_since);
        is_before := has_position AND (promoted_at[1]::int, promoted_at[2]::timestamptz) < (after[1]::int, after[2]::timestamptz);
        IF is_before THEN
            position := promoted_at;
        END IF;
    END IF;

    -- Lock the first ready jobs, and try their keys.
    IF in_turn OR listed_ids <> '{}' THEN  -- all checks are made for these: they are few, or of a fair queue
        WITH listed AS (
            SELECT c.n, c.job_id FROM dl_fair_candidates(queue_name, known_tasks, scan_limit, after[1], after[2]::int) c WHERE in_turn
            UNION ALL
            SELECT l.n, l.job_id FROM unnest(listed_ids) WITH ORDINALITY AS l (job_id, n)
        ), chosen AS MATERIALIZED (
            SELECT * FROM listed
             WHERE NOT EXISTS (SELECT FROM dl_workers w WHERE w.worker_id = own_id AND w.superseded_by IS NOT NULL)
        ), candidates AS (
            SELECT j.job_id, j.lock_key, chosen.n
              FROM chosen JOIN dl_jobs j ON j.job_id = ANY (ARRAY[chosen.job_id]) AND j.status::text = 'queued' AND j.wait_state::text = 'ready'
             WHERE j.queue = queue_name AND j.task = ANY (known_tasks) AND (j.expires_at IS NULL OR j.expires_at > clock_timestamp())
               FOR NO KEY UPDATE OF j SKIP LOCKED
        ), tried AS (
            SELECT c.*, pg_try_advisory_xact_lock(1684828526, hashtext(c.lock_key)) AS is_locked FROM candidates c
        )
        SELECT array_agg(t.job_id ORDER BY t.n) FILTER (WHERE t.is_locked) AS ids,
               array_agg(t.lock_key ORDER BY t.n) FILTER (WHERE t.is_locked) AS keys, NULL::int[] AS priorities, NULL::timestamptz[] AS created,
               true AS has_live_key, count(*) FILTER (WHERE NOT t.is_locked) + coalesce(nullif(current_setting('dl.fair_more', true), ''), '0')::int AS skipped,
               true AS needs_checks
          INTO found FROM tried t;
    ELSE
        WITH candidates AS (
            SELECT j.job_id, j.lock_key, j.priority, j.created_at, j.live_key IS NOT NULL AS has_live_key
              FROM dl_jobs j
             WHERE j.queue = queue_name AND j.status = 'queued' AND j.wait_state = 'ready' AND j.task = ANY (known_tasks)
               AND (j.priority, j.created_at, j.job_id) > (position[1]::int, position[2]::timestamptz, position[3]::uuid)
               AND (j.expires_at IS NULL OR j.expires_at > clock_timestamp())
               AND NOT EXISTS (SELECT FROM dl_workers w WHERE w.worker_id = own_id AND w.superseded_by IS NOT NULL)
             ORDER BY j.priority, j.created_at, j.job_id
             LIMIT scan_limit
               FOR NO KEY UPDATE SKIP LOCKED
        ), tried AS (
            SELECT c.*, pg_try_advisory_xact_lock(1684828526, hashtext(c.lock_key)) AS is_locked FROM candidates c
        )
        -- In the order of the candidates: an aggregate with DISTINCT would have PostgreSQL 16 sort them for all of these.
        SELECT array_agg(t.job_id) FILTER (WHERE t.is_locked) AS ids, array_agg(t.lock_key) FILTER (WHERE t.is_locked) AS keys,
               array_agg(t.priority) FILTER (WHERE t.is_locked) AS priorities, array_agg(t.created_at) FILTER (WHERE t.is_locked) AS created,
               bool_or(t.has_live_key) AS has_live_key, count(*) FILTER (WHERE NOT t.is_locked) AS skipped,
               scan_limit > wanted OR dl_uses_limits()
               OR EXISTS (SELECT FROM dl_queues q WHERE q.queue = queue_name AND (q.state <> 'open' OR q.concurrency IS NOT NULL)) AS needs_checks
          INTO found FROM tried t;
    END IF;
    ids := found.ids;
    keys := found.keys;
    skipped := found.skipped;

    -- Leave out what may not start, if that has to be checked: keys that are busy, a queue or limits that are full.
    IF ids IS NOT NULL
       AND (found.needs_checks OR cardinality(keys) > 1 AND (SELECT count(DISTINCT k) FROM unnest(keys) AS k) < cardinality(keys)) THEN
        SELECT array_agg(c.job_id ORDER BY c.n) FILTER (WHERE NOT c.is_busy), coalesce(array_agg(c.job_id) FILTER (WHERE c.is_busy), '{}')
          INTO ids, busy
          FROM (SELECT f.job_id, f.n, row_number() OVER (PARTITION BY f.lock_key ORDER BY f.n) > 1
                                      OR EXISTS (SELECT FROM dl_jobs r WHERE r.lock_key BETWEEN f.lock_key AND f.lock_key AND r.status = 'running' OFFSET 0) AS is_busy
                  FROM unnest(ids, keys) WITH ORDINALITY AS f (job_id, lock_key, n)) c;
        ids := ids[:least(wanted, dl_free_slots(queue_name))];
        IF dl_uses_limits() THEN
            limited := ARRAY(
                SELECT dl_apply_limits(ids, (SELECT array_agg(j.waits_on) FROM dl_jobs j WHERE j.job_id = ANY (busy) AND j.waits_on IS NOT NULL),
                                       EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = ANY (ids || busy)
                                                                       AND (j.limits IS NOT NULL OR j.waits_on IS NOT NULL))));
        END IF;
        SELECT array_agg(f.job_id ORDER BY f.n), array_agg(f.lock_key ORDER BY f.n)
          INTO ids, keys
          FROM unnest(found.ids::uuid[], found.keys::text[]) WITH ORDINALITY AS f (job_id, lock_key, n)
         WHERE f.job_id = ANY (ids) AND f.job_id <> ALL (limited);
    END IF;

    -- Start the others, but for those whose key turns out to be busy.
    IF ids IS NOT NULL THEN
        unused := set_config('dl.own_update', 'on', true);
        RETURN QUERY
        WITH selected AS MATERIALIZED (  -- where nothing has checked the keys of running jobs yet, this does
            SELECT f.job_id, f.n, hashtext(f.lock_key)::bigint AS key_hash,
                   CASE WHEN takes_session_locks THEN pg_try_advisory_lock(hashtext(f.lock_key)::bigint) ELSE true END AS is_free
              FROM unnest(ids, keys) WITH ORDINALITY AS f (job_id, lock_key, n)
             WHERE NOT EXISTS (SELECT FROM dl_jobs r WHERE r.lock_key BETWEEN f.lock_key AND f.lock_key AND r.status = 'running' OFFSET 0)
        ), claimed AS (
            -- An operator may have lowered max_attempts. A running job is `scheduled`: dl_jobs_before_update then sets the wait
            -- state of one that a release, a reap or a plain UPDATE queues again.
            UPDATE dl_jobs j
               SET status = 'running', wait_state = 'scheduled', waits_on = NULL, unknown_task = false,
                   debounce_key = NULL, expires_at = NULL, attempt = least(j.attempt + 1, j.max_attempts), run_id = run_ids[s.n], worker = worker_name, worker_id = own_id,
                   lease_ttl_sec = greatest(j.lease_ttl_sec, min_lease_sec),
                   error = NULL, traceback = NULL, error_fingerprint = NULL, result = NULL,
                   started_at = coalesce(j.started_at, clock_timestamp()), heartbeat_at = clock_timestamp(),
                   lease_expires_at = clock_timestamp() + make_interval(secs => greatest(j.lease_ttl_sec, min_lease_sec))
              FROM selected s
             WHERE j.job_id = ANY (ARRAY[s.job_id]) AND s.is_free
            RETURNING s.n, s.key_hash, j.job_id, j.run_id, j.task, j.args, j.lock_key, j.priority, j.attempt, j.max_attempts,
                      j.lease_ttl_sec, j.producer, j.progress, j.checkpoint, j.time_limit_sec, j.retry, j.crashes, j.traceparent,
                      j.heartbeat_at, greatest(j.created_at, j.available_at) AS due_at,
                      j.partition_key, j.logical_at, j.interval_start, j.interval_end
        ), events AS (
            INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
            SELECT c.job_id, queue_name, clock_timestamp(), 'picked',
                   CASE WHEN code_release IS NULL
                        THEN jsonb_build_object('status', 'running', 'attempt', c.attempt, 'run_id', c.run_id, 'worker', worker_name)
                        ELSE jsonb_build_object('status', 'running', 'attempt', c.attempt, 'run_id', c.run_id, 'worker', worker_name,
                                                'release', code_release) END
              FROM claimed c
        )
        SELECT c.job_id, c.run_id, c.task, dl_json_text(c.args), c.lock_key, c.key_hash, c.priority, c.attempt, c.max_attempts,
               c.lease_ttl_sec, c.producer, dl_json_text(c.progress), dl_json_text(c.checkpoint), c.time_limit_sec,
               dl_json_text(c.retry), c.crashes, c.traceparent,
               date_part('epoch', c.heartbeat_at - greatest(least(c.due_at, c.heartbeat_at), c.heartbeat_at - interval '10 years')),  -- may be infinite
               c.partition_key, c.logical_at, c.interval_start, c.interval_end, NULL::int, NULL::float8, NULL::text[], NULL::text[]
          FROM claimed c
         ORDER BY c.n;
        GET DIAGNOSTICS started = ROW_COUNT;
        unused := set_config('dl.own_update', '', true);
        IF found.has_live_key THEN
            PERFORM dl_job_status_changed(j, 'queued')
               FROM unnest(ids) AS i (job_id)
                    JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id]) AND j.status::text = 'running' AND j.live_key IS NOT NULL;
        END IF;
        IF started < cardinality(ids) THEN
            SELECT array_agg(j.job_id ORDER BY i.n) FILTER (WHERE j.status = 'running'),
                   busy || array_agg(j.job_id) FILTER (WHERE j.status = 'queued')
              INTO ids, busy
              FROM unnest(ids) WITH ORDINALITY AS i (job_id, n) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id]);
        END IF;
        last_n := array_position(found.ids::uuid[], ids[cardinality(ids)]);
    END IF;

    -- Block those whose key is busy. Limits that had woken one of them wake another job.
    IF busy <> '{}' THEN
        WITH waiting AS MATERIALIZED (
            SELECT j.job_id, j.waits_on FROM unnest(busy) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
        ), blocked AS (
            UPDATE dl_jobs j SET wait_state = 'blocked', waits_on = NULL
              FROM waiting w
             WHERE j.job_id = ANY (ARRAY[w.job_id])
            RETURNING j.lock_key, w.waits_on
        )
        SELECT array_agg(DISTINCT b.lock_key), array_agg(DISTINCT b.waits_on) FILTER (WHERE b.waits_on IS NOT NULL)
          INTO blocked_keys, woken_for FROM blocked b;
        IF woken_for IS NOT NULL THEN
            skipped := skipped + dl_jobs_ended(woken_for => woken_for);
        END IF;
    END IF;

    -- The hint for the next claim.
    skipped := skipped + cardinality(busy) + cardinality(limited);
    next_due_sec := (SELECT extract(epoch FROM min(j.available_at) - clock_timestamp())::float8
                       FROM dl_jobs j
                      WHERE j.status = 'queued' AND j.wait_state = 'scheduled' AND j.available_at > due_since AND j.available_at < 'infinity');
    IF in_turn THEN
        next_after := ARRAY(SELECT jsonb_array_elements_text(nullif(current_setting('dl.fair_turn', true), '')::jsonb));
    ELSIF last_n IS NOT NULL AND listed_ids = '{}' THEN
        next_after := ARRAY[found.priorities[last_n]::text, found.created[last_n]::text, ids[cardinality(ids)]::text];
        -- Only jobs that it has promoted were started: the next claim starts where this one did. See ClaimCursor.advance.
        IF is_before AND (next_after[1]::int, next_after[2]::timestamptz) < (after[1]::int, after[2]::timestamptz) THEN
            next_after := after;
        END IF;
    END IF;
    RETURN NEXT;
END $$;

-- running -> succeeded | failed | canceled | queued: how attempts that count end. An error after a cancel request ends as
-- canceled; a success stays one; without attempts left a retry ends as failed. The next blocked job of each freed key becomes
-- ready. The sender has released the keys' session locks before.
-- `reports` has the data checks and datasets of the runs that have any; see dl_record_reports.
-- Plain successes, which leave no value, come as `plain_jobs` and `plain_runs` alone. The result is one row: how many were
-- applied; the runs whose status differs from the requested one, with their status; and, if not all were applied, which.
CREATE OR REPLACE FUNCTION dl_settle(
    key_hashes bigint[], plain_jobs uuid[], plain_runs uuid[], job_ids uuid[], run_ids uuid[], statuses dl_status[], errors text[],
    tracebacks text[], results text[], progress_values text[], checkpoints text[], pauses float8[], refunds int[], crash_counts int[],
    event_fields text[], fingerprints text[], reports jsonb,
    OUT applied int, OUT changed_statuses text[], OUT applied_runs text[]
)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    ended record;
    unused text;  -- what set_config returns
BEGIN
    PERFORM pg_advisory_xact_lock(1684828526, k.hash)
       FROM (SELECT DISTINCT h::int AS hash FROM unnest(key_hashes) AS u (h) ORDER BY 1 OFFSET 0) k;
    unused := set_config('dl.own_update', 'on', true);
    WITH settlements AS MATERIALIZED (  -- else a row renewed while this waits for it is not matched
        SELECT p.job_id, p.run_id, 'succeeded'::dl_status AS status, NULL AS error, NULL AS traceback, NULL AS result,
               NULL AS progress, NULL AS checkpoint, 0::float8 AS pause, 0 AS refund, 0 AS crashed, NULL AS event_fields,
               NULL AS fingerprint
          FROM unnest(plain_jobs, plain_runs) AS p (job_id, run_id)
        UNION ALL
        SELECT *
          FROM unnest(job_ids, run_ids, statuses, errors, tracebacks, results, progress_values, checkpoints, pauses, refunds, crash_counts,
                      dl_settle.event_fields, fingerprints)
               AS t (job_id, run_id, status, error, traceback, result, progress, checkpoint, pause, refund, crashed, event_fields,
                     fingerprint)
    ), owned AS MATERIALIZED (
        SELECT settlements.*,
               CASE WHEN j.cancel_requested AND settlements.status <> 'succeeded' THEN 'canceled'::dl_status
                    WHEN settlements.status = 'queued' AND j.attempt - settlements.refund >= j.max_attempts THEN 'failed'::dl_status
                    ELSE settlements.status END AS final_status,
               -- of a snooze without a pause: longer with the job's age, since no attempt is counted
               CASE WHEN settlements.refund > 0 AND settlements.pause <= 1
                    THEN least(60, greatest(1, (date_part('epoch', clock_timestamp()) - date_part('epoch', j.created_at)) / 10))
                    ELSE settlements.pause END AS final_pause,
               clock_timestamp() AS ended_at
          FROM settlements JOIN dl_jobs j ON j.job_id = ANY (ARRAY[settlements.job_id]) AND j.run_id = settlements.run_id AND j.status::text = 'running'
         ORDER BY settlements.job_id
           FOR NO KEY UPDATE OF j
    ), settled AS (
        UPDATE dl_jobs j
           SET status = owned.final_status,
               wait_state = CASE WHEN owned.final_status = 'queued' AND owned.final_pause <= 0 THEN 'ready' ELSE 'scheduled' END::dl_wait_state,
               error = CASE WHEN owned.final_status <> 'succeeded' THEN owned.error END,
               traceback = CASE WHEN owned.final_status <> 'succeeded' THEN owned.traceback END,
               error_fingerprint = CASE WHEN owned.final_status <> 'succeeded' THEN owned.fingerprint END,
               result = owned.result::jsonb,
               progress = coalesce(owned.progress::jsonb, j.progress),
               checkpoint = CASE WHEN owned.final_status <> 'succeeded' THEN coalesce(owned.checkpoint::jsonb, j.checkpoint) END,
               attempt = greatest(j.attempt - CASE WHEN owned.final_status = 'queued' THEN owned.refund ELSE 0 END, 0),
               crashes = j.crashes + owned.crashed,
               available_at = CASE WHEN owned.final_status = 'queued' THEN owned.ended_at + make_interval(secs => owned.final_pause) ELSE j.available_at END,
               finished_at = CASE WHEN owned.final_status <> 'queued' THEN owned.ended_at END,
               expires_at = CASE WHEN owned.final_status <> 'queued' THEN j.expires_at END, debounce_key = NULL,
               lease_expires_at = NULL, worker_id = NULL
          FROM owned
         WHERE j.job_id = ANY (ARRAY[owned.job_id])
        RETURNING j.job_id, j.run_id, j.queue, j.lock_key, j.status, j.attempt, j.error, j.webhook, j.traceback, j.error_fingerprint,
                  j.graph_id IS NOT NULL OR j.live_key IS NOT NULL AS is_of_feature,
                  owned.status AS requested_status, owned.final_pause, owned.refund, owned.event_fields, owned.ended_at
    ), events AS (
        INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
        SELECT job_id, queue, ended_at,
               CASE status WHEN 'succeeded' THEN 'done' WHEN 'queued' THEN 'requeue' ELSE status::text END,
               coalesce(event_fields::jsonb, '{}') || jsonb_strip_nulls(jsonb_build_object(
                   'status', status, 'attempt', attempt, 'run_id', run_id, 'error', error,
                   'reason', CASE WHEN status = 'queued' THEN 'error' END,
                   'pause_sec', CASE WHEN status = 'queued' THEN final_pause END,
                   'traceback', right(traceback, 16000), 'error_fingerprint', error_fingerprint))  -- the next attempt clears the job's own
          FROM settled
    )
    SELECT count(*)::int AS jobs, array_agg(job_id) AS ids, array_agg(run_id) AS runs, array_agg(DISTINCT lock_key) AS keys,
           array_agg(run_id || ' ' || status) FILTER (WHERE status <> requested_status) AS changed, bool_or(webhook IS NOT NULL) AS has_webhook,
           array_agg(job_id) FILTER (WHERE status IN ('succeeded', 'failed') OR status = 'queued' AND refund = 0) AS counted,
           array_agg(DISTINCT queue) FILTER (WHERE status = 'queued') AS queues,
           array_agg(job_id) FILTER (WHERE status = 'failed' OR is_of_feature) AS of_features
      INTO ended FROM settled;
    unused := set_config('dl.own_update', '', true);
    applied := ended.jobs;
    changed_statuses := ended.changed;
    IF applied < cardinality(plain_runs) + cardinality(run_ids) THEN
        applied_runs := ended.runs::text[];
    END IF;
    IF applied = 0 THEN
        RETURN;
    END IF;
    PERFORM dl_unblock_next(ended.keys);
    PERFORM dl_jobs_ended(job_ids => ended.ids, has_webhook => ended.has_webhook, runs => ended.ids, counted => ended.counted, reports => reports);
    IF ended.of_features IS NOT NULL THEN  -- after the locks of limits, as in a claim
        PERFORM dl_job_status_changed(j, 'running')
           FROM unnest(ended.of_features::uuid[]) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id]);
    END IF;
    IF ended.queues IS NOT NULL THEN
        PERFORM dl_notify_queue(q) FROM unnest(ended.queues::text[]) q;
    END IF;
END $$;

-- queued -> canceled, at once, in any wait state; running: sets the flag, and a trigger notifies the worker. A finished job is left
-- as it is. With a filter: only jobs that still match it. Returns how many were changed.
-- Of a cancel and a claim that meet, exactly one wins: both wait for the row. The triggers of the rows come after dl_jobs_ended, as
-- the locks of limits come before those of slices.
CREATE OR REPLACE FUNCTION dl_cancel_jobs(job_ids uuid[], filter jsonb DEFAULT NULL) RETURNS int
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    ended record;
BEGIN
    PERFORM pg_advisory_xact_lock(1684828526, hash)
       FROM (SELECT DISTINCT hashtext(j.lock_key) AS hash
               FROM dl_jobs j
              WHERE j.job_id = ANY (job_ids) AND j.status::text = 'queued'
              ORDER BY 1 OFFSET 0) k;
    WITH open AS MATERIALIZED (
        SELECT j.job_id, j.waits_on
          FROM dl_jobs j
         WHERE j.job_id = ANY (job_ids)
           AND (j.status::text = 'queued' OR j.status::text = 'running' AND NOT j.cancel_requested)
           AND (filter IS NULL OR dl_job_matches(j, filter))
         ORDER BY j.job_id
           FOR NO KEY UPDATE
    ), changed AS (
        UPDATE dl_jobs j
           SET status = CASE WHEN j.status = 'queued' THEN 'canceled'::dl_status ELSE j.status END,
               finished_at = CASE WHEN j.status = 'queued' THEN clock_timestamp() END,
               wait_state = 'scheduled', waits_on = NULL, unknown_task = false, cancel_requested = true
          FROM open
         WHERE j.job_id = ANY (ARRAY[open.job_id])
        RETURNING j.job_id, j.queue, j.lock_key, j.status, j.attempt, j.webhook, open.waits_on AS woken_for
    ), canceled AS (
        SELECT * FROM changed WHERE status = 'canceled'
    ), events AS (
        INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
        SELECT job_id, queue, clock_timestamp(), 'canceled', jsonb_build_object('status', status, 'attempt', attempt)
          FROM canceled
    )
    SELECT (SELECT count(*)::int FROM changed) AS jobs,
           (SELECT count(*) FROM dl_unblock_next((SELECT array_agg(DISTINCT lock_key) FROM canceled))) AS unblocked,
           (SELECT dl_jobs_ended(job_ids => array_agg(job_id), has_webhook => bool_or(webhook IS NOT NULL),
                                 woken_for => array_agg(woken_for) FILTER (WHERE woken_for IS NOT NULL))
              FROM canceled) AS woken
      INTO ended;
    RETURN ended.jobs;
END $$;

-- failed | canceled | lost -> queued, by an operator: the same jobs with all their attempts. Not while another job has their live key, and of
-- several with one live key only the newest. With a filter: only jobs that still match it. `args_patch` is merged into their args. With
-- `keep_time` one that was to start later still does; dl_jobs_before_update writes its event, since its wait state stays. Those of
-- `waiting` wait for their parents again. Returns the ids of those that were queued.
CREATE OR REPLACE FUNCTION dl_retry_jobs(job_ids uuid[], reason text DEFAULT 'retry', filter jsonb DEFAULT NULL,
                                         args_patch jsonb DEFAULT NULL, keep_time bool DEFAULT false, waiting uuid[] DEFAULT '{}')
    RETURNS uuid[]
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    queued uuid[];
BEGIN
    WITH candidates AS MATERIALIZED (
        SELECT j.job_id, j.live_key, j.created_at
          FROM dl_jobs j
         WHERE j.job_id = ANY (job_ids) AND j.status::text IN ('failed', 'canceled', 'lost')
           AND (filter IS NULL OR dl_job_matches(j, filter))
           AND NOT EXISTS (SELECT FROM dl_jobs other
                            WHERE other.live_key = j.live_key AND other.status IN ('queued', 'running'))
         ORDER BY j.job_id
           FOR NO KEY UPDATE
    ), newest AS MATERIALIZED (
        SELECT DISTINCT ON (coalesce(c.live_key, c.job_id::text)) c.job_id, w.job_id IS NOT NULL AS waits
          FROM candidates c LEFT JOIN unnest(waiting) AS w (job_id) ON w.job_id = c.job_id
         ORDER BY coalesce(c.live_key, c.job_id::text), c.created_at DESC
    ), requeued AS (
        UPDATE dl_jobs j
           SET status = 'queued', skipped = NULL, waits_on = NULL, attempt = 0, crashes = 0, cancel_requested = false,
               wait_state = CASE WHEN newest.waits THEN 'waiting'
                                 WHEN keep_time AND j.available_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END::dl_wait_state,
               available_at = CASE WHEN keep_time THEN greatest(j.available_at, clock_timestamp()) ELSE clock_timestamp() END,
               error = NULL, traceback = NULL, error_fingerprint = NULL, result = NULL, progress = '{}', started_at = NULL,
               finished_at = NULL, heartbeat_at = NULL,
               args = CASE WHEN jsonb_typeof(j.args) = 'object' THEN coalesce(j.args || args_patch, j.args) ELSE j.args END,
               request_hash = CASE WHEN args_patch IS NULL THEN j.request_hash
                                   ELSE coalesce(j.request_hash, dl_request_hash(j.queue, j.task, j.args)) END
          FROM newest
         WHERE j.job_id = ANY (ARRAY[newest.job_id])
        RETURNING j.job_id, j.queue, j.wait_state
    ), events AS (
        INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
        SELECT r.job_id, r.queue, clock_timestamp(), 'requeue',
               jsonb_build_object('status', 'queued', 'attempt', 0, 'reason', reason)
               || CASE WHEN args_patch IS NULL THEN '{}' ELSE jsonb_build_object('args_patch', args_patch) END
          FROM requeued r
         WHERE r.wait_state <> 'scheduled'
    )
    SELECT array_agg(r.job_id) FROM requeued r INTO queued;
    RETURN queued;
END $$;

-- ── Jobs written by other services ───────────────────────────────────────────────────────────────────────────────────

-- Triggers that make a plain INSERT, UPDATE or DELETE of a job as good as ours. SECURITY DEFINER: a service that may only
-- INSERT INTO dl_jobs has no right to the other tables. There are few, and the WHEN of those for updates is short: a statement
-- parses and plans the WHEN of each trigger that may fire, which costs it 20 µs each. Statements of every job (claims, renewals,
-- settlements) set dl.own_update to 'on' around their UPDATE, which then fires none, and do what it would do themselves.

-- A new job gets its event, its tenant if its queue has a rule for them, and its queue a notification. One for a later time is
-- scheduled, as is one that is inserted as finished; one that is inserted as waiting for jobs or a limit has nothing yet that would
-- end its wait. The statements of this project set the wait state themselves.
CREATE OR REPLACE FUNCTION dl_jobs_inserted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    new         record;
    has         record;
    queue_name  text;
    problem     text;
    unused      text;  -- what set_config returns
    is_notified bool;
BEGIN
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, clock_timestamp(), 'queued',
           CASE WHEN producer IS NULL THEN jsonb_build_object('status', 'queued', 'attempt', attempt, 'task', task)
                ELSE jsonb_build_object('status', 'queued', 'attempt', attempt, 'task', task, 'producer', producer) END
      FROM inserted
     WHERE status = 'queued';
    -- One scan of all rows for whether any of them needs more than an event and a notification. A wait state is right if it follows
    -- from the status and the time, or is `blocked`.
    SELECT min(queue) FILTER (WHERE status = 'queued') AS first_queue, max(queue) FILTER (WHERE status = 'queued') AS last_queue,
           bool_or(wait_state NOT IN ('blocked', CASE WHEN status = 'queued' AND available_at <= clock_timestamp()
                                                      THEN 'ready' ELSE 'scheduled' END::dl_wait_state)) AS has_wrong_state,
           bool_or(limits IS NOT NULL OR live_key IS NOT NULL OR status = 'queued' AND (cancel_requested OR max_attempts < 1))
           OR EXISTS (SELECT FROM dl_queues WHERE fair IS NOT NULL) AS needs_checks
      INTO new
      FROM inserted;
    IF new.has_wrong_state THEN
        unused := set_config('dl.own_update', 'on', true);
        UPDATE dl_jobs j
           SET wait_state = i.right_state
          FROM (SELECT job_id, wait_state, CASE WHEN status = 'queued' AND available_at <= clock_timestamp()
                                                THEN 'ready' ELSE 'scheduled' END::dl_wait_state AS right_state
                  FROM inserted) i
         WHERE j.job_id = i.job_id AND i.wait_state NOT IN ('blocked', i.right_state);
        unused := set_config('dl.own_update', '', true);
    END IF;
    IF new.needs_checks THEN
        SELECT bool_or(q.fair IS NOT NULL AND i.has_queued) AS fair,
               bool_or(i.has_ending) AS ending, bool_or(i.has_limits) AS limits, bool_or(i.has_live_key) AS live_key
          INTO has
          FROM (SELECT queue, bool_or(status = 'queued') AS has_queued, bool_or(limits IS NOT NULL) AS has_limits, bool_or(live_key IS NOT NULL) AS has_live_key,
                       bool_or(status = 'queued' AND (cancel_requested OR max_attempts < 1)) AS has_ending
                  FROM inserted GROUP BY queue) i
               LEFT JOIN dl_queues q ON q.queue = i.queue;
        IF has.limits THEN
            problem := (SELECT min(found.problem) FROM inserted i CROSS JOIN LATERAL (SELECT dl_limits_problem(i.limits) AS problem) found
                         WHERE i.limits IS NOT NULL);
            IF problem IS NOT NULL THEN
                RAISE invalid_parameter_value USING MESSAGE = 'limits ' || problem, COLUMN = 'limits';
            END IF;
        END IF;
        IF has.live_key THEN
            PERFORM dl_jobs_created((SELECT array_agg(job_id) FROM inserted WHERE live_key IS NOT NULL));
        END IF;
        IF has.fair THEN
            UPDATE dl_jobs j SET fair_key = dl_fair_key(f.queue, f.partition_key, f.producer, f.args)
              FROM inserted f JOIN dl_queues q ON q.queue = f.queue AND q.fair IS NOT NULL
             WHERE j.job_id = f.job_id AND f.status = 'queued' AND f.fair_key IS NULL;
        END IF;
        IF has.ending THEN
            UPDATE dl_jobs j SET cancel_requested = j.cancel_requested  -- fires dl_jobs_before_upd
              FROM inserted f
             WHERE j.job_id = f.job_id AND f.status = 'queued' AND (f.cancel_requested OR f.max_attempts < 1);
        END IF;
    END IF;
    IF new.first_queue = new.last_queue THEN
        is_notified := dl_notify_if_needed(new.first_queue);
    ELSE
        FOR queue_name IN SELECT DISTINCT queue FROM inserted WHERE status = 'queued' ORDER BY queue LOOP
            is_notified := dl_notify_if_needed(queue_name);
        END LOOP;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dl_jobs_notify_ins AFTER INSERT ON dl_jobs
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION dl_jobs_inserted();

-- What a plain UPDATE leaves to us.
CREATE OR REPLACE FUNCTION dl_jobs_before_update() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    problem text;
    ending  dl_status;
BEGIN
    IF NEW.limits IS DISTINCT FROM OLD.limits THEN
        problem := dl_limits_problem(NEW.limits);
        IF problem IS NOT NULL THEN
            RAISE invalid_parameter_value USING MESSAGE = 'limits ' || problem, COLUMN = 'limits';
        END IF;
    END IF;
    -- A claim of another service or an older process leaves worker_id as it is: that of an earlier attempt, whose process may
    -- be dead. Our claims set it and every end of an attempt clears it, so one that does not change is stale.
    IF NEW.worker_id = OLD.worker_id AND NEW.run_id IS DISTINCT FROM OLD.run_id THEN
        NEW.worker_id := NULL;
    END IF;
    -- Once a job has left the queue a trigger can no longer change it, and it cannot expire.
    IF NEW.status <> OLD.status AND (OLD.debounce_key IS NOT NULL OR OLD.expires_at IS NOT NULL) THEN
        NEW.debounce_key := NULL;
        IF NEW.status IN ('queued', 'running') THEN
            NEW.expires_at := NULL;
        END IF;
    END IF;
    -- Another service requeues a job or moves its time, and does not set its wait state, which follows from the time. (If its
    -- key is busy, a claim will block it.) One that waits for jobs or a limit continues to wait, and keeps the time for
    -- afterwards. A job that was finished or running is reset as by a retry or a release. Our own
    -- statements either set the wait state or end the lease.
    IF NEW.status = 'queued' AND NEW.wait_state = OLD.wait_state
       AND (OLD.status <> 'queued' OR NEW.available_at <> OLD.available_at AND OLD.wait_state NOT IN ('waiting', 'limited')) THEN
        NEW.wait_state := CASE WHEN NEW.available_at <= clock_timestamp() THEN 'ready' ELSE 'scheduled' END;
        NEW.waits_on := NULL;
        IF OLD.status <> 'queued' AND (OLD.status <> 'running' OR NEW.lease_expires_at IS NOT NULL) THEN
            NEW.attempt := CASE OLD.status WHEN 'running' THEN greatest(OLD.attempt - 1, 0) ELSE 0 END;
            NEW.cancel_requested := false;
            NEW.lease_expires_at := NULL;
            NEW.finished_at := NULL;
            INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
            VALUES (NEW.job_id, NEW.queue, clock_timestamp(), 'requeue',
                    jsonb_build_object('status', 'queued', 'attempt', NEW.attempt, 'reason', 'by_hand'));
        END IF;
    END IF;
    -- A queued job whose cancel is requested by a plain UPDATE is canceled, and one with max_attempts 0 fails: without an
    -- attempt, with its event and deliveries, as by the statement `cancel`, which sets the status itself and skips this. It ends in the
    -- same UPDATE; one that this UPDATE has queued again ends in another, so that its events keep their order.
    IF OLD.status = 'queued' AND NEW.status = 'queued' AND (NEW.cancel_requested OR NEW.max_attempts < 1) THEN
        ending := CASE WHEN NEW.cancel_requested THEN 'canceled' ELSE 'failed' END;
        problem := CASE WHEN NOT NEW.cancel_requested THEN 'max_attempts is 0: the job may have no attempt' END;
        NEW.status := ending;
        NEW.wait_state := 'scheduled';
        NEW.waits_on := NULL;
        NEW.unknown_task := false;
        NEW.debounce_key := NULL;
        NEW.finished_at := clock_timestamp();
        NEW.error := coalesce(problem, NEW.error);
        INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
        VALUES (NEW.job_id, NEW.queue, clock_timestamp(), ending::text,
                jsonb_strip_nulls(jsonb_build_object('status', ending, 'attempt', NEW.attempt, 'error', problem,
                                                     'reason', CASE ending WHEN 'failed' THEN 'no_attempts' ELSE 'sql' END)));
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER dl_jobs_before_upd BEFORE UPDATE ON dl_jobs
    FOR EACH ROW WHEN (current_setting('dl.own_update', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION dl_jobs_before_update();

CREATE OR REPLACE FUNCTION dl_jobs_updated() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    -- The cancel of a running job, by HTTP or by SQL, notifies its worker.
    IF NEW.status = 'running' AND NEW.cancel_requested AND NOT OLD.cancel_requested THEN
        INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
        SELECT NEW.job_id, NEW.queue, clock_timestamp(), 'cancel_requested',
               jsonb_build_object('status', 'running', 'attempt', NEW.attempt)
         WHERE NOT EXISTS (SELECT FROM dl_job_events e
                            WHERE e.job_id = NEW.job_id AND e.kind = 'cancel_requested'
                              AND e.xmin = pg_current_xact_id()::xid);
        IF NEW.run_id IS NOT NULL THEN
            PERFORM pg_notify('dl_control', 'cancel ' || NEW.run_id);
        END IF;
    END IF;
    IF NEW.status <> OLD.status THEN
        PERFORM dl_job_status_changed(NEW, OLD.status);
    END IF;
    -- A job that is queued again, or at another time, notifies its queue.
    IF NEW.status = 'queued' AND (OLD.status <> 'queued' OR NEW.available_at <> OLD.available_at) THEN
        PERFORM dl_notify_queue(NEW.queue);
    END IF;
    IF NEW.status = 'queued' AND (NEW.cancel_requested OR NEW.max_attempts < 1) THEN
        UPDATE dl_jobs SET cancel_requested = cancel_requested WHERE job_id = NEW.job_id AND status = 'queued';
    ELSIF OLD.status = 'queued' AND NEW.status IN ('canceled', 'failed')
          -- Ended by dl_jobs_before_update: statements that end queued jobs themselves write events with other reasons.
          AND (SELECT e.payload ->> 'reason' FROM dl_job_events e WHERE e.job_id = NEW.job_id AND e.kind IN ('canceled', 'failed')
                ORDER BY e.event_id DESC LIMIT 1) IN ('sql', 'no_attempts') THEN
        -- The row is locked already, so the key's lock is only tried: its holder may wait for the row. If it is not free, the
        -- maintenance leader unblocks the key's next job a second later.
        -- No job waits for one that was blocked itself: to search for the next at each of thousands that an UPDATE cancels would pass all
        -- that it has canceled before. Tested before locking: a lock for each key of a large UPDATE would fill the server's lock table. While
        -- the key runs, it must not be locked until this transaction ends, which may stay open: the settlement waits for the lock.
        IF OLD.wait_state <> 'blocked'
           AND EXISTS (SELECT FROM dl_jobs WHERE lock_key = NEW.lock_key AND status = 'queued' AND wait_state = 'blocked')
           AND NOT EXISTS (SELECT FROM dl_jobs WHERE lock_key BETWEEN NEW.lock_key AND NEW.lock_key AND status = 'running')
           AND pg_try_advisory_xact_lock(1684828526, hashtext(NEW.lock_key)) THEN
            PERFORM dl_unblock_next(ARRAY[NEW.lock_key]);
        END IF;
        PERFORM dl_jobs_ended(job_ids => ARRAY[NEW.job_id], has_webhook => NEW.webhook IS NOT NULL,
                              woken_for => array_remove(ARRAY[OLD.waits_on], NULL));
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dl_jobs_notify_upd AFTER UPDATE ON dl_jobs
    FOR EACH ROW WHEN (current_setting('dl.own_update', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION dl_jobs_updated();

-- ── Enqueueing from SQL ──────────────────────────────────────────────────────────────────────────────────────────────

-- The tenant of a job, by its queue's rule; NULL: the queue serves by age.
CREATE OR REPLACE FUNCTION dl_fair_key(queue_name text, partition_key text, producer text, args jsonb) RETURNS text
    LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT CASE WHEN octet_length(tenant) > 500 THEN md5(tenant) ELSE tenant END
      FROM (SELECT coalesce(CASE q.fair WHEN 'partition_key' THEN partition_key
                                        WHEN 'producer' THEN producer
                                        ELSE args #>> string_to_array(substr(q.fair, 6), '.') END, '') AS tenant
              FROM dl_queues q
             WHERE q.queue = queue_name AND q.fair IS NOT NULL) t
$$;

-- What is wrong with the `debounce` of a request; NULL: nothing.
CREATE OR REPLACE FUNCTION dl_debounce_problem(debounce jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE RETURN
    CASE WHEN debounce IS NULL THEN NULL
         WHEN jsonb_typeof(debounce) <> 'object' OR debounce - '{key,wait_sec,max_wait_sec,args}'::text[] <> '{}'
              OR jsonb_typeof(debounce -> 'key') IS DISTINCT FROM 'string' OR jsonb_typeof(debounce -> 'wait_sec') IS DISTINCT FROM 'number'
              OR coalesce(jsonb_typeof(debounce -> 'max_wait_sec'), 'null') NOT IN ('null', 'number')
         THEN 'must be an object such as {"key": "reload", "wait_sec": 60}, with max_wait_sec and args if wanted'
         WHEN btrim(debounce ->> 'key') = '' OR octet_length(debounce ->> 'key') > 500 THEN 'has a key that is empty or has over 500 bytes'
         WHEN (debounce ->> 'wait_sec')::numeric NOT BETWEEN 0.001 AND 2678400 THEN 'must have a wait_sec of 0.001 to 2678400'
         WHEN (debounce ->> 'max_wait_sec')::numeric NOT BETWEEN (debounce ->> 'wait_sec')::numeric AND 26784000
         THEN 'must have a max_wait_sec of wait_sec to 26784000'
         WHEN coalesce(debounce ->> 'args', 'last') NOT IN ('last', 'first', 'list') THEN 'must have "last", "first" or "list" as args'
         END;

-- What is wrong with the `throttle` of a request; NULL: nothing.
CREATE OR REPLACE FUNCTION dl_throttle_problem(throttle jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE RETURN
    CASE WHEN throttle IS NULL THEN NULL
         WHEN jsonb_typeof(throttle) <> 'object' OR throttle - '{key,per_sec}'::text[] <> '{}'
              OR jsonb_typeof(throttle -> 'key') IS DISTINCT FROM 'string' OR jsonb_typeof(throttle -> 'per_sec') IS DISTINCT FROM 'number'
         THEN 'must be an object such as {"key": "reload", "per_sec": 3600}'
         WHEN btrim(throttle ->> 'key') = '' OR octet_length(throttle ->> 'key') > 500 THEN 'has a key that is empty or has over 500 bytes'
         WHEN (throttle ->> 'per_sec')::numeric NOT BETWEEN 1 AND 2678400 THEN 'must have a per_sec of 1 to 2678400'
         END;

-- Whether a further request completes the list of args of a debounced job.
CREATE OR REPLACE FUNCTION dl_is_list_full(args jsonb, debounce jsonb) RETURNS bool
    LANGUAGE sql IMMUTABLE RETURN
    CASE WHEN debounce ->> 'args' = 'list' AND jsonb_typeof(args -> 'items') = 'array'
         THEN jsonb_array_length(args -> 'items') >= 999 OR octet_length(args::text) > 8388608 ELSE false END;

-- A further request for the queued job with this debounce key: moves its time, and changes its args as the request says.
-- The key is free again when a list has 1,000 args or 8 MiB: a worker reads no more than 64. NULL: no queued job of this queue
-- and task has the key.
CREATE OR REPLACE FUNCTION dl_debounce(request dl_enqueue_request) RETURNS uuid
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    checked_before text := coalesce(current_setting('dl.events_checked', true), '');
    debounced_job  uuid;
BEGIN
    PERFORM set_config('dl.events_checked', 'yes', true);
    WITH changed AS (
        UPDATE dl_jobs j
           SET args = CASE coalesce(request.debounce ->> 'args', 'last')
                           WHEN 'last' THEN request.args
                           WHEN 'list' THEN jsonb_set(j.args, '{items}', CASE jsonb_typeof(j.args -> 'items') WHEN 'array' THEN j.args -> 'items'
                                                                              ELSE '[]' END || (request.args -> 'items'))
                           ELSE j.args END,
               available_at = CASE WHEN dl_is_list_full(j.args, request.debounce) THEN clock_timestamp()
                                   ELSE least(clock_timestamp() + make_interval(secs => (request.debounce ->> 'wait_sec')::float8),
                                              j.created_at + make_interval(secs => coalesce((request.debounce ->> 'max_wait_sec')::float8,
                                                                               10 * (request.debounce ->> 'wait_sec')::float8))) END,
               expires_at = coalesce(request.expires_at, j.expires_at),
               debounce_key = CASE WHEN NOT dl_is_list_full(j.args, request.debounce) THEN j.debounce_key END
         WHERE j.debounce_key = request.debounce ->> 'key' AND j.status = 'queued' AND NOT j.cancel_requested
           AND j.queue = request.queue AND j.task = request.task
        RETURNING j.job_id, j.queue, j.attempt
    ), events AS (
        INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
        SELECT job_id, queue, clock_timestamp(), 'debounced', jsonb_build_object('status', 'queued', 'attempt', attempt) FROM changed
    )
    SELECT job_id INTO debounced_job FROM changed;
    PERFORM set_config('dl.events_checked', checked_before, true);
    RETURN debounced_job;
END $$;

-- What is wrong with the fields that a usual request does not have: a field, and its problem; NULL: nothing.
CREATE OR REPLACE FUNCTION dl_seldom_problem(r dl_enqueue_request) RETURNS text[]
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN CASE
        -- fields of a job: seldom_checks
        WHEN nullif(r.limits, 'null') IS NOT NULL AND dl_limits_problem(r.limits) IS NOT NULL
        THEN ARRAY['limits', dl_limits_problem(r.limits)]
        WHEN (r.need IS NOT NULL OR nullif(r.after, 'null') IS NOT NULL)
             AND (nullif(r.after, 'null') IS NULL OR dl_after_problem(r.after, r.need) IS NOT NULL)
        THEN ARRAY['after', dl_after_problem(nullif(r.after, 'null'), r.need)]
        WHEN (r.interval_start IS NULL) <> (r.interval_end IS NULL) OR r.interval_start >= r.interval_end
        THEN ARRAY['interval_end', 'must be later than interval_start, and neither is given alone']
        WHEN r.start_within_sec IS NOT NULL AND r.expires_at IS NOT NULL
        THEN ARRAY['start_within_sec', 'cannot be combined with expires_at']
        WHEN nullif(r.debounce, 'null') IS NOT NULL AND dl_debounce_problem(r.debounce) IS NOT NULL
        THEN ARRAY['debounce', dl_debounce_problem(r.debounce)]
        WHEN nullif(r.debounce, 'null') IS NOT NULL
             AND (r.available_at IS NOT NULL OR r.idempotency_key IS NOT NULL OR r.live_key IS NOT NULL
                  OR nullif(r.after, 'null') IS NOT NULL OR nullif(r.throttle, 'null') IS NOT NULL)
        THEN ARRAY['debounce', 'cannot be combined with idempotency_key, live_key, available_at, after or throttle']
        WHEN nullif(r.throttle, 'null') IS NOT NULL AND dl_throttle_problem(r.throttle) IS NOT NULL
        THEN ARRAY['throttle', dl_throttle_problem(r.throttle)]
        WHEN nullif(r.throttle, 'null') IS NOT NULL AND r.live_key IS NOT NULL
        THEN ARRAY['throttle', 'cannot be combined with live_key or debounce']
    END;
END $$;

-- What is wrong with a request: a field, and its problem; NULL: nothing. The limits are those of the HTTP API. Its callers
-- are planned with its text, as that of a view: what a usual request does not have is looked at by a function that is not.
CREATE OR REPLACE FUNCTION dl_request_problem(r dl_enqueue_request) RETURNS text[]
    LANGUAGE sql STABLE
    RETURN CASE
        -- fields of a job: often_checks
        WHEN num_nonnulls(
            -- fields of a job: seldom_set
        ) > 0 THEN dl_seldom_problem(r)
    END;

-- Requests as rows with their defaults filled in, each with what is wrong with it. A value that cannot be cast raises an
-- error; dl_create_jobs finds out whose it was.
CREATE OR REPLACE FUNCTION dl_parse_requests(jobs jsonb) RETURNS SETOF dl_enqueue_request
    LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT i.n, dl_new_id(), found.problem[1], found.problem[2],
           -- fields of a job: parsed
      FROM jsonb_array_elements(jobs) WITH ORDINALITY AS i (item, n)
           CROSS JOIN (SELECT ARRAY[
               -- fields of a job: names
           ] AS names OFFSET 0) known
           CROSS JOIN LATERAL jsonb_populate_record(
               NULL::dl_enqueue_request,
               CASE jsonb_typeof(i.item) WHEN 'object' THEN i.item - '{n,job_id,field,problem}'::text[] ELSE '{}' END) r
           CROSS JOIN LATERAL (SELECT
               CASE WHEN jsonb_typeof(i.item) <> 'object' THEN ARRAY['', 'is no JSON object']
                    WHEN i.item ? '$problem' THEN ARRAY['$problem', i.item ->> '$problem']
                    WHEN i.item - known.names <> '{}'
                    THEN ARRAY[(SELECT min(key) FROM jsonb_object_keys(i.item - known.names) key),
                               'is no field of this request; leave it out']
                    ELSE dl_request_problem(r) END AS problem
              OFFSET 0) found  -- evaluated once
           CROSS JOIN LATERAL (SELECT
               CASE WHEN found.problem IS NULL AND jsonb_typeof(r.debounce) = 'object'
                    THEN make_interval(secs => (r.debounce ->> 'wait_sec')::float8) END AS wait,
               coalesce(nullif(r.args, 'null'), '{}') AS args OFFSET 0) given
           CROSS JOIN LATERAL (SELECT
               CASE WHEN r.debounce ->> 'args' = 'list' THEN jsonb_build_object('items', jsonb_build_array(given.args))
                    ELSE given.args END AS args,
               coalesce(clock_timestamp() + given.wait, r.available_at, clock_timestamp()) AS available_at,
               coalesce(r.expires_at, greatest(r.available_at, clock_timestamp() + coalesce(given.wait, '0'))
                                      + make_interval(secs => r.start_within_sec)) AS expires_at,
               NULL::int AS start_within_sec,
               coalesce(r.fair_key, CASE WHEN (SELECT EXISTS (SELECT FROM dl_queues WHERE fair IS NOT NULL))
                                         THEN dl_fair_key(r.queue, coalesce(r.partition_key, ''), r.producer, r.args) END)
               AS fair_key) v
$$;

-- The usual case: no request has a key that a job may have already, and all are valid. One INSERT writes them, and returns the
-- jobs in the order of the requests. NULL: it is not that case, and nothing is written.
CREATE OR REPLACE FUNCTION dl_create_plain_jobs(input jsonb) RETURNS uuid[]
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    new            uuid[];
    has_fair_queue bool := EXISTS (SELECT FROM dl_queues WHERE fair IS NOT NULL);
    known_fields   text[] := ARRAY[
        -- fields of a job: names
    ];
    of_other_jobs  text[] := ARRAY[
        -- fields of a job: lookups
    ];
BEGIN
    IF EXISTS (SELECT FROM jsonb_array_elements(input) item
                WHERE item ?| of_other_jobs AND jsonb_strip_nulls(item) ?| of_other_jobs) THEN
        RETURN NULL;
    END IF;
    BEGIN
        WITH new AS (
            INSERT INTO dl_jobs (
                -- fields of a job: plain_columns,
                args, available_at, expires_at, fair_key, wait_state, created_at)
            SELECT
                   -- fields of a job: plain_values,
                   coalesce(nullif(r.args, 'null'), '{}'), coalesce(r.available_at, clock_timestamp()), r.expires_at,
                   coalesce(r.fair_key, CASE WHEN has_fair_queue THEN dl_fair_key(r.queue, coalesce(r.partition_key, ''),
                                                                                  r.producer, r.args) END),
                   CASE WHEN r.available_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END::dl_wait_state,
                   now() + i.n * interval '1 microsecond'  -- so that they are claimed in their order
              FROM jsonb_array_elements(input) WITH ORDINALITY AS i (item, n)
                   CROSS JOIN LATERAL jsonb_populate_record(NULL::dl_enqueue_request, i.item) r
             WHERE i.item - known_fields = '{}' AND dl_request_problem(r) IS NULL
            RETURNING job_id, created_at
        )
        SELECT array_agg(job_id ORDER BY created_at) INTO new FROM new;
        IF cardinality(new) = jsonb_array_length(input) THEN
            RETURN new;
        END IF;
        RAISE EXCEPTION USING ERRCODE = 'DL002';  -- undoes what this block has written
    EXCEPTION WHEN data_exception OR SQLSTATE 'DL002' THEN
        RETURN NULL;
    END;
END $$;

-- The jobs that serve these requests already, because they have a key of theirs: n -> [job_id, status, is_same, is_debounced].
CREATE OR REPLACE FUNCTION dl_find_existing(requests dl_enqueue_request[]) RETURNS jsonb
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    repeated      dl_enqueue_request;
    debounced_job uuid;
    existing      jsonb := '{}';
    additions     jsonb;
BEGIN
    FOR repeated IN SELECT * FROM unnest(requests) a WHERE a.debounce IS NOT NULL ORDER BY a.debounce ->> 'key', a.n LOOP
        debounced_job := dl_debounce(repeated);
        IF debounced_job IS NOT NULL THEN
            existing := existing || jsonb_build_object(repeated.n, jsonb_build_array(debounced_job, 'queued', true, true));
        ELSE
            SELECT j.job_id INTO debounced_job FROM dl_jobs j
             WHERE j.debounce_key = repeated.debounce ->> 'key' AND j.status = 'queued'
               AND (j.queue, j.task) <> (repeated.queue, repeated.task);
            IF debounced_job IS NOT NULL THEN
                existing := existing || jsonb_build_object(repeated.n, jsonb_build_array(debounced_job, 'queued', false));
            END IF;
        END IF;
    END LOOP;

    SELECT coalesce(jsonb_object_agg(l.n, coalesce(k.answer, v.answer, t.answer))
                    FILTER (WHERE coalesce(k.answer, v.answer, t.answer) IS NOT NULL), '{}')
      INTO additions
      FROM (SELECT * FROM unnest(requests) a WHERE a.debounce IS NULL) l
           LEFT JOIN LATERAL (
               SELECT jsonb_build_array(j.job_id, j.status,
                          coalesce(j.request_hash, dl_request_hash(j.queue, j.task, j.args))
                          = dl_request_hash(l.queue, l.task, l.args)) AS answer
                 FROM dl_jobs j WHERE j.idempotency_key = l.idempotency_key LIMIT 1) k ON true
           LEFT JOIN LATERAL (
               -- A slice is loaded once, by whichever queue.
               SELECT jsonb_build_array(j.job_id, j.status,
                          j.task = l.task AND (j.queue = l.queue OR l.live_key LIKE 'slice:%')) AS answer
                 FROM dl_jobs j
                WHERE j.live_key = l.live_key AND j.status IN ('queued', 'running') LIMIT 1) v ON true
           LEFT JOIN LATERAL (
               SELECT jsonb_build_array(j.job_id, j.status, (j.queue, j.task) = (l.queue, l.task)) AS answer
                 FROM dl_jobs j
                WHERE j.throttle_key = (l.throttle ->> 'key') || '@'
                                       || floor(date_part('epoch', clock_timestamp()) / (l.throttle ->> 'per_sec')::float8)
                LIMIT 1) t ON true;
    RETURN existing || additions;
END $$;

-- The work of dl_enqueue_many, without the setting that names the function to the audit.
CREATE OR REPLACE FUNCTION dl_create_jobs(jobs jsonb, whole bool)
    RETURNS TABLE (n bigint, outcome text, job_id uuid, status text, field text, detail text)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    input     jsonb := jobs;
    request   record;
    requests  dl_enqueue_request[];  -- all of them
    pending   dl_enqueue_request[];  -- those without a job yet
    created   jsonb;                 -- ids of new jobs, as keys: a lookup for each, where the planner would misjudge a join
    existing  jsonb := '{}';         -- n -> [job_id, status, is_same, is_debounced] of the job that serves the request already
    additions jsonb;
    new       uuid[];
    rounds    int := 0;
BEGIN
    IF jsonb_typeof(input) IS DISTINCT FROM 'array' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'expected a JSON array of requests';
    END IF;
    new := dl_create_plain_jobs(input);
    IF new IS NOT NULL THEN
        RETURN QUERY SELECT i.n, 'created', i.id, 'queued', NULL::text, NULL::text FROM unnest(new) WITH ORDINALITY AS i (id, n);
        RETURN;
    END IF;

    BEGIN
        SELECT coalesce(array_agg(a), '{}') INTO requests FROM dl_parse_requests(input) a;
    EXCEPTION WHEN data_exception THEN
        -- A value is not of its type. Parse one by one to find out whose.
        input := '[]';
        FOR request IN SELECT i.item FROM jsonb_array_elements(jobs) WITH ORDINALITY AS i (item, n) ORDER BY i.n LOOP
            BEGIN
                PERFORM count(a) FROM dl_parse_requests(jsonb_build_array(request.item)) a;
                input := input || jsonb_build_array(request.item);
            EXCEPTION WHEN data_exception THEN
                input := input || jsonb_build_array(jsonb_build_object('$problem', SQLERRM));
            END;
        END LOOP;
        SELECT array_agg(a) INTO requests FROM dl_parse_requests(input) a;
    END;

    -- Two batches with common debounce keys follow each other: one may have made the job of one key, and the other have changed
    -- that of another, before each asks for the rest.
    PERFORM pg_advisory_xact_lock(1684828532, k.hash)
       FROM (SELECT DISTINCT hashtext(a.debounce ->> 'key') AS hash FROM unnest(requests) a
              WHERE a.debounce IS NOT NULL AND a.field IS NULL ORDER BY 1 OFFSET 0) k;
    BEGIN
        SELECT array_agg(a), '{}' INTO pending, created FROM unnest(requests) a WHERE a.field IS NULL;
        WHILE cardinality(pending) > 0 LOOP
            rounds := rounds + 1;
            IF rounds > 20 THEN
                RAISE serialization_failure USING MESSAGE = 'keys of this batch come and go; try again';
            END IF;
            -- In the order of the keys: two batches with common keys wait for each other in one direction only.
            WITH new AS (
                INSERT INTO dl_jobs (
                    -- fields of a job: columns,
                    job_id, debounce_key, throttle_key, request_hash, wait_state, created_at)
                SELECT
                       -- fields of a job: requested,
                       a.job_id, a.debounce ->> 'key',
                       (a.throttle ->> 'key') || '@' || floor(date_part('epoch', clock_timestamp()) / (a.throttle ->> 'per_sec')::float8),
                       CASE WHEN a.idempotency_key IS NOT NULL THEN dl_request_hash(a.queue, a.task, a.args) END,
                       CASE WHEN a.available_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END::dl_wait_state,
                       now() + a.n * interval '1 microsecond'  -- so that they are claimed in their order
                  FROM unnest(pending) a
                 ORDER BY a.idempotency_key, a.live_key, a.debounce ->> 'key', a.throttle ->> 'key', a.n
                    ON CONFLICT DO NOTHING
                RETURNING job_id
            )
            SELECT array_agg(job_id) INTO new FROM new;
            PERFORM dl_set_parents(a.job_id, a.after, a.need) FROM unnest(pending) a
              WHERE a.after IS NOT NULL AND a.job_id = ANY (new);
            IF rounds = 1 AND cardinality(new) = cardinality(requests) THEN  -- the usual case: all are valid and new
                RETURN QUERY SELECT a.n, 'created', a.job_id, 'queued', NULL::text, NULL::text FROM unnest(requests) a ORDER BY a.n;
                RETURN;
            END IF;
            SELECT coalesce(jsonb_object_agg(id, true), '{}') INTO additions FROM unnest(new) id;
            created := created || additions;
            SELECT array_agg(a) INTO pending FROM unnest(pending) a WHERE NOT created ? a.job_id::text;
            EXIT WHEN pending IS NULL;

            -- Of a request without such a job: it was deleted, has finished or has started meanwhile, so try again.
            existing := existing || dl_find_existing(pending);
            SELECT array_agg(a) INTO pending FROM unnest(pending) a WHERE NOT existing ? a.n::text;
        END LOOP;
        IF whole AND (EXISTS (SELECT FROM unnest(requests) a WHERE a.field IS NOT NULL)
                      OR EXISTS (SELECT FROM jsonb_each(existing) f WHERE NOT (f.value ->> 2)::bool)) THEN
            RAISE EXCEPTION USING ERRCODE = 'DL001';  -- undoes what this block has written
        END IF;
    EXCEPTION WHEN SQLSTATE 'DL001' THEN
        -- Jobs of this batch that served another of its requests are undone too, and so are changes of debounced jobs.
        SELECT coalesce(jsonb_object_agg(f.key, f.value), '{}')
          INTO existing
          FROM jsonb_each(existing) f
         WHERE NOT created ? (f.value ->> 0) AND f.value -> 3 IS NULL;
        created := '{}';
    END;

    RETURN QUERY
    SELECT a.n,
           CASE WHEN a.field IS NOT NULL THEN 'invalid'
                WHEN created ? a.job_id::text THEN 'created'
                WHEN f IS NULL THEN 'skipped'
                WHEN (f ->> 3)::bool THEN 'debounced'
                WHEN (f ->> 2)::bool THEN 'exists'
                ELSE 'conflict' END,
           CASE WHEN created ? a.job_id::text THEN a.job_id ELSE (f ->> 0)::uuid END,
           CASE WHEN created ? a.job_id::text THEN 'queued' ELSE f ->> 1 END,
           nullif(nullif(a.field, '$problem'), ''), a.problem
      FROM unnest(requests) a
           CROSS JOIN LATERAL (SELECT existing -> a.n::text AS f) instead
     ORDER BY a.n;
END $$;

-- Enqueue many jobs in the caller's own transaction: a JSON array of objects with the fields of the HTTP API's trigger.
-- Returns one row a request, in their order, with its outcome:
--   created, exists   job_id and status are those of the job that now serves the request
--   debounced         the request changed a queued job (job_id) with its debounce key
--   conflict          a key belongs to a job (job_id) of another queue or task, or an idempotency key to one with other args
--   invalid           field and detail say what is wrong
--   skipped           the request is valid, but `whole` was asked for and another one is not
-- With `whole`, either all of them are created or exist, or none is created.
CREATE OR REPLACE FUNCTION dl_enqueue_many(jobs jsonb, whole bool DEFAULT false)
    RETURNS TABLE (n bigint, outcome text, job_id uuid, status text, field text, detail text)
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    function_before text := coalesce(current_setting('dl.function', true), '');
BEGIN
    PERFORM set_config('dl.function', 'dl_enqueue', true);
    RETURN QUERY SELECT * FROM dl_create_jobs(jobs, whole);
    PERFORM set_config('dl.function', function_before, true);
END $$;

-- Enqueue one job in the caller's own transaction; returns its id, or that of the job that serves the request already.
-- Errors: 22023 for an invalid value, 23505 for a key of another request.
CREATE OR REPLACE FUNCTION dl_enqueue(
    -- fields of a job: parameters
) RETURNS uuid
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    result record;
BEGIN
    -- Without nulls and defaults, which cost time to read; nulls within args, retry and limits stay.
    SELECT m.* INTO result
      FROM dl_enqueue_many(jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
               -- fields of a job: arguments
           ))
           || jsonb_build_object('args', args)
           || CASE WHEN retry IS NULL THEN '{}' ELSE jsonb_build_object('retry', retry) END
           || CASE WHEN limits IS NULL THEN '{}' ELSE jsonb_build_object('limits', limits) END)) m;
    IF result.outcome = 'invalid' THEN
        RAISE invalid_parameter_value USING MESSAGE = coalesce(result.field || ' ', '') || result.detail;
    ELSIF result.outcome = 'conflict' THEN
        RAISE unique_violation
              USING MESSAGE = format('the key %L already belongs to job %s, which has another queue, task or args; '
                                     'use a new key for a new request',
                                     coalesce(idempotency_key, live_key, throttle ->> 'key', debounce ->> 'key'), result.job_id),
                    DETAIL = result.job_id::text;
    END IF;
    RETURN result.job_id;
END $$;

-- ── First partitions, rights ─────────────────────────────────────────────────────────────────────────────────────────

SELECT dl_create_partitions(parent, interval '6 days', interval '1 day'), dl_advance_sequence(parent)
  FROM unnest(ARRAY['dl_job_events', 'dl_job_logs', 'dl_progress']) AS p (parent);

-- Only the owner may call the functions that have the owner's rights, until roles.sql grants them. Triggers fire all the
-- same. PUBLIC keeps two: a plain INSERT draws an id and checks tags with the rights of its sender.
REVOKE EXECUTE ON FUNCTION
    dl_create_partitions, dl_advance_sequence, dl_drop_partitions, dl_job_events_check_job, dl_jobs_deleted,
    dl_notify_queue, dl_jobs_inserted, dl_jobs_before_update, dl_jobs_updated,
    dl_parse_requests, dl_enqueue_many, dl_enqueue
  FROM PUBLIC;
GRANT EXECUTE ON FUNCTION dl_new_id, dl_is_tag_list TO PUBLIC;

COMMIT;
