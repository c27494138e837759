-- How many jobs there are, without ever reading all of them. Nothing here looks at more rows than it is told to.

-- name: count_pages
-- How many pages the jobs fill: so few may be read from end to end.
SELECT pg_relation_size(to_regclass(quote_ident(%(schema)s::text) || '.dl_jobs'))
       / current_setting('block_size')::int AS pages;

-- name: count_all
SELECT queue, status::text, count(*) FROM dl_jobs GROUP BY queue, status;

-- name: count_few
-- What can be counted along partial indexes, up to `bound` entries for each queue of those that are ready and for each
-- kind of the others: `more` says that there are more than were counted. `queue` is NULL for all that were counted
-- together. No plan may be chosen that reads everything first.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

WITH RECURSIVE queues AS (
    (SELECT queue FROM dl_jobs WHERE status = 'queued' AND place = 'ready' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT j.queue FROM dl_jobs j
             WHERE j.status = 'queued' AND j.place = 'ready' AND j.queue > queues.queue
             ORDER BY j.queue LIMIT 1)
      FROM queues
     WHERE queues.queue IS NOT NULL
), ready AS (
    SELECT q.queue, 'queued' AS status, n
      FROM (SELECT queue FROM queues WHERE queue IS NOT NULL LIMIT 500) q
           CROSS JOIN LATERAL (SELECT count(*) AS n
                                 FROM (SELECT FROM dl_jobs j
                                        WHERE j.queue = q.queue AND j.status = 'queued' AND j.place = 'ready'
                                        LIMIT %(bound)s::int + 1) few) counted
), others AS (
    SELECT queue, 'queued' AS status, kind
      FROM (SELECT queue, 'timed' AS kind FROM dl_jobs
             WHERE status = 'queued' AND place = 'timed' LIMIT %(bound)s::int + 1) timed
    UNION ALL
    SELECT queue, 'queued', kind
      FROM (SELECT queue, 'parked' AS kind FROM dl_jobs
             WHERE status = 'queued' AND place = 'parked' LIMIT %(bound)s::int + 1) parked
    UNION ALL
    SELECT queue, 'running', kind
      FROM (SELECT queue, 'running' AS kind FROM dl_jobs WHERE status = 'running' LIMIT %(bound)s::int + 1) running
    UNION ALL
    SELECT queue, status, kind
      FROM (SELECT queue, status::text AS status, 'bad' AS kind FROM dl_jobs
             WHERE status IN ('failed', 'canceled', 'lost') LIMIT %(bound)s::int + 1) bad
), over AS (
    SELECT kind FROM others GROUP BY kind HAVING count(*) > %(bound)s::int
)
SELECT queue, status, n, n > %(bound)s::int AS more FROM ready
UNION ALL
SELECT queue, status, count(*), bool_or(kind IN (SELECT kind FROM over)) FROM others GROUP BY queue, status
UNION ALL
SELECT NULL, CASE kind WHEN 'running' THEN 'running' WHEN 'bad' THEN 'ended badly' ELSE 'queued' END, NULL, true FROM over;

-- name: count_sample
-- Of `percent` of the pages, always the same ones: two looks differ by what has changed, not by chance.
SELECT queue, status::text, count(*)
  FROM dl_jobs TABLESAMPLE SYSTEM (%(percent)s::float4) REPEATABLE (20)
 GROUP BY queue, status;

-- name: oldest_ready
-- By queue: since how many seconds has its longest waiting job been due? Of the ready ones, the first of each priority
-- are looked at, which are those that were made first; of those that nobody has sorted yet, those that are due longest.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

WITH RECURSIVE heads AS (
    (SELECT queue, priority FROM dl_jobs
      WHERE status = 'queued' AND place = 'ready' ORDER BY queue, priority LIMIT 1)
    UNION ALL
    SELECT next.queue, next.priority
      FROM heads
           CROSS JOIN LATERAL (SELECT j.queue, j.priority FROM dl_jobs j
                                WHERE j.status = 'queued' AND j.place = 'ready'
                                  AND (j.queue, j.priority) > (heads.queue, heads.priority)
                                ORDER BY j.queue, j.priority LIMIT 1) next
), due AS (
    SELECT first.queue, first.at
      FROM (SELECT * FROM heads LIMIT 1000) h
           CROSS JOIN LATERAL (SELECT j.queue, greatest(j.created_at, j.available_at) AS at
                                 FROM dl_jobs j
                                WHERE j.queue = h.queue AND j.priority = h.priority
                                  AND j.status = 'queued' AND j.place = 'ready'
                                ORDER BY j.created_at, j.job_id LIMIT 20) first
    UNION ALL
    SELECT queue, at
      FROM (SELECT queue, greatest(created_at, available_at) AS at
              FROM dl_jobs
             WHERE status = 'queued' AND place = 'timed' AND available_at <= (SELECT clock_timestamp())
             ORDER BY available_at LIMIT 1000) unsorted
)
SELECT queue, extract(epoch FROM clock_timestamp() - min(at))::float8 FROM due GROUP BY queue;
