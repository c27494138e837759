-- Failed and lost jobs, grouped.

-- name: failure_groups
-- Groups by task and fingerprint among the newest `max_scanned` unsuccessful jobs, along their own index.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH newest AS MATERIALIZED (
    SELECT job_id, queue, task, status, error_fingerprint, created_at, coalesce(finished_at, created_at) AS ended_at
      FROM dl_jobs
     WHERE status IN ('failed', 'canceled', 'lost')
       AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s::timestamptz)
     ORDER BY created_at DESC, job_id DESC
     LIMIT %(max_scanned)s::int
), groups AS MATERIALIZED (
    SELECT task, error_fingerprint, count(*) AS jobs, min(ended_at) AS first_at, max(ended_at) AS last_at, array_agg(DISTINCT queue) AS queues,
           array_agg(ended_at ORDER BY ended_at DESC) AS ended,
           (array_agg(job_id ORDER BY ended_at DESC, job_id DESC))[1] AS job_id
      FROM newest
     WHERE status <> 'canceled' AND (%(task)s::text IS NULL OR task = %(task)s::text)
       AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
       AND (%(since)s::timestamptz IS NULL OR ended_at >= %(since)s::timestamptz)
       AND (%(until)s::timestamptz IS NULL OR ended_at < %(until)s::timestamptz)
     GROUP BY task, error_fingerprint
     ORDER BY jobs DESC, last_at DESC, task, error_fingerprint
     LIMIT %(limit)s::int
), scan AS (
    SELECT count(*) AS scanned, min(created_at) AS scanned_to,
           date_trunc('hour', coalesce(%(until)s::timestamptz, clock_timestamp()) - interval '1 microsecond') + interval '1 h'
               - make_interval(hours => %(hours)s::int) AS hours_from
      FROM newest
)
SELECT scan.scanned, scan.scanned_to, scan.hours_from, g.task, g.error_fingerprint, g.jobs, g.first_at, g.last_at, g.job_id,
       left(j.error, 500), g.queues,
       ARRAY(SELECT (SELECT count(*)::int FROM unnest(g.ended) AS e (at)
                      WHERE e.at >= scan.hours_from + make_interval(hours => h.hour)
                        AND e.at < scan.hours_from + make_interval(hours => h.hour + 1))
               FROM generate_series(0, %(hours)s::int - 1) AS h (hour)
              ORDER BY h.hour)
  FROM scan LEFT JOIN groups g ON true LEFT JOIN dl_jobs j ON j.job_id = ANY (ARRAY[g.job_id])
 ORDER BY g.jobs DESC, g.last_at DESC, g.task, g.error_fingerprint;

-- name: declare_failure_handlers
-- Writes the handlers of the tasks that a process knows, and deletes those that they no longer declare.
WITH declared AS MATERIALIZED (
    SELECT d.task, d.handler, d.queue FROM jsonb_to_recordset(%(handlers)s::jsonb) AS d (task text, handler text, queue text)
), deleted AS (
    DELETE FROM dl_failure_handlers h WHERE h.task = ANY (%(tasks)s::text[]) AND h.task NOT IN (SELECT task FROM declared)
)
INSERT INTO dl_failure_handlers AS h (task, handler, queue)
SELECT task, handler, queue FROM declared ORDER BY task
    ON CONFLICT (task) DO UPDATE SET handler = excluded.handler, queue = excluded.queue
 WHERE (h.handler, h.queue) IS DISTINCT FROM (excluded.handler, excluded.queue);
