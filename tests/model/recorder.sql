-- Records each step of a campaign in the queue's database: every change of a job's row, event and heartbeat, and every
-- commit of rows of a load, in the order in which they follow from each other. Numbers come from one sequence; what a
-- statement writes under a lock gets its number under the lock, so a statement that waited for it has a higher one.
CREATE TABLE trace_steps (
    n    bigserial   PRIMARY KEY,
    xid  bigint      NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text        NOT NULL,  -- row | event | beat | limit | effect, or the table of a capability
    data jsonb       NOT NULL
);

CREATE FUNCTION trace_row() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    it dl_jobs := coalesce(NEW, OLD);
BEGIN
    INSERT INTO trace_steps (kind, data)
    VALUES ('row', jsonb_build_object(
        'op', TG_OP, 'job', it.job_id, 'key', it.lock_key, 'status', it.status, 'wait', it.wait_state, 'attempt', it.attempt,
        'most', it.max_attempts, 'run', it.run_id, 'owner', it.worker_id, 'cancel', it.cancel_requested,
        'lease', it.lease_expires_at, 'beat', it.heartbeat_at, 'ttl', it.lease_ttl_sec, 'task', it.task, 'queue', it.queue,
        'limits', it.limits, 'need', it.need, 'graph', it.graph_id, 'progress_run', it.progress ->> 'run',
        'result_run', CASE jsonb_typeof(it.result) WHEN 'object' THEN it.result ->> 'run' END,
        'error_run', substring(it.error FROM 'failed on purpose in run ([0-9a-f-]{36})'),
        'schedule', it.schedule_id, 'backfill', it.backfill_id, 'live_key', it.live_key, 'slice', it.partition_key));
    RETURN NULL;
END $$;
-- Fired before the product's own triggers, which may change the row again.
CREATE TRIGGER a_trace_row AFTER INSERT OR UPDATE OR DELETE ON dl_jobs FOR EACH ROW EXECUTE FUNCTION trace_row();

CREATE FUNCTION trace_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO trace_steps (kind, data)
    SELECT 'event', jsonb_build_object('id', event_id, 'job', job_id, 'kind', kind, 'status', payload -> 'status',
                                       'attempt', payload -> 'attempt', 'run', payload -> 'run_id', 'reason', payload -> 'reason')
      FROM inserted ORDER BY event_id;
    RETURN NULL;
END $$;
CREATE TRIGGER a_trace_events AFTER INSERT ON dl_job_events
    REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION trace_events();

CREATE FUNCTION trace_beat() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO trace_steps (kind, data) VALUES ('beat', jsonb_build_object('worker', NEW.worker_id, 'at', NEW.seen_at));
    RETURN NULL;
END $$;
CREATE TRIGGER a_trace_beat AFTER INSERT ON dl_heartbeats FOR EACH ROW EXECUTE FUNCTION trace_beat();

CREATE FUNCTION trace_limit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO trace_steps (kind, data)
    VALUES ('limit', jsonb_build_object('name', coalesce(NEW.name, OLD.name), 'concurrency', NEW.concurrency));
    RETURN NULL;
END $$;
CREATE TRIGGER a_trace_limit AFTER INSERT OR UPDATE OR DELETE ON dl_limits FOR EACH ROW EXECUTE FUNCTION trace_limit();

-- At the commit: the transaction has compared the run then, and holds the row of the job.
CREATE FUNCTION trace_effect() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO trace_steps (kind, data)
    VALUES ('effect', jsonb_build_object('job', NEW.job_id, 'run', NEW.run_id, 'part', NEW.part));
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER a_trace_effect AFTER INSERT ON chaos_target
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION trace_effect();

-- Rows of schedules, backfills, slices, offloads and datasets.
CREATE FUNCTION trace_capability() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO trace_steps (kind, data)
    VALUES (TG_TABLE_NAME, jsonb_build_object('op', TG_OP) || to_jsonb(coalesce(NEW, OLD)));
    RETURN NULL;
END $$;
CREATE TRIGGER a_trace AFTER INSERT OR UPDATE ON dl_schedules FOR EACH ROW EXECUTE FUNCTION trace_capability();
CREATE TRIGGER a_trace AFTER INSERT OR UPDATE ON dl_firings FOR EACH ROW EXECUTE FUNCTION trace_capability();
CREATE TRIGGER a_trace AFTER INSERT OR UPDATE ON dl_backfills FOR EACH ROW EXECUTE FUNCTION trace_capability();
CREATE TRIGGER a_trace AFTER INSERT OR UPDATE ON dl_slices FOR EACH ROW EXECUTE FUNCTION trace_capability();
CREATE TRIGGER a_trace AFTER INSERT OR UPDATE ON dl_offloads FOR EACH ROW EXECUTE FUNCTION trace_capability();
CREATE TRIGGER a_trace AFTER INSERT ON dl_dataset_events FOR EACH ROW EXECUTE FUNCTION trace_capability();
CREATE TRIGGER a_trace AFTER INSERT OR DELETE ON dl_dataset_updates FOR EACH ROW EXECUTE FUNCTION trace_capability();
