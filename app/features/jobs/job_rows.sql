-- What a list shows of each job beyond its own fields, for the jobs of one page.

-- name: attempt_durations
-- How long the last attempt took, or has taken so far: from its start to the event that ended it. Others may have written infinity.
SELECT j.job_id, CASE WHEN isfinite(span.until) AND isfinite(started.ts)
                      THEN (1000 * extract(epoch FROM span.until - started.ts))::bigint END
  FROM dl_jobs j
       CROSS JOIN LATERAL (SELECT event_id, ts FROM dl_job_events
                            WHERE job_id = j.job_id AND kind = 'picked'
                            ORDER BY event_id DESC LIMIT 1) started
       LEFT JOIN LATERAL (SELECT ts FROM dl_job_events
                           WHERE job_id = j.job_id AND event_id > started.event_id
                             AND kind NOT IN ('queued', 'heartbeat', 'edited', 'cloned', 'cancel_requested', 'stop_pending')
                           ORDER BY event_id LIMIT 1) ended ON true
       CROSS JOIN LATERAL (SELECT coalesce(ended.ts, CASE WHEN j.status <> 'running' THEN j.finished_at END, clock_timestamp()) AS until) span
 WHERE j.job_id = ANY (%(job_ids)s::uuid[]) AND j.started_at IS NOT NULL;

-- name: row_details
-- The args, and for what a queued job waits: the job that has its lock key, or a limit.
SELECT j.job_id, dl_json_text(j.args, 4096), j.waits_on,
       CASE WHEN j.status = 'queued' AND j.wait_state = 'blocked'
            THEN (SELECT h.job_id FROM dl_jobs h WHERE h.lock_key BETWEEN j.lock_key AND j.lock_key AND h.status = 'running') END,
       j.skipped
  FROM dl_jobs j
 WHERE j.job_id = ANY (%(job_ids)s::uuid[]);

-- name: active_state_counts
-- Matching queued and running jobs by wait state, running ones as 'running'; one row without a state if more than `max_jobs` jobs
-- are active.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH active AS MATERIALIZED (
    (SELECT job_id FROM dl_jobs WHERE status = 'running')
    UNION ALL
    (SELECT job_id FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready')
    UNION ALL
    (SELECT job_id FROM dl_jobs WHERE status = 'queued' AND wait_state = 'scheduled')
    UNION ALL
    (SELECT job_id FROM dl_jobs WHERE status = 'queued' AND wait_state = 'blocked')
    UNION ALL
    (SELECT job_id FROM dl_jobs WHERE status = 'queued' AND wait_state = 'limited' AND waits_on IS NOT NULL
     )
    UNION ALL
    (SELECT job_id FROM dl_jobs WHERE status = 'queued' AND wait_state = 'waiting')
    LIMIT %(max_jobs)s::int + 1
), size AS MATERIALIZED (
    SELECT count(*) AS scanned FROM active
)
SELECT CASE j.status WHEN 'running' THEN 'running' ELSE j.wait_state::text END, count(*)
  FROM active JOIN dl_jobs j USING (job_id)
 WHERE (SELECT scanned FROM size) <= %(max_jobs)s::int AND j.status IN ('queued', 'running') AND dl_job_matches(j, %(filter)s::jsonb)
 GROUP BY 1
UNION ALL
SELECT NULL, scanned FROM size WHERE scanned > %(max_jobs)s::int;

-- name: small_state_counts
-- Matching unsuccessful jobs of the states that have `max_jobs` jobs at most.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH counted AS (
    SELECT 'failed' AS status, count(*) AS scanned, count(*) FILTER (WHERE dl_job_matches(j, %(filter)s::jsonb)) AS matching
      FROM (SELECT * FROM dl_jobs WHERE status = 'failed' LIMIT %(max_jobs)s::int + 1) j
    UNION ALL
    SELECT 'lost' AS status, count(*) AS scanned, count(*) FILTER (WHERE dl_job_matches(j, %(filter)s::jsonb)) AS matching
      FROM (SELECT * FROM dl_jobs WHERE status = 'lost' LIMIT %(max_jobs)s::int + 1) j
    UNION ALL
    SELECT 'canceled' AS status, count(*) AS scanned, count(*) FILTER (WHERE dl_job_matches(j, %(filter)s::jsonb)) AS matching
      FROM (SELECT * FROM dl_jobs WHERE status = 'canceled' LIMIT %(max_jobs)s::int + 1) j
)
SELECT status, matching FROM counted WHERE scanned <= %(max_jobs)s::int;
