-- Search for jobs. The table may have ten million rows, so every statement reads a bounded number of them: a list is read
-- in windows along (created_at, job_id), and the caller decides after each whether to continue.
-- JIT is off: the estimated cost of these plans would trigger a compilation of seconds.
-- The pool sends parameters as literals, so unused conditions are removed before planning. The planner cannot know where a
-- window ends and would prefer a sequential scan or a sort, so these are disabled: the plan must follow this index.

-- define: summary_columns
       f.job_id, f.queue, f.task, f.status::text, f.lock_key, f.partition_key, f.idempotency_key, f.priority, f.attempt,
       f.max_attempts, f.cancel_requested, f.available_at, f.created_at, f.started_at, dl_last_heartbeat(f.status, f.worker_id, f.heartbeat_at), f.finished_at,
       f.error, dl_json_text(dl_current_progress(f.status, f.job_id, f.run_id, f.heartbeat_at, f.progress), 65536), f.producer, f.consumer_group, f.worker, f.wait_state::text, f.unknown_task, f.warnings

-- define: sort_key
       CASE %(sort)s::text
           WHEN 'created_at' THEN extract(epoch FROM created_at)
           WHEN 'available_at' THEN extract(epoch FROM available_at)
           WHEN 'started_at' THEN extract(epoch FROM coalesce(started_at, 'infinity'))
           ELSE priority END::float8 AS key

-- define: page_of_keyed
page AS (
    SELECT *
      FROM keyed
     WHERE %(key)s::float8 IS NULL OR (key, job_id) > (%(key)s::float8, %(id)s::uuid)
     ORDER BY key, job_id
     LIMIT %(limit)s::int
)

-- define: settings_of_windows
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true), set_config('enable_incremental_sort', 'off', true),
       set_config('statement_timeout', '3s', true);

-- define: window_end
window_end AS MATERIALIZED (
    SELECT created_at, job_id
      FROM dl_jobs
     WHERE (created_at, job_id) < (%(at)s::timestamptz, %(id)s::uuid)
       AND created_at >= %(until)s::timestamptz
       AND (NOT %(unsuccessful_only)s::bool OR status IN ('failed', 'canceled', 'lost'))
     ORDER BY created_at DESC, job_id DESC
    OFFSET %(window)s::int - 1 LIMIT 1
)

-- name: jobs_before
-- The matching jobs among the next `window` jobs older than (at, id), newest first. `window_end` is the last scanned job;
-- without it the end is reached. `unsuccessful_only` scans unsuccessful jobs only, along their own index.
-- include: settings_of_windows

WITH
-- include: window_end
, page AS (
    SELECT j.*
      FROM dl_jobs j
     WHERE (created_at, job_id) < (%(at)s::timestamptz, %(id)s::uuid)
       AND (created_at, job_id) >= (coalesce((SELECT created_at FROM window_end), %(until)s::timestamptz),
                                    coalesce((SELECT job_id FROM window_end), '00000000-0000-0000-0000-000000000000'))
       AND (NOT %(unsuccessful_only)s::bool OR status IN ('failed', 'canceled', 'lost'))
       AND dl_job_matches(j, %(filter)s::jsonb)
     ORDER BY created_at DESC, job_id DESC
     LIMIT %(limit)s::int
)
SELECT window_end.created_at, window_end.job_id,
       -- include: summary_columns
  FROM (VALUES (1)) AS single (n) LEFT JOIN window_end ON true LEFT JOIN page f ON true
 ORDER BY f.created_at DESC, f.job_id DESC;

-- name: jobs_after
-- The same for newer jobs, oldest first.
-- include: settings_of_windows

WITH window_end AS MATERIALIZED (
    SELECT created_at, job_id
      FROM dl_jobs
     WHERE (created_at, job_id) > (%(at)s::timestamptz, %(id)s::uuid)
       AND created_at < %(until)s::timestamptz
       AND (NOT %(unsuccessful_only)s::bool OR status IN ('failed', 'canceled', 'lost'))
     ORDER BY created_at, job_id
    OFFSET %(window)s::int - 1 LIMIT 1
), page AS (
    SELECT j.*
      FROM dl_jobs j
     WHERE (created_at, job_id) > (%(at)s::timestamptz, %(id)s::uuid)
       AND (created_at, job_id) <= (coalesce((SELECT created_at FROM window_end), %(until)s::timestamptz),
                                    coalesce((SELECT job_id FROM window_end), 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
       AND (NOT %(unsuccessful_only)s::bool OR status IN ('failed', 'canceled', 'lost'))
       AND dl_job_matches(j, %(filter)s::jsonb)
     ORDER BY created_at, job_id
     LIMIT %(limit)s::int
)
SELECT window_end.created_at, window_end.job_id,
       -- include: summary_columns
  FROM (VALUES (1)) AS single (n) LEFT JOIN window_end ON true LEFT JOIN page f ON true
 ORDER BY f.created_at, f.job_id;

-- name: active_jobs
-- Matching queued and running jobs in any order; usually there are few. First at most `max_active` entries of their four
-- partial indexes are counted; `too_many`: there are more, and no job is returned. Whole rows are read for the result only.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH size AS MATERIALIZED (
    SELECT count(*) AS scanned
      FROM (
             SELECT FROM dl_jobs
              WHERE %(running)s::bool AND status = 'running'
                AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
             UNION ALL
             SELECT FROM dl_jobs
              WHERE %(queued)s::bool AND status = 'queued' AND wait_state = 'ready'
                AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
             UNION ALL
             SELECT FROM dl_jobs
              WHERE %(queued)s::bool AND status = 'queued' AND wait_state = 'scheduled'
             UNION ALL
             SELECT FROM dl_jobs
              WHERE %(queued)s::bool AND status = 'queued' AND wait_state = 'blocked'
             UNION ALL
             SELECT FROM dl_jobs
              WHERE %(queued)s::bool AND status = 'queued' AND wait_state = 'limited' AND waits_on IS NOT NULL
             UNION ALL
             SELECT FROM dl_jobs
              WHERE %(queued)s::bool AND status = 'queued' AND wait_state = 'waiting'
                AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
             LIMIT %(max_active)s::int + 1) entries
), active AS MATERIALIZED (
    (SELECT job_id, dl_job_matches(j, %(filter)s::jsonb) AS is_match,
            -- include: sort_key
       FROM dl_jobs j
      WHERE %(running)s::bool AND status = 'running'
        AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
        AND (SELECT scanned FROM size) <= %(max_active)s::int)
    UNION ALL
    (SELECT job_id, dl_job_matches(j, %(filter)s::jsonb) AS is_match,
            -- include: sort_key
       FROM dl_jobs j
      WHERE %(queued)s::bool AND status = 'queued' AND wait_state = 'ready'
        AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
        AND (SELECT scanned FROM size) <= %(max_active)s::int)
    UNION ALL
    (SELECT job_id, dl_job_matches(j, %(filter)s::jsonb) AS is_match,
            -- include: sort_key
       FROM dl_jobs j
      WHERE %(queued)s::bool AND status = 'queued' AND wait_state = 'scheduled'
        AND (SELECT scanned FROM size) <= %(max_active)s::int)
    UNION ALL
    (SELECT job_id, dl_job_matches(j, %(filter)s::jsonb) AS is_match,
            -- include: sort_key
       FROM dl_jobs j
      WHERE %(queued)s::bool AND status = 'queued' AND wait_state = 'blocked'
        AND (SELECT scanned FROM size) <= %(max_active)s::int)
    UNION ALL
    (SELECT job_id, dl_job_matches(j, %(filter)s::jsonb) AS is_match,
            -- include: sort_key
       FROM dl_jobs j
      WHERE %(queued)s::bool AND status = 'queued' AND wait_state = 'limited' AND waits_on IS NOT NULL
        AND (SELECT scanned FROM size) <= %(max_active)s::int)
    UNION ALL
    (SELECT job_id, dl_job_matches(j, %(filter)s::jsonb) AS is_match,
            -- include: sort_key
       FROM dl_jobs j
      WHERE %(queued)s::bool AND status = 'queued' AND wait_state = 'waiting'
        AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
        AND (SELECT scanned FROM size) <= %(max_active)s::int)
), keyed AS (
    SELECT job_id, CASE WHEN %(reverse)s::bool THEN -key ELSE key END AS key FROM active WHERE is_match
),
-- include: page_of_keyed
SELECT size.scanned > %(max_active)s::int AS too_many, size.scanned, (SELECT count(*) FROM keyed) AS matching, page.key,
       -- include: summary_columns
  FROM size LEFT JOIN (page JOIN dl_jobs f USING (job_id)) ON true
 ORDER BY page.key, page.job_id;

-- name: indexed_jobs
-- Matching jobs of a list of ids, an idempotency key, a lock key or a tag, of whatever age, in any order. `too_many`: the lock key
-- or tag has more than `max_jobs` jobs, and no job is returned.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH found AS MATERIALIZED (
    SELECT job_id
      FROM (
             SELECT job_id FROM dl_jobs WHERE job_id = ANY (%(job_ids)s::uuid[])
             UNION ALL
             SELECT job_id FROM dl_jobs
              WHERE %(job_ids)s::uuid[] IS NULL AND idempotency_key = %(idempotency_key)s::text
             UNION ALL
             SELECT job_id FROM dl_jobs
              WHERE %(job_ids)s::uuid[] IS NULL AND %(idempotency_key)s::text IS NULL AND lock_key = %(lock_key)s::text
             UNION ALL
             SELECT job_id FROM dl_jobs
              WHERE %(job_ids)s::uuid[] IS NULL AND %(idempotency_key)s::text IS NULL AND %(lock_key)s::text IS NULL
                AND tags IS NOT NULL AND tags @> ARRAY[%(tag)s::text]
           ) indexed
     LIMIT %(max_jobs)s::int + 1
), size AS MATERIALIZED (
    SELECT count(*) AS scanned FROM found
), keyed AS MATERIALIZED (
    SELECT job_id, CASE WHEN %(reverse)s::bool THEN -key ELSE key END AS key
      FROM (SELECT j.job_id,
                   -- include: sort_key
              FROM found JOIN dl_jobs j USING (job_id)
             WHERE (SELECT scanned FROM size) <= %(max_jobs)s::int AND dl_job_matches(j, %(filter)s::jsonb)) matching
),
-- include: page_of_keyed
SELECT size.scanned > %(max_jobs)s::int AS too_many, size.scanned, (SELECT count(*) FROM keyed) AS matching, page.key,
       -- include: summary_columns
  FROM size LEFT JOIN (page JOIN dl_jobs f USING (job_id)) ON true
 ORDER BY page.key, page.job_id;

-- name: has_lock_key
SELECT EXISTS (SELECT FROM dl_jobs WHERE lock_key = %(lock_key)s::text ORDER BY lock_key, job_id LIMIT 1);

-- name: stalled_runs
-- Running jobs whose progress has not changed for `min_sec` seconds, the oldest first; not those of tasks that report no progress.
SELECT job_id, age_sec
  FROM (SELECT job_id, run_id FROM dl_jobs WHERE status = 'running' LIMIT 10000) running
       CROSS JOIN LATERAL (SELECT extract(epoch FROM clock_timestamp() - dl_progress_changed_at(job_id, run_id))::float8 AS age_sec) ages
 WHERE age_sec >= %(min_sec)s::float8
 ORDER BY age_sec DESC
 LIMIT 1000;

-- name: attempt_starts
-- When the current attempt of each job started.
SELECT j.job_id, e.ts
  FROM unnest(%(job_ids)s::uuid[]) AS j (job_id)
       CROSS JOIN LATERAL (SELECT ts FROM dl_job_events
                            WHERE job_id = j.job_id AND kind = 'picked'
                            ORDER BY event_id DESC LIMIT 1) e;

-- name: count_window
-- The matching jobs among the next `window` jobs older than (at, id), by final status, and how many were scanned.
-- include: settings_of_windows

WITH
-- include: window_end
SELECT (SELECT created_at FROM window_end), (SELECT job_id FROM window_end), count(*), count(*) FILTER (WHERE is_match),
       count(*) FILTER (WHERE is_match AND status = 'succeeded'), count(*) FILTER (WHERE is_match AND status = 'failed'),
       count(*) FILTER (WHERE is_match AND status = 'lost'), count(*) FILTER (WHERE is_match AND status = 'canceled')
  FROM (SELECT status, dl_job_matches(j, %(filter)s::jsonb) AS is_match
          FROM dl_jobs j
         WHERE (created_at, job_id) < (%(at)s::timestamptz, %(id)s::uuid)
           AND (created_at, job_id) >= (coalesce((SELECT created_at FROM window_end), %(until)s::timestamptz),
                                        coalesce((SELECT job_id FROM window_end), '00000000-0000-0000-0000-000000000000'))
           AND (NOT %(unsuccessful_only)s::bool OR status IN ('failed', 'canceled', 'lost'))) scanned;

-- name: count_matching_sample
-- The matching jobs in a fixed sample of the pages, by final status.
SELECT count(*), count(*) FILTER (WHERE status = 'succeeded'), count(*) FILTER (WHERE status = 'failed'),
       count(*) FILTER (WHERE status = 'lost'), count(*) FILTER (WHERE status = 'canceled')
  FROM dl_jobs j TABLESAMPLE SYSTEM (%(percent)s::float4) REPEATABLE (20)
 WHERE dl_job_matches(j, %(filter)s::jsonb);
