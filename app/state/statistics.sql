-- Statistics of jobs, counts of jobs, and metrics of the database.

-- name: statistics_series
-- Statistics of each span since a time, of one queue or task, or of all: the totals of all are stored under the negative
-- span. One row for each span and measure, with its histogram buckets; without `has_times` the counts alone.
SELECT started_at, measure, array_agg(bucket), array_agg(n), sum(sec)
  FROM (SELECT started_at, measure, bucket, sum(count)::bigint AS n, sum(total_sec) AS sec
          FROM dl_statistics
         WHERE span_sec = CASE WHEN %(queue)s::text IS NULL AND %(task)s::text IS NULL THEN -%(span)s::int ELSE %(span)s::int END
           AND started_at = ANY (ARRAY(SELECT generate_series(
                   date_bin(make_interval(secs => %(span)s::int), %(since)s::timestamptz, '2000-01-01T00:00Z'),
                   clock_timestamp(), make_interval(secs => %(span)s::int))))
           AND started_at >= %(since)s::timestamptz
           AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
           AND (%(task)s::text IS NULL OR task = %(task)s::text)
           AND (%(has_times)s::bool OR measure NOT IN ('waited', 'ran'))
         GROUP BY started_at, measure, bucket) buckets
 GROUP BY started_at, measure
 ORDER BY started_at;

-- name: statistics_totals
-- Statistics of the last `period_sec` seconds, by queue or by task: of the long spans that begin in the period, the last of which
-- is still growing, and of the short ones before the first of these. Spans are listed one by one, so that the index is used for a
-- single queue too. Without `has_times` the counts alone.
WITH period AS (
    SELECT s.first, date_bin(make_interval(secs => %(long_span)s::int), s.first - interval '1 microsecond', '2000-01-01T00:00Z')
                    + make_interval(secs => %(long_span)s::int) AS first_long
      FROM (SELECT date_bin(make_interval(secs => %(span)s::int), clock_timestamp() - make_interval(secs => %(period_sec)s::float8),
                            '2000-01-01T00:00Z') + make_interval(secs => %(span)s::int) AS first) s
)
SELECT name, measure, array_agg(bucket), array_agg(n), sum(sec)
  FROM (SELECT CASE WHEN %(by_task)s::bool THEN task ELSE queue END AS name, measure, bucket, sum(count)::bigint AS n,
               sum(total_sec) AS sec
          FROM (SELECT queue, task, measure, bucket, count, total_sec
                  FROM dl_statistics
                 WHERE span_sec = %(span)s::int
                   AND started_at = ANY (ARRAY(SELECT generate_series(first, first_long - interval '1 microsecond',
                                                                      make_interval(secs => %(span)s::int)) FROM period))
                   AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
                   AND (%(task)s::text IS NULL OR task = %(task)s::text)
                UNION ALL
                SELECT queue, task, measure, bucket, count, total_sec
                  FROM dl_statistics
                 WHERE span_sec = %(long_span)s::int
                   AND started_at = ANY (ARRAY(SELECT generate_series(first_long, clock_timestamp(),
                                                                      make_interval(secs => %(long_span)s::int)) FROM period))
                   AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
                   AND (%(task)s::text IS NULL OR task = %(task)s::text)) spans
         WHERE %(has_times)s::bool OR measure NOT IN ('waited', 'ran')
         GROUP BY 1, 2, 3) buckets
 GROUP BY name, measure;

-- name: depth_series
-- The largest depths in each span since a time, of one queue or of all together. For long periods only every
-- `interval_min`-th minute is read: a week has ten thousand minutes for each queue.
SELECT date_bin(make_interval(secs => %(span)s::int), at, '2000-01-01T00:00Z') AS since, max(ready), max(scheduled), max(blocked),
       max(running), max(limited), max(waiting), max(oldest)
  FROM (SELECT at, sum(ready)::bigint AS ready, sum(scheduled)::bigint AS scheduled, sum(blocked)::bigint AS blocked,
               sum(running)::bigint AS running, sum(limited)::bigint AS limited,
               sum(waiting)::bigint AS waiting, max(oldest_ready_sec) AS oldest
          FROM dl_queue_depths
         WHERE at = ANY (ARRAY(SELECT generate_series(
                   date_bin(make_interval(mins => %(interval_min)s::int), %(since)s::timestamptz, '2000-01-01T00:00Z'),
                   clock_timestamp(), make_interval(mins => %(interval_min)s::int))))
           AND at >= %(since)s::timestamptz AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
         GROUP BY at) minutes
 GROUP BY 1
 ORDER BY 1;

-- name: recent_runs
SELECT task, job_id, queue, ended_at, outcome, attempt, ran_sec
  FROM (SELECT l.*, row_number() OVER (PARTITION BY task ORDER BY event_id DESC) AS rank
          FROM dl_recent_runs l
         WHERE %(task)s::text IS NULL OR task = %(task)s::text) runs
 WHERE rank <= %(limit)s::int
 ORDER BY task, rank;

-- name: usual_durations
-- The median duration of the last runs of each of these tasks that succeeded.
SELECT t.task, percentile_cont(0.5) WITHIN GROUP (ORDER BY last.ran_sec)
  FROM unnest(%(tasks)s::text[]) AS t (task)
       CROSS JOIN LATERAL (SELECT r.outcome, r.ran_sec
                             FROM dl_recent_runs r
                            WHERE r.task = t.task
                            ORDER BY r.event_id DESC
                            LIMIT %(limit)s::int) last
 WHERE last.outcome = 'succeeded' AND last.ran_sec IS NOT NULL
 GROUP BY t.task;

-- name: task_names
-- By a loose scan of the index of recent runs.
WITH RECURSIVE names AS (
    (SELECT task FROM dl_recent_runs ORDER BY task LIMIT 1)
    UNION ALL
    SELECT (SELECT r.task FROM dl_recent_runs r WHERE r.task > names.task ORDER BY r.task LIMIT 1)
      FROM names
     WHERE names.task IS NOT NULL
)
SELECT task FROM names WHERE task IS NOT NULL LIMIT %(limit)s::int;

-- name: failures_of_task
-- Failed and lost jobs of a task by fingerprint, along the index of finished jobs, the newest `max_scanned` of each status.
-- The first column: whether that limit was reached.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

WITH newest AS MATERIALIZED (
    (SELECT job_id, status, error_fingerprint, finished_at
       FROM dl_jobs
      WHERE status = 'failed' AND task = %(task)s::text
        AND finished_at >= clock_timestamp() - make_interval(secs => %(period_sec)s::float8)
      ORDER BY finished_at DESC
      LIMIT %(max_scanned)s::int)
    UNION ALL
    (SELECT job_id, status, error_fingerprint, finished_at
       FROM dl_jobs
      WHERE status = 'lost' AND task = %(task)s::text
        AND finished_at >= clock_timestamp() - make_interval(secs => %(period_sec)s::float8)
      ORDER BY finished_at DESC
      LIMIT %(max_scanned)s::int)
), groups AS MATERIALIZED (
    SELECT error_fingerprint, count(*) AS jobs, max(finished_at) AS last_at,
           (array_agg(job_id ORDER BY finished_at DESC, job_id DESC))[1] AS job_id
      FROM newest
     GROUP BY error_fingerprint
     ORDER BY jobs DESC, last_at DESC
     LIMIT 50
), capped AS (
    SELECT EXISTS (SELECT FROM newest GROUP BY status HAVING count(*) >= %(max_scanned)s::int) AS reached
)
SELECT capped.reached, g.error_fingerprint, g.jobs, g.last_at, g.job_id, left(j.error, 500)
  FROM groups g CROSS JOIN capped LEFT JOIN dl_jobs j ON j.job_id = g.job_id
 ORDER BY g.jobs DESC, g.last_at DESC, g.error_fingerprint;

-- name: datasets_of_runs
SELECT e.kind, e.dataset, e.job_id, sum(e.rows)::bigint
  FROM unnest(%(jobs)s::uuid[]) AS r (job_id) JOIN dl_dataset_events e ON e.job_id = r.job_id
 GROUP BY e.kind, e.dataset, e.job_id
 ORDER BY e.kind, e.dataset
 LIMIT 4000;

-- Counts of jobs, now. Except for count_all, which is for small tables, every statement reads a bounded number of rows.

-- name: count_pages
-- The number of pages of the jobs table.
SELECT pg_relation_size(to_regclass(quote_ident(%(schema)s::text) || '.dl_jobs'))
       / current_setting('block_size')::int AS pages;

-- name: count_all
SELECT queue, status::text, count(*) FROM dl_jobs GROUP BY queue, status;

-- name: count_exact
-- Count along partial indexes: up to `max_exact` ready jobs of each queue, and as many of each other kind in all queues
-- together. `more`: the group has more jobs than were counted. A row without a queue marks a kind that reached its limit.
-- The settings exclude plans that read the whole table.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

WITH ready AS (
    SELECT q.queue, 'queued' AS status, n
      FROM dl_ready_queues(500) AS q (queue)
           CROSS JOIN LATERAL (SELECT count(*) AS n
                                 FROM (SELECT FROM dl_jobs j
                                        WHERE j.queue = q.queue AND j.status = 'queued' AND j.wait_state = 'ready'
                                        LIMIT %(max_exact)s::int + 1) limited) counted
), others AS (
    SELECT queue, 'queued' AS status, kind
      FROM (SELECT queue, 'scheduled' AS kind FROM dl_jobs
             WHERE status = 'queued' AND wait_state = 'scheduled' LIMIT %(max_exact)s::int + 1) scheduled
    UNION ALL
    SELECT queue, 'queued', kind
      FROM (SELECT queue, 'blocked' AS kind FROM dl_jobs
             WHERE status = 'queued' AND wait_state = 'blocked' LIMIT %(max_exact)s::int + 1) blocked
    UNION ALL
    SELECT queue, 'queued', kind
      FROM (SELECT queue, 'limited' AS kind FROM dl_jobs
             WHERE status = 'queued' AND wait_state = 'limited' AND waits_on IS NOT NULL LIMIT %(max_exact)s::int + 1) limited
    UNION ALL
    SELECT queue, 'queued', kind
      FROM (SELECT queue, 'waiting' AS kind FROM dl_jobs
             WHERE status = 'queued' AND wait_state = 'waiting' LIMIT %(max_exact)s::int + 1) waiting
    UNION ALL
    SELECT queue, 'running', kind
      FROM (SELECT queue, 'running' AS kind FROM dl_jobs WHERE status = 'running' LIMIT %(max_exact)s::int + 1) running
    UNION ALL
    SELECT queue, status, kind
      FROM (SELECT queue, status::text AS status, 'unsuccessful' AS kind FROM dl_jobs
             WHERE status IN ('failed', 'canceled', 'lost') LIMIT %(max_exact)s::int + 1) unsuccessful
), capped AS (
    SELECT kind FROM others GROUP BY kind HAVING count(*) > %(max_exact)s::int
)
SELECT queue, status, n, n > %(max_exact)s::int AS more FROM ready
UNION ALL
SELECT queue, status, count(*), bool_or(kind IN (SELECT kind FROM capped)) FROM others GROUP BY queue, status
UNION ALL
SELECT NULL, CASE kind WHEN 'running' THEN 'running' WHEN 'unsuccessful' THEN 'unsuccessful' ELSE 'queued' END, NULL, true FROM capped;

-- name: waiting_by_task
-- Queued jobs by task and wait state along the partial indexes, up to `max_scanned` of each wait state.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

SELECT task, wait_state, count(*)
  FROM ((SELECT task, 'ready' AS wait_state FROM dl_jobs
          WHERE status = 'queued' AND wait_state = 'ready' LIMIT %(max_scanned)s::int)
        UNION ALL
        (SELECT task, 'scheduled' FROM dl_jobs
          WHERE status = 'queued' AND wait_state = 'scheduled' LIMIT %(max_scanned)s::int)
        UNION ALL
        (SELECT task, 'blocked' FROM dl_jobs
          WHERE status = 'queued' AND wait_state = 'blocked' LIMIT %(max_scanned)s::int)
        UNION ALL
        (SELECT task, 'limited' FROM dl_jobs
          WHERE status = 'queued' AND wait_state = 'limited' AND waits_on IS NOT NULL LIMIT %(max_scanned)s::int)
        UNION ALL
        (SELECT task, 'waiting' FROM dl_jobs
          WHERE status = 'queued' AND wait_state = 'waiting' LIMIT %(max_scanned)s::int)) queued
 GROUP BY task, wait_state;

-- name: count_sample
-- Count in a sample of the pages. REPEATABLE keeps the sample, so that two counts differ only by what has changed.
SELECT queue, status::text, count(*)
  FROM dl_jobs TABLESAMPLE SYSTEM (%(percent)s::float4) REPEATABLE (20)
 GROUP BY queue, status;

-- name: oldest_ready
-- Seconds since the oldest due job of each queue became due. Reads the first ready jobs of each queue and priority, which
-- were created first, and the scheduled jobs that have been due the longest but are not yet promoted.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

WITH RECURSIVE heads AS (
    (SELECT queue, priority FROM dl_jobs
      WHERE status = 'queued' AND wait_state = 'ready' ORDER BY queue, priority LIMIT 1)
    UNION ALL
    SELECT next.queue, next.priority
      FROM heads
           CROSS JOIN LATERAL (SELECT j.queue, j.priority FROM dl_jobs j
                                WHERE j.status = 'queued' AND j.wait_state = 'ready'
                                  AND (j.queue, j.priority) > (heads.queue, heads.priority)
                                ORDER BY j.queue, j.priority LIMIT 1) next
), due AS (
    SELECT first.queue, first.at
      FROM (SELECT * FROM heads LIMIT 1000) h
           CROSS JOIN LATERAL (SELECT j.queue, greatest(j.created_at, j.available_at) AS at
                                 FROM dl_jobs j
                                WHERE j.queue = h.queue AND j.priority = h.priority
                                  AND j.status = 'queued' AND j.wait_state = 'ready'
                                ORDER BY j.created_at, j.job_id LIMIT 20) first
    UNION ALL
    SELECT queue, at
      FROM (SELECT queue, greatest(created_at, available_at) AS at
              FROM dl_jobs
             WHERE status = 'queued' AND wait_state = 'scheduled' AND available_at <= (SELECT clock_timestamp())
             ORDER BY available_at LIMIT 1000) not_promoted
)
SELECT queue, extract(epoch FROM clock_timestamp() - min(at))::float8 FROM due WHERE isfinite(at) GROUP BY queue;

-- name: database_metrics
-- Dead and live rows of the queue's tables, the oldest transaction and snapshot, the use of the notification queue, and the
-- number of live workers. Without pg_read_all_stats a role does not see the transactions of other roles.
WITH tables AS (
    SELECT coalesce(jsonb_object_agg(relname, n_dead_tup), '{}') AS dead, coalesce(jsonb_object_agg(relname, n_live_tup), '{}') AS live
      FROM pg_stat_all_tables
     WHERE schemaname = %(schema)s::text AND relname IN ('dl_jobs', 'dl_job_events', 'dl_deliveries')
)
SELECT tables.dead::text, tables.live::text,
       coalesce((SELECT extract(epoch FROM clock_timestamp() - min(a.xact_start))::float8
                   FROM pg_stat_activity a
                  WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'), 0),
       (SELECT coalesce(max(age(a.backend_xmin)), 0) FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid()),
       pg_notification_queue_usage(),
       (SELECT count(*) FROM dl_live_workers())
  FROM tables;
