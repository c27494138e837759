-- The schema of dataloader, as it is today. Needs PostgreSQL 15 or newer, and no extension.
-- Made by `make generated` of app/queue/schema.sql and app/features/*/schema.sql: change those.
--
-- Builds all tables in an empty schema: the first one of the search path. Where tables of dataloader are already, it
-- changes nothing and fails: `dataloader migrate` upgrades them (app/db/migrations/), and applies this file to an
-- empty database. Other services read these tables and insert into dl_jobs directly.

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
    queue text, task text, lock_key text, args jsonb, idempotency_key text, partition_key text, priority int,
    available_at timestamptz, max_attempts int, lease_ttl_sec int, producer text, consumer_group text, live_key text,
    time_limit_sec int, retry jsonb, limits jsonb, after jsonb, need text, fair_key text, debounce jsonb,
    throttle jsonb, expires_at timestamptz, start_within_sec int, logical_at timestamptz, interval_start timestamptz,
    interval_end timestamptz, tags text[], webhook jsonb, parent_id uuid, traceparent text, schedule_id uuid,
    backfill_id uuid
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
    RETURN (filter ->> 'job_id' IS NULL OR j.job_id = ANY ((filter ->> 'job_id')::uuid[]))
       AND (filter ->> 'idempotency_key' IS NULL OR j.idempotency_key = filter ->> 'idempotency_key')
       AND (filter ->> 'status' IS NULL OR j.status::text = ANY ((filter ->> 'status')::text[]))
       AND (filter ->> 'wait_state' IS NULL OR j.status::text = 'queued' AND j.wait_state::text = filter ->> 'wait_state')
       AND (filter ->> 'queue' IS NULL OR j.queue = filter ->> 'queue')
       AND (filter ->> 'task' IS NULL OR j.task = filter ->> 'task')
       AND (filter ->> 'lock_key' IS NULL OR j.lock_key = filter ->> 'lock_key')
       AND (filter ->> 'partition_key' IS NULL OR j.partition_key = filter ->> 'partition_key')
       AND (filter ->> 'producer' IS NULL OR j.producer = filter ->> 'producer')
       AND (filter ->> 'consumer_group' IS NULL OR j.consumer_group = filter ->> 'consumer_group')
       AND (filter ->> 'tag' IS NULL OR j.tags @> ARRAY[filter ->> 'tag'])
       AND (filter ->> 'fingerprint' IS NULL OR j.error_fingerprint = filter ->> 'fingerprint')
       AND (filter ->> 'warnings' IS NULL OR (j.warnings IS NOT NULL) = (filter ->> 'warnings')::bool)
       AND (filter ->> 'created_from' IS NULL OR j.created_at >= (filter ->> 'created_from')::timestamptz)
       AND (filter ->> 'created_to' IS NULL OR j.created_at < (filter ->> 'created_to')::timestamptz)
       AND (filter ->> 'started_from' IS NULL OR j.started_at >= (filter ->> 'started_from')::timestamptz)
       AND (filter ->> 'started_to' IS NULL OR j.started_at < (filter ->> 'started_to')::timestamptz)
       AND (filter ->> 'finished_from' IS NULL OR j.finished_at >= (filter ->> 'finished_from')::timestamptz)
       AND (filter ->> 'finished_to' IS NULL OR j.finished_at < (filter ->> 'finished_to')::timestamptz)
       AND (filter ->> 'text' IS NULL OR strpos(lower(j.args::text), lower(filter ->> 'text')) > 0
            OR strpos(lower(coalesce(j.error, '')), lower(filter ->> 'text')) > 0)
       AND (filter ->> 'args' IS NULL OR (split_part(filter ->> 'args', E'\n', 1) = '' OR j.args #>> string_to_array(split_part(split_part(filter ->> 'args', E'\n', 1), ':', 1), '.')
             = substr(split_part(filter ->> 'args', E'\n', 1), strpos(split_part(filter ->> 'args', E'\n', 1), ':') + 1))
            AND (split_part(filter ->> 'args', E'\n', 2) = '' OR j.args #>> string_to_array(split_part(split_part(filter ->> 'args', E'\n', 2), ':', 1), '.')
             = substr(split_part(filter ->> 'args', E'\n', 2), strpos(split_part(filter ->> 'args', E'\n', 2), ':') + 1))
            AND (split_part(filter ->> 'args', E'\n', 3) = '' OR j.args #>> string_to_array(split_part(split_part(filter ->> 'args', E'\n', 3), ':', 1), '.')
             = substr(split_part(filter ->> 'args', E'\n', 3), strpos(split_part(filter ->> 'args', E'\n', 3), ':') + 1))
            AND (split_part(filter ->> 'args', E'\n', 4) = '' OR j.args #>> string_to_array(split_part(split_part(filter ->> 'args', E'\n', 4), ':', 1), '.')
             = substr(split_part(filter ->> 'args', E'\n', 4), strpos(split_part(filter ->> 'args', E'\n', 4), ':') + 1)))
       AND (filter ->> 'error' IS NULL OR strpos(lower(coalesce(j.error, '')), lower(filter ->> 'error')) > 0)
       AND (filter ->> 'worker' IS NULL OR starts_with(j.worker, filter ->> 'worker'));

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
        WHEN extract(epoch FROM r.available_at) < -62135596800 OR extract(epoch FROM r.available_at) >= 253402214400 THEN ARRAY['available_at', 'must be a time between the years 1 and 9999']
        WHEN octet_length(r.consumer_group) > 2000 THEN ARRAY['consumer_group', 'must be a text of at most 2000 bytes in UTF-8']
        WHEN btrim(r.live_key, E' \t\n\r\f\x0b') = '' OR octet_length(r.live_key) > 2000 THEN ARRAY['live_key', 'must be a text that is not empty, of at most 2000 bytes in UTF-8']
        WHEN r.time_limit_sec < 1 THEN ARRAY['time_limit_sec', 'must be 1 or more']
        WHEN jsonb_typeof(r.retry) NOT IN ('object', 'null') THEN ARRAY['retry', 'must be a JSON object']
        WHEN octet_length(r.fair_key) > 500 THEN ARRAY['fair_key', 'must be a text of at most 500 bytes in UTF-8']
        WHEN extract(epoch FROM r.expires_at) < -62135596800 OR extract(epoch FROM r.expires_at) >= 253402214400 THEN ARRAY['expires_at', 'must be a time between the years 1 and 9999']
        WHEN r.start_within_sec < 1 THEN ARRAY['start_within_sec', 'must be 1 or more']
        WHEN extract(epoch FROM r.logical_at) < -62135596800 OR extract(epoch FROM r.logical_at) >= 253402214400 THEN ARRAY['logical_at', 'must be a time between the years 1 and 9999']
        WHEN extract(epoch FROM r.interval_start) < -62135596800 OR extract(epoch FROM r.interval_start) >= 253402214400 THEN ARRAY['interval_start', 'must be a time between the years 1 and 9999']
        WHEN extract(epoch FROM r.interval_end) < -62135596800 OR extract(epoch FROM r.interval_end) >= 253402214400 THEN ARRAY['interval_end', 'must be a time between the years 1 and 9999']
        WHEN NOT dl_is_tag_list(nullif(r.tags, '{}')) THEN ARRAY['tags', 'must be an array of at most 20 texts, each of 1 to 100 bytes in UTF-8']
        WHEN jsonb_typeof(r.webhook) NOT IN ('object', 'null') THEN ARRAY['webhook', 'must be a JSON object']
        WHEN octet_length(r.traceparent) > 2000 THEN ARRAY['traceparent', 'must be a text of at most 2000 bytes in UTF-8']
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
        WHEN r.queue IS NULL THEN ARRAY['queue', 'is required']
        WHEN btrim(r.queue, E' \t\n\r\f\x0b') = '' OR octet_length(r.queue) > 1000 THEN ARRAY['queue', 'must be a text that is not empty, of at most 1000 bytes in UTF-8']
        WHEN r.task IS NULL THEN ARRAY['task', 'is required']
        WHEN btrim(r.task, E' \t\n\r\f\x0b') = '' OR octet_length(r.task) > 1000 THEN ARRAY['task', 'must be a text that is not empty, of at most 1000 bytes in UTF-8']
        WHEN r.lock_key IS NULL THEN ARRAY['lock_key', 'is required']
        WHEN btrim(r.lock_key, E' \t\n\r\f\x0b') = '' OR octet_length(r.lock_key) > 2000 THEN ARRAY['lock_key', 'must be a text that is not empty, of at most 2000 bytes in UTF-8']
        WHEN jsonb_typeof(r.args) NOT IN ('object', 'null') THEN ARRAY['args', 'must be a JSON object']
        WHEN btrim(r.idempotency_key, E' \t\n\r\f\x0b') = '' OR octet_length(r.idempotency_key) > 2000 THEN ARRAY['idempotency_key', 'must be a text that is not empty, of at most 2000 bytes in UTF-8']
        WHEN octet_length(r.partition_key) > 2000 THEN ARRAY['partition_key', 'must be a text of at most 2000 bytes in UTF-8']
        WHEN r.priority < 0 THEN ARRAY['priority', 'must be 0 or more']
        WHEN r.max_attempts < 1 THEN ARRAY['max_attempts', 'must be 1 or more']
        WHEN r.lease_ttl_sec < 1 THEN ARRAY['lease_ttl_sec', 'must be 1 or more']
        WHEN octet_length(r.producer) > 2000 THEN ARRAY['producer', 'must be a text of at most 2000 bytes in UTF-8']
        WHEN num_nonnulls(
            r.available_at, r.consumer_group, r.live_key, r.time_limit_sec, r.retry, r.limits, r.after, r.need,
            r.fair_key, r.debounce, r.throttle, r.expires_at, r.start_within_sec, r.logical_at, r.interval_start,
            r.interval_end, r.tags, r.webhook, r.parent_id, r.traceparent, r.schedule_id, r.backfill_id
        ) > 0 THEN dl_seldom_problem(r)
    END;

-- Requests as rows with their defaults filled in, each with what is wrong with it. A value that cannot be cast raises an
-- error; dl_create_jobs finds out whose it was.
CREATE OR REPLACE FUNCTION dl_parse_requests(jobs jsonb) RETURNS SETOF dl_enqueue_request
    LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT i.n, dl_new_id(), found.problem[1], found.problem[2],
           r.queue, r.task, r.lock_key, v.args, r.idempotency_key, coalesce(r.partition_key, ''),
           coalesce(r.priority, 100), v.available_at, coalesce(r.max_attempts, 5), coalesce(r.lease_ttl_sec, 60),
           r.producer, r.consumer_group, r.live_key, r.time_limit_sec, nullif(r.retry, 'null'),
           nullif(r.limits, 'null'), nullif(r.after, 'null'), r.need, v.fair_key, nullif(r.debounce, 'null'),
           nullif(r.throttle, 'null'), v.expires_at, v.start_within_sec, r.logical_at, r.interval_start, r.interval_end,
           nullif(r.tags, '{}'), nullif(r.webhook, 'null'), r.parent_id, r.traceparent, r.schedule_id, r.backfill_id
      FROM jsonb_array_elements(jobs) WITH ORDINALITY AS i (item, n)
           CROSS JOIN (SELECT ARRAY[
               'queue', 'task', 'lock_key', 'args', 'idempotency_key', 'partition_key', 'priority', 'available_at',
               'max_attempts', 'lease_ttl_sec', 'producer', 'consumer_group', 'live_key', 'time_limit_sec', 'retry',
               'limits', 'after', 'need', 'fair_key', 'debounce', 'throttle', 'expires_at', 'start_within_sec',
               'logical_at', 'interval_start', 'interval_end', 'tags', 'webhook', 'parent_id', 'traceparent',
               'schedule_id', 'backfill_id'
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
        'queue', 'task', 'lock_key', 'args', 'idempotency_key', 'partition_key', 'priority', 'available_at',
        'max_attempts', 'lease_ttl_sec', 'producer', 'consumer_group', 'live_key', 'time_limit_sec', 'retry', 'limits',
        'after', 'need', 'fair_key', 'debounce', 'throttle', 'expires_at', 'start_within_sec', 'logical_at',
        'interval_start', 'interval_end', 'tags', 'webhook', 'parent_id', 'traceparent', 'schedule_id', 'backfill_id'
    ];
    of_other_jobs  text[] := ARRAY[
        'idempotency_key', 'live_key', 'after', 'need', 'debounce', 'throttle', 'start_within_sec'
    ];
BEGIN
    IF EXISTS (SELECT FROM jsonb_array_elements(input) item
                WHERE item ?| of_other_jobs AND jsonb_strip_nulls(item) ?| of_other_jobs) THEN
        RETURN NULL;
    END IF;
    BEGIN
        WITH new AS (
            INSERT INTO dl_jobs (
                queue, task, lock_key, partition_key, priority, max_attempts, lease_ttl_sec, producer, consumer_group,
                time_limit_sec, retry, limits, logical_at, interval_start, interval_end, tags, webhook, parent_id,
                traceparent, schedule_id, backfill_id,
                args, available_at, expires_at, fair_key, wait_state, created_at)
            SELECT
                   r.queue, r.task, r.lock_key, coalesce(r.partition_key, ''), coalesce(r.priority, 100),
                   coalesce(r.max_attempts, 5), coalesce(r.lease_ttl_sec, 60), r.producer, r.consumer_group,
                   r.time_limit_sec, nullif(r.retry, 'null'), nullif(r.limits, 'null'), r.logical_at, r.interval_start,
                   r.interval_end, nullif(r.tags, '{}'), nullif(r.webhook, 'null'), r.parent_id, r.traceparent,
                   r.schedule_id, r.backfill_id,
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
                    queue, task, lock_key, args, idempotency_key, partition_key, priority, available_at, max_attempts,
                    lease_ttl_sec, producer, consumer_group, live_key, time_limit_sec, retry, limits, fair_key,
                    expires_at, logical_at, interval_start, interval_end, tags, webhook, parent_id, traceparent,
                    schedule_id, backfill_id,
                    job_id, debounce_key, throttle_key, request_hash, wait_state, created_at)
                SELECT
                       a.queue, a.task, a.lock_key, a.args, a.idempotency_key, a.partition_key, a.priority,
                       a.available_at, a.max_attempts, a.lease_ttl_sec, a.producer, a.consumer_group, a.live_key,
                       a.time_limit_sec, a.retry, a.limits, a.fair_key, a.expires_at, a.logical_at, a.interval_start,
                       a.interval_end, a.tags, a.webhook, a.parent_id, a.traceparent, a.schedule_id, a.backfill_id,
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
    queue text, task text, lock_key text, args jsonb DEFAULT '{}', idempotency_key text DEFAULT NULL,
    partition_key text DEFAULT '', priority int DEFAULT 100, available_at timestamptz DEFAULT NULL,
    max_attempts int DEFAULT 5, lease_ttl_sec int DEFAULT 60, producer text DEFAULT NULL,
    consumer_group text DEFAULT NULL, live_key text DEFAULT NULL, time_limit_sec int DEFAULT NULL,
    retry jsonb DEFAULT NULL, parent_id uuid DEFAULT NULL, limits jsonb DEFAULT NULL, after jsonb DEFAULT NULL,
    need text DEFAULT NULL, fair_key text DEFAULT NULL, debounce jsonb DEFAULT NULL, throttle jsonb DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL, start_within_sec int DEFAULT NULL, logical_at timestamptz DEFAULT NULL,
    interval_start timestamptz DEFAULT NULL, interval_end timestamptz DEFAULT NULL, tags text[] DEFAULT NULL
) RETURNS uuid
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    result record;
BEGIN
    -- Without nulls and defaults, which cost time to read; nulls within args, retry and limits stay.
    SELECT m.* INTO result
      FROM dl_enqueue_many(jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
               'queue', queue, 'task', task, 'lock_key', lock_key, 'idempotency_key', idempotency_key,
               'partition_key', nullif(partition_key, ''), 'priority', nullif(priority, 100),
               'available_at', available_at, 'max_attempts', nullif(max_attempts, 5),
               'lease_ttl_sec', nullif(lease_ttl_sec, 60), 'producer', producer, 'consumer_group', consumer_group,
               'live_key', live_key, 'time_limit_sec', time_limit_sec, 'parent_id', parent_id, 'after', after,
               'need', need, 'fair_key', fair_key, 'debounce', debounce, 'throttle', throttle, 'expires_at', expires_at,
               'start_within_sec', start_within_sec, 'logical_at', logical_at, 'interval_start', interval_start,
               'interval_end', interval_end, 'tags', tags
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

-- ── app/features/audit ──────────────────────────────────────────────────────────────────────────────────────────────

-- Who changed what, from where. No foreign keys: entries outlive what they are about.
-- rights of the service: SELECT, INSERT
CREATE TABLE dl_audit (
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
    db_user    text        NOT NULL DEFAULT session_user  -- an account that may write here may claim any actor
);
CREATE INDEX dl_audit_subject_idx ON dl_audit (subject_id, audit_id);
CREATE INDEX dl_audit_at_idx ON dl_audit USING brin (at);
-- All but triggers, which are the larger part.
CREATE INDEX dl_audit_changes_idx ON dl_audit (audit_id) WHERE subject <> 'job' OR before IS NOT NULL OR after IS NULL;

-- The actor of this transaction: dl.audit_context, if the account may write the audit itself; NULL if it sets none. Of any
-- other account, whatever it has set, the account: the triggers have the owner's rights, and would write any name
-- otherwise. The setting `role` is the caller's, also within a function with the owner's rights. Only triggers call it: they set
-- the search path.
CREATE OR REPLACE FUNCTION dl_audit_context(operation text) RETURNS jsonb
    LANGUAGE plpgsql STABLE AS $$
DECLARE
    caller text := coalesce(nullif(current_setting('role', true), 'none'), session_user);
BEGIN
    IF has_table_privilege(session_user, 'dl_audit', 'INSERT') OR has_table_privilege(caller, 'dl_audit', 'INSERT') THEN
        RETURN nullif(current_setting('dl.audit_context', true), '')::jsonb;
    END IF;
    -- Any account can set dl.function, too: only the value that dl_enqueue sets is recorded.
    RETURN jsonb_build_object('action', CASE current_setting('dl.function', true) WHEN 'dl_enqueue' THEN 'dl_enqueue'
                                                                                   ELSE lower(operation) END,
                              'actor', session_user, 'via', 'sql');
END $$;

-- A value that is not shown: of an object, the keys that the other one lacks or has with another value.
CREATE OR REPLACE FUNCTION dl_audit_diff_keys(this jsonb, other jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN jsonb_typeof(this) IS DISTINCT FROM 'object' THEN CASE WHEN this IS NOT NULL THEN '"…"'::jsonb END
        ELSE (SELECT coalesce(jsonb_agg(key ORDER BY key), '[]')
                FROM jsonb_object_keys(this) key
               WHERE CASE jsonb_typeof(other) WHEN 'object' THEN (other -> key) IS DISTINCT FROM (this -> key) ELSE true END)
    END
$$;

-- Writes an audit entry for a changed row, in transactions that set dl.audit_context; all others, such as claims,
-- heartbeats and settlements, only read that setting. Arguments: the subject, the column that identifies it, columns that
-- do not count, columns whose values are not shown.
CREATE OR REPLACE FUNCTION dl_audit_row() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    actor   jsonb := dl_audit_context(TG_OP);
    ignored text[] := string_to_array(TG_ARGV[2], ',');
    hidden  text[] := string_to_array(TG_ARGV[3], ',');
    older   jsonb := CASE WHEN TG_OP = 'INSERT' THEN '{}' ELSE to_jsonb(OLD) - ignored END;
    newer   jsonb := CASE WHEN TG_OP = 'DELETE' THEN '{}' ELSE to_jsonb(NEW) - ignored END;
    before  jsonb;
    after   jsonb;
BEGIN
    SELECT jsonb_object_agg(key, CASE WHEN key <> ALL (hidden) THEN older -> key ELSE dl_audit_diff_keys(older -> key, newer -> key) END),
           jsonb_object_agg(key, CASE WHEN key <> ALL (hidden) THEN newer -> key ELSE dl_audit_diff_keys(newer -> key, older -> key) END)
      INTO before, after
      FROM jsonb_object_keys(older || newer) key
     WHERE (older -> key) IS DISTINCT FROM (newer -> key)
       AND coalesce(older -> key, 'null') IS DISTINCT FROM coalesce(newer -> key, 'null');
    IF after IS NOT NULL THEN
        INSERT INTO dl_audit (action, actor, key_id, via, address, request_id, subject, subject_id, before, after)
        VALUES (actor ->> 'action', actor ->> 'actor', actor ->> 'key_id', actor ->> 'via', actor ->> 'address',
                actor ->> 'request_id', TG_ARGV[0], coalesce(to_jsonb(NEW), to_jsonb(OLD)) ->> TG_ARGV[1],
                CASE WHEN TG_OP <> 'INSERT' THEN before END, CASE WHEN TG_OP <> 'DELETE' THEN after END);
    END IF;
    RETURN NULL;
END $$;

-- Of many jobs inserted by one statement there is one entry: each has its own event.
CREATE OR REPLACE FUNCTION dl_audit_jobs_inserted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    actor jsonb := dl_audit_context(TG_OP);
BEGIN
    IF actor IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO dl_audit (action, actor, key_id, via, address, request_id, subject, subject_id, after)
    SELECT actor ->> 'action', actor ->> 'actor', actor ->> 'key_id', actor ->> 'via', actor ->> 'address',
           actor ->> 'request_id', 'job', job_id::text,
           jsonb_strip_nulls(jsonb_build_object(
               'queue', queue, 'task', task, 'lock_key', lock_key, 'priority', priority, 'available_at', available_at,
               'idempotency_key', idempotency_key, 'producer', producer))
      FROM inserted
     WHERE (SELECT count(*) FROM inserted) = 1;
    IF NOT FOUND THEN
        INSERT INTO dl_audit (action, actor, key_id, via, address, request_id, subject, after)
        SELECT actor ->> 'action', actor ->> 'actor', actor ->> 'key_id', actor ->> 'via', actor ->> 'address', actor ->> 'request_id',
               'job',
               jsonb_build_object('jobs', count(*), 'queues', jsonb_agg(DISTINCT queue), 'tasks', jsonb_agg(DISTINCT task))
          FROM inserted
        HAVING count(*) > 1;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dl_jobs_audit_ins AFTER INSERT ON dl_jobs
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT WHEN (current_setting('dl.audit_context', true) <> '' OR current_setting('dl.function', true) <> '')
    EXECUTE FUNCTION dl_audit_jobs_inserted();

CREATE OR REPLACE TRIGGER dl_jobs_audit AFTER UPDATE OR DELETE ON dl_jobs
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('job', 'job_id',
        'graph_id,graph_key,wait_state,waits_on,unknown_task,run_id,worker,worker_id,lease_expires_at,heartbeat_at,started_at,finished_at,crashes,request_hash,error_fingerprint',
        'args,progress,result,error,traceback,checkpoint,webhook');  -- a webhook's URL may have a token in it

CREATE OR REPLACE TRIGGER dl_queues_audit AFTER INSERT OR UPDATE OR DELETE ON dl_queues
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('queue', 'queue', 'changed_by,changed_at', '');

CREATE OR REPLACE TRIGGER dl_fair_weights_audit AFTER INSERT OR UPDATE OR DELETE ON dl_fair_weights
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('queue', 'queue', '', '');

CREATE OR REPLACE TRIGGER dl_workers_audit AFTER UPDATE OF draining ON dl_workers
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('worker', 'worker_id', 'seen_at,running_attempts,rss_bytes,listener', '');

-- Old entries are deleted by this function alone: a role that may call it cannot remove what it just did.
CREATE OR REPLACE FUNCTION dl_audit_prune(period interval, max_rows int) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    WITH old AS (
        SELECT audit_id FROM dl_audit
         WHERE at < clock_timestamp() - greatest(period, interval '1 day')
         ORDER BY audit_id LIMIT max_rows
    ), deleted AS (
        DELETE FROM dl_audit a USING old WHERE a.audit_id = old.audit_id RETURNING 1
    )
    SELECT count(*) FROM deleted
$$;

REVOKE EXECUTE ON FUNCTION
    dl_audit_row, dl_audit_jobs_inserted, dl_audit_prune
  FROM PUBLIC;

-- ── app/features/keys ───────────────────────────────────────────────────────────────────────────────────────────────

-- API keys. Only a digest of a key is stored, from which the key cannot be recovered.
-- rights of the service: SELECT, UPDATE (last_used_at); none of readers
CREATE TABLE dl_api_keys (
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
    -- Another scope would bypass the limit.
    CONSTRAINT dl_api_keys_chk_limits
        CHECK (tasks IS NULL AND queues IS NULL OR scopes <@ ARRAY['read', 'trigger'])
);

-- Secrets that sign browser sessions, the same for all processes.
-- rights of the service: SELECT, INSERT; none of readers
CREATE TABLE dl_signing_secrets (
    purpose    text        PRIMARY KEY,
    secret     bytea       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE OR REPLACE TRIGGER dl_api_keys_audit AFTER INSERT OR UPDATE OR DELETE ON dl_api_keys
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('key', 'key_id', 'key_id,created_at,last_used_at', 'digest');

-- ── app/features/limits ─────────────────────────────────────────────────────────────────────────────────────────────

-- How many jobs may run, and how many may start in a time. A job names limits in its column `limits`; `queue:NAME` and
-- `task:NAME` apply to all jobs of the queue or task. A name that ends in `:*` is the default of the names that begin so. A
-- name without a row has no limit.
--
-- What counts are the running rows: no counter has to be kept, and the statement that ends a run frees its place. Counting
-- and starting are under the limit's lock, (1684828529, hashtext(name)), which is taken after keys and rows. Its holder waits
-- for no row: it skips locked ones.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_limits (
    name        text        PRIMARY KEY CHECK (name <> '' AND octet_length(name) <= 200),
    concurrency int         CHECK (concurrency >= 0),  -- weight of the jobs that run; 0: none may start; NULL: any
    rate        int         CHECK (rate >= 1),         -- weight of the jobs that start in `per_sec`; NULL: any
    per_sec     float8      CHECK (per_sec > 0 AND per_sec <= 2678400),
    burst       int         CHECK (burst >= 1),        -- of these, how many may start at once; NULL: 1
    note        text,
    changed_by  text,
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT dl_limits_chk_rate CHECK ((rate IS NULL) = (per_sec IS NULL) AND (burst IS NULL OR rate IS NOT NULL))
);
-- Limits that count jobs which do not name them.
CREATE INDEX dl_limits_unnamed_idx ON dl_limits (name) WHERE starts_with(name, 'queue:') OR starts_with(name, 'task:');

-- When the next start of a rate would be due if all were evenly spaced (GCRA: theoretical arrival time).
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_limit_starts (
    name text        PRIMARY KEY,
    tat  timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The jobs of a limit while it takes long to find them: a transaction of hours keeps the index entries of all jobs that have run or
-- waited since it began. `part` 0 has those that counted in the limit, and the first that waited for it; the parts after it have those
-- that claims have locked since then. What a job is now, its row says. Written under the limit's lock; replaced after ten seconds.
-- rights of the service: SELECT, INSERT, DELETE
CREATE TABLE dl_limit_looks (
    name     text        NOT NULL,
    taken_at timestamptz NOT NULL,
    part     bigint      NOT NULL,
    job_ids  uuid[]      NOT NULL,
    is_whole bool        NOT NULL,  -- no other job waited
    PRIMARY KEY (name, taken_at, part)
);

-- A limit's name, and those whose row is its default: the longest first.
CREATE OR REPLACE FUNCTION dl_limit_names(limit_name text) RETURNS text[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ARRAY[limit_name]
           || ARRAY(SELECT array_to_string((string_to_array(limit_name, ':'))[:n], ':') || ':*'
                      FROM generate_series(cardinality(string_to_array(limit_name, ':')) - 1, 1, -1) AS n);

-- The names under which a job counts, and its weight in each.
CREATE OR REPLACE FUNCTION dl_job_limits(limits jsonb, queue text, task text) RETURNS TABLE (name text, weight int)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE ROWS 3 AS $$
    SELECT key, value::int FROM jsonb_each_text(limits)
    UNION ALL
    VALUES ('queue:' || queue, 1), ('task:' || task, 1)
$$;

-- What is wrong with the limits of a request; NULL: nothing.
CREATE OR REPLACE FUNCTION dl_limits_problem(limits jsonb) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    requested record;
    setting   record;
BEGIN
    IF limits IS NULL THEN
        RETURN NULL;
    ELSIF jsonb_typeof(limits) <> 'object' OR (SELECT count(*) FROM jsonb_object_keys(limits)) > 4
          OR jsonb_path_exists(limits, '$.* ? (@.type() <> "number" || @ < 1 || @ > 1000000 || @.floor() <> @)') THEN
        RETURN 'must be an object of at most 4 names with whole numbers from 1 to 1000000, such as {"warehouse": 2}';
    END IF;
    FOR requested IN SELECT key, value::int AS weight FROM jsonb_each_text(limits) ORDER BY key LOOP
        IF requested.key = '' OR octet_length(requested.key) > 200 OR requested.key LIKE '%*' THEN
            RETURN format('has the name %s: names have 1 to 200 bytes and no * at the end',
                          to_jsonb(left(requested.key, 100)));
        ELSIF requested.key LIKE ANY ('{queue:%,task:%}') THEN
            RETURN format('names %s, which applies by itself to the jobs of that queue or task', to_jsonb(requested.key));
        END IF;
        SELECT l.name, l.concurrency, l.rate, coalesce(l.burst, 1) AS burst INTO setting
          FROM dl_limits l
         WHERE l.name = requested.key;
        IF NOT FOUND THEN  -- a default may apply
            SELECT l.name, l.concurrency, l.rate, coalesce(l.burst, 1) AS burst INTO setting
              FROM dl_limits l
             WHERE l.name = ANY (dl_limit_names(requested.key))
             ORDER BY length(l.name) DESC
             LIMIT 1;
        END IF;
        -- A limit of 0 is closed for a time: jobs may wait for it.
        IF setting.concurrency > 0 AND requested.weight > setting.concurrency THEN
            RETURN format('asks for %s of %s, which has %s', requested.weight, to_jsonb(requested.key), setting.concurrency);
        ELSIF setting.rate IS NOT NULL AND requested.weight > setting.burst THEN
            RETURN format('asks for %s starts of %s at once, which allows a burst of %s',
                          requested.weight, to_jsonb(requested.key), setting.burst);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- The jobs of a limit by its last look, if that still counts: all that run and count in it are among them. Nothing, where it has none.
CREATE OR REPLACE FUNCTION dl_limit_look(limit_name text, last_at timestamptz, OUT taken_at timestamptz, OUT job_ids uuid[], OUT is_whole bool)
    LANGUAGE plpgsql VOLATILE STRICT SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    max_jobs int;  -- more take longer to look up, most of which have ended, than a new look takes
BEGIN
    IF last_at BETWEEN clock_timestamp() - interval '10 s' AND clock_timestamp()
       -- Before a limit or breaker counted, claims did not add the jobs that they started.
       AND NOT EXISTS (SELECT FROM dl_limits s WHERE s.name = ANY (dl_limit_names(limit_name)) AND s.changed_at >= last_at)
       AND NOT EXISTS (SELECT FROM dl_breakers b WHERE 'task:' || b.task = limit_name AND b.changed_at >= last_at) THEN
        SELECT array_agg(DISTINCT i.job_id), bool_and(l.is_whole), 100 + 2 * max(cardinality(l.job_ids)) FILTER (WHERE l.part = 0)
          INTO job_ids, is_whole, max_jobs
          FROM dl_limit_looks l CROSS JOIN unnest(l.job_ids) AS i (job_id)
         WHERE l.name = limit_name AND l.taken_at = last_at;
        taken_at := CASE WHEN cardinality(job_ids) <= max_jobs THEN last_at END;
    END IF;
END $$;

-- Looks for the jobs of a limit, whose lock the caller holds, and keeps what it finds if that takes long.
CREATE OR REPLACE FUNCTION dl_take_limit_look(limit_name text) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    began   timestamptz := clock_timestamp();
    running uuid[];
    waiting uuid[];
BEGIN
    running := ARRAY(SELECT r.job_id FROM dl_jobs r CROSS JOIN LATERAL dl_job_limits(r.limits, r.queue, r.task) c
                      WHERE r.status = 'running' AND c.name = limit_name);
    waiting := ARRAY(SELECT j.job_id FROM dl_jobs j
                      WHERE j.waits_on = limit_name AND j.status = 'queued'
                      ORDER BY j.queue, j.wait_state, j.priority, j.created_at, j.job_id
                      LIMIT 101);
    DELETE FROM dl_limit_looks d
     WHERE d.name = limit_name
       AND d.taken_at = (SELECT l.taken_at FROM dl_limit_looks l WHERE l.name = limit_name ORDER BY l.taken_at DESC LIMIT 1);
    IF clock_timestamp() - began > interval '5 ms' AND cardinality(running) <= 1000 THEN
        INSERT INTO dl_limit_looks (name, taken_at, part, job_ids, is_whole)
        VALUES (limit_name, began, 0, running || waiting[:100], cardinality(waiting) <= 100);
    END IF;
END $$;

-- The state of those of these limits that have a row, their own or a default, or a breaker that is not closed: what they allow,
-- and what is used.
CREATE OR REPLACE FUNCTION dl_limit_states(limit_names text[])
    RETURNS TABLE (name text, concurrency int, used int, spacing float8, burst int, tat float8)
    LANGUAGE plpgsql VOLATILE ROWS 4 SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT n.name, least(s.concurrency, b.concurrency) AS concurrency, s.rate, s.per_sec, coalesce(s.burst, 1) AS burst
          FROM unnest(limit_names) AS n (name)
               LEFT JOIN LATERAL (SELECT * FROM dl_limits l
                                   WHERE l.name = ANY (dl_limit_names(n.name))
                                   ORDER BY l.name = n.name DESC, length(l.name) DESC
                                   LIMIT 1) s ON true
               LEFT JOIN LATERAL (SELECT CASE state WHEN 'open' THEN 0 ELSE 1 END AS concurrency FROM dl_breakers
                                   WHERE 'task:' || task = n.name AND state <> 'closed') b ON true
         WHERE s.name IS NOT NULL OR b.concurrency IS NOT NULL
    ), looks AS MATERIALIZED (
        SELECT asked.name, l.job_ids
          FROM asked
               LEFT JOIN LATERAL (SELECT k.taken_at FROM dl_limit_looks k WHERE k.name = asked.name ORDER BY k.taken_at DESC LIMIT 1) last ON true
               LEFT JOIN LATERAL dl_limit_look(asked.name, last.taken_at) l ON l.taken_at IS NOT NULL
         WHERE asked.concurrency IS NOT NULL
    ), running AS MATERIALIZED (
        SELECT c.name, sum(c.weight)::int AS used
          FROM dl_jobs r
               CROSS JOIN LATERAL dl_job_limits(r.limits, r.queue, r.task) c
         WHERE r.status = 'running' AND c.name = ANY (ARRAY(SELECT looks.name FROM looks WHERE looks.job_ids IS NULL))
           AND EXISTS (SELECT FROM looks WHERE looks.job_ids IS NULL)
         GROUP BY c.name
        UNION ALL
        SELECT c.name, sum(c.weight)::int
          FROM looks
               CROSS JOIN unnest(looks.job_ids) AS i (job_id)
               JOIN dl_jobs r ON r.job_id = ANY (ARRAY[i.job_id]) AND r.status::text = 'running'
               CROSS JOIN LATERAL dl_job_limits(r.limits, r.queue, r.task) c
         WHERE c.name = looks.name
         GROUP BY c.name
    )
    SELECT a.name, a.concurrency, coalesce(r.used, 0), a.per_sec / a.rate, a.burst,
           date_part('epoch', (SELECT s.tat FROM dl_limit_starts s WHERE s.name = a.name))
      FROM asked a LEFT JOIN running r ON r.name = a.name;
END $$;

-- The limits after a name that jobs wait for, at most so many, by a loose scan of their index.
CREATE OR REPLACE FUNCTION dl_awaited_limits(max_names int, after text DEFAULT '') RETURNS SETOF text
    LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
    WITH RECURSIVE names AS (
        (SELECT waits_on AS name FROM dl_jobs
          WHERE status = 'queued' AND waits_on IS NOT NULL AND waits_on > after ORDER BY waits_on LIMIT 1)
        UNION ALL
        SELECT (SELECT j.waits_on FROM dl_jobs j
                 WHERE j.status = 'queued' AND j.waits_on IS NOT NULL AND j.waits_on > n.name ORDER BY j.waits_on LIMIT 1)
          FROM names n
         WHERE n.name IS NOT NULL
    )
    SELECT name FROM names WHERE name IS NOT NULL LIMIT max_names
$$;

-- Takes the locks of these limits, in the order of their hashes, until the transaction ends.
CREATE OR REPLACE FUNCTION dl_lock_limits(limit_names text[]) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1684828529, hash)
       FROM (SELECT DISTINCT hashtext(n) AS hash FROM unnest(limit_names) n ORDER BY 1 OFFSET 0) ordered;
END $$;

-- A limit that a job names may have no row: then it counts nothing.
CREATE OR REPLACE FUNCTION dl_uses_limits() RETURNS bool
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN EXISTS (SELECT FROM dl_limits) OR EXISTS (SELECT FROM dl_breakers WHERE state <> 'closed');
END $$;

-- Of jobs that a claim has locked, in the order of their claim, those that may not start now: they become limited, each by the
-- first of its limits that is full. Starts of rates are recorded for the others. A job that was woken for another limit
-- hands that on to the next one.
-- Locks `woken_names` too, which the claim then wakes: all locks of a transaction are taken at once, in one order.
CREATE OR REPLACE FUNCTION dl_apply_limits(job_ids uuid[], woken_names text[], names_limits bool) RETURNS SETOF uuid
    LANGUAGE plpgsql VOLATILE ROWS 1 SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    names  text[];
    states jsonb;
    next_states jsonb;  -- if the job starts
    job    record;
    counts record;
    state  jsonb;
    full_limit text;
    limited     uuid[] := '{}';
    full_limits text[] := '{}';  -- of each of them
    due    float8;
    now_at float8;
    woken_for text[] := '{}';
    began  timestamptz;
BEGIN
    IF job_ids IS NULL
       OR NOT (names_limits AND EXISTS (SELECT FROM dl_limits))
          AND NOT EXISTS (SELECT FROM dl_limits l WHERE starts_with(l.name, 'queue:') OR starts_with(l.name, 'task:'))
          AND NOT EXISTS (SELECT FROM dl_breakers b WHERE b.state <> 'closed') THEN
        RETURN;
    END IF;
    WITH jobs AS MATERIALIZED (
        SELECT DISTINCT j.limits, j.queue, j.task, j.waits_on
          FROM unnest(job_ids) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
    )
    SELECT (SELECT array_agg(DISTINCT c.name)
              FROM jobs CROSS JOIN LATERAL dl_job_limits(jobs.limits, jobs.queue, jobs.task) c
             WHERE EXISTS (SELECT FROM dl_limits l WHERE l.name = ANY (dl_limit_names(c.name)))
                OR EXISTS (SELECT FROM dl_breakers b WHERE 'task:' || b.task = c.name AND b.state <> 'closed')),
           woken_names || (SELECT array_agg(DISTINCT jobs.waits_on) FROM jobs WHERE jobs.waits_on IS NOT NULL)
      INTO names, woken_names;
    IF names IS NULL THEN
        RETURN;
    END IF;
    PERFORM dl_lock_limits(names || woken_names);
    began := clock_timestamp();
    -- In a snapshot taken under the locks: what others committed while they were waited for is counted.
    SELECT coalesce(jsonb_object_agg(s.name, to_jsonb(s)), '{}') INTO states FROM dl_limit_states(names) s;
    IF clock_timestamp() - began > interval '5 ms' THEN
        PERFORM dl_take_limit_look(key) FROM jsonb_object_keys(states) AS key
          WHERE (dl_limit_look(key, (SELECT max(l.taken_at) FROM dl_limit_looks l WHERE l.name = key))).taken_at IS NULL;
    END IF;
    INSERT INTO dl_limit_looks (name, taken_at, part, job_ids, is_whole)
    SELECT key, last.taken_at, last.part + 1, counted.ids, true
      FROM jsonb_object_keys(states) AS key
           CROSS JOIN LATERAL (SELECT l.taken_at, l.part FROM dl_limit_looks l WHERE l.name = key
                                ORDER BY l.taken_at DESC, l.part DESC LIMIT 1) last
           CROSS JOIN LATERAL (SELECT array_agg(j.job_id) AS ids
                                 FROM unnest(job_ids) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
                                      CROSS JOIN LATERAL dl_job_limits(j.limits, j.queue, j.task) c
                                WHERE c.name = key) counted
     WHERE last.taken_at > clock_timestamp() - interval '1 min'  -- longer than it counts: a clock may go back
       AND counted.ids IS NOT NULL;
    now_at := date_part('epoch', clock_timestamp());
    FOR job IN
        SELECT j.job_id, j.queue, j.task, j.limits, j.attempt, j.waits_on
          FROM unnest(job_ids) WITH ORDINALITY AS i (job_id, n) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
         ORDER BY i.n
    LOOP
        full_limit := NULL;
        next_states := states;
        FOR counts IN SELECT c.name, sum(c.weight)::int AS weight FROM dl_job_limits(job.limits, job.queue, job.task) c
                       WHERE states ? c.name GROUP BY c.name ORDER BY c.name LOOP
            state := states -> counts.name;
            due := greatest((state ->> 'tat')::float8, now_at) + (state ->> 'spacing')::float8 * counts.weight;
            IF (state ->> 'used')::int + counts.weight > (state ->> 'concurrency')::int
               OR due - now_at > (state ->> 'burst')::int * (state ->> 'spacing')::float8 * 1.000001 THEN
                full_limit := counts.name;
                EXIT;
            END IF;
            next_states := jsonb_set(next_states, ARRAY[counts.name], state || jsonb_build_object(
                'used', (state ->> 'used')::int + counts.weight, 'tat', due, 'is_started', due IS NOT NULL));
        END LOOP;
        IF full_limit IS NULL THEN
            states := next_states;
        ELSE
            IF job.waits_on <> full_limit THEN
                woken_for := woken_for || job.waits_on;
            END IF;
            limited := limited || job.job_id;
            full_limits := full_limits || full_limit;
        END IF;
    END LOOP;
    IF limited <> '{}' THEN
        WITH changed AS (
            UPDATE dl_jobs j SET wait_state = 'limited', waits_on = l.full_limit
              FROM unnest(limited, full_limits) AS l (job_id, full_limit)
             WHERE j.job_id = ANY (ARRAY[l.job_id])
            RETURNING j.job_id, j.queue, j.attempt, j.waits_on
        )
        INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
        SELECT job_id, queue, clock_timestamp(), 'limited', jsonb_build_object('status', 'queued', 'attempt', attempt, 'waits_on', waits_on)
          FROM changed;
        IF EXISTS (SELECT FROM unnest(full_limits) AS l (name) WHERE states -> l.name ->> 'spacing' IS NOT NULL) THEN
            PERFORM pg_notify('dl_control', 'limits');  -- the maintenance leader wakes them when their time comes
        END IF;
        RETURN QUERY SELECT unnest(limited);
    END IF;
    INSERT INTO dl_limit_starts AS s (name, tat)
    SELECT key, to_timestamp((value ->> 'tat')::float8) FROM jsonb_each(states) WHERE (value ->> 'is_started')::bool
        ON CONFLICT ON CONSTRAINT dl_limit_starts_pkey DO UPDATE SET tat = excluded.tat;
    IF woken_for <> '{}' THEN
        PERFORM dl_wake_limited(woken_for);
    END IF;
END $$;

-- Wakes jobs that wait for these limits, as many as may start now, the best of each queue first, and notifies the queues.
-- A woken job is ready and keeps `waits_on`: until it starts it is counted as woken, and no other one in its place.
-- A job that does not fit waits, and so do those behind it. At most 500 of a queue are woken. dl.made_ready has their ids.
CREATE OR REPLACE FUNCTION dl_wake_limited(limit_names text[]) RETURNS SETOF uuid
    LANGUAGE plpgsql VOLATILE STRICT ROWS 1 SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    checked_before text := coalesce(current_setting('dl.events_checked', true), '');
    limit_name text;
    queue_name text;
    state      record;
    room       float8;
    look       record;
    began      timestamptz;
    fitting    uuid[];
    woken      record;
BEGIN
    PERFORM dl_lock_limits(limit_names);
    FOR limit_name IN SELECT DISTINCT n FROM unnest(limit_names) n ORDER BY n LOOP
        began := clock_timestamp();
        SELECT * INTO look FROM dl_limit_look(limit_name, (SELECT max(l.taken_at) FROM dl_limit_looks l WHERE l.name = limit_name));
        IF NOT look.is_whole AND NOT EXISTS (
               SELECT FROM unnest(look.job_ids) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
                WHERE j.waits_on = limit_name AND j.status::text = 'queued' AND j.wait_state::text = 'limited') THEN
            PERFORM dl_take_limit_look(limit_name);
            SELECT * INTO look FROM dl_limit_look(limit_name, (SELECT max(l.taken_at) FROM dl_limit_looks l WHERE l.name = limit_name));
        END IF;
        IF look.taken_at IS NULL THEN
            queue_name := (SELECT j.queue FROM dl_jobs j
                            WHERE j.waits_on = limit_name AND j.status = 'queued' AND j.wait_state = 'limited' ORDER BY j.queue LIMIT 1);
        END IF;
        IF look.taken_at IS NOT NULL OR queue_name IS NOT NULL THEN
            SELECT * INTO state FROM dl_limit_states(ARRAY[limit_name]);
            room := least(coalesce(state.concurrency - state.used, 1e9),
                          coalesce(floor(state.burst + 0.000001
                                         - greatest(state.tat - date_part('epoch', clock_timestamp()), 0) / state.spacing), 1e9));
        END IF;
        WHILE (look.taken_at IS NOT NULL OR queue_name IS NOT NULL) AND room > 0 LOOP
            PERFORM set_config('dl.events_checked', 'yes', true);
            IF look.taken_at IS NOT NULL THEN
                fitting := ARRAY(
                    SELECT t.job_id
                      FROM (SELECT j.job_id, j.wait_state, sum(coalesce((j.limits ->> limit_name)::int, 1)) OVER (
                                       ORDER BY j.wait_state, j.queue, j.priority, j.created_at, j.job_id) AS total  -- ready ones first
                              FROM unnest(look.job_ids) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
                             WHERE j.waits_on = limit_name AND j.status::text = 'queued' AND j.wait_state::text IN ('ready', 'limited')) t
                     WHERE t.wait_state = 'limited' AND t.total <= room);
            ELSE
                WITH heads AS MATERIALIZED (
                    SELECT j.job_id, j.priority, j.created_at, coalesce((j.limits ->> limit_name)::int, 1) AS weight
                      FROM dl_jobs j
                     WHERE j.waits_on = limit_name AND j.queue = queue_name AND j.status = 'queued' AND j.wait_state = 'limited'
                     ORDER BY j.priority, j.created_at, j.job_id
                     LIMIT least(room, 500)::int
                       FOR NO KEY UPDATE SKIP LOCKED
                )
                SELECT array_agg(job_id) INTO fitting
                  FROM (SELECT job_id, sum(weight) OVER (ORDER BY priority, created_at, job_id) AS total FROM heads) h
                 WHERE total <= room - (SELECT coalesce(sum(coalesce((w.limits ->> limit_name)::int, 1)), 0)
                                          FROM dl_jobs w
                                         WHERE w.waits_on = limit_name AND w.queue = queue_name AND w.status = 'queued'
                                           AND w.wait_state BETWEEN 'ready' AND 'ready');  -- so that no plan walks the ready jobs
            END IF;
            WITH limited AS MATERIALIZED (
                SELECT j.job_id
                  FROM unnest(fitting) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
                 WHERE j.status::text = 'queued' AND j.wait_state::text = 'limited' AND j.waits_on = limit_name
                   FOR NO KEY UPDATE OF j SKIP LOCKED
            ), changed AS (
                UPDATE dl_jobs j
                   SET wait_state = CASE WHEN j.available_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END::dl_wait_state,
                       waits_on = CASE WHEN j.available_at <= clock_timestamp() THEN limit_name END
                  FROM limited
                 WHERE j.job_id = ANY (ARRAY[limited.job_id])
                RETURNING j.job_id, j.queue, j.attempt,
                          set_config('dl.made_ready', concat_ws(' ', current_setting('dl.made_ready', true), j.job_id), true)
            ), events AS (
                INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
                SELECT job_id, queue, clock_timestamp(), 'released',
                       jsonb_build_object('status', 'queued', 'attempt', attempt, 'limit', limit_name)
                  FROM changed
            )
            SELECT array_agg(job_id) AS ids, array_agg(DISTINCT queue) AS queues INTO woken FROM changed;
            PERFORM set_config('dl.events_checked', checked_before, true);
            IF woken.ids IS NOT NULL THEN
                PERFORM dl_notify_queue(q) FROM unnest(woken.queues) AS q;
                RETURN QUERY SELECT unnest(woken.ids);
            END IF;
            EXIT WHEN look.taken_at IS NOT NULL;
            queue_name := (SELECT j.queue FROM dl_jobs j
                            WHERE j.waits_on = limit_name AND j.queue > queue_name AND j.status = 'queued' AND j.wait_state = 'limited'
                            ORDER BY j.queue LIMIT 1);
        END LOOP;
        IF look.taken_at IS NULL AND clock_timestamp() - began > interval '5 ms' THEN
            PERFORM dl_take_limit_look(limit_name);
        END IF;
    END LOOP;
END $$;

-- The limits that jobs wait for and that this row sets: its own name, or with a default all names that begin so.
CREATE OR REPLACE FUNCTION dl_waiting_limits(row_name text) RETURNS text[]
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF row_name NOT LIKE '%:*' THEN
        RETURN ARRAY[row_name];
    END IF;
    RETURN ARRAY(
        WITH RECURSIVE names AS (
            (SELECT waits_on AS name FROM dl_jobs
              WHERE status = 'queued' AND waits_on IS NOT NULL AND waits_on >= left(row_name, -1) ORDER BY waits_on LIMIT 1)
            UNION ALL
            SELECT (SELECT j.waits_on FROM dl_jobs j
                     WHERE j.status = 'queued' AND j.waits_on IS NOT NULL AND j.waits_on > n.name ORDER BY j.waits_on LIMIT 1)
              FROM names n
             WHERE starts_with(n.name, left(row_name, -1))
        )
        SELECT name FROM names WHERE starts_with(name, left(row_name, -1)));
END $$;

CREATE OR REPLACE TRIGGER dl_limits_audit AFTER INSERT OR UPDATE OR DELETE ON dl_limits
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('limit', 'name', 'changed_by,changed_at', '');

-- ── Circuit breakers ─────────────────────────────────────────────────────────────────────────────────────────────────

-- Tasks that stop when too many of their attempts in a row end with an error, or that a person has paused. While a breaker
-- is open the limit task:NAME counts as 0, so no job of the task starts; half-open it counts as 1: the next attempt decides.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_breakers (
    task          text        PRIMARY KEY CHECK (task <> '' AND octet_length(task) <= 1000),
    failures      int         CHECK (failures >= 1),    -- attempts in a row that open it; NULL: only a person does
    window_sec    int         CHECK (window_sec >= 1),  -- a row of failures ends this long after its last one; NULL: never
    resume_sec    int         NOT NULL DEFAULT 300 CHECK (resume_sec >= 1),  -- from opening to the first probe
    state         text        NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'half_open')),
    failed_in_row int         NOT NULL DEFAULT 0,
    failed_at     timestamptz,
    opened_at     timestamptz,
    pause_sec     int,                                  -- of this opening: doubled by each probe that fails
    probe_at      timestamptz,                          -- when it becomes half-open; NULL: when a person closes it
    reason        text,
    is_declared   bool        NOT NULL DEFAULT false,   -- by the task; false once a person has changed the numbers
    changed_by    text,                                 -- who opened or closed it last; NULL: the attempts did
    changed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Counts how attempts ended, in their order, for tasks with a breaker: opens it, closes it, or opens it again for twice as long (up
-- to an hour). Each outcome is an object with the task, the status (succeeded, or else it failed) and the error. A breaker's row
-- is locked after the jobs' rows and before the locks of limits. Returns the limits of the tasks whose breaker closed, for
-- dl_jobs_ended: all locks of limits of a transaction are taken at once.
CREATE OR REPLACE FUNCTION dl_count_outcomes(outcomes jsonb) RETURNS text[]
    LANGUAGE plpgsql VOLATILE STRICT SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    breaker dl_breakers;
    outcome jsonb;
    before  text;
    closed  text[] := '{}';
BEGIN
    FOR breaker IN
        SELECT b.* FROM dl_breakers b
         WHERE b.task IN (SELECT o ->> 'task' FROM jsonb_array_elements(outcomes) o)
           AND (b.state = 'half_open'
                OR b.state = 'closed' AND b.failures IS NOT NULL
                   AND (b.failed_in_row > 0 OR EXISTS (SELECT FROM jsonb_array_elements(outcomes) o
                                                        WHERE o ->> 'task' = b.task AND o ->> 'status' <> 'succeeded')))
         ORDER BY b.task
           FOR NO KEY UPDATE
    LOOP
        before := breaker.state;
        FOR outcome IN SELECT o FROM jsonb_array_elements(outcomes) o WHERE o ->> 'task' = breaker.task LOOP
            IF outcome ->> 'status' = 'succeeded' THEN
                breaker.failed_in_row := 0;
                IF breaker.state = 'half_open' THEN
                    breaker.state := 'closed';
                    breaker.reason := NULL;
                END IF;
            ELSIF breaker.state <> 'open' THEN
                IF breaker.failed_at < clock_timestamp() - make_interval(secs => breaker.window_sec) THEN
                    breaker.failed_in_row := 0;
                END IF;
                breaker.failed_in_row := breaker.failed_in_row + 1;
                breaker.failed_at := clock_timestamp();
                IF breaker.state = 'half_open' OR breaker.failed_in_row >= breaker.failures THEN
                    breaker.pause_sec := CASE breaker.state WHEN 'half_open'
                                              THEN greatest(least(2 * coalesce(breaker.pause_sec, breaker.resume_sec), 3600), breaker.resume_sec)
                                              ELSE breaker.resume_sec END;
                    breaker.opened_at := CASE breaker.state WHEN 'half_open' THEN coalesce(breaker.opened_at, clock_timestamp())
                                                            ELSE clock_timestamp() END;
                    breaker.state := 'open';
                    breaker.probe_at := clock_timestamp() + make_interval(secs => breaker.pause_sec);
                    breaker.reason := format('%s failed in a row; the last: %s',
                                             CASE breaker.failed_in_row WHEN 1 THEN '1 attempt' ELSE breaker.failed_in_row || ' attempts' END,
                                             coalesce(split_part(outcome ->> 'error', E'\n', 1), ''));
                END IF;
            END IF;
        END LOOP;
        UPDATE dl_breakers b
           SET state = breaker.state, failed_in_row = breaker.failed_in_row, failed_at = breaker.failed_at,
               opened_at = CASE breaker.state WHEN 'closed' THEN NULL ELSE breaker.opened_at END, pause_sec = breaker.pause_sec,
               probe_at = CASE breaker.state WHEN 'open' THEN breaker.probe_at END, reason = breaker.reason,
               changed_by = CASE breaker.state WHEN before THEN b.changed_by END,
               changed_at = CASE breaker.state WHEN before THEN b.changed_at ELSE clock_timestamp() END
         WHERE b.task = breaker.task;
        IF breaker.state <> before THEN
            PERFORM pg_notify('dl_control', 'limits');
            IF breaker.state = 'closed' THEN
                closed := closed || ('task:' || breaker.task);
            END IF;
        END IF;
    END LOOP;
    RETURN closed;
END $$;

CREATE OR REPLACE TRIGGER dl_breakers_audit AFTER INSERT OR UPDATE OR DELETE ON dl_breakers
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('breaker', 'task', 'changed_by,changed_at,failed_at', '');

-- ── app/features/graphs ─────────────────────────────────────────────────────────────────────────────────────────────

-- Jobs that wait for other jobs. All parents of a job are in its graph, so one lock, (1684828531, hashtext(graph_id)), orders
-- what their ends decide. It is taken last, when the transaction commits, and its holder waits for no row.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_graphs (
    graph_id        uuid        PRIMARY KEY DEFAULT dl_new_id(),
    name            text        NOT NULL DEFAULT '',
    on_failure      text        NOT NULL DEFAULT 'cancel' CHECK (on_failure IN ('cancel', 'continue')),
    idempotency_key text        UNIQUE,
    created_by      text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What a job waits for. `met` is NULL until the parent has ended.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_edges (
    child_id  uuid NOT NULL,
    parent_id uuid NOT NULL,
    wants     text NOT NULL DEFAULT 'succeeded' CHECK (wants IN ('succeeded', 'ended', 'failed')),
    met       bool,
    PRIMARY KEY (child_id, parent_id)
);
CREATE INDEX dl_edges_parent_idx ON dl_edges (parent_id);

-- Jobs of graphs that have ended and whose children are not decided yet. The transaction that ends a job decides them when it
-- commits; what it leaves, because a row was locked or there were too many, the maintenance leader does. A job that waits again
-- after a retry is here for its parents that have ended. Who writes the row of a job holds that job, or the lock of its graph.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_graph_work (
    job_id uuid PRIMARY KEY,
    xid    xid8 NOT NULL DEFAULT pg_current_xact_id()
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX dl_graph_work_xid_idx ON dl_graph_work (xid);

-- Whether a job that has not ended may read the result of this one: another one of its graph, or one of another graph that waited
-- for it.
CREATE OR REPLACE FUNCTION dl_is_result_needed(job uuid, graph uuid) RETURNS bool
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN graph IS NOT NULL
       AND (EXISTS (SELECT FROM dl_jobs j WHERE j.graph_id = graph AND j.status::text IN ('queued', 'running'))
            OR EXISTS (SELECT FROM dl_edges e JOIN dl_jobs c ON c.job_id = ANY (ARRAY[e.child_id])
                        WHERE e.parent_id = job AND c.status::text IN ('queued', 'running')));
END $$;

-- A job of a graph has ended, by any statement of any process: its children are decided when this commits. Or it is retried: it
-- waits again for the parents that have not all ended, and its children wait again for it, also those that had been skipped.
CREATE OR REPLACE FUNCTION dl_graph_job_changed(job dl_jobs) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    checked_before text := coalesce(current_setting('dl.events_checked', true), '');
BEGIN
    IF job.status NOT IN ('queued', 'running') THEN
        INSERT INTO dl_graph_work (job_id) VALUES (job.job_id) ON CONFLICT (job_id) DO NOTHING;
        RETURN;
    END IF;
    DELETE FROM dl_graph_work WHERE job_id = job.job_id;
    IF EXISTS (SELECT FROM dl_edges e WHERE e.child_id = job.job_id AND e.met IS NULL) THEN
        UPDATE dl_jobs SET wait_state = 'waiting', waits_on = NULL
         WHERE job_id = job.job_id AND status = 'queued' AND wait_state <> 'waiting';
        INSERT INTO dl_graph_work (job_id) SELECT job.job_id  -- decided again when this commits: a parent may end now
            ON CONFLICT (job_id) DO NOTHING;
    END IF;
    UPDATE dl_edges SET met = NULL WHERE parent_id = job.job_id;
    PERFORM set_config('dl.events_checked', 'yes', true);
    WITH again AS (
        UPDATE dl_jobs j
           SET status = 'queued', wait_state = 'waiting', skipped = NULL, error = NULL, finished_at = NULL, attempt = 0
          FROM dl_edges e
         WHERE e.parent_id = job.job_id AND j.job_id = ANY (ARRAY[e.child_id]) AND j.status = 'canceled' AND j.skipped
        RETURNING j.job_id, j.queue
    )
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, clock_timestamp(), 'requeue',
           jsonb_build_object('status', 'queued', 'attempt', 0, 'reason', 'retry')
      FROM again;
    PERFORM set_config('dl.events_checked', checked_before, true);
    UPDATE dl_jobs j
       SET wait_state = 'waiting', waits_on = NULL
      FROM dl_edges e
     WHERE e.parent_id = job.job_id AND j.job_id = ANY (ARRAY[e.child_id]) AND j.status = 'queued' AND j.wait_state <> 'waiting';
END $$;

-- The core's hook. By SQL: the API deletes finished jobs only. A job that waits for a deleted one can never run.
CREATE OR REPLACE FUNCTION dl_graph_jobs_deleted(job_ids uuid[], graph_ids uuid[]) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    IF job_ids IS NULL THEN
        DELETE FROM dl_edges;
        DELETE FROM dl_graphs;
        DELETE FROM dl_graph_work;
        RETURN;
    END IF;
    UPDATE dl_jobs c
       SET cancel_requested = true, error = 'not needed: a job that it waited for was deleted'
      FROM unnest(job_ids) AS d (job_id) JOIN dl_edges e ON e.parent_id = d.job_id AND e.met IS NULL
     WHERE c.job_id = ANY (ARRAY[e.child_id]) AND c.status = 'queued' AND c.wait_state = 'waiting';
    DELETE FROM dl_edges e USING unnest(job_ids) AS d (job_id) WHERE e.child_id = d.job_id;
    -- What is left are edges of jobs that still exist: they keep such a job from reading fewer results than it waited for.
    UPDATE dl_edges e SET met = false FROM unnest(job_ids) AS d (job_id) WHERE e.parent_id = d.job_id AND e.met IS NULL;
    DELETE FROM dl_graphs g USING unnest(graph_ids) AS d (graph_id)
     WHERE g.graph_id = d.graph_id AND NOT EXISTS (SELECT FROM dl_jobs j WHERE j.graph_id = g.graph_id);
END $$;

-- What the ends of these jobs decide, once their edges are met or not: the children that may run or are to be skipped, with the
-- reason. In a graph with on_failure 'cancel' a failure skips every queued job that has no edge for a failure or any end.
CREATE OR REPLACE FUNCTION dl_graph_verdicts(ended uuid[]) RETURNS TABLE (job_id uuid, skip bool, reason text)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH children AS MATERIALIZED (
        SELECT k.child_id,
               CASE WHEN j.need = 'any' THEN CASE WHEN bool_or(e.met) THEN false WHEN bool_and(e.met IS NOT NULL) THEN true END
                    ELSE CASE WHEN bool_or(NOT e.met) THEN true WHEN bool_and(e.met IS NOT NULL) THEN false END END AS skip
          FROM (SELECT DISTINCT d.child_id FROM unnest(ended) AS i (job_id) JOIN dl_edges d ON d.parent_id = i.job_id) k
               JOIN dl_jobs j ON j.job_id = ANY (ARRAY[k.child_id])
               JOIN dl_edges e ON e.child_id = k.child_id
         WHERE j.status::text = 'queued' AND j.wait_state::text = 'waiting'
         GROUP BY k.child_id, j.need
    ), failures AS MATERIALIZED (
        SELECT DISTINCT ON (j.graph_id) j.graph_id, j.job_id, coalesce(j.graph_key, j.task) AS label
          FROM unnest(ended) AS i (job_id)
               JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
               JOIN dl_graphs g ON g.graph_id = j.graph_id AND g.on_failure = 'cancel'
         WHERE j.status::text IN ('failed', 'lost')
         ORDER BY j.graph_id, j.finished_at
    )
    SELECT c.child_id AS job_id, c.skip,
           CASE WHEN c.skip THEN
           (SELECT format('not needed: %s (job %s) %s', coalesce(p.graph_key, p.task), p.job_id,
                          CASE p.status WHEN 'succeeded' THEN 'succeeded' WHEN 'lost' THEN 'was lost' WHEN 'failed' THEN 'failed'
                                        ELSE CASE WHEN p.skipped THEN 'was not needed' ELSE 'was canceled' END END)
              FROM dl_edges u JOIN dl_jobs p ON p.job_id = ANY (ARRAY[u.parent_id])
             WHERE u.child_id = c.child_id AND NOT u.met ORDER BY p.finished_at LIMIT 1) END AS reason
      FROM children c
     WHERE c.skip IS NOT NULL
    UNION ALL
    SELECT o.job_id, true, format('not needed: %s (job %s) failed, which cancels its graph', f.label, f.job_id)
      FROM failures f JOIN dl_jobs o ON o.graph_id = f.graph_id AND o.status = 'queued'
     WHERE NOT EXISTS (SELECT FROM dl_edges e WHERE e.child_id = o.job_id AND e.wants <> 'succeeded')
       AND o.job_id NOT IN (SELECT c.child_id FROM children c WHERE c.skip IS NOT NULL);
END $$;

-- Decides the children of jobs that have ended: ready, or skipped when they cannot run any more. Returns how many. It waits for
-- no row: who holds one may wait for the lock of a graph.
CREATE OR REPLACE FUNCTION dl_decide_children(ended uuid[]) RETURNS int
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    checked_before text := coalesce(current_setting('dl.events_checked', true), '');
    max_changes CONSTANT int := 2000;  -- in a transaction: others wait for the graph, and for the ends in this one
    budget   int := max_changes - coalesce(nullif(current_setting('dl.graph_changes', true), ''), '0')::int;
    parents  uuid[];  -- of jobs that wait again
    recorded uuid[];
    hashes   int[];
    decided  int;
    changed  int;
    skipped_ids uuid[];
    has_webhook bool;
BEGIN
    parents := ARRAY(SELECT e.parent_id
                       FROM unnest(ended) AS i (job_id)
                            JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id]) AND j.status::text = 'queued'
                            JOIN dl_edges e ON e.child_id = j.job_id);
    -- Of the jobs that have ended, and of those of other graphs that wait for their end.
    hashes := ARRAY(SELECT hashtext(j.graph_id::text)
                      FROM unnest(ended || parents) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
                     WHERE j.graph_id IS NOT NULL
                     UNION
                    SELECT hashtext(j.graph_id::text)
                      FROM unnest(ended || parents) AS i (job_id)
                           JOIN dl_edges e ON e.parent_id = i.job_id AND e.wants = 'ended' AND e.met IS NULL
                           JOIN dl_jobs j ON j.job_id = ANY (ARRAY[e.child_id])
                     WHERE j.graph_id IS NOT NULL ORDER BY 1);
    IF coalesce(current_setting('dl.graph_changes', true), '') = '' THEN
        PERFORM pg_advisory_xact_lock(1684828531, hash) FROM unnest(hashes) hash;
    ELSIF NOT (SELECT bool_and(pg_try_advisory_xact_lock(1684828531, hash)) FROM unnest(hashes) hash) THEN
        -- Of what this transaction has skipped another graph waits. It holds locks already, so it waits for none.
        UPDATE dl_graph_work SET xid = '0' WHERE job_id = ANY (ended);
        PERFORM pg_notify('dl_control', 'graphs');
        RETURN 0;
    END IF;
    -- Without those that a retry has locked: they are open again.
    recorded := ARRAY(SELECT w.job_id FROM dl_graph_work w WHERE w.job_id = ANY (ended) FOR UPDATE SKIP LOCKED);
    ended := recorded || parents;
    -- In a snapshot taken under the lock: the ends that others committed while it was waited for are seen.
    WITH undecided AS MATERIALIZED (
        SELECT e.child_id, e.parent_id, p.status
          FROM unnest(ended) AS i (job_id)
               JOIN dl_jobs p ON p.job_id = ANY (ARRAY[i.job_id])
               JOIN dl_edges e ON e.parent_id = i.job_id AND e.met IS NULL
         WHERE p.status::text IN ('succeeded', 'failed', 'canceled', 'lost')  -- by job_id
           FOR NO KEY UPDATE OF e SKIP LOCKED
    )
    UPDATE dl_edges e
       SET met = CASE e.wants WHEN 'ended' THEN true WHEN 'succeeded' THEN p.status = 'succeeded'
                              ELSE p.status IN ('failed', 'lost') END
      FROM undecided p
     WHERE e.child_id = ANY (ARRAY[p.child_id]) AND e.parent_id = p.parent_id;
    PERFORM set_config('dl.events_checked', 'yes', true);
    WITH verdicts AS MATERIALIZED (SELECT * FROM dl_graph_verdicts(ended)), locked AS MATERIALIZED (
        SELECT j.job_id, v.skip, v.reason
          FROM verdicts v JOIN dl_jobs j ON j.job_id = ANY (ARRAY[v.job_id])
         WHERE j.status::text = 'queued' AND (v.skip OR j.wait_state::text = 'waiting')
         LIMIT greatest(budget, 0)
           FOR NO KEY UPDATE OF j SKIP LOCKED
    ), moved AS (
        UPDATE dl_jobs j
           SET status = CASE WHEN locked.skip THEN 'canceled' ELSE 'queued' END::dl_status,
               wait_state = CASE WHEN locked.skip OR j.available_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END::dl_wait_state,
               waits_on = NULL, unknown_task = false, skipped = CASE WHEN locked.skip THEN true END,
               error = CASE WHEN locked.skip THEN locked.reason ELSE j.error END,
               finished_at = CASE WHEN locked.skip THEN clock_timestamp() END
          FROM locked
         WHERE j.job_id = ANY (ARRAY[locked.job_id])
        RETURNING j.job_id, j.queue, j.status, j.attempt, j.error, j.webhook
    ), events AS (
        INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
        SELECT job_id, queue, clock_timestamp(), CASE status WHEN 'canceled' THEN 'skipped' ELSE 'released' END,
               jsonb_strip_nulls(jsonb_build_object('status', status, 'attempt', attempt,
                                                    'error', CASE status WHEN 'canceled' THEN error END))
          FROM moved
    ), notified AS (
        SELECT count(dl_notify_queue(q.queue)) AS n FROM (SELECT DISTINCT queue FROM moved WHERE status = 'queued' ORDER BY queue) q
    )
    SELECT (SELECT count(*) FROM verdicts), count(*) + 0 * (SELECT n FROM notified),
           array_agg(job_id) FILTER (WHERE status = 'canceled'), bool_or(webhook IS NOT NULL)
      INTO decided, changed, skipped_ids, has_webhook
      FROM moved;
    PERFORM set_config('dl.events_checked', checked_before, true);
    IF skipped_ids IS NOT NULL THEN
        PERFORM dl_jobs_ended(skipped_ids, has_webhook);
    END IF;
    PERFORM set_config('dl.graph_changes', (max_changes - budget + changed)::text, true);
    IF changed = decided
       AND NOT EXISTS (SELECT FROM unnest(ended) AS i (job_id)
                              JOIN dl_edges e ON e.parent_id = i.job_id AND e.met IS NULL
                              JOIN dl_jobs p ON p.job_id = ANY (ARRAY[i.job_id])
                        WHERE p.status::text IN ('succeeded', 'failed', 'canceled', 'lost')) THEN
        DELETE FROM dl_graph_work WHERE job_id = ANY (recorded);
    ELSE
        UPDATE dl_graph_work SET xid = '0' WHERE job_id = ANY (recorded);
        PERFORM pg_notify('dl_control', 'graphs');
    END IF;
    RETURN changed;
END $$;

-- Decides what the ends of this transaction allow, when it commits; the first call does it for all of them.
CREATE OR REPLACE FUNCTION dl_graph_work_done() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    ended uuid[];
BEGIN
    IF (SELECT xid FROM dl_graph_work WHERE job_id = NEW.job_id) IS DISTINCT FROM pg_current_xact_id() THEN
        RETURN NULL;  -- a former call has decided it; the search below would pass all that it has deleted
    END IF;
    IF current_setting('dl.new_children', true) <> '' THEN
        RETURN NULL;  -- dl_edges_added waits for rows, and has this called again
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        UPDATE dl_graph_work SET xid = '0' WHERE xid = pg_current_xact_id();
        PERFORM pg_notify('dl_control', 'graphs');  -- an older snapshot would not see what others have decided
        RETURN NULL;
    END IF;
    SELECT array_agg(w.job_id) INTO ended FROM dl_graph_work w WHERE w.xid = pg_current_xact_id();
    IF ended IS NOT NULL THEN
        PERFORM dl_decide_children(ended);
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER dl_graph_work_done AFTER INSERT ON dl_graph_work
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dl_graph_work_done();

-- What is wrong with the parents of a request; NULL: nothing. For an account that may not read jobs, there are no parents: it
-- would learn their outcomes and results.
CREATE OR REPLACE FUNCTION dl_after_problem(after jsonb, need text) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    item    record;
    is_reader bool;  -- the caller, also inside a function with the rights of the owner
BEGIN
    IF after IS NULL THEN
        RETURN CASE WHEN need IS NOT NULL THEN 'is required when need is given' END;
    ELSIF jsonb_typeof(after) <> 'array' OR jsonb_array_length(after) NOT BETWEEN 1 AND 1000 THEN
        RETURN 'must be an array of 1 to 1000 parents, such as [{"job_id": "…", "on": "succeeded"}]';
    ELSIF need NOT IN ('all', 'any') THEN
        RETURN format('has the need %s, which is neither "all" nor "any"', to_jsonb(left(need, 100)));
    END IF;
    is_reader := has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user::text)::name, 'dl_jobs', 'SELECT');
    FOR item IN SELECT value AS parent, n - 1 AS position FROM jsonb_array_elements(after) WITH ORDINALITY AS a (value, n) LOOP
        IF jsonb_typeof(item.parent) <> 'object' OR item.parent - '{job_id,on}'::text[] <> '{}'
           OR coalesce(item.parent ->> 'job_id', '') !~ '^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$' THEN
            RETURN format('[%s] must be an object with the job_id of a parent, and on', item.position);
        ELSIF coalesce(item.parent ->> 'on', 'succeeded') NOT IN ('succeeded', 'ended', 'failed') THEN
            RETURN format('[%s].on must be "succeeded", "ended" or "failed"', item.position);
        ELSIF NOT is_reader OR NOT EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = (item.parent ->> 'job_id')::uuid) THEN
            RETURN format('[%s].job_id: there is no job %s', item.position, item.parent ->> 'job_id');
        END IF;
    END LOOP;
    IF (SELECT count(DISTINCT j.graph_id) FROM jsonb_array_elements(after) a JOIN dl_jobs j ON j.job_id = (a ->> 'job_id')::uuid) > 1 THEN
        RETURN 'names jobs of several graphs; all parents of a job are in one';
    END IF;
    RETURN NULL;
END $$;

-- Makes a job of this transaction wait for others. Their rows are locked when it commits, and only then.
CREATE OR REPLACE FUNCTION dl_set_parents(child uuid, after jsonb, need_text text) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    graph uuid := (SELECT j.graph_id FROM jsonb_array_elements(after) a JOIN dl_jobs j ON j.job_id = (a ->> 'job_id')::uuid
                    WHERE j.graph_id IS NOT NULL LIMIT 1);
BEGIN
    IF graph IS NULL THEN
        INSERT INTO dl_graphs (on_failure) VALUES ('continue') RETURNING graph_id INTO graph;
    END IF;
    UPDATE dl_jobs SET wait_state = 'waiting', graph_id = graph, need = nullif(need_text, 'all') WHERE job_id = child;
    INSERT INTO dl_edges (child_id, parent_id, wants)
    SELECT child, (a ->> 'job_id')::uuid, coalesce(a ->> 'on', 'succeeded') FROM jsonb_array_elements(after) a
        ON CONFLICT DO NOTHING;
    PERFORM set_config('dl.new_children', concat_ws(',', nullif(current_setting('dl.new_children', true), ''), child), true);
END $$;

-- At the commit of new edges to jobs that existed before: locks all the parents, in one order; one that has ended decides
-- its edge at once, and the end of another finds the edge. What has ended in the same transaction is decided after that.
CREATE OR REPLACE FUNCTION dl_edges_added() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    children uuid[] := string_to_array(nullif(current_setting('dl.new_children', true), ''), ',')::uuid[];
    parent   record;
    child    record;
BEGIN
    IF children IS NULL THEN
        RETURN NULL;  -- done by the call for the first of them
    END IF;
    PERFORM set_config('dl.new_children', '', true);
    FOR parent IN
        SELECT j.job_id, j.status, j.graph_id FROM dl_jobs j
         WHERE j.job_id = ANY (ARRAY(SELECT e.parent_id FROM dl_edges e WHERE e.child_id = ANY (children)))
         ORDER BY j.job_id
           FOR NO KEY UPDATE
    LOOP
        FOR child IN SELECT DISTINCT c.graph_id FROM dl_edges e JOIN dl_jobs c ON c.job_id = ANY (ARRAY[e.child_id])
                      WHERE e.parent_id = parent.job_id AND e.child_id = ANY (children) LOOP
            IF parent.graph_id IS NULL THEN
                UPDATE dl_jobs SET graph_id = child.graph_id WHERE job_id = parent.job_id;
                parent.graph_id := child.graph_id;
            ELSIF parent.graph_id <> child.graph_id THEN
                -- Another transaction has given the parent a graph meanwhile: the child joins it.
                IF EXISTS (SELECT FROM dl_jobs o WHERE o.graph_id = child.graph_id AND o.job_id <> ALL (children)) THEN
                    RAISE serialization_failure USING MESSAGE = 'the parents have come into several graphs meanwhile; try again';
                END IF;
                UPDATE dl_jobs SET graph_id = parent.graph_id WHERE graph_id = child.graph_id;
                DELETE FROM dl_graphs WHERE graph_id = child.graph_id;
            END IF;
        END LOOP;
        IF parent.status NOT IN ('queued', 'running') THEN
            INSERT INTO dl_graph_work (job_id) VALUES (parent.job_id)
                ON CONFLICT (job_id) DO UPDATE SET xid = pg_current_xact_id();
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM dl_edges e WHERE e.child_id = ANY (children)
                 AND NOT EXISTS (SELECT FROM dl_jobs p WHERE p.job_id = ANY (ARRAY[e.parent_id]))) THEN
        RAISE foreign_key_violation USING MESSAGE = 'a job that this one waits for has been deleted';
    END IF;
    WITH ended AS (DELETE FROM dl_graph_work WHERE xid = pg_current_xact_id() RETURNING job_id)
    INSERT INTO dl_graph_work (job_id) SELECT job_id FROM ended;
    RETURN NULL;
END $$;

-- Makes a job whose run this transaction has released wait for the end of others; returns its status. The caller holds the
-- rows of all of them. Jobs without a graph come into its graph, but not into one that a failure cancels. Raises 22023 for a
-- job that does not exist, and for a circle.
CREATE OR REPLACE FUNCTION dl_wait_for_jobs(waiting_job uuid, run uuid, awaited uuid[]) RETURNS text
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    job       record;
    id        uuid;
    ancestors uuid[];
    circle    uuid[] := ARRAY[waiting_job];
    graph     uuid;
BEGIN
    SELECT j.status, j.graph_id, j.need INTO job
      FROM dl_jobs j WHERE j.job_id = waiting_job AND j.run_id = run AND j.xmin = pg_current_xact_id()::xid;
    IF job.status IS DISTINCT FROM 'queued' OR awaited = '{}' THEN
        RETURN job.status;
    END IF;
    FOREACH id IN ARRAY awaited LOOP
        IF NOT EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = id) THEN
            RAISE invalid_parameter_value USING MESSAGE = format('the job waits for job %s, which does not exist', id);
        END IF;
    END LOOP;

    -- A retry of a parent holds edges of its children: they are waited for before the locks of graphs.
    IF job.need = 'any' THEN
        PERFORM FROM dl_edges WHERE child_id = waiting_job ORDER BY parent_id FOR NO KEY UPDATE;
    END IF;
    -- One at a time in the whole queue: two that do not see each other could make a circle together.
    PERFORM pg_advisory_xact_lock(1684828531, hashtext('waits'));
    WITH RECURSIVE waits AS (
        SELECT unnest(awaited) AS job_id
        UNION
        SELECT e.parent_id
          FROM waits w
               JOIN dl_jobs j ON j.job_id = ANY (ARRAY[w.job_id]) AND j.status = 'queued' AND j.wait_state = 'waiting'
               JOIN dl_edges e ON e.child_id = w.job_id AND e.met IS NULL
    )
    SELECT array_agg(w.job_id) INTO ancestors FROM waits w;
    IF waiting_job = ANY (ancestors) THEN
        WHILE circle[1] <> ALL (awaited) LOOP
            circle := (SELECT e.child_id  -- of those that wait: a job that needed any parent keeps edges to the others
                         FROM dl_edges e
                              JOIN dl_jobs j ON j.job_id = ANY (ARRAY[e.child_id]) AND j.status = 'queued' AND j.wait_state = 'waiting'
                        WHERE e.parent_id = circle[1] AND e.met IS NULL AND e.child_id = ANY (ancestors) AND e.child_id <> ALL (circle)
                        LIMIT 1) || circle;
        END LOOP;
        RAISE invalid_parameter_value USING MESSAGE = 'the job would wait for itself: '
            || (SELECT string_agg(format('%s (job %s)', coalesce(j.graph_key, j.task), j.job_id), ' → ' ORDER BY c.n)
                  FROM unnest(waiting_job || circle) WITH ORDINALITY AS c (job_id, n) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[c.job_id]));
    END IF;

    -- Before edges are changed, which the holder of a graph's lock changes too.
    PERFORM pg_advisory_xact_lock(1684828531, hash)
       FROM (SELECT DISTINCT hashtext(j.graph_id::text) AS hash FROM dl_jobs j
              WHERE j.job_id = ANY (awaited || waiting_job) AND j.graph_id IS NOT NULL ORDER BY 1 OFFSET 0) ordered;
    PERFORM set_config('dl.graph_changes', '0', true);  -- for locks of other graphs this transaction does not wait when it commits
    IF EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = ANY (awaited || waiting_job) AND j.graph_id IS NULL) THEN
        graph := (SELECT g.graph_id FROM dl_graphs g WHERE g.graph_id = job.graph_id AND g.on_failure = 'continue');
        IF graph IS NULL THEN
            INSERT INTO dl_graphs (on_failure) VALUES ('continue') RETURNING graph_id INTO graph;
        END IF;
        UPDATE dl_jobs j SET graph_id = graph WHERE j.job_id = ANY (awaited || waiting_job) AND j.graph_id IS NULL;
    END IF;
    IF job.need = 'any' THEN  -- what it waited for before does not count any more
        UPDATE dl_edges SET wants = 'ended', met = true WHERE child_id = waiting_job;
    END IF;
    UPDATE dl_jobs SET wait_state = 'waiting', need = NULL WHERE job_id = waiting_job;
    INSERT INTO dl_edges (child_id, parent_id, wants)
    SELECT DISTINCT waiting_job, i.job_id, 'ended' FROM unnest(awaited) AS i (job_id)
        ON CONFLICT (child_id, parent_id) DO UPDATE SET wants = 'ended', met = NULL;
    INSERT INTO dl_graph_work (job_id)
    SELECT j.job_id FROM dl_jobs j WHERE j.job_id = ANY (awaited) AND j.status NOT IN ('queued', 'running')
        ON CONFLICT (job_id) DO UPDATE SET xid = pg_current_xact_id();
    RETURN 'queued';
END $$;

CREATE CONSTRAINT TRIGGER dl_edges_added AFTER INSERT ON dl_edges
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (current_setting('dl.new_graph', true) IS DISTINCT FROM 'yes')
    EXECUTE FUNCTION dl_edges_added();

-- Raises 22023 for a graph that dl_enqueue_graph does not accept; returns the positions of its jobs by their keys.
CREATE OR REPLACE FUNCTION dl_check_graph(graph jsonb) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
DECLARE
    items   jsonb := graph -> 'jobs';
    item    record;
    parent  record;
    numbers jsonb := '{}';
    edges   int := 0;
BEGIN
    IF jsonb_typeof(graph) IS DISTINCT FROM 'object' OR jsonb_typeof(items) IS DISTINCT FROM 'array' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'jobs must be an array', COLUMN = 'jobs';
    ELSIF jsonb_array_length(items) NOT BETWEEN 1 AND 10000 THEN
        RAISE invalid_parameter_value USING COLUMN = 'jobs',
              MESSAGE = format('jobs has %s jobs; a graph has 1 to 10000', jsonb_array_length(items));
    ELSIF graph - '{name,on_failure,idempotency_key,created_by,jobs}'::text[] <> '{}' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'graph has a field that is none of name, on_failure, idempotency_key and jobs',
              COLUMN = 'graph';
    ELSIF coalesce(graph ->> 'on_failure', 'cancel') NOT IN ('cancel', 'continue') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'on_failure must be "cancel" or "continue"', COLUMN = 'on_failure';
    ELSIF octet_length(graph ->> 'idempotency_key') > 2000 OR octet_length(graph ->> 'name') > 1000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'name or idempotency_key is too long', COLUMN = 'name';
    END IF;
    FOR item IN SELECT value AS job, n - 1 AS position FROM jsonb_array_elements(items) WITH ORDINALITY AS i (value, n) ORDER BY n LOOP
        IF jsonb_typeof(item.job) <> 'object' OR jsonb_typeof(item.job -> 'key') IS DISTINCT FROM 'string'
           OR btrim(item.job ->> 'key') = '' OR octet_length(item.job ->> 'key') > 200 THEN
            RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].key', item.position),
                  MESSAGE = format('jobs[%s].key must be a text of 1 to 200 bytes', item.position);
        ELSIF numbers ? (item.job ->> 'key') THEN
            RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].key', item.position),
                  MESSAGE = format('jobs[%s].key is that of another job: %s', item.position, item.job -> 'key');
        ELSIF item.job ?| '{idempotency_key,live_key,debounce,throttle}' THEN
            RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].idempotency_key', item.position),
                  MESSAGE = format('jobs[%s] has a key, debounce or throttle of its own; the graph may have an idempotency_key', item.position);
        ELSIF item.job ? 'after' AND (jsonb_typeof(item.job -> 'after') NOT IN ('array', 'null')
              OR jsonb_typeof(item.job -> 'after') = 'array' AND jsonb_array_length(item.job -> 'after') > 1000) THEN
            RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].after', item.position),
                  MESSAGE = format('jobs[%s].after must be an array of at most 1000 parents', item.position);
        ELSIF coalesce(item.job ->> 'need', 'all') NOT IN ('all', 'any') THEN
            RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].need', item.position),
                  MESSAGE = format('jobs[%s].need must be "all" or "any"', item.position);
        END IF;
        FOR parent IN SELECT value AS edge, n - 1 AS position
                        FROM jsonb_array_elements(coalesce(nullif(item.job -> 'after', 'null'), '[]')) WITH ORDINALITY AS a (value, n) LOOP
            edges := edges + 1;
            IF jsonb_typeof(parent.edge) <> 'object' OR parent.edge - '{job,on}'::text[] <> '{}'
               OR coalesce(parent.edge ->> 'on', 'succeeded') NOT IN ('succeeded', 'ended', 'failed') THEN
                RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].after[%s]', item.position, parent.position),
                      MESSAGE = format('jobs[%s].after[%s] must be {"job": key, "on": "succeeded", "ended" or "failed"}',
                                       item.position, parent.position);
            ELSIF NOT numbers ? coalesce(parent.edge ->> 'job', '') THEN
                RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].after[%s].job', item.position, parent.position),
                      MESSAGE = format('jobs[%s].after[%s].job names %s, which is no job before it: parents come first',
                                       item.position, parent.position, parent.edge -> 'job');
            END IF;
        END LOOP;
        numbers := numbers || jsonb_build_object(item.job ->> 'key', item.position);
    END LOOP;
    IF edges > 50000 THEN
        RAISE invalid_parameter_value USING MESSAGE = format('jobs has %s edges; a graph has at most 50000', edges), COLUMN = 'jobs';
    END IF;
    RETURN numbers;
END $$;

-- Enqueue jobs that wait for one another, in the caller's own transaction: {"name", "on_failure", "idempotency_key", "jobs": […]}.
-- A job has the fields of dl_enqueue_many, a `key`, and `after`: [{"job": key, "on": "succeeded"}], which names jobs before it in
-- the array, so there is no circle. All are created, or none. A graph whose idempotency_key exists is returned as it is, if its
-- jobs have the same queues, tasks and args; else 23505.
CREATE OR REPLACE FUNCTION dl_enqueue_graph(graph jsonb)
    RETURNS TABLE (graph_id uuid, created bool, key text, job_id uuid)
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    id      uuid;
    items   jsonb := graph -> 'jobs';
    numbers jsonb;  -- key -> position
    ids     uuid[];
    refused record;
BEGIN
    numbers := dl_check_graph(graph);
    INSERT INTO dl_graphs (name, on_failure, idempotency_key, created_by)
    VALUES (coalesce(graph ->> 'name', ''), coalesce(graph ->> 'on_failure', 'cancel'), graph ->> 'idempotency_key',
            graph ->> 'created_by')
        ON CONFLICT (idempotency_key) DO NOTHING
    RETURNING dl_graphs.graph_id INTO id;
    IF id IS NULL THEN
        IF EXISTS (SELECT FROM (SELECT j.graph_key AS key, coalesce(j.request_hash, dl_request_hash(j.queue, j.task, j.args)) AS hash
                                  FROM dl_graphs g JOIN dl_jobs j ON j.graph_id = g.graph_id AND j.graph_key IS NOT NULL
                                 WHERE g.idempotency_key = graph ->> 'idempotency_key') AS made
                          FULL JOIN (SELECT value ->> 'key' AS key, dl_request_hash(value ->> 'queue', value ->> 'task',
                                            coalesce(nullif(value -> 'args', 'null'), '{}')) AS hash
                                       FROM jsonb_array_elements(items)) AS requested USING (key)
                    WHERE made.hash IS DISTINCT FROM requested.hash) THEN
            RAISE unique_violation
                  USING MESSAGE = format('the key %L belongs to a graph with other jobs', graph ->> 'idempotency_key');
        END IF;
        RETURN QUERY SELECT g.graph_id, false, j.graph_key, j.job_id
                       FROM dl_graphs g JOIN dl_jobs j ON j.graph_id = g.graph_id
                      WHERE g.idempotency_key = graph ->> 'idempotency_key' ORDER BY j.created_at;
        RETURN;
    END IF;
    SELECT array_agg(m.job_id ORDER BY m.n) INTO ids
      FROM dl_enqueue_many((SELECT jsonb_agg(value - '{key,after,need}'::text[] ORDER BY n)
                              FROM jsonb_array_elements(items) WITH ORDINALITY AS i (value, n)), true) m
     WHERE m.outcome = 'created';
    IF coalesce(cardinality(ids), 0) < jsonb_array_length(items) THEN
        SELECT m.n - 1 AS position, m.field, m.detail INTO refused
          FROM dl_enqueue_many((SELECT jsonb_agg(value - '{key,after,need}'::text[] ORDER BY n)
                                  FROM jsonb_array_elements(items) WITH ORDINALITY AS i (value, n)), true) m
         WHERE m.outcome = 'invalid' ORDER BY m.n LIMIT 1;
        RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].%s', refused.position, refused.field),
              MESSAGE = format('jobs[%s].%s %s', refused.position, refused.field, refused.detail);
    END IF;
    UPDATE dl_jobs j
       SET graph_id = id, graph_key = i.value ->> 'key', need = nullif(i.value ->> 'need', 'all'),
           wait_state = CASE WHEN jsonb_array_length(coalesce(nullif(i.value -> 'after', 'null'), '[]')) > 0 THEN 'waiting'
                             ELSE j.wait_state END
      FROM jsonb_array_elements(items) WITH ORDINALITY AS i (value, n)
     WHERE j.job_id = ANY (ARRAY[ids[i.n]]);
    PERFORM set_config('dl.new_graph', 'yes', true);
    INSERT INTO dl_edges (child_id, parent_id, wants)
    SELECT ids[i.n], ids[(numbers ->> (a.edge ->> 'job'))::int + 1], coalesce(a.edge ->> 'on', 'succeeded')
      FROM jsonb_array_elements(items) WITH ORDINALITY AS i (value, n)
           CROSS JOIN LATERAL jsonb_array_elements(coalesce(nullif(i.value -> 'after', 'null'), '[]')) AS a (edge)
        ON CONFLICT DO NOTHING;
    PERFORM set_config('dl.new_graph', '', true);
    RETURN QUERY SELECT id, true, i.value ->> 'key', ids[i.n]
                   FROM jsonb_array_elements(items) WITH ORDINALITY AS i (value, n) ORDER BY i.n;
END $$;

REVOKE EXECUTE ON FUNCTION
    dl_graph_work_done, dl_edges_added, dl_enqueue_graph
  FROM PUBLIC;

-- ── app/features/schedules ──────────────────────────────────────────────────────────────────────────────────────────

-- Schedules make jobs at nominal times. What applies is `declared` with `overrides` on top: the definition in code and what
-- people changed, or for a schedule of people the overrides alone.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_schedules (
    schedule_id     uuid        PRIMARY KEY DEFAULT dl_new_id(),
    name            text        NOT NULL UNIQUE CHECK (name <> '' AND octet_length(name) <= 200),
    source          text        NOT NULL CHECK (source IN ('code', 'people')),
    task            text        NOT NULL CHECK (task <> '' AND octet_length(task) <= 1000),
    declared        jsonb       NOT NULL DEFAULT '{}',
    overrides       jsonb       NOT NULL DEFAULT '{}',
    declared_at     timestamptz,        -- when the process started that declared it last: an older one changes nothing
    seen_at         timestamptz,        -- when a live worker last had it in its code
    orphaned_at     timestamptz,        -- no live worker has it in its code any more: it does not fire
    paused_at       timestamptz,
    paused_by       text,
    paused_reason   text,
    version         int         NOT NULL DEFAULT 1,  -- grows with each change of what applies
    last_at         timestamptz,        -- nominal times up to this one have their rows in dl_firings
    next_at         timestamptz,        -- the next nominal time; NULL: there is none
    error           text,               -- why its next time is unknown
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by      text,
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dl_schedules_next_idx ON dl_schedules (next_at) WHERE paused_at IS NULL AND orphaned_at IS NULL;

-- What became of each nominal time: one row, or one for a range of them that were skipped.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_firings (
    schedule_id uuid        NOT NULL REFERENCES dl_schedules ON DELETE CASCADE,
    fire_at     timestamptz NOT NULL,
    due_at      timestamptz NOT NULL,  -- with jitter
    outcome     text        NOT NULL CHECK (outcome IN ('made', 'exists', 'late_skipped', 'overlap_skipped', 'paused_skipped', 'refused')),
    until       timestamptz,           -- the last time of a range
    job_id      uuid,
    made_by     text        NOT NULL CHECK (made_by IN ('clock', 'person', 'dataset')),
    detail      text,
    made_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (schedule_id, fire_at)
);
CREATE INDEX dl_firings_made_idx ON dl_firings (made_at);
CREATE INDEX dl_firings_fire_idx ON dl_firings (fire_at);

-- Updates of datasets that schedules wait for, until these fire. Only inserted and deleted: a settlement waits for no firing.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_dataset_updates (
    update_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id uuid        NOT NULL REFERENCES dl_schedules ON DELETE CASCADE,
    dataset     text        NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dl_dataset_updates_schedule_idx ON dl_dataset_updates (schedule_id, dataset);
CREATE INDEX dl_schedules_after_idx ON dl_schedules USING gin (coalesce(overrides -> 'after', declared -> 'after'))
    WHERE coalesce(overrides -> 'after', declared -> 'after') IS NOT NULL;

-- Fires schedules. Each object of the batch has a schedule as it was read (schedule_id, version, read_last_at), its new last_at,
-- next_at and, if a time has come, error, the updates of datasets that it answers, and firings: fire_at, due_at, outcome, until, detail, and with the outcome `due` the request of its job and
-- the overlap rule. A schedule that has changed or fired meanwhile is left out; a time that has a row is not fired again.
CREATE OR REPLACE FUNCTION dl_fire_schedules(batch jsonb)
    RETURNS TABLE (schedule_id uuid, fire_at timestamptz, outcome text, job_id uuid, detail text)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    item     jsonb;
    firing   jsonb;
    id       uuid;
    kind     text;
    serving  uuid;
    has_job  bool;           -- an earlier firing of the schedule makes one
    requests jsonb[];        -- of the jobs to be made
    ids      uuid[];         -- their schedules
    times    timestamptz[];  -- and nominal times
BEGIN
    FOR item IN SELECT value FROM jsonb_array_elements(batch) ORDER BY value ->> 'schedule_id' LOOP
        id := (item ->> 'schedule_id')::uuid;
        UPDATE dl_schedules s
           SET last_at = (item ->> 'last_at')::timestamptz, next_at = (item ->> 'next_at')::timestamptz,
               error = CASE WHEN item ? 'error' THEN item ->> 'error' ELSE s.error END
         WHERE s.schedule_id = id AND s.version = (item ->> 'version')::int AND s.paused_at IS NULL AND s.orphaned_at IS NULL
           AND s.last_at IS NOT DISTINCT FROM (item ->> 'read_last_at')::timestamptz;
        CONTINUE WHEN NOT FOUND;
        DELETE FROM dl_dataset_updates u
         WHERE u.update_id IN (SELECT value::bigint FROM jsonb_array_elements_text(item -> 'updates'));
        has_job := false;
        FOR firing IN SELECT value FROM jsonb_array_elements(item -> 'firings') WITH ORDINALITY ORDER BY ordinality LOOP
            kind := firing ->> 'outcome';
            serving := NULL;
            IF kind = 'due' AND firing ->> 'overlap' = 'skip' THEN
                IF has_job OR EXISTS (SELECT FROM dl_jobs j WHERE j.schedule_id = id AND j.status IN ('queued', 'running')) THEN
                    kind := 'overlap_skipped';
                END IF;
            ELSIF kind = 'due' AND firing ->> 'made_by' = 'dataset' AND firing ->> 'overlap' = 'queue' THEN
                -- A job that begins later than this sees what was updated before.
                SELECT j.job_id INTO serving FROM dl_jobs j
                 WHERE j.schedule_id = id AND j.status = 'queued' AND j.attempt = 0 LIMIT 1;
                IF FOUND THEN
                    kind := 'exists';
                END IF;
            END IF;
            INSERT INTO dl_firings (schedule_id, fire_at, due_at, outcome, until, job_id, made_by, detail)
            VALUES (id, (firing ->> 'fire_at')::timestamptz, (firing ->> 'due_at')::timestamptz,
                    CASE kind WHEN 'due' THEN 'made' ELSE kind END, (firing ->> 'until')::timestamptz, serving,
                    coalesce(firing ->> 'made_by', 'clock'), firing ->> 'detail')
                ON CONFLICT DO NOTHING;
            CONTINUE WHEN NOT FOUND;
            IF kind = 'due' THEN
                has_job := true;
                requests := requests || (firing -> 'job');
                ids := ids || id;
                times := times || (firing ->> 'fire_at')::timestamptz;
            ELSE
                RETURN QUERY SELECT id, (firing ->> 'fire_at')::timestamptz, kind, serving, firing ->> 'detail';
            END IF;
        END LOOP;
    END LOOP;

    IF requests IS NOT NULL THEN
        RETURN QUERY
        WITH answers AS MATERIALIZED (
            SELECT m.n, m.outcome, m.job_id, m.field, m.detail FROM dl_enqueue_many(to_jsonb(requests)) m
        )
        UPDATE dl_firings f
           SET outcome = CASE a.outcome WHEN 'created' THEN 'made' WHEN 'invalid' THEN 'refused' ELSE 'exists' END, job_id = a.job_id,
               detail = CASE a.outcome WHEN 'invalid' THEN concat_ws(' ', a.field, a.detail) ELSE f.detail END
          FROM answers a
         WHERE f.schedule_id = ids[a.n] AND f.fire_at = times[a.n]
        RETURNING f.schedule_id, f.fire_at, f.outcome, f.job_id, f.detail;
    END IF;
END $$;

CREATE OR REPLACE TRIGGER dl_schedules_audit
    AFTER INSERT OR DELETE OR UPDATE OF overrides, task, source, paused_at, paused_reason ON dl_schedules
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('schedule', 'name',
                                  'schedule_id,declared_at,seen_at,version,last_at,next_at,error,created_at,changed_by,changed_at',
                                  'declared,overrides');

-- ── app/features/backfills ──────────────────────────────────────────────────────────────────────────────────────────

-- Backfills load slices of a task again or for the first time. Their jobs have the limit backfill:ID, which is their concurrency.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_backfills (
    backfill_id         uuid        PRIMARY KEY DEFAULT dl_new_id(),
    task                text        NOT NULL CHECK (task <> '' AND octet_length(task) <= 1000),
    queue               text        NOT NULL CHECK (queue <> '' AND octet_length(queue) <= 1000),
    slices              jsonb       NOT NULL,  -- a unit with its zone, first and last slice; a list; or a schedule with two times
    mode                text        NOT NULL CHECK (mode IN ('missing', 'failed', 'unfinished', 'all')),
    newest_first        bool        NOT NULL,
    concurrency         int         NOT NULL CHECK (concurrency >= 1),
    template            jsonb       NOT NULL,  -- of its jobs: args, lock_key, priority, …
    stop_after_failures int         CHECK (stop_after_failures >= 1),
    state               text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'paused', 'canceled', 'done')),
    reason              text,       -- of the state
    cursor              text,       -- the last slice that was looked at; NULL: none
    total               int         NOT NULL,
    made                int         NOT NULL DEFAULT 0,  -- slices with a job, made for them or found
    adopted             int         NOT NULL DEFAULT 0,  -- of these, found: another job loaded the slice already
    skipped             int         NOT NULL DEFAULT 0,  -- slices that the mode leaves out
    note                text,
    created_by          text,
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    resumed_at          timestamptz NOT NULL DEFAULT clock_timestamp(),  -- earlier failures do not stop it again
    changed_by          text,
    changed_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at            timestamptz
);
CREATE INDEX dl_backfills_open_idx ON dl_backfills (backfill_id) WHERE state IN ('open', 'paused');

-- The slices of tasks, such as days, that have been loaded or are to be: what the last job of each did. A job loads the slice
-- `partition_key` of its task if its live_key is slice:TASK:PARTITION_KEY, so that no two load one at a time.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_slices (
    task           text        NOT NULL,
    partition_key  text        NOT NULL COLLATE "C",
    interval_start timestamptz,
    interval_end   timestamptz,
    state          dl_status   NOT NULL,  -- of its last job
    job_id         uuid        NOT NULL,
    backfill_id    uuid,                  -- the backfill that asked for it last
    runs           int         NOT NULL DEFAULT 0,
    rows           bigint,                -- that the last successful job produced
    succeeded_at   timestamptz,
    succeeded_job  uuid,
    changed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (task, partition_key)
) WITH (fillfactor = 80);
CREATE INDEX dl_slices_backfill_idx ON dl_slices (backfill_id, state) WHERE backfill_id IS NOT NULL;

-- Writes the limit of a backfill: its concurrency, or 0 while it is paused. When it has ended its jobs may still wait, for another
-- backfill has asked for their slices: the limit is deleted when none is left. The caller has changed the row of the backfill, and
-- so holds its lock: two changes leave the limit of the second one.
CREATE OR REPLACE FUNCTION dl_set_backfill_limit(id uuid) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    limit_name text := 'backfill:' || id;
BEGIN
    PERFORM dl_lock_limits(ARRAY[limit_name]);
    INSERT INTO dl_limits (name, concurrency, changed_by)
    SELECT limit_name, CASE state WHEN 'paused' THEN 0 ELSE concurrency END, changed_by FROM dl_backfills WHERE backfill_id = id
        ON CONFLICT (name) DO UPDATE
       SET concurrency = excluded.concurrency, rate = NULL, per_sec = NULL, burst = NULL, note = NULL, changed_by = excluded.changed_by,
           changed_at = clock_timestamp();
    PERFORM count(*) FROM dl_wake_limited(dl_waiting_limits(limit_name));
    PERFORM pg_notify('dl_control', 'limits');
END $$;

-- Makes jobs of a backfill whose cursor is still where it was read: the requests of slices up to `next_cursor`; `passed` slices were
-- left out. A slice that another job loads already is counted, not made twice. A cancel locks the same row: after its commit this
-- makes nothing. Returns no row if the backfill is not open any more, or its cursor has moved.
CREATE OR REPLACE FUNCTION dl_make_backfill(id uuid, read_cursor text, next_cursor text, requests jsonb, passed int)
    RETURNS TABLE (created int, adopted int, problem text)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM FROM dl_backfills b
      WHERE b.backfill_id = id AND b.state = 'open' AND b.cursor IS NOT DISTINCT FROM read_cursor
        FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH answers AS (
        SELECT m.outcome, m.job_id, m.field, m.detail FROM dl_enqueue_many(requests) m
    ), taken AS (
        UPDATE dl_slices s SET backfill_id = id
          FROM answers a JOIN dl_jobs j ON j.job_id = a.job_id
         WHERE a.outcome = 'exists' AND s.task = j.task AND s.partition_key = j.partition_key
        RETURNING 1
    )
    SELECT count(*) FILTER (WHERE outcome = 'created'), count(*) FILTER (WHERE outcome = 'exists'),
           min(concat_ws(' ', field, detail)) FILTER (WHERE outcome NOT IN ('created', 'exists'))
      INTO created, dl_make_backfill.adopted, problem
      FROM answers;
    UPDATE dl_backfills b
       SET cursor = next_cursor, made = b.made + created + dl_make_backfill.adopted,
           adopted = b.adopted + dl_make_backfill.adopted, skipped = b.skipped + passed,
           state = CASE WHEN problem IS NULL THEN b.state ELSE 'paused' END, reason = coalesce(problem, b.reason)
     WHERE b.backfill_id = id;
    IF problem IS NOT NULL THEN
        PERFORM dl_set_backfill_limit(id);
    END IF;
    RETURN NEXT;
END $$;

-- The state of a slice is that of its last job, which has its live key.
CREATE OR REPLACE FUNCTION dl_record_slice(job dl_jobs) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    IF job.live_key NOT LIKE 'slice:%' OR job.live_key <> 'slice:' || job.task || ':' || job.partition_key THEN
        RETURN;
    END IF;
    INSERT INTO dl_slices AS s (task, partition_key, interval_start, interval_end, state, job_id, backfill_id, runs, succeeded_at,
                                succeeded_job)
    VALUES (job.task, job.partition_key, job.interval_start, job.interval_end, job.status, job.job_id, job.backfill_id,
            (job.status = 'running')::int, CASE job.status WHEN 'succeeded' THEN clock_timestamp() END,
            CASE job.status WHEN 'succeeded' THEN job.job_id END)
        ON CONFLICT (task, partition_key) DO UPDATE
       SET interval_start = coalesce(excluded.interval_start, s.interval_start),
           interval_end = coalesce(excluded.interval_end, s.interval_end),
           state = excluded.state, job_id = excluded.job_id, runs = s.runs + excluded.runs,
           backfill_id = CASE s.job_id WHEN excluded.job_id THEN s.backfill_id ELSE coalesce(excluded.backfill_id, s.backfill_id) END,
           succeeded_at = coalesce(excluded.succeeded_at, s.succeeded_at),
           succeeded_job = coalesce(excluded.succeeded_job, s.succeeded_job), changed_at = clock_timestamp()
     WHERE s.job_id = excluded.job_id OR excluded.state IN ('queued', 'running');
END $$;

-- The core's hook.
CREATE OR REPLACE FUNCTION dl_jobs_created(job_ids uuid[]) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM dl_record_slice(j) FROM unnest(job_ids) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id]) WHERE j.live_key LIKE 'slice:%';
END $$;

-- ── app/features/quality ────────────────────────────────────────────────────────────────────────────────────────────

-- Values that jobs compared with their limits, such as the number of rows that they loaded. Kept 90 days.
-- rights of the service: SELECT, INSERT, DELETE
CREATE TABLE dl_checks (
    check_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task          text        NOT NULL,
    name          text        NOT NULL CHECK (name <> '' AND octet_length(name) <= 200),
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_id        uuid        NOT NULL,
    attempt       int         NOT NULL,
    partition_key text        NOT NULL,
    value         float8      NOT NULL,
    low           float8,                      -- the least and the greatest value that passes; NULL: any
    high          float8,
    median        float8,                      -- of the values before it, where they count
    outcome       text        NOT NULL CHECK (outcome IN ('passed', 'warned', 'failed')),
    detail        text
);
CREATE INDEX dl_checks_name_idx ON dl_checks (task, name, at);
CREATE INDEX dl_checks_job_idx ON dl_checks (job_id);
CREATE INDEX dl_checks_bad_idx ON dl_checks (at) WHERE outcome <> 'passed';

-- The updates and reads of datasets, by jobs that succeeded. Kept 90 days; the last
-- one of each dataset, kind and task is kept for ever.
-- rights of the service: SELECT, INSERT, DELETE
CREATE TABLE dl_dataset_events (
    event_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dataset       text        NOT NULL CHECK (dataset <> '' AND octet_length(dataset) <= 500),
    kind          text        NOT NULL CHECK (kind IN ('produced', 'consumed')),
    task          text        NOT NULL,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_id        uuid        NOT NULL,
    partition_key text        NOT NULL,
    rows          bigint,
    schema        jsonb
);
CREATE INDEX dl_dataset_events_dataset_idx ON dl_dataset_events (dataset, kind, task, at);
CREATE INDEX dl_dataset_events_job_idx ON dl_dataset_events (job_id);

-- Records what runs reported: their data checks, and, of those that succeeded, the datasets that they produced and consumed.
-- `job_ids` are the jobs that the caller's statement has settled or released; each report has the run_id. Called only if a
-- run has reported something, last in its statement: what follows from an update of a dataset belongs at the end, in the
-- order of the datasets' names. Takes no lock that others wait for.
CREATE OR REPLACE FUNCTION dl_record_reports(reports jsonb, job_ids uuid[]) RETURNS int
    LANGUAGE plpgsql VOLATILE STRICT SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    recorded int;
BEGIN
    INSERT INTO dl_checks (task, name, job_id, attempt, partition_key, value, low, high, median, outcome, detail)
    SELECT j.task, c.name, j.job_id, greatest(j.attempt, 1), j.partition_key, c.value, c.low, c.high, c.median, c.outcome, c.detail
      FROM jsonb_array_elements(reports) r
           JOIN dl_jobs j ON j.job_id = ANY (job_ids) AND j.run_id = (r ->> 'run_id')::uuid
           CROSS JOIN LATERAL jsonb_to_recordset(r -> 'checks')
                              AS c (name text, value float8, low float8, high float8, median float8, outcome text, detail text);

    UPDATE dl_jobs j
       SET warnings = w.count
      FROM (SELECT (r ->> 'run_id')::uuid AS run_id, count(*) FROM jsonb_array_elements(reports) r, jsonb_array_elements(r -> 'checks') c
             WHERE c ->> 'outcome' = 'warned' GROUP BY 1) w
     WHERE j.job_id = ANY (job_ids) AND j.run_id = w.run_id AND j.status = 'succeeded';

    INSERT INTO dl_dataset_events (dataset, kind, task, job_id, partition_key, rows, schema)
    SELECT d.dataset, d.kind, j.task, j.job_id, coalesce(d.partition, j.partition_key), d.rows, d.schema
      FROM jsonb_array_elements(reports) r
           JOIN dl_jobs j ON j.job_id = ANY (job_ids) AND j.run_id = (r ->> 'run_id')::uuid AND j.status = 'succeeded'
           CROSS JOIN LATERAL jsonb_to_recordset(r -> 'datasets')
                              AS d (kind text, dataset text, partition text, rows bigint, schema jsonb)
     ORDER BY d.dataset;
    GET DIAGNOSTICS recorded = ROW_COUNT;

    IF recorded > 0 THEN
        INSERT INTO dl_dataset_updates (schedule_id, dataset)
        SELECT s.schedule_id, p.dataset
          FROM (SELECT DISTINCT d ->> 'dataset' AS dataset
                  FROM jsonb_array_elements(reports) r
                       JOIN dl_jobs j ON j.job_id = ANY (job_ids) AND j.run_id = (r ->> 'run_id')::uuid AND j.status = 'succeeded'
                       CROSS JOIN LATERAL jsonb_array_elements(r -> 'datasets') d
                 WHERE d ->> 'kind' = 'produced') p
               JOIN dl_schedules s ON coalesce(s.overrides -> 'after', s.declared -> 'after') ? p.dataset
         -- One is enough, unless it is being answered: the job that answers it may begin before this transaction commits.
         WHERE NOT EXISTS (SELECT FROM dl_dataset_updates u WHERE u.schedule_id = s.schedule_id AND u.dataset = p.dataset
                              FOR SHARE SKIP LOCKED);
        IF FOUND THEN
            PERFORM pg_notify('dl_control', 'schedules');
        END IF;
        UPDATE dl_slices s
           SET rows = p.rows
          FROM (SELECT j.task, j.partition_key, j.job_id, sum((d ->> 'rows')::bigint)::bigint AS rows
                  FROM jsonb_array_elements(reports) r
                       JOIN dl_jobs j ON j.job_id = ANY (job_ids) AND j.run_id = (r ->> 'run_id')::uuid AND j.status = 'succeeded'
                                         AND j.live_key = 'slice:' || j.task || ':' || j.partition_key
                       CROSS JOIN LATERAL jsonb_array_elements(r -> 'datasets') d
                 WHERE d ->> 'kind' = 'produced'
                 GROUP BY j.job_id) p
         WHERE s.task = p.task AND s.partition_key = p.partition_key AND s.job_id = p.job_id AND p.rows IS NOT NULL;
    END IF;
    RETURN recorded;
END $$;

-- The last event of each kind and task of a dataset: one search in the index for each.
CREATE OR REPLACE FUNCTION dl_last_dataset_events(dataset_name text) RETURNS SETOF dl_dataset_events
    LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
    WITH RECURSIVE last AS (
        (SELECT e.* FROM dl_dataset_events e WHERE e.dataset = dataset_name ORDER BY e.kind DESC, e.task DESC, e.at DESC LIMIT 1)
        UNION ALL
        SELECT next.*
          FROM last CROSS JOIN LATERAL (
                   SELECT e.* FROM dl_dataset_events e
                    WHERE e.dataset = dataset_name AND (e.kind, e.task) < (last.kind, last.task)
                    ORDER BY e.kind DESC, e.task DESC, e.at DESC LIMIT 1) next
    )
    SELECT * FROM last LIMIT 1000
$$;

-- ── app/features/lineage ────────────────────────────────────────────────────────────────────────────────────────────

-- How far the event stream has been sent as OpenLineage events: a cursor of it; null: not yet.
-- rights of the service: SELECT, UPDATE
CREATE TABLE dl_lineage_state (
    singleton bool PRIMARY KEY DEFAULT true CHECK (singleton),
    cursor    text
);
INSERT INTO dl_lineage_state DEFAULT VALUES;

-- ── app/features/tasks ──────────────────────────────────────────────────────────────────────────────────────────────

-- Tasks whose job is enqueued when a job of `task` has failed or is lost for good. Workers write what their tasks declare.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_failure_handlers (
    task    text PRIMARY KEY CHECK (task <> '' AND octet_length(task) <= 1000),
    handler text NOT NULL CHECK (handler <> '' AND octet_length(handler) <= 1000),
    queue   text CHECK (queue <> '' AND octet_length(queue) <= 1000)  -- of the handler's jobs; NULL: that of the failed job
);

-- A job has failed for good, by any statement of any process: its handler's job is enqueued in the same transaction. The
-- failure of a handler's job, which its producer marks, enqueues nothing. References to secrets and results become plain
-- objects: they are the failed job's.
CREATE OR REPLACE FUNCTION dl_enqueue_failure_handler(job dl_jobs) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    declared dl_failure_handlers;
BEGIN
    SELECT * INTO declared FROM dl_failure_handlers h WHERE h.task = job.task;
    IF FOUND THEN
        PERFORM count(*) FROM dl_create_jobs(jsonb_build_array(jsonb_build_object(
            'queue', coalesce(declared.queue, job.queue), 'task', declared.handler, 'lock_key', 'on_failed:' || job.job_id,
            'parent_id', job.job_id, 'producer', 'on_failed:' || job.task, 'traceparent', job.traceparent,
            'args', jsonb_build_object(
                'job_id', job.job_id, 'queue', job.queue, 'task', job.task, 'status', job.status, 'attempt', job.attempt,
                'error', left(job.error, 8000),
                'args', regexp_replace(dl_json_text_limited(job.args, 1048576), '"\$(secret|result)": ', '"\1": ', 'g')::jsonb))), false);
    END IF;
END $$;

-- ── app/features/offload ────────────────────────────────────────────────────────────────────────────────────────────

-- What jobs gave to other engines, a row for each name; see decision 69. It is written before the submission, and kept after
-- the job: the name is how the work is found again, stopped and deleted.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_offloads (
    name                text        NOT NULL PRIMARY KEY,
    job_id              uuid        NOT NULL,
    run_id              uuid        NOT NULL,  -- that submitted it
    call                text        NOT NULL,  -- its number among the job's calls, or its key
    number              int         NOT NULL,  -- of the submissions of this call
    engine              text        NOT NULL,
    address             text        NOT NULL DEFAULT '',
    fingerprint         text        NOT NULL,  -- of code and arguments
    fence_token         text        NOT NULL,  -- what the remote code proves itself with
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    deadline_at         timestamptz,
    engine_timeout_sec  float8      NOT NULL DEFAULT 900,
    stop_on_shutdown    bool        NOT NULL DEFAULT false,
    is_abandoned        bool        NOT NULL DEFAULT false,  -- its stop is not waited for
    grace_sec           float8      NOT NULL DEFAULT 30,
    is_awaited          bool        NOT NULL DEFAULT false,  -- its job waits for it without a thread
    awaited_since       timestamptz,
    next_poll_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    unavailable_since   timestamptz,  -- the engine does not answer
    detail              text        NOT NULL DEFAULT '',  -- why the work has not started
    submitted           int         NOT NULL DEFAULT 0,  -- how often this name was submitted
    log_position        text        NOT NULL DEFAULT '',
    stop_requested_at   timestamptz,
    ended_at            timestamptz,
    outcome             text        CHECK (outcome IN ('succeeded', 'failed', 'stopped', 'abandoned')),
    UNIQUE (job_id, call, number),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
);

CREATE INDEX dl_offloads_open_idx ON dl_offloads (next_poll_at) WHERE ended_at IS NULL;
CREATE INDEX dl_offloads_ended_idx ON dl_offloads (ended_at) WHERE ended_at IS NOT NULL;

-- ── app/features/targets ────────────────────────────────────────────────────────────────────────────────────────────

-- The fences of attempts in targets: numbers that grow with every claim of a job, also over a failover to a server that has lost
-- the last ones. See decision 127.
-- The history of this database, in the high bits of a fence. One row.
-- rights of the service: SELECT, INSERT, UPDATE
CREATE TABLE dl_fence_history (
    is_only  bool NOT NULL DEFAULT true PRIMARY KEY CHECK (is_only),
    timeline int  NOT NULL,  -- of the server when the last fence was drawn
    server   text NOT NULL,  -- the cluster and the database
    epoch    int  NOT NULL   -- grows with the timeline, and when the database was moved to another server
);

CREATE SEQUENCE dl_fence_number OWNED BY dl_fence_history.epoch;

-- In which targets the attempts of a job wrote, the last one that claimed its row there, and whether it could.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_job_targets (
    job_id     uuid        NOT NULL,
    target     text        NOT NULL,
    run_id     uuid        NOT NULL,
    fence      bigint      NOT NULL,
    problem    text,                  -- why its transactions there have no fence
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamptz,           -- of the row in the target
    PRIMARY KEY (job_id, target)
);
CREATE INDEX dl_job_targets_kept_idx ON dl_job_targets (claimed_at, job_id, target) WHERE deleted_at IS NULL;

-- The targets that tasks name. Workers write what their tasks declare: processes that load no tasks want to know.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_task_targets (
    task   text PRIMARY KEY CHECK (task <> '' AND octet_length(task) <= 1000),
    target text NOT NULL CHECK (target <> '' AND octet_length(target) <= 1000)
);

-- Draws a fence for a run, and records its target. The caller commits only if the run still owns its job then: so a later
-- claim has a higher number. `former` is the fence of the job's last claim there, 0 if it had none. With a problem that is kept.
CREATE OR REPLACE FUNCTION dl_draw_fence(job uuid, run uuid, target_name text, problem_text text, OUT number bigint, OUT former bigint)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    server_timeline int := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
    server_name     text := (SELECT concat_ws(' ', s.system_identifier, d.oid)
                               FROM pg_control_system() s, pg_database d WHERE d.datname = current_database());
    history         dl_fence_history;
BEGIN
    SELECT h.* INTO history FROM dl_fence_history h;
    IF (history.timeline, history.server) IS DISTINCT FROM (server_timeline, server_name) THEN
        INSERT INTO dl_fence_history AS h (timeline, server, epoch) VALUES (server_timeline, server_name, server_timeline)
            ON CONFLICT (is_only) DO UPDATE
               SET epoch = h.epoch + CASE WHEN h.server = server_name AND server_timeline >= h.timeline THEN server_timeline - h.timeline
                                          WHEN h.server <> server_name OR server_timeline < h.timeline THEN 1 ELSE 0 END,
                   timeline = server_timeline, server = server_name
            RETURNING h.* INTO history;
    END IF;
    number := (history.epoch::bigint << 40) + nextval('dl_fence_number');
    former := coalesce((SELECT t.fence FROM dl_job_targets t
                         WHERE t.job_id = job AND t.target = target_name AND t.problem IS NULL AND t.deleted_at IS NULL), 0);
    IF problem_text IS NULL OR former = 0 THEN
        INSERT INTO dl_job_targets AS t (job_id, target, run_id, fence, problem) VALUES (job, target_name, run, number, problem_text)
            ON CONFLICT (job_id, target) DO UPDATE
               SET run_id = run, fence = number, problem = problem_text, claimed_at = clock_timestamp(), deleted_at = NULL;
    END IF;
END $$;

-- ── app/features/where ──────────────────────────────────────────────────────────────────────────────────────────────

-- The last answer of a worker process to the question where a run is. Old ones are deleted with the next answer.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE UNLOGGED TABLE dl_where (
    run_id      uuid        PRIMARY KEY,
    answer      text        NOT NULL CHECK (octet_length(answer) <= 65536),  -- JSON
    answered_at timestamptz NOT NULL
);

-- The account of an attempt: for what its time went. Written while it runs, from the age of ten seconds, and when it has ended.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_accounts (
    run_id         uuid        PRIMARY KEY,
    job_id         uuid        NOT NULL,
    task           text        NOT NULL,
    attempt        int         NOT NULL,
    written_at     timestamptz NOT NULL,
    ended_at       timestamptz,  -- NULL: it runs, or its worker process has died
    wall_sec       float8      NOT NULL,
    cpu_sec        float8,
    peak_memory_mb float8,       -- of an attempt with processes of its own, as the next one
    memory_gb_sec  float8,
    rows           bigint      NOT NULL,  -- that the toolkit has copied, as the next one
    bytes          bigint      NOT NULL,
    cost           float8,       -- by the price list of the settings
    account        text        NOT NULL CHECK (octet_length(account) <= 4096)  -- JSON
);
CREATE INDEX dl_accounts_idx_job ON dl_accounts (job_id);
CREATE INDEX dl_accounts_idx_task ON dl_accounts (task, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX dl_accounts_idx_open ON dl_accounts (run_id) WHERE ended_at IS NULL;

-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_account_days (
    day           date   NOT NULL,  -- in UTC
    task          text   NOT NULL,
    attempts      bigint NOT NULL,
    wall_sec      float8 NOT NULL,
    cpu_sec       float8 NOT NULL,
    memory_gb_sec float8 NOT NULL,
    rows          bigint NOT NULL,
    bytes         bigint NOT NULL,
    cost          float8 NOT NULL,
    PRIMARY KEY (day, task)
);

-- ── app/features/bulk ───────────────────────────────────────────────────────────────────────────────────────────────

-- Operations on all jobs that match a filter, run in batches by the maintenance leader.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_bulk (
    bulk_id          uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    action           text        NOT NULL CHECK (action IN ('cancel', 'retry', 'redrive', 'delete', 'reprioritise')),
    filter           jsonb       NOT NULL,
    priority         int         CHECK (priority >= 0),  -- what reprioritise sets
    expected         bigint      NOT NULL,               -- counted before the request: bounds how many are changed
    state            text        NOT NULL DEFAULT 'waiting'
                                 CHECK (state IN ('waiting', 'running', 'done', 'canceled', 'stopped', 'failed')),
    cancel_requested bool        NOT NULL DEFAULT false,
    scanned          bigint      NOT NULL DEFAULT 0,
    matched          bigint      NOT NULL DEFAULT 0,
    changed          bigint      NOT NULL DEFAULT 0,
    -- Jobs newer than this are done; of redrive, older ones. A batch moves it in its own transaction, so after a crash the
    -- next process resumes exactly here. It starts at the request: later jobs are not included.
    cursor_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    cursor_id        uuid        NOT NULL DEFAULT 'ffffffff-ffff-ffff-ffff-ffffffffffff',
    failed_batches   int         NOT NULL DEFAULT 0,     -- in a row
    requested_by     text,
    error            text,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at       timestamptz,
    finished_at      timestamptz,
    -- Of redrive: at most so many jobs a minute and in all, what their args are merged with, and when the next step is due.
    per_minute       int         CHECK (per_minute >= 1),
    max_jobs         bigint      CHECK (max_jobs >= 1),
    args_patch       jsonb,
    next_step_at     timestamptz
);
CREATE INDEX dl_bulk_created_idx ON dl_bulk (created_at, bulk_id);
CREATE INDEX dl_bulk_open_idx ON dl_bulk (created_at) WHERE state IN ('waiting', 'running');

CREATE OR REPLACE TRIGGER dl_bulk_audit AFTER INSERT OR UPDATE OF cancel_requested ON dl_bulk
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('bulk', 'bulk_id', 'scanned,matched,changed,cursor_at,cursor_id,failed_batches,requested_by,created_at,next_step_at',
                                  'args_patch');

-- ── app/features/statistics ─────────────────────────────────────────────────────────────────────────────────────────

-- Counts for each minute, quarter of an hour and hour, by queue and task, aggregated from the events. One row a number.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_statistics (
    span_sec   int         NOT NULL,  -- 60, 900, 3600; negative: of all queues and tasks together, which are ''
    started_at timestamptz NOT NULL,
    queue      text        NOT NULL,
    task       text        NOT NULL,
    -- queued, started, succeeded, failed, canceled, lost, retried (bucket 0); waited, ran (bucket: see dl_duration_bucket)
    measure    text        NOT NULL,
    bucket     int         NOT NULL,
    count      bigint      NOT NULL,
    total_sec  float8      NOT NULL DEFAULT 0,  -- seconds waited or run, added up
    PRIMARY KEY (span_sec, started_at, queue, task, measure, bucket)
);

-- The histogram bucket of a duration: half powers of two from 5 ms on. A percentile read from the buckets is at most a
-- fifth off.
CREATE OR REPLACE FUNCTION dl_duration_bucket(sec float8) RETURNS int
    LANGUAGE sql IMMUTABLE
    RETURN least(60, ceil(2 * ln(greatest(sec, 0.005) / 0.005) / ln(2)))::int;

-- How many jobs waited and ran, recorded once a minute.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_queue_depths (
    at               timestamptz NOT NULL,
    queue            text        NOT NULL,
    ready            bigint      NOT NULL,
    scheduled        bigint      NOT NULL,
    blocked          bigint      NOT NULL,
    running          bigint      NOT NULL,
    oldest_ready_sec float8,
    limited          bigint      NOT NULL DEFAULT 0,
    waiting          bigint      NOT NULL DEFAULT 0,
    PRIMARY KEY (at, queue)
);

-- The latest finished attempts of each task.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_recent_runs (
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

-- How far the events have been aggregated. Events commit out of the order of their ids, so the unread ones are a set of
-- ranges. A gap is given up once every transaction that might still fill it has ended: those that held the events' table
-- lock when a later event was there already.
-- rights of the service: SELECT, UPDATE
CREATE TABLE dl_statistics_state (
    singleton    bool           PRIMARY KEY DEFAULT true CHECK (singleton),
    unread       int8multirange NOT NULL,
    safe_id      bigint         NOT NULL DEFAULT 0,   -- no event up to this id will appear any more
    candidate_id bigint         NOT NULL DEFAULT 0,   -- becomes safe_id when the open writers have ended
    open_writers text[]         NOT NULL DEFAULT '{}'
);
INSERT INTO dl_statistics_state (unread) VALUES ('{[0,)}');

-- ── app/features/webhooks ───────────────────────────────────────────────────────────────────────────────────────────

-- Receivers of events. A webhook without a queue or a task gets those of all.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE; none of readers
CREATE TABLE dl_webhooks (
    webhook_id       uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    url              text        NOT NULL,
    events           text[]      NOT NULL DEFAULT '{job.succeeded,job.failed,job.canceled,job.lost}',
    queue            text,
    task             text,
    description      text        NOT NULL DEFAULT '',
    secret           text        NOT NULL,
    format           text        NOT NULL DEFAULT 'json' CHECK (format IN ('json', 'slack', 'teams', 'google_chat', 'email')),
    -- After a rotation both secrets sign for a while, so that a receiver can change over at any time.
    old_secret       text,
    old_secret_until timestamptz,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    disabled_at      timestamptz,                         -- by an operator, or because it failed for too long
    disabled_reason  text,
    failures         int         NOT NULL DEFAULT 0,      -- in a row
    failing_since    timestamptz,
    paused_until     timestamptz                          -- the receiver is down
);

-- Deliveries, written in the transaction that made the event true. No foreign key to the job: they outlive it.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_deliveries (
    delivery_id      uuid        PRIMARY KEY DEFAULT gen_random_uuid(),  -- the same in each attempt
    webhook_id       uuid        REFERENCES dl_webhooks (webhook_id) ON DELETE CASCADE,
    url              text,                                               -- of a job's own webhook
    target           text        NOT NULL,                               -- deliveries of one target wait for each other
    job_id           uuid,
    event            text        NOT NULL,
    body             text        NOT NULL,
    state            text        NOT NULL DEFAULT 'pending',             -- pending, delivered, failed
    attempts         int         NOT NULL DEFAULT 0,
    earlier_attempts int         NOT NULL DEFAULT 0,                     -- those before it was last redelivered
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at           timestamptz DEFAULT clock_timestamp(),              -- while it is being sent: when the sender's lease ends
    claim_id         uuid,
    delivered_at     timestamptz,
    CONSTRAINT dl_deliveries_chk_url CHECK ((webhook_id IS NULL) <> (url IS NULL))
);
CREATE INDEX dl_deliveries_due_idx ON dl_deliveries (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX dl_deliveries_webhook_idx ON dl_deliveries (webhook_id, created_at, delivery_id);
CREATE INDEX dl_deliveries_created_idx ON dl_deliveries (created_at, delivery_id);
CREATE INDEX dl_deliveries_job_idx ON dl_deliveries (job_id);

-- rights of the service: SELECT, INSERT
CREATE TABLE dl_delivery_attempts (
    delivery_id uuid        NOT NULL REFERENCES dl_deliveries (delivery_id) ON DELETE CASCADE,
    number      int         NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    status      int,
    duration_ms float8      NOT NULL,
    answer      text        NOT NULL DEFAULT '',  -- the first bytes of the response
    error       text,
    PRIMARY KEY (delivery_id, number)
);

-- Create the deliveries for the present state of these jobs. Called by the statements that end an attempt or a wait, only
-- when there is a webhook: the test costs them nothing a job. The rows are read as those statements have left them.
CREATE OR REPLACE FUNCTION dl_create_deliveries(job_ids uuid[]) RETURNS bigint
    LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    written bigint;
BEGIN
    WITH changed AS (
        SELECT j.*, 'job.' || CASE j.status WHEN 'queued' THEN 'retrying' ELSE j.status::text END AS event
          FROM dl_jobs j
         WHERE j.job_id = ANY (job_ids)
           AND (j.status NOT IN ('queued', 'running') OR j.status = 'queued' AND j.error IS NOT NULL)
    ), receivers AS (
        SELECT t.job_id, w.webhook_id, NULL AS url, w.webhook_id::text AS target
          FROM changed t
               JOIN dl_webhooks w ON w.disabled_at IS NULL AND t.event = ANY (w.events)
                                     AND coalesce(w.queue = t.queue, true) AND coalesce(w.task = t.task, true)
        UNION ALL
        SELECT job_id, NULL, webhook ->> 'url', left(substring(webhook ->> 'url' FROM '^[^/]*//[^/?#]*'), 300)
          FROM changed
         WHERE webhook ->> 'url' LIKE 'http%//%'
           AND coalesce(webhook -> 'events' ? event, event <> 'job.retrying')
    )
    INSERT INTO dl_deliveries (webhook_id, url, target, job_id, event, body)
    SELECT receivers.webhook_id, receivers.url, receivers.target, t.job_id, t.event,
           jsonb_build_object(
               'type', t.event,
               'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'data', jsonb_build_object(
                   'job_id', t.job_id, 'queue', t.queue, 'task', t.task, 'status', t.status, 'attempt', t.attempt,
                   'max_attempts', t.max_attempts, 'lock_key', t.lock_key, 'partition_key', t.partition_key,
                   'idempotency_key', t.idempotency_key, 'producer', t.producer, 'consumer_group', t.consumer_group,
                   'created_at', t.created_at, 'started_at', t.started_at, 'finished_at', t.finished_at,
                   'available_at', CASE t.status WHEN 'queued' THEN t.available_at END,
                   'error', left(t.error, 2000), 'progress', dl_json_text_limited(t.progress, 65536)::jsonb,
                   'result', dl_json_text_limited(t.result, 65536)::jsonb))::text
      FROM receivers JOIN changed t USING (job_id);
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written > 0 THEN
        PERFORM pg_notify('dl_control', 'deliver');
    END IF;
    RETURN written;
END $$;

CREATE OR REPLACE TRIGGER dl_webhooks_audit AFTER INSERT OR UPDATE OR DELETE ON dl_webhooks
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('webhook', 'webhook_id', 'webhook_id,created_at,failures,failing_since,paused_until',
                                  'url,secret,old_secret');

CREATE OR REPLACE TRIGGER dl_deliveries_audit AFTER UPDATE OF earlier_attempts ON dl_deliveries
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('delivery', 'delivery_id', 'due_at,claim_id', 'url,body');

REVOKE EXECUTE ON FUNCTION
    dl_create_deliveries
  FROM PUBLIC;

-- ── app/features/alerts ─────────────────────────────────────────────────────────────────────────────────────────────

-- Rules for alerts, checked every few seconds by the maintenance leader.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_alert_rules (
    rule_id     uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    name        text        NOT NULL UNIQUE,
    kind        text        NOT NULL CHECK (kind IN ('failure_rate', 'no_success', 'queue_age', 'stalled', 'dead_worker',
                                                          'breaker_open', 'limit_starved', 'schedule_late', 'schedule_behind',
                                                          'check_failed', 'stale_dataset')),
    queue       text,
    task        text,
    threshold   float8      NOT NULL CHECK (threshold >= 0),   -- a share of 1, or seconds
    window_sec  float8      NOT NULL CHECK (window_sec > 0),
    min_runs    int         NOT NULL DEFAULT 1 CHECK (min_runs > 0),
    active      bool        NOT NULL DEFAULT true,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    dataset     text,
    by_time     text        CHECK (by_time ~ '^([01][0-9]|2[0-3]):[0-5][0-9]$'),  -- of a dataset: when its update is due
    zone        text,                                                            -- of by_time; NULL: UTC
    muted_until timestamptz,                                                     -- until then its new alerts are not delivered
    muted_by    text
);

-- The last time at which the clock of the zone showed `by_time`. In a zone that the server does not know it is that of UTC: one
-- rule must not fail the check of all.
CREATE OR REPLACE FUNCTION dl_last_deadline(by_time text, zone text) RETURNS timestamptz
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    today date;
    due   timestamptz;
BEGIN
    today := (clock_timestamp() AT TIME ZONE zone)::date;
    due := (today + by_time::time) AT TIME ZONE zone;
    RETURN CASE WHEN due <= clock_timestamp() THEN due ELSE (today - 1 + by_time::time) AT TIME ZONE zone END;
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN dl_last_deadline(by_time, 'UTC');
END $$;

-- Alerts that fire or have fired, one row from start to end.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_alerts (
    alert_id   uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    rule_id    uuid,
    kind       text        NOT NULL,
    name       text        NOT NULL,
    subject    text        NOT NULL,  -- the task, queue, job or worker it is about
    queue      text,
    task       text,
    value      float8,
    detail     text        NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at   timestamptz,
    sent_at    timestamptz DEFAULT clock_timestamp(),  -- when its deliveries were created; NULL: its rule was muted
    acknowledged_at timestamptz,
    acknowledged_by text
);
CREATE UNIQUE INDEX dl_alerts_firing_idx
    ON dl_alerts (coalesce(rule_id, '00000000-0000-0000-0000-000000000000'), kind, subject) WHERE ended_at IS NULL;
CREATE INDEX dl_alerts_started_idx ON dl_alerts (started_at, alert_id);

-- Since when the progress of a running job has not changed, for rules of kind `stalled`.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_stalled_progress (
    job_id  uuid        PRIMARY KEY,
    run_id  uuid,
    digest  text        NOT NULL,
    since   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- A webhook of our format gets a delivery for each alert, one for people a delivery for all of them, with the first fifty.
CREATE OR REPLACE FUNCTION dl_create_alert_deliveries(alerts uuid[], event text) RETURNS bigint
    LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    written bigint;
BEGIN
    WITH due AS (
        SELECT w.webhook_id, w.format, a.name, a.started_at, a.alert_id,
               jsonb_build_object(
                   'alert_id', a.alert_id, 'rule_id', a.rule_id, 'kind', a.kind, 'name', a.name, 'subject', a.subject,
                   'queue', a.queue, 'task', a.task, 'value', a.value, 'detail', a.detail, 'started_at', a.started_at,
                   'ended_at', a.ended_at) AS data,
               row_number() OVER (PARTITION BY w.webhook_id ORDER BY a.name, a.started_at, a.alert_id) AS place
          FROM dl_alerts a
               JOIN dl_webhooks w ON w.disabled_at IS NULL AND dl_create_alert_deliveries.event = ANY (w.events)
                                     AND coalesce(w.queue = a.queue, true) AND coalesce(w.task = a.task, true)
         WHERE a.alert_id = ANY (alerts)
    ), bodies AS (
        SELECT webhook_id, data FROM due WHERE format = 'json'
        UNION ALL
        SELECT webhook_id, jsonb_build_object('count', count(*), 'alerts', jsonb_agg(data ORDER BY place) FILTER (WHERE place <= 50))
          FROM due WHERE format <> 'json' GROUP BY webhook_id
    )
    INSERT INTO dl_deliveries (webhook_id, target, event, body)
    SELECT webhook_id, webhook_id::text, dl_create_alert_deliveries.event,
           jsonb_build_object(
               'type', dl_create_alert_deliveries.event,
               'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'data', data)::text
      FROM bodies;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written > 0 THEN
        PERFORM pg_notify('dl_control', 'deliver');
    END IF;
    RETURN written;
END $$;

CREATE OR REPLACE TRIGGER dl_alert_rules_audit AFTER INSERT OR UPDATE OR DELETE ON dl_alert_rules
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('alert_rule', 'rule_id', 'rule_id,created_at', '');

CREATE OR REPLACE TRIGGER dl_alerts_audit AFTER UPDATE OF acknowledged_at ON dl_alerts
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('alert', 'alert_id', 'seen_at,value,detail', '');

REVOKE EXECUTE ON FUNCTION
    dl_create_alert_deliveries
  FROM PUBLIC;

-- ── app/features ────────────────────────────────────────────────────────────────────────────────────────────────────

-- The core's hook for ends of jobs, with what features do then. In this order: all locks of limits are taken at once, and what
-- follows from an update of a dataset comes last.
CREATE OR REPLACE FUNCTION dl_jobs_ended(
    job_ids uuid[] DEFAULT NULL, has_webhook bool DEFAULT false, runs uuid[] DEFAULT NULL, counted uuid[] DEFAULT NULL,
    woken_for text[] DEFAULT NULL, reports jsonb DEFAULT NULL
) RETURNS int
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    limit_names text[] := coalesce(woken_for, '{}');
    woken_count int := 0;
BEGIN
    -- Circuit breakers.
    IF counted IS NOT NULL AND EXISTS (SELECT FROM dl_breakers) THEN
        limit_names := limit_names || dl_count_outcomes(
            (SELECT jsonb_agg(jsonb_build_object('task', j.task, 'status', j.status, 'error', left(j.error, 300)) ORDER BY j.job_id)
               FROM unnest(counted) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])));
    END IF;
    -- Limits. One that has no row counts nothing, and no job waits for it.
    IF runs IS NOT NULL AND (EXISTS (SELECT FROM dl_limits) OR EXISTS (SELECT FROM dl_breakers WHERE state <> 'closed')) THEN
        limit_names := limit_names || ARRAY(
            SELECT DISTINCT c.name
              FROM (SELECT DISTINCT j.limits, j.queue, j.task
                      FROM unnest(runs) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])) ended
                   CROSS JOIN LATERAL dl_job_limits(ended.limits, ended.queue, ended.task) c
             WHERE EXISTS (SELECT FROM dl_limits l WHERE l.name = ANY (dl_limit_names(c.name)))
                OR EXISTS (SELECT FROM dl_breakers b WHERE 'task:' || b.task = c.name AND b.state <> 'closed'));
    END IF;
    IF limit_names <> '{}' THEN
        woken_count := (SELECT count(*) FROM dl_wake_limited(limit_names));
    END IF;
    -- Webhooks: those of all jobs, and those of single ones.
    IF job_ids IS NOT NULL AND (has_webhook OR EXISTS (SELECT FROM dl_webhooks WHERE disabled_at IS NULL)) THEN
        PERFORM dl_create_deliveries(job_ids);
    END IF;
    -- Data checks and datasets.
    IF reports IS NOT NULL THEN
        PERFORM dl_record_reports(reports, runs);
    END IF;
    RETURN woken_count;
END $$;

-- The core's hook for jobs that have another status.
CREATE OR REPLACE FUNCTION dl_job_status_changed(job dl_jobs, old_status dl_status) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF job.status IN ('failed', 'lost') AND old_status NOT IN ('failed', 'lost') AND starts_with(job.producer, 'on_failed:') IS NOT TRUE THEN
        PERFORM dl_enqueue_failure_handler(job);
    END IF;
    IF job.graph_id IS NOT NULL AND (job.status IN ('queued', 'running')) <> (old_status IN ('queued', 'running')) THEN
        PERFORM dl_graph_job_changed(job);
    END IF;
    IF job.live_key IS NOT NULL THEN
        PERFORM dl_record_slice(job);
    END IF;
END $$;

-- The core's hooks for the heartbeat of a process and for known names, with what features answer.
CREATE OR REPLACE FUNCTION dl_due_work(OUT next_schedule_in_sec float8, OUT has_updates bool, OUT has_due_deliveries bool)
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    next_schedule_in_sec := (
        SELECT date_part('epoch', s.next_at) - date_part('epoch', clock_timestamp())
          FROM dl_schedules s
         WHERE s.next_at < 'infinity' AND s.paused_at IS NULL AND s.orphaned_at IS NULL
         ORDER BY s.next_at
         LIMIT 1);
    has_updates := EXISTS (SELECT FROM dl_dataset_updates);
    -- Those of paused receivers may be many: if the first hundred are, there may be others.
    has_due_deliveries := (
        SELECT count(*) = 100 OR count(*) FILTER (WHERE NOT due.is_paused) > 0
          FROM (SELECT EXISTS (SELECT FROM dl_webhooks w
                                WHERE w.webhook_id = d.webhook_id AND w.paused_until > clock_timestamp()) AS is_paused
                  FROM dl_deliveries d
                 WHERE d.due_at <= (SELECT clock_timestamp())
                 ORDER BY d.due_at
                 LIMIT 100) due);
END $$;

CREATE OR REPLACE FUNCTION dl_recorded_queues() RETURNS SETOF text
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY SELECT d.queue FROM dl_queue_depths d WHERE d.at = (SELECT max(at) FROM dl_queue_depths);
END $$;

CREATE OR REPLACE FUNCTION dl_recorded_names() RETURNS TABLE (kind text, name text)
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT 'queue', r.queue FROM dl_recent_runs r
    UNION SELECT 'task', r.task FROM dl_recent_runs r
    UNION SELECT 'task', s.task FROM dl_schedules s
    UNION SELECT 'task', b.task FROM dl_breakers b;
END $$;

COMMIT;
