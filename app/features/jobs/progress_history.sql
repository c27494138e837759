-- The progress of a run over time. Its rows are found along the index of the job, however many there are: by pairs of columns, since
-- with `job_id = …` the planner may walk the rows of all jobs in the order of their ids.

-- name: progress_history
-- Rows of a run, oldest first: the first one, the last `latest` ones, and between them those that halve the time between their
-- neighbours until it is a `parts`-th of the whole. Where more time lies between two rows, there is none between them. Ids are
-- searched, since times have no index: a row of `gaps` is a pair of rows with a third one between them at most below the id `bound`.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH RECURSIVE first AS MATERIALIZED (
    SELECT progress_id, ts, progress
      FROM dl_progress
     WHERE (job_id, progress_id) >= (%(job_id)s::uuid, dl_lowest_id_since(%(started_at)s::timestamptz))
       AND (job_id, progress_id) <= (%(job_id)s::uuid, 9223372036854775807)
       AND progress_id >= dl_lowest_id_since(%(started_at)s::timestamptz) AND run_id = %(run_id)s::uuid AND isfinite(ts)
     ORDER BY job_id, progress_id
     LIMIT 1
), latest AS MATERIALIZED (
    SELECT progress_id, ts, progress
      FROM dl_progress
     WHERE (job_id, progress_id) >= (%(job_id)s::uuid, dl_lowest_id_since(%(started_at)s::timestamptz))
       AND (job_id, progress_id) <= (%(job_id)s::uuid, 9223372036854775807)
       AND progress_id >= dl_lowest_id_since(%(started_at)s::timestamptz) AND run_id = %(run_id)s::uuid AND isfinite(ts)
     ORDER BY job_id DESC, progress_id DESC
     LIMIT %(latest)s::int
), whole AS MATERIALIZED (
    SELECT first.*, edge.progress_id AS last_id, edge.ts AS last_ts, (edge.ts - first.ts) / %(parts)s::int AS step
      FROM first CROSS JOIN (SELECT progress_id, ts FROM latest ORDER BY progress_id LIMIT 1) edge
), gaps AS (
    SELECT progress_id AS low_id, ts AS low_ts, progress, last_id AS high_id, last_ts AS high_ts, last_id AS bound
      FROM whole
    UNION ALL
    SELECT half.*
      FROM gaps g
           CROSS JOIN LATERAL (SELECT (g.low_id + g.bound) / 2 AS id) middle
           LEFT JOIN LATERAL (SELECT p.progress_id, p.ts, p.progress
                                FROM dl_progress p
                               WHERE (p.job_id, p.progress_id) >= (%(job_id)s::uuid, middle.id)
                                 AND (p.job_id, p.progress_id) <= (%(job_id)s::uuid, g.high_id)
                                 AND p.progress_id BETWEEN middle.id AND g.high_id AND p.run_id = %(run_id)s::uuid
                               ORDER BY p.job_id, p.progress_id
                               LIMIT 1) found ON found.progress_id < g.bound
           CROSS JOIN LATERAL (
               SELECT g.low_id, g.low_ts, g.progress, coalesce(found.progress_id, g.high_id), coalesce(found.ts, g.high_ts), middle.id
               UNION ALL
               SELECT found.progress_id, found.ts, found.progress, g.high_id, g.high_ts, g.bound WHERE found.progress_id IS NOT NULL
           ) half
     WHERE g.bound - g.low_id > 1 AND g.high_ts - g.low_ts > (SELECT step FROM whole)
), chosen AS (
    SELECT low_id AS progress_id, low_ts AS ts, progress FROM gaps
    UNION ALL
    SELECT * FROM latest
)
SELECT ts, usable.done, usable.total, usable.unit
  FROM (SELECT DISTINCT ON (progress_id) progress_id, ts, progress FROM chosen ORDER BY progress_id) rows
       CROSS JOIN LATERAL (
           SELECT coalesce(progress -> 'processed', progress -> 'done') AS done, progress -> 'total' AS total, progress -> 'unit' AS unit
       ) reported
       CROSS JOIN LATERAL (
           SELECT CASE WHEN jsonb_typeof(reported.done) = 'number' AND reported.done::numeric >= 0 AND reported.done::numeric < 1e15
                       THEN reported.done::float8 END AS done,
                  CASE WHEN jsonb_typeof(reported.total) = 'number' AND reported.total::numeric > 0 AND reported.total::numeric < 1e15
                       THEN reported.total::float8 END AS total,
                  CASE jsonb_typeof(reported.unit) WHEN 'string' THEN left(progress ->> 'unit', 100) END AS unit
       ) usable
 WHERE usable.done IS NOT NULL
 ORDER BY progress_id;

-- name: follow_run
-- Let the process that runs an attempt save its progress whenever it changes, for a while.
SELECT pg_notify('dl_control', 'follow ' || %(run_id)s::text);
