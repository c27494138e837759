-- What a job said, searched: a log may have millions of lines, so it is read in stretches, and the caller decides after
-- each whether to go on.

-- name: log_lines_after
-- Of the next `window` lines behind `at`, the first `most` that fit. `edge`: the last line looked at; none: the log ends.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH looked AS MATERIALIZED (
    SELECT log_id, attempt, ts, level, stream, line
      FROM dl_job_logs
     WHERE job_id = %(job_id)s::uuid AND log_id > %(at)s::bigint
     ORDER BY log_id
     LIMIT %(window)s::int
), found AS (
    SELECT *
      FROM looked
     WHERE (%(levels)s::text[] IS NULL OR level = ANY (%(levels)s::text[]))
       AND (%(find)s::text IS NULL OR strpos(lower(line), lower(%(find)s::text)) > 0)
     ORDER BY log_id
     LIMIT %(most)s::int
)
SELECT (SELECT log_id FROM looked ORDER BY log_id DESC LIMIT 1) AS edge, (SELECT count(*) FROM looked) AS seen,
       f.log_id, f.attempt, f.ts, f.level, f.stream, f.line
  FROM (VALUES (1)) AS always (one) LEFT JOIN found f ON true
 ORDER BY f.log_id;

-- name: log_lines_before
-- The same towards the older ones, the newest first.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH looked AS MATERIALIZED (
    SELECT log_id, attempt, ts, level, stream, line
      FROM dl_job_logs
     WHERE job_id = %(job_id)s::uuid AND log_id < %(at)s::bigint
     ORDER BY log_id DESC
     LIMIT %(window)s::int
), found AS (
    SELECT *
      FROM looked
     WHERE (%(levels)s::text[] IS NULL OR level = ANY (%(levels)s::text[]))
       AND (%(find)s::text IS NULL OR strpos(lower(line), lower(%(find)s::text)) > 0)
     ORDER BY log_id DESC
     LIMIT %(most)s::int
)
SELECT (SELECT log_id FROM looked ORDER BY log_id LIMIT 1) AS edge, (SELECT count(*) FROM looked) AS seen,
       f.log_id, f.attempt, f.ts, f.level, f.stream, f.line
  FROM (VALUES (1)) AS always (one) LEFT JOIN found f ON true
 ORDER BY f.log_id DESC;
