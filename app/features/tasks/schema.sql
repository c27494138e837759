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
