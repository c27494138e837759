-- Search in a job's log, which may have millions of lines: it is read in windows, and the caller decides after each whether
-- to continue.

-- define: line_filter
     WHERE (%(levels)s::text[] IS NULL OR level = ANY (%(levels)s::text[]))
       AND (%(attempt)s::int IS NULL OR attempt = %(attempt)s::int)
       AND (%(stream)s::text IS NULL OR stream = %(stream)s::text)
       AND (%(text)s::text IS NULL OR strpos(lower(line), lower(%(text)s::text)) > 0)

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
     -- include: line_filter
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
     -- include: line_filter
     ORDER BY log_id DESC
     LIMIT %(limit)s::int
)
SELECT (SELECT log_id FROM scanned ORDER BY log_id LIMIT 1) AS window_end, (SELECT count(*) FROM scanned) AS scanned_count,
       f.log_id, f.attempt, f.ts, f.level, f.stream, f.line
  FROM (VALUES (1)) AS single (n) LEFT JOIN matching f ON true
 ORDER BY f.log_id DESC;

-- name: log_summary
-- The attempts that have lines among the first `limit` of a job's log, with the number of these, how many were left out, and
-- the first line. Attempts with one number are distinguished by the time of their lines.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH scanned AS MATERIALIZED (
    SELECT log_id, attempt, ts, dropped
      FROM dl_job_logs
     WHERE job_id = %(job_id)s::uuid
     ORDER BY log_id
     LIMIT %(limit)s::int
), repeated AS MATERIALIZED (
    SELECT payload ->> 'attempt' AS attempt, ts, row_number() OVER (PARTITION BY payload ->> 'attempt' ORDER BY event_id) AS run
      FROM dl_job_events
     WHERE job_id = %(job_id)s::uuid AND kind = 'picked'
), lines AS (
    SELECT attempt, log_id, dropped,
           (SELECT coalesce(max(run), 1) FROM repeated r WHERE r.run > 1 AND r.attempt = scanned.attempt::text AND r.ts <= scanned.ts) AS run
      FROM scanned
)
SELECT attempt, run::int, count(*)::int AS lines, coalesce(sum(dropped), 0)::int AS dropped, min(log_id) AS first_id
  FROM lines
 GROUP BY attempt, run
 ORDER BY attempt, run;
