-- Jobs as people look for them. The table may hold ten million, so nothing here looks at more rows than it is told to:
-- a list is read in stretches along (created_at, job_id), and the caller decides after each whether to go on.
-- Asked through the pool, which sends values in the text: a condition that is not wanted folds away before planning. The
-- planner does not see where a stretch will end, and would rather read the whole table: it is told to go along the index.

-- name: stretch_down
-- The next `window` jobs older than (at, id), of which those that fit, the newest first. `edge` is the last job looked at;
-- without one the end is reached. `bad`: only those that ended badly are walked along, over an index of their own.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('jit', 'off', true), set_config('statement_timeout', '3s', true);

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
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('jit', 'off', true), set_config('statement_timeout', '3s', true);

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
-- Waiting and running jobs that fit, in any order: there are few, as a rule, and each of their four partial indexes is
-- read to `bound` entries at most. `many`: there were more, and nothing else is told.
WITH live AS MATERIALIZED (
    (SELECT job_id FROM dl_jobs
      WHERE %(running)s::bool AND status = 'running' AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
      LIMIT %(bound)s::int + 1)
    UNION ALL
    (SELECT job_id FROM dl_jobs
      WHERE %(queued)s::bool AND status = 'queued' AND place = 'ready'
        AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
      LIMIT %(bound)s::int + 1)
    UNION ALL
    (SELECT job_id FROM dl_jobs WHERE %(queued)s::bool AND status = 'queued' AND place = 'timed' LIMIT %(bound)s::int + 1)
    UNION ALL
    (SELECT job_id FROM dl_jobs WHERE %(queued)s::bool AND status = 'queued' AND place = 'parked' LIMIT %(bound)s::int + 1)
), size AS MATERIALIZED (
    SELECT count(*) AS looked FROM live
), keyed AS (
    SELECT j.*,
           CASE WHEN %(reverse)s::bool THEN -1 ELSE 1 END *
           CASE %(sort)s::text
                WHEN 'created_at' THEN extract(epoch FROM j.created_at)
                WHEN 'available_at' THEN extract(epoch FROM j.available_at)
                WHEN 'started_at' THEN extract(epoch FROM coalesce(j.started_at, 'infinity'))
                ELSE j.priority END::float8 AS key
      FROM live CROSS JOIN size JOIN dl_jobs j USING (job_id)
     WHERE size.looked <= %(bound)s::int AND dl_job_fits(j, %(filter)s::jsonb)
), found AS (
    SELECT *
      FROM keyed
     WHERE %(key)s::float8 IS NULL OR (key, job_id) > (%(key)s::float8, %(id)s::uuid)
     ORDER BY key, job_id
     LIMIT %(most)s::int
)
SELECT size.looked > %(bound)s::int AS many, size.looked, (SELECT count(*) FROM keyed) AS fitting, f.key,
       f.job_id, f.queue, f.task, f.status::text, f.lock_key, f.partition_key, f.idempotency_key, f.priority, f.attempt,
       f.max_attempts, f.cancel_requested, f.available_at, f.created_at, f.started_at, f.heartbeat_at, f.finished_at,
       f.error, f.progress::text, f.producer, f.consumer_group, f.worker, f.place::text, f.stray
  FROM size LEFT JOIN found f ON true
 ORDER BY f.key, f.job_id;

-- name: count_stretch
-- How many of the next `window` jobs older than (at, id) fit.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('jit', 'off', true), set_config('statement_timeout', '3s', true);

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
