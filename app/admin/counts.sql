-- Counts of jobs. Except for count_all, which is for small tables, every statement reads a bounded number of rows.

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

WITH RECURSIVE queues AS (
    (SELECT queue FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT j.queue FROM dl_jobs j
             WHERE j.status = 'queued' AND j.wait_state = 'ready' AND j.queue > queues.queue
             ORDER BY j.queue LIMIT 1)
      FROM queues
     WHERE queues.queue IS NOT NULL
), ready AS (
    SELECT q.queue, 'queued' AS status, n
      FROM (SELECT queue FROM queues WHERE queue IS NOT NULL LIMIT 500) q
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
SELECT queue, extract(epoch FROM clock_timestamp() - min(at))::float8 FROM due GROUP BY queue;
