-- Search in the logs of all jobs, which may have hundreds of millions of lines: they are read in windows along their ids,
-- newest first, and the caller decides after each whether to continue.

-- name: log_id_at
-- An id near the first line of `at` or later, by halving. Lines are written in batches, so it is that of some seconds later.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH RECURSIVE halves (low, high, step) AS (
    SELECT dl_lowest_id_since(%(at)s::timestamptz),
           coalesce((SELECT log_id + 1 FROM dl_job_logs ORDER BY log_id DESC LIMIT 1), 0), 0
    UNION ALL
    SELECT CASE WHEN line.ts < %(at)s::timestamptz THEN line.log_id ELSE low END,
           CASE WHEN line.ts < %(at)s::timestamptz THEN high ELSE middle END, step + 1
      FROM halves CROSS JOIN LATERAL (SELECT (low + high) / 2 AS middle) half
           LEFT JOIN LATERAL (SELECT log_id, ts FROM dl_job_logs WHERE log_id >= middle ORDER BY log_id LIMIT 1) line ON true
     WHERE high - low > 100 AND step < 60
)
SELECT high FROM halves ORDER BY step DESC LIMIT 1;

-- name: log_window
-- Of the next `window` lines older than the id `before`, the first `limit` that match, newest first. `window_end` is the
-- last line that was read.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH scanned AS MATERIALIZED (
    SELECT log_id, job_id, attempt, ts, level, stream, line
      FROM dl_job_logs
     WHERE log_id < %(before)s::bigint
       AND log_id >= dl_lowest_id_since(%(since)s::timestamptz)
     ORDER BY log_id DESC
     LIMIT %(window)s::int
), matching AS (
    SELECT s.log_id, s.attempt, s.ts, s.level, s.stream, s.line, s.job_id, j.task, j.queue
      FROM scanned s LEFT JOIN dl_jobs j USING (job_id)
     WHERE s.ts >= %(since)s::timestamptz
       AND (%(until)s::timestamptz IS NULL OR s.ts < %(until)s::timestamptz)
       AND (%(levels)s::text[] IS NULL OR s.level = ANY (%(levels)s::text[]))
       AND (%(text)s::text IS NULL OR strpos(lower(s.line), lower(%(text)s::text)) > 0)
       AND (%(task)s::text IS NULL OR j.task = %(task)s::text)
     ORDER BY s.log_id DESC
     LIMIT %(limit)s::int
), window_end AS (
    SELECT count(*)::int AS lines, min(log_id) AS log_id, max(ts) AS newest_at FROM scanned
), oldest AS (
    SELECT ts FROM scanned ORDER BY log_id LIMIT 1
)
SELECT window_end.lines, window_end.log_id, (SELECT ts FROM oldest), window_end.newest_at, f.*
  FROM window_end LEFT JOIN matching f ON true
 ORDER BY f.log_id DESC;
