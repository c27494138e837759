-- Jobs as people look for them. The table may hold ten million, so nothing here looks at more rows than it is told to:
-- a list is read in stretches along (created_at, job_id), and the caller decides after each whether to go on.
-- A plan without a scan is dear on paper alone, and would be compiled for seconds on a connection that somebody handed
-- in: that is switched off here and in all statements like these.
-- Asked through the pool, which sends values in the text: a condition that is not wanted folds away before planning. The
-- planner does not see where a stretch will end, and would rather read the whole table, or sort what another index has: it is told to go along this one.

-- name: stretch_down
-- The next `window` jobs older than (at, id), of which those that fit, the newest first. `edge` is the last job looked at;
-- without one the end is reached. `bad`: only those that ended badly are walked along, over an index of their own.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true), set_config('enable_incremental_sort', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH edge AS MATERIALIZED (
    SELECT created_at, job_id
      FROM dl_jobs
     WHERE (created_at, job_id) < (%(at)s::timestamptz, %(id)s::uuid)
       AND created_at >= %(until)s::timestamptz
       AND (NOT %(bad)s::bool OR status IN ('failed', 'canceled', 'lost'))
     ORDER BY created_at DESC, job_id DESC
    OFFSET %(window)s::int - 1 LIMIT 1
), found AS (
    SELECT j.*
      FROM dl_jobs j
     WHERE (created_at, job_id) < (%(at)s::timestamptz, %(id)s::uuid)
       AND (created_at, job_id) >= (coalesce((SELECT created_at FROM edge), %(until)s::timestamptz),
                                    coalesce((SELECT job_id FROM edge), '00000000-0000-0000-0000-000000000000'))
       AND (NOT %(bad)s::bool OR status IN ('failed', 'canceled', 'lost'))
       AND dl_job_fits(j, %(filter)s::jsonb)
     ORDER BY created_at DESC, job_id DESC
     LIMIT %(most)s::int
)
SELECT edge.created_at, edge.job_id,
       f.job_id, f.queue, f.task, f.status::text, f.lock_key, f.partition_key, f.idempotency_key, f.priority, f.attempt,
       f.max_attempts, f.cancel_requested, f.available_at, f.created_at, f.started_at, f.heartbeat_at, f.finished_at,
       f.error, f.progress::text, f.producer, f.consumer_group, f.worker, f.place::text, f.stray
  FROM (VALUES (1)) AS always (one) LEFT JOIN edge ON true LEFT JOIN found f ON true
 ORDER BY f.created_at DESC, f.job_id DESC;

-- name: stretch_up
-- The same towards the newer ones.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true), set_config('enable_incremental_sort', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH edge AS MATERIALIZED (
    SELECT created_at, job_id
      FROM dl_jobs
     WHERE (created_at, job_id) > (%(at)s::timestamptz, %(id)s::uuid)
       AND created_at < %(until)s::timestamptz
       AND (NOT %(bad)s::bool OR status IN ('failed', 'canceled', 'lost'))
     ORDER BY created_at, job_id
    OFFSET %(window)s::int - 1 LIMIT 1
), found AS (
    SELECT j.*
      FROM dl_jobs j
     WHERE (created_at, job_id) > (%(at)s::timestamptz, %(id)s::uuid)
       AND (created_at, job_id) <= (coalesce((SELECT created_at FROM edge), %(until)s::timestamptz),
                                    coalesce((SELECT job_id FROM edge), 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
       AND (NOT %(bad)s::bool OR status IN ('failed', 'canceled', 'lost'))
       AND dl_job_fits(j, %(filter)s::jsonb)
     ORDER BY created_at, job_id
     LIMIT %(most)s::int
)
SELECT edge.created_at, edge.job_id,
       f.job_id, f.queue, f.task, f.status::text, f.lock_key, f.partition_key, f.idempotency_key, f.priority, f.attempt,
       f.max_attempts, f.cancel_requested, f.available_at, f.created_at, f.started_at, f.heartbeat_at, f.finished_at,
       f.error, f.progress::text, f.producer, f.consumer_group, f.worker, f.place::text, f.stray
  FROM (VALUES (1)) AS always (one) LEFT JOIN edge ON true LEFT JOIN found f ON true
 ORDER BY f.created_at, f.job_id;

-- name: live_jobs
-- Waiting and running jobs that fit, in any order: there are few, as a rule. Their four partial indexes are read to `bound`
-- entries at most, before any row is; `many`: there are more, and nothing else is told. Only the rows that are told are
-- fetched whole.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH size AS MATERIALIZED (
    SELECT count(*) AS looked
      FROM (
             SELECT FROM dl_jobs
              WHERE %(running)s::bool AND status = 'running'
                AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
             UNION ALL
             SELECT FROM dl_jobs
              WHERE %(queued)s::bool AND status = 'queued' AND place = 'ready'
                AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
             UNION ALL
             SELECT FROM dl_jobs
              WHERE %(queued)s::bool AND status = 'queued' AND place = 'timed'
             UNION ALL
             SELECT FROM dl_jobs
              WHERE %(queued)s::bool AND status = 'queued' AND place = 'parked'
             LIMIT %(bound)s::int + 1) entries
), live AS MATERIALIZED (
    (SELECT job_id, CASE %(sort)s::text
                  WHEN 'created_at' THEN extract(epoch FROM created_at)
                  WHEN 'available_at' THEN extract(epoch FROM available_at)
                  WHEN 'started_at' THEN extract(epoch FROM coalesce(started_at, 'infinity'))
                  ELSE priority END::float8 AS key,
            dl_job_fits(j, %(filter)s::jsonb) AS fits
       FROM dl_jobs j
      WHERE %(running)s::bool AND status = 'running'
        AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
        AND (SELECT looked FROM size) <= %(bound)s::int)
    UNION ALL
    (SELECT job_id, CASE %(sort)s::text
                  WHEN 'created_at' THEN extract(epoch FROM created_at)
                  WHEN 'available_at' THEN extract(epoch FROM available_at)
                  WHEN 'started_at' THEN extract(epoch FROM coalesce(started_at, 'infinity'))
                  ELSE priority END::float8 AS key,
            dl_job_fits(j, %(filter)s::jsonb) AS fits
       FROM dl_jobs j
      WHERE %(queued)s::bool AND status = 'queued' AND place = 'ready'
        AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
        AND (SELECT looked FROM size) <= %(bound)s::int)
    UNION ALL
    (SELECT job_id, CASE %(sort)s::text
                  WHEN 'created_at' THEN extract(epoch FROM created_at)
                  WHEN 'available_at' THEN extract(epoch FROM available_at)
                  WHEN 'started_at' THEN extract(epoch FROM coalesce(started_at, 'infinity'))
                  ELSE priority END::float8 AS key,
            dl_job_fits(j, %(filter)s::jsonb) AS fits
       FROM dl_jobs j
      WHERE %(queued)s::bool AND status = 'queued' AND place = 'timed'
        AND (SELECT looked FROM size) <= %(bound)s::int)
    UNION ALL
    (SELECT job_id, CASE %(sort)s::text
                  WHEN 'created_at' THEN extract(epoch FROM created_at)
                  WHEN 'available_at' THEN extract(epoch FROM available_at)
                  WHEN 'started_at' THEN extract(epoch FROM coalesce(started_at, 'infinity'))
                  ELSE priority END::float8 AS key,
            dl_job_fits(j, %(filter)s::jsonb) AS fits
       FROM dl_jobs j
      WHERE %(queued)s::bool AND status = 'queued' AND place = 'parked'
        AND (SELECT looked FROM size) <= %(bound)s::int)
), keyed AS (
    SELECT job_id, CASE WHEN %(reverse)s::bool THEN -key ELSE key END AS key FROM live WHERE fits
), found AS (
    SELECT *
      FROM keyed
     WHERE %(key)s::float8 IS NULL OR (key, job_id) > (%(key)s::float8, %(id)s::uuid)
     ORDER BY key, job_id
     LIMIT %(most)s::int
)
SELECT size.looked > %(bound)s::int AS many, size.looked, (SELECT count(*) FROM keyed) AS fitting, found.key,
       f.job_id, f.queue, f.task, f.status::text, f.lock_key, f.partition_key, f.idempotency_key, f.priority, f.attempt,
       f.max_attempts, f.cancel_requested, f.available_at, f.created_at, f.started_at, f.heartbeat_at, f.finished_at,
       f.error, f.progress::text, f.producer, f.consumer_group, f.worker, f.place::text, f.stray
  FROM size LEFT JOIN (found JOIN dl_jobs f USING (job_id)) ON true
 ORDER BY found.key, found.job_id;

-- name: still_runs
-- Runs of live workers whose progress has not changed for `least` seconds, as their heartbeats tell it, the longest first.
WITH running AS MATERIALIZED (
    SELECT job_id, run_id::text AS run_id, progress FROM dl_jobs WHERE status = 'running' LIMIT 10000
), told AS (
    SELECT said ->> 'run_id' AS run_id,
           (said ->> 'progress_age_sec')::float8 + extract(epoch FROM clock_timestamp() - w.seen_at)::float8 AS age_sec
      FROM dl_workers w CROSS JOIN LATERAL jsonb_array_elements(w.doing) said
     WHERE w.seen_at > clock_timestamp() - make_interval(secs => 3 * w.heartbeat_sec)
)
SELECT running.job_id, told.age_sec
  FROM told JOIN running USING (run_id)
 WHERE told.age_sec >= %(least)s::float8 AND running.progress <> '{}'  -- many tasks never tell any
 ORDER BY told.age_sec DESC
 LIMIT 1000;

-- name: tries_began
-- When the present tries of these jobs began.
SELECT j.job_id, e.ts
  FROM unnest(%(job_ids)s::uuid[]) AS j (job_id)
       CROSS JOIN LATERAL (SELECT ts FROM dl_job_events
                            WHERE job_id = j.job_id AND kind = 'picked'
                            ORDER BY event_id DESC LIMIT 1) e;

-- name: count_stretch
-- How many of the next `window` jobs older than (at, id) fit.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true), set_config('enable_incremental_sort', 'off', true),
       set_config('statement_timeout', '3s', true);

WITH edge AS MATERIALIZED (
    SELECT created_at, job_id
      FROM dl_jobs
     WHERE (created_at, job_id) < (%(at)s::timestamptz, %(id)s::uuid)
       AND created_at >= %(until)s::timestamptz
       AND (NOT %(bad)s::bool OR status IN ('failed', 'canceled', 'lost'))
     ORDER BY created_at DESC, job_id DESC
    OFFSET %(window)s::int - 1 LIMIT 1
)
SELECT (SELECT created_at FROM edge), (SELECT job_id FROM edge), count(*) FILTER (WHERE dl_job_fits(j, %(filter)s::jsonb)),
       count(*)
  FROM dl_jobs j
 WHERE (created_at, job_id) < (%(at)s::timestamptz, %(id)s::uuid)
   AND (created_at, job_id) >= (coalesce((SELECT created_at FROM edge), %(until)s::timestamptz),
                                coalesce((SELECT job_id FROM edge), '00000000-0000-0000-0000-000000000000'))
   AND (NOT %(bad)s::bool OR status IN ('failed', 'canceled', 'lost'));

-- name: count_fitting_sample
-- How many jobs fit in `percent` of the pages, always the same ones.
SELECT count(*)
  FROM dl_jobs j TABLESAMPLE SYSTEM (%(percent)s::float4) REPEATABLE (20)
 WHERE dl_job_fits(j, %(filter)s::jsonb);

-- name: row_version
-- A word for the state that a job's row is in: another one after every change.
SELECT xmin::text, place::text, stray FROM dl_jobs WHERE job_id = %(job_id)s::uuid;

-- name: relative
SELECT job_id, queue, task, status::text, created_at FROM dl_jobs WHERE job_id = %(job_id)s::uuid;

-- name: events_after
SELECT event_id, job_id, queue, ts, kind, coalesce(payload, '{}')::text
  FROM dl_job_events
 WHERE job_id = %(job_id)s::uuid AND event_id > %(after)s::bigint
 ORDER BY event_id
 LIMIT %(limit)s::int;

-- name: last_events
SELECT event_id, job_id, queue, ts, kind, coalesce(payload, '{}')::text
  FROM (SELECT * FROM dl_job_events WHERE job_id = %(job_id)s::uuid ORDER BY event_id DESC LIMIT %(limit)s::int) latest
 ORDER BY event_id;

-- name: tries
-- What the journal tells of a job's tries: the last `limit` lines that begin or end one, the oldest first.
SELECT event_id, job_id, queue, ts, kind, coalesce(payload, '{}')::text
  FROM (SELECT *
          FROM dl_job_events
         WHERE job_id = %(job_id)s::uuid AND kind NOT IN ('queued', 'heartbeat', 'edited', 'cloned')
         ORDER BY event_id DESC
         LIMIT %(limit)s::int) latest
 ORDER BY event_id;

-- name: children
SELECT job_id, queue, task, status::text, created_at
  FROM dl_jobs
 WHERE parent_id = %(job_id)s::uuid
 ORDER BY created_at
 LIMIT %(limit)s::int;

-- name: key_holder
-- Who runs with the key of this job, other than itself.
SELECT h.job_id, h.queue, h.task, h.status::text, coalesce(h.started_at, h.created_at)
  FROM dl_jobs h
 WHERE h.lock_key = %(lock_key)s::text AND h.status = 'running' AND h.job_id <> %(job_id)s::uuid;

-- name: states
-- How these jobs do, for all who wait for a change of one.
SELECT job_id, xmin::text, status::text
  FROM dl_jobs
 WHERE job_id = ANY (%(job_ids)s::uuid[]);
