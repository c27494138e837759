-- Search in a job's log, which may have millions of lines: it is read in windows, and the caller decides after each whether
-- to continue.

-- name: log_lines_after
-- Of the next `window` lines after the id `at`, the first `limit` that match. `window_end` is the last scanned line, or NULL
-- at the end of the log.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH scanned AS MATERIALIZED (
    SELECT log_id, attempt, ts, level, stream, line
      FROM dl_job_logs
     WHERE job_id = %(job_id)s::uuid AND log_id > %(at)s::bigint
     ORDER BY log_id
     LIMIT %(window)s::int
), matching AS (
    SELECT *
      FROM scanned
     WHERE (%(levels)s::text[] IS NULL OR level = ANY (%(levels)s::text[]))
       AND (%(attempt)s::int IS NULL OR attempt = %(attempt)s::int)
       AND (%(stream)s::text IS NULL OR stream = %(stream)s::text)
       AND (%(text)s::text IS NULL OR strpos(lower(line), lower(%(text)s::text)) > 0)
     ORDER BY log_id
     LIMIT %(limit)s::int
)
SELECT (SELECT log_id FROM scanned ORDER BY log_id DESC LIMIT 1) AS window_end, (SELECT count(*) FROM scanned) AS scanned_count,
       f.log_id, f.attempt, f.ts, f.level, f.stream, f.line
  FROM (VALUES (1)) AS single (n) LEFT JOIN matching f ON true
 ORDER BY f.log_id;

-- name: log_lines_before
-- The same for older lines, newest first.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH scanned AS MATERIALIZED (
    SELECT log_id, attempt, ts, level, stream, line
      FROM dl_job_logs
     WHERE job_id = %(job_id)s::uuid AND log_id < %(at)s::bigint
     ORDER BY log_id DESC
     LIMIT %(window)s::int
), matching AS (
    SELECT *
      FROM scanned
     WHERE (%(levels)s::text[] IS NULL OR level = ANY (%(levels)s::text[]))
       AND (%(attempt)s::int IS NULL OR attempt = %(attempt)s::int)
       AND (%(stream)s::text IS NULL OR stream = %(stream)s::text)
       AND (%(text)s::text IS NULL OR strpos(lower(line), lower(%(text)s::text)) > 0)
     ORDER BY log_id DESC
     LIMIT %(limit)s::int
)
SELECT (SELECT log_id FROM scanned ORDER BY log_id LIMIT 1) AS window_end, (SELECT count(*) FROM scanned) AS scanned_count,
       f.log_id, f.attempt, f.ts, f.level, f.stream, f.line
  FROM (VALUES (1)) AS single (n) LEFT JOIN matching f ON true
 ORDER BY f.log_id DESC;

-- name: log_summary
-- The attempts that have lines among the first `limit` of a job's log, with their number, and how many lines were left out.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH scanned AS MATERIALIZED (
    SELECT attempt, dropped
      FROM dl_job_logs
     WHERE job_id = %(job_id)s::uuid
     ORDER BY log_id
     LIMIT %(limit)s::int
)
SELECT attempt, count(*)::int AS lines, coalesce(sum(dropped), 0)::int AS dropped
  FROM scanned
 GROUP BY attempt
 ORDER BY attempt;
