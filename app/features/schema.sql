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
