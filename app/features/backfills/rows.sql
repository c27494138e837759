-- Backfills and the slices of tasks. See the tables of schema.sql.

-- name: create_backfill
-- No row: there is one with this id.
INSERT INTO dl_backfills (backfill_id, task, queue, slices, mode, newest_first, concurrency, template, stop_after_failures, total, note,
                          created_by, changed_by)
VALUES (%(backfill_id)s::uuid, %(task)s::text, %(queue)s::text, %(slices)s::jsonb, %(mode)s::text, %(newest_first)s::bool,
        %(concurrency)s::int, %(template)s::jsonb, %(stop_after_failures)s::int, %(total)s::int, %(note)s::text,
        %(created_by)s::text, %(created_by)s::text)
    ON CONFLICT (backfill_id) DO NOTHING;

SELECT dl_set_backfill_limit(backfill_id) FROM dl_backfills
 WHERE backfill_id = %(backfill_id)s::uuid AND xmin = pg_current_xact_id()::xid;

-- name: backfills
-- The newest first; with `backfill_id` that one alone. The slices of each are counted by the state of their last job; a slice
-- counts in the backfill that asked for it last.
SELECT b.backfill_id, b.task, b.queue, b.slices::text, b.mode, b.newest_first, b.concurrency, b.template::text, b.stop_after_failures,
       b.state, b.reason, b.cursor, b.total, b.made, b.adopted, b.skipped, b.note, b.created_by, b.created_at, b.resumed_at, b.changed_by,
       b.changed_at, b.ended_at, counts.by_state::text
  FROM dl_backfills b
       CROSS JOIN LATERAL (SELECT coalesce(jsonb_object_agg(c.state, c.n), '{}') AS by_state
                             FROM (SELECT s.state, count(*) AS n FROM dl_slices s WHERE s.backfill_id = b.backfill_id GROUP BY s.state) c) counts
 WHERE (%(backfill_id)s::uuid IS NULL OR b.backfill_id = %(backfill_id)s::uuid)
   AND (%(task)s::text IS NULL OR b.task = %(task)s::text)
   AND (NOT %(is_open)s::bool OR b.state IN ('open', 'paused'))
 ORDER BY b.created_at DESC, b.backfill_id
 LIMIT %(limit)s::int;

-- name: change_backfill
-- Its state, concurrency or note, and its limit; NULL leaves a value as it is. No row: it has ended, or there is none.
WITH changed AS (
    UPDATE dl_backfills
       SET state = coalesce(%(state)s::text, state),
           reason = CASE WHEN %(state)s::text IS NULL THEN reason ELSE %(reason)s::text END,
           concurrency = coalesce(%(concurrency)s::int, concurrency), note = coalesce(%(note)s::text, note),
           resumed_at = CASE WHEN %(state)s::text = 'open' THEN clock_timestamp() ELSE resumed_at END,
           ended_at = CASE WHEN %(state)s::text IN ('canceled', 'done') THEN clock_timestamp() END,
           changed_by = coalesce(%(changed_by)s::text, changed_by), changed_at = clock_timestamp()
     WHERE backfill_id = %(backfill_id)s::uuid AND state IN ('open', 'paused')
    RETURNING backfill_id
)
SELECT set_config('dl.changed', (SELECT count(*) FROM changed)::text, true);

SELECT backfill_id, dl_set_backfill_limit(backfill_id), pg_notify('dl_control', 'backfills')
  FROM dl_backfills WHERE backfill_id = %(backfill_id)s::uuid AND current_setting('dl.changed') = '1';

-- name: retry_backfill
-- Look at all slices again, for those that did not succeed. No row: it is open, or there is none.
WITH changed AS (
    UPDATE dl_backfills
       SET state = 'open', mode = 'failed', cursor = NULL, skipped = 0, made = 0, adopted = 0, reason = NULL, ended_at = NULL,
           resumed_at = clock_timestamp(), changed_by = %(changed_by)s::text, changed_at = clock_timestamp()
     WHERE backfill_id = %(backfill_id)s::uuid AND state <> 'open'
    RETURNING backfill_id
)
SELECT set_config('dl.changed', (SELECT count(*) FROM changed)::text, true);

SELECT backfill_id, dl_set_backfill_limit(backfill_id), pg_notify('dl_control', 'backfills')
  FROM dl_backfills WHERE backfill_id = %(backfill_id)s::uuid AND current_setting('dl.changed') = '1';

-- name: count_backfill_jobs
-- Jobs of a backfill that have not ended, those of slices that another backfill asked for since included.
SELECT count(*) FROM dl_jobs WHERE backfill_id = %(backfill_id)s::uuid AND status IN ('queued', 'running');

-- name: prune_backfill_limits
-- prepared
-- Delete the limits of backfills that have ended, and whose jobs have.
WITH ended AS MATERIALIZED (
    SELECT l.name
      FROM (SELECT name, CASE WHEN name ~ '^backfill:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN substr(name, 10)::uuid END AS id
              FROM dl_limits WHERE name ^@ 'backfill:') l
           JOIN dl_backfills b ON b.backfill_id = l.id
     WHERE b.state IN ('canceled', 'done')
       AND NOT EXISTS (SELECT FROM dl_jobs j WHERE j.backfill_id = l.id AND j.status IN ('queued', 'running'))
       FOR UPDATE OF b SKIP LOCKED
)
DELETE FROM dl_limits d USING ended WHERE d.name = ended.name RETURNING d.name;

-- name: backfill_jobs
-- The jobs of a backfill that have not ended.
SELECT j.job_id
  FROM dl_slices s JOIN dl_jobs j ON j.job_id = s.job_id
 WHERE s.backfill_id = %(backfill_id)s::uuid AND s.state::text = ANY (%(states)s::text[]) AND j.backfill_id = s.backfill_id
 LIMIT %(limit)s::int;

-- name: make_backfill
SELECT created, adopted, problem
  FROM dl_make_backfill(%(backfill_id)s::uuid, %(read_cursor)s::text, %(next_cursor)s::text, %(requests)s::jsonb, %(passed)s::int);

-- name: slice_states
-- What is known of these slices of a task.
SELECT partition_key, state::text, succeeded_at IS NOT NULL
  FROM dl_slices WHERE task = %(task)s::text AND partition_key = ANY (%(keys)s::text[]);

-- name: bad_ends_in_row
-- How many of the last slices of a backfill that ended since it was resumed did not succeed, one after the other; at most `limit`.
SELECT count(*)
  FROM (SELECT state, bool_and(state <> 'succeeded') OVER (ORDER BY changed_at DESC, partition_key) AS is_bad
          FROM (SELECT s.state, s.changed_at, s.partition_key FROM dl_slices s JOIN dl_backfills b ON b.backfill_id = s.backfill_id
                 WHERE s.backfill_id = %(backfill_id)s::uuid AND s.state IN ('succeeded', 'failed', 'lost', 'canceled')
                   AND s.changed_at > b.resumed_at
                 ORDER BY s.changed_at DESC, s.partition_key LIMIT %(limit)s::int) ended) in_row
 WHERE is_bad;

-- name: slice_jobs
-- The last job of each of these slices of a task, and its state; `warning`: it succeeded, and a data check did not pass.
SELECT s.partition_key, CASE WHEN s.state = 'succeeded' AND j.warnings > 0 THEN 'warning' ELSE s.state::text END, s.job_id::text
  FROM dl_slices s LEFT JOIN dl_jobs j ON j.job_id = s.job_id
 WHERE s.task = %(task)s::text AND s.partition_key = ANY (%(keys)s::text[]);

-- name: loaded_rows
-- Of a backfill: slices whose jobs reported how many rows they loaded, no more than so many, and the rows of these.
SELECT count(*)::int, coalesce(sum(rows), 0)::bigint
  FROM (SELECT rows FROM dl_slices WHERE backfill_id = %(backfill_id)s::uuid AND state = 'succeeded' AND rows IS NOT NULL
         LIMIT %(limit)s::int) sample;

-- name: last_slice_keys
-- The last slices of a task by key.
SELECT partition_key FROM dl_slices WHERE task = %(task)s::text ORDER BY partition_key DESC LIMIT %(limit)s::int;

-- name: slices
-- The slices of a task, or of a backfill, by key.
SELECT task, partition_key, interval_start, interval_end, state::text, job_id, backfill_id, runs, rows, succeeded_at, succeeded_job,
       changed_at
  FROM dl_slices
 WHERE (%(task)s::text IS NULL OR task = %(task)s::text)
   AND (%(backfill_id)s::uuid IS NULL OR backfill_id = %(backfill_id)s::uuid)
   AND (%(state)s::text IS NULL OR state = %(state)s::dl_status)
   AND (%(keys)s::text[] IS NULL OR partition_key = ANY (%(keys)s::text[]))
   AND (%(first)s::timestamptz IS NULL OR interval_start >= %(first)s::timestamptz)
   AND (%(last)s::timestamptz IS NULL OR interval_start < %(last)s::timestamptz)
   AND (%(after)s::text IS NULL OR partition_key > %(after)s::text)
 ORDER BY partition_key
 LIMIT %(limit)s::int;

-- name: count_slices
-- The slices of a task in a range of time, or of these keys, by the state of the last job and whether any succeeded.
SELECT state::text, succeeded_at IS NOT NULL, count(*)::int
  FROM dl_slices
 WHERE task = %(task)s::text
   AND (%(keys)s::text[] IS NULL OR partition_key = ANY (%(keys)s::text[]))
   AND (%(first)s::timestamptz IS NULL OR interval_start >= %(first)s::timestamptz AND interval_start < %(last)s::timestamptz)
 GROUP BY 1, 2;

-- name: slice_errors
SELECT j.job_id, left(j.error, 300), j.attempt, j.max_attempts
  FROM unnest(%(jobs)s::uuid[]) AS s (job_id) JOIN dl_jobs j ON j.job_id = s.job_id;

-- name: has_backfills
-- Those that make jobs, and those that have ended, until their limits are gone.
SELECT EXISTS (SELECT FROM dl_backfills WHERE state = 'open') OR EXISTS (SELECT FROM dl_limits WHERE name ^@ 'backfill:');
