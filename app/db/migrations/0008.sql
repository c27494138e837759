-- Alerts: rules are muted, firing alerts acknowledged.

ALTER TABLE dl_alert_rules
    ADD COLUMN muted_until timestamptz,
    ADD COLUMN muted_by text;
ALTER TABLE dl_alerts
    ADD COLUMN sent_at timestamptz DEFAULT clock_timestamp(),
    ADD COLUMN acknowledged_at timestamptz,
    ADD COLUMN acknowledged_by text;

-- Audit: changes are read without the triggers of jobs between them.

CREATE INDEX dl_audit_changes_idx ON dl_audit (audit_id) WHERE subject <> 'job' OR before IS NOT NULL OR after IS NULL;

-- Job logs: how many lines a note says were left out.

ALTER TABLE dl_job_logs ADD COLUMN dropped int;

-- Jobs: all jobs of a lock key are found, of whatever age.

-- An operator class of its own, so that no claim sorts by this index: a plan made on an empty table did, and read all jobs.
CREATE INDEX dl_jobs_lock_key_idx ON dl_jobs (lock_key text_pattern_ops, job_id);

-- Jobs: tags.

-- Whether these may be a job's tags: 1 to 20 texts, each of 1 to 100 bytes. In PL/pgSQL: the planner would try to inline a
-- function in SQL for each statement that writes a job.
CREATE OR REPLACE FUNCTION dl_is_tag_list(tags text[]) RETURNS bool
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN cardinality(tags) BETWEEN 1 AND 20 AND array_ndims(tags) = 1
           AND (SELECT bool_and(coalesce(octet_length(tag) BETWEEN 1 AND 100, false)) FROM unnest(tags) AS tag);
END $$;

ALTER TABLE dl_jobs
    ADD COLUMN tags text[],
    ADD CONSTRAINT dl_jobs_chk_tags CHECK (tags IS NULL OR dl_is_tag_list(tags));
CREATE INDEX dl_jobs_tags_idx ON dl_jobs USING gin (tags) WHERE tags IS NOT NULL;
ALTER TYPE dl_enqueue_request ADD ATTRIBUTE tags text[];

-- dl_enqueue has one more parameter. Who may execute the old one may execute the new one, which schema.sql replaces.
DO $$
DECLARE
    old     regprocedure := to_regprocedure('dl_enqueue(text, text, text, jsonb, text, text, int, timestamptz, int, int, text,'
                                            ' text, text, int, jsonb, uuid, jsonb, jsonb, text, text, jsonb, jsonb, timestamptz, int,'
                                            ' timestamptz, timestamptz, timestamptz)');
    grantee regrole;
BEGIN
    IF old IS NULL THEN
        RETURN;
    END IF;
    CREATE FUNCTION dl_enqueue(
        queue text, task text, lock_key text, args jsonb, idempotency_key text, partition_key text, priority int,
        available_at timestamptz, max_attempts int, lease_ttl_sec int, producer text, consumer_group text, live_key text,
        time_limit_sec int, retry jsonb, parent_id uuid, limits jsonb, after jsonb, need text, fair_key text, debounce jsonb,
        throttle jsonb, expires_at timestamptz, start_within_sec int, logical_at timestamptz, interval_start timestamptz,
        interval_end timestamptz, tags text[]
    ) RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid';
    FOR grantee IN SELECT a.grantee FROM pg_proc p, aclexplode(p.proacl) a
                    WHERE p.oid = old AND a.privilege_type = 'EXECUTE' AND a.grantee <> 0 LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION dl_enqueue(text, text, text, jsonb, text, text, int, timestamptz, int, int,'
                       ' text, text, text, int, jsonb, uuid, jsonb, jsonb, text, text, jsonb, jsonb, timestamptz, int,'
                       ' timestamptz, timestamptz, timestamptz, text[]) TO %s',
                       grantee);
    END LOOP;
    EXECUTE format('DROP FUNCTION %s', old);
END $$;

-- Failure handlers.

-- Tasks whose job is enqueued when a job of `task` has failed or is lost for good. Workers write what their tasks declare.
CREATE TABLE dl_failure_handlers (
    task    text PRIMARY KEY CHECK (task <> '' AND octet_length(task) <= 1000),
    handler text NOT NULL CHECK (handler <> '' AND octet_length(handler) <= 1000),
    queue   text CHECK (queue <> '' AND octet_length(queue) <= 1000)  -- of the handler's jobs; NULL: that of the failed job
);

-- Claims: at most four of a queue prefetch at a time.

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
    PERFORM pg_advisory_xact_lock(1684828533, hashtext(queue_name) # floor(4 * random())::int);
EXCEPTION WHEN lock_not_available THEN
    NULL;
END $$;

-- Offloads: what jobs gave to other engines.

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

-- Backfills: slices that another job loaded already are counted.

ALTER TABLE dl_backfills ADD COLUMN adopted int NOT NULL DEFAULT 0;

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

-- Schedules: the calendar reads the first firings of each day.
CREATE INDEX dl_firings_fire_idx ON dl_firings (fire_at);

-- Workers: labels, and the tasks that a process leaves to others for want of them; whether it reaps.

ALTER TABLE dl_workers
    ADD COLUMN labels jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN unserved_tasks jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN reaps bool NOT NULL DEFAULT true,
    ADD CONSTRAINT dl_workers_chk_heartbeat CHECK (heartbeat_sec > 0 AND heartbeat_sec <= 86400),
    ADD CONSTRAINT dl_workers_chk_json CHECK (jsonb_typeof(running_attempts) = 'array' AND jsonb_typeof(queue_threads) = 'object'
                                         AND jsonb_typeof(labels) = 'object' AND jsonb_typeof(unserved_tasks) = 'object');
-- Heartbeats would have new statistics taken each minute, and every session would plan again what reads this table. A page has room
-- for the next version of each row, so that heartbeats add no pages.
ALTER TABLE dl_workers SET (fillfactor = 50, autovacuum_analyze_threshold = 100000, autovacuum_vacuum_threshold = 10000);
