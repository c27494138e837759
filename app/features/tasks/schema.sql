-- Tasks whose job is enqueued when a job of `task` has failed or is lost for good. Workers write what their tasks declare.
CREATE TABLE dl_failure_handlers (
    task    text PRIMARY KEY CHECK (task <> '' AND octet_length(task) <= 1000),
    handler text NOT NULL CHECK (handler <> '' AND octet_length(handler) <= 1000),
    queue   text CHECK (queue <> '' AND octet_length(queue) <= 1000)  -- of the handler's jobs; NULL: that of the failed job
);

-- A job has failed for good, by any statement of any process: its handler's job is enqueued in the same transaction. The
-- failure of a handler's job, which its producer marks, enqueues nothing. References to secrets and results become plain
-- objects: they are the failed job's.
CREATE OR REPLACE FUNCTION dl_jobs_failed() RETURNS trigger
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    declared dl_failure_handlers;
BEGIN
    SELECT * INTO declared FROM dl_failure_handlers h WHERE h.task = NEW.task;
    IF FOUND THEN
        PERFORM count(*) FROM dl_create_jobs(jsonb_build_array(jsonb_build_object(
            'queue', coalesce(declared.queue, NEW.queue), 'task', declared.handler, 'lock_key', 'on_failed:' || NEW.job_id,
            'parent_id', NEW.job_id, 'producer', 'on_failed:' || NEW.task, 'traceparent', NEW.traceparent,
            'args', jsonb_build_object(
                'job_id', NEW.job_id, 'queue', NEW.queue, 'task', NEW.task, 'status', NEW.status, 'attempt', NEW.attempt,
                'error', left(NEW.error, 8000),
                'args', regexp_replace(dl_json_text_limited(NEW.args, 1048576), '"\$(secret|result)": ', '"\1": ', 'g')::jsonb))), false);
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dl_jobs_failed AFTER UPDATE OF status, cancel_requested, max_attempts ON dl_jobs
    FOR EACH ROW
    WHEN (NEW.status IN ('failed', 'lost') AND OLD.status NOT IN ('failed', 'lost')
          AND starts_with(NEW.producer, 'on_failed:') IS NOT TRUE)
    EXECUTE FUNCTION dl_jobs_failed();

REVOKE EXECUTE ON FUNCTION
    dl_jobs_failed
  FROM PUBLIC;
