-- Schedules and their firings. See the tables of schema.sql.

-- define: schedule_columns
       schedule_id, name, source, task, declared::text, overrides::text, seen_at, orphaned_at, paused_at, paused_by, paused_reason,
       version, last_at, next_at, error, created_at, changed_by, changed_at

-- name: schedules
-- Schedules by name; with `name` that one alone.
SELECT
       -- include: schedule_columns
  FROM dl_schedules
 WHERE (%(name)s::text IS NULL OR name = %(name)s::text) AND (%(task)s::text IS NULL OR task = %(task)s::text)
 ORDER BY name
 LIMIT %(limit)s::int;

-- name: schedules_due_next
SELECT
       -- include: schedule_columns
  FROM dl_schedules
 WHERE paused_at IS NULL AND orphaned_at IS NULL AND next_at IS NOT NULL
 ORDER BY next_at
 LIMIT %(limit)s::int;

-- name: schedules_not_firing
-- Those that are late or in error first, then those that no live worker has in its code, then those that people have paused;
-- not those that their code pauses.
SELECT
       -- include: schedule_columns
  FROM dl_schedules
 WHERE CASE WHEN paused_at IS NOT NULL THEN paused_by IS DISTINCT FROM 'code'
            ELSE orphaned_at IS NOT NULL OR error IS NOT NULL
                 OR next_at < clock_timestamp() - make_interval(secs => %(late_sec)s::float8) END
 ORDER BY paused_at IS NOT NULL, orphaned_at IS NOT NULL, next_at, name
 LIMIT %(limit)s::int;

-- name: create_schedule
-- A schedule of people. No row: the name is taken.
INSERT INTO dl_schedules (name, source, task, overrides, last_at, next_at, error, paused_at, paused_by, paused_reason, changed_by)
VALUES (%(name)s::text, 'people', %(task)s::text, %(overrides)s::jsonb, %(last_at)s::timestamptz, %(next_at)s::timestamptz,
        %(error)s::text, CASE WHEN %(is_paused)s::bool THEN clock_timestamp() END,
        CASE WHEN %(is_paused)s::bool THEN %(changed_by)s::text END, %(paused_reason)s::text, %(changed_by)s::text)
    ON CONFLICT (name) DO NOTHING
RETURNING schedule_id, pg_notify('dl_control', 'schedules');

-- name: change_schedule
-- Change what applies; times after `last_at` follow it. No row: another request has changed it meanwhile.
UPDATE dl_schedules
   SET overrides = %(overrides)s::jsonb, task = %(task)s::text, version = version + 1, last_at = %(last_at)s::timestamptz,
       next_at = %(next_at)s::timestamptz, error = %(error)s::text, changed_by = %(changed_by)s::text, changed_at = clock_timestamp(),
       source = %(source)s::text, declared = CASE %(source)s::text WHEN 'code' THEN declared ELSE '{}' END,
       orphaned_at = CASE %(source)s::text WHEN 'code' THEN orphaned_at END
 WHERE name = %(name)s::text AND version = %(version)s::int AND last_at IS NOT DISTINCT FROM %(read_last_at)s::timestamptz
RETURNING schedule_id, pg_notify('dl_control', 'schedules');

-- name: pause_schedule
UPDATE dl_schedules
   SET paused_at = coalesce(paused_at, clock_timestamp()), paused_by = %(changed_by)s::text, paused_reason = %(reason)s::text,
       version = version + 1, changed_by = %(changed_by)s::text, changed_at = clock_timestamp()
 WHERE name = %(name)s::text
RETURNING schedule_id;

-- name: resume_schedule
-- Fire again, from `last_at` on. With `skipped`, the first and the last nominal time of the pause, one row says that they did
-- not fire; so does one for updates of datasets, unless they are kept. No row: another request has changed it meanwhile.
WITH resumed AS (
    UPDATE dl_schedules
       SET paused_at = NULL, paused_by = NULL, paused_reason = NULL, version = version + 1, last_at = %(last_at)s::timestamptz,
           next_at = %(next_at)s::timestamptz, error = %(error)s::text, changed_by = %(changed_by)s::text, changed_at = clock_timestamp()
     WHERE name = %(name)s::text AND version = %(version)s::int
    RETURNING schedule_id
), skipped AS (
    INSERT INTO dl_firings (schedule_id, fire_at, due_at, outcome, until, made_by, detail)
    SELECT schedule_id, %(skipped_from)s::timestamptz, %(skipped_from)s::timestamptz, 'paused_skipped', %(skipped_until)s::timestamptz,
           'clock', %(detail)s::text
      FROM resumed
     WHERE %(skipped_from)s::timestamptz IS NOT NULL
        ON CONFLICT DO NOTHING
), dropped AS (
    DELETE FROM dl_dataset_updates u USING resumed r WHERE u.schedule_id = r.schedule_id AND NOT %(keep_updates)s::bool
    RETURNING u.schedule_id, u.dataset, u.at
), recorded AS (
    INSERT INTO dl_firings (schedule_id, fire_at, due_at, outcome, until, made_by, detail)
    SELECT schedule_id, min(at), min(at), 'paused_skipped', max(at), 'dataset',
           %(detail)s::text || ', updated: ' || string_agg(DISTINCT dataset, ', ')
      FROM dropped GROUP BY schedule_id
        ON CONFLICT DO NOTHING
)
SELECT schedule_id, pg_notify('dl_control', 'schedules') FROM resumed;

-- name: delete_schedule
DELETE FROM dl_schedules WHERE name = %(name)s::text RETURNING schedule_id;

-- name: due_schedules
-- prepared
-- Schedules whose next time has come, the longest overdue first, those whose datasets have been updated, and the clock. One row
-- without a schedule: none is due; it has the seconds until the next one is.
WITH bound AS MATERIALIZED (
    SELECT clock_timestamp() - make_interval(secs => %(late_by_sec)s::float8) AS due_at
), updates AS (
    SELECT schedule_id, jsonb_agg(DISTINCT dataset) AS datasets, jsonb_agg(update_id) AS ids FROM dl_dataset_updates GROUP BY schedule_id
    HAVING max(at) <= (SELECT due_at FROM bound)
), due AS (
    (SELECT s.*, '[]'::jsonb AS datasets, '[]'::jsonb AS updates
       FROM dl_schedules s
      WHERE next_at <= (SELECT due_at FROM bound) AND paused_at IS NULL AND orphaned_at IS NULL
        AND schedule_id <> ALL (%(without)s::uuid[])
      ORDER BY next_at
      LIMIT %(limit)s::int)
    UNION ALL
    (SELECT s.*, u.datasets, u.ids
       FROM updates u JOIN dl_schedules s USING (schedule_id)
      WHERE s.next_at IS NULL AND s.error IS NULL AND s.paused_at IS NULL AND s.orphaned_at IS NULL
        AND s.schedule_id <> ALL (%(without)s::uuid[])
        AND CASE coalesce(s.overrides ->> 'need', s.declared ->> 'need', 'all')
                WHEN 'any' THEN u.datasets ?| ARRAY(SELECT jsonb_array_elements_text(coalesce(s.overrides -> 'after', s.declared -> 'after')))
                ELSE u.datasets @> coalesce(s.overrides -> 'after', s.declared -> 'after') END
      LIMIT %(limit)s::int)
)
SELECT clock_timestamp(),
       (SELECT date_part('epoch', next_at) - date_part('epoch', clock_timestamp())
          FROM dl_schedules
         WHERE next_at < 'infinity' AND paused_at IS NULL AND orphaned_at IS NULL AND schedule_id <> ALL (%(without)s::uuid[])
         ORDER BY next_at
         LIMIT 1),
       due.schedule_id, name, source, task, declared::text, overrides::text, seen_at, orphaned_at, paused_at, paused_by, paused_reason,
       version, last_at, next_at, error, created_at, changed_by, changed_at, datasets::text, updates::text
  FROM (VALUES (1)) AS single (n) LEFT JOIN due ON true;

-- name: fire_schedules
SELECT set_config('lock_timeout', '1s', true);

SELECT schedule_id, fire_at, outcome, job_id, detail FROM dl_fire_schedules(%(batch)s::jsonb);

-- name: live_jobs_of_schedule
-- Jobs of earlier nominal times that have not ended.
SELECT job_id FROM dl_jobs
 WHERE schedule_id = %(schedule_id)s::uuid AND status IN ('queued', 'running') AND logical_at < %(before)s::timestamptz
 ORDER BY logical_at;

-- name: firings
-- The firings of a schedule, newest first.
SELECT f.fire_at, f.due_at, f.outcome, f.until, f.job_id, j.status::text, f.made_by, f.detail, f.made_at
  FROM dl_firings f LEFT JOIN dl_jobs j ON j.job_id = f.job_id
 WHERE f.schedule_id = %(schedule_id)s::uuid AND (%(before)s::timestamptz IS NULL OR f.fire_at < %(before)s::timestamptz)
 ORDER BY f.fire_at DESC
 LIMIT %(limit)s::int;

-- name: last_firings_of
-- The latest firings of each of these schedules.
SELECT s.name, f.fire_at, f.due_at, f.outcome, f.until, f.job_id, j.status::text, f.made_by, f.detail, f.made_at
  FROM dl_schedules s
       CROSS JOIN LATERAL (SELECT * FROM dl_firings f WHERE f.schedule_id = s.schedule_id
                            ORDER BY f.fire_at DESC LIMIT %(limit)s::int) f
       LEFT JOIN dl_jobs j ON j.job_id = f.job_id
 WHERE s.schedule_id = ANY (%(ids)s::uuid[])
 ORDER BY s.name, f.fire_at DESC;

-- name: firings_between
-- The firings of all schedules in ranges of time, the first `limit` of each range, oldest first: what the calendar shows.
SELECT f.name, f.fire_at, f.due_at, f.outcome, f.until, f.job_id, j.status::text, f.made_by, f.detail, f.made_at
  FROM unnest(%(firsts)s::timestamptz[], %(lasts)s::timestamptz[]) AS r (first, last)
       CROSS JOIN LATERAL (SELECT s.name, f.fire_at, f.due_at, f.outcome, f.until, f.job_id, f.made_by, f.detail, f.made_at
                             FROM dl_firings f JOIN dl_schedules s ON s.schedule_id = f.schedule_id
                            WHERE f.fire_at >= r.first AND f.fire_at < r.last
                            ORDER BY f.fire_at, s.name
                            LIMIT %(limit)s::int) f
       LEFT JOIN dl_jobs j ON j.job_id = f.job_id
 ORDER BY f.fire_at, f.name;

-- name: firings_of_schedules_between
-- The same of some schedules, however often others fired.
SELECT f.name, f.fire_at, f.due_at, f.outcome, f.until, f.job_id, j.status::text, f.made_by, f.detail, f.made_at
  FROM unnest(%(firsts)s::timestamptz[], %(lasts)s::timestamptz[]) AS r (first, last)
       CROSS JOIN LATERAL (SELECT s.name, f.*
                             FROM dl_schedules s
                                  CROSS JOIN LATERAL (SELECT * FROM dl_firings f
                                                       WHERE f.schedule_id = s.schedule_id AND f.fire_at >= r.first AND f.fire_at < r.last
                                                       ORDER BY f.fire_at
                                                       LIMIT %(limit)s::int) f
                            WHERE s.schedule_id = ANY (%(ids)s::uuid[])
                            ORDER BY f.fire_at, s.name
                            LIMIT %(limit)s::int) f
       LEFT JOIN dl_jobs j ON j.job_id = f.job_id
 ORDER BY f.fire_at, f.name;

-- name: record_firing
-- A firing that a person asked for. A nominal time that has a row keeps it, with the new job if it was to be fired again. No row:
-- it has fired already.
WITH made AS (
    SELECT m.job_id, m.outcome, m.field, m.detail FROM dl_enqueue_many(jsonb_build_array(%(job)s::jsonb)) m
     WHERE %(again)s::bool OR NOT EXISTS (SELECT FROM dl_firings WHERE schedule_id = %(schedule_id)s::uuid AND fire_at = %(fire_at)s::timestamptz
                                             AND outcome IN ('made', 'exists'))
), recorded AS (
    INSERT INTO dl_firings AS f (schedule_id, fire_at, due_at, outcome, job_id, made_by, detail)
    SELECT %(schedule_id)s::uuid, %(fire_at)s::timestamptz, %(fire_at)s::timestamptz,
           CASE made.outcome WHEN 'created' THEN 'made' ELSE 'exists' END, made.job_id, 'person', %(detail)s::text
      FROM made
     WHERE made.outcome <> 'invalid'
        ON CONFLICT (schedule_id, fire_at) DO UPDATE
       SET outcome = excluded.outcome, job_id = excluded.job_id, made_by = 'person', detail = excluded.detail, made_at = clock_timestamp()
)
SELECT outcome, job_id, field, detail FROM made;

-- name: declare_schedules
-- What the tasks of a process declare; the maintenance leader computes their next times. A process that started earlier than the one that declared last changes nothing, and neither
-- does a schedule of people with the same name: those names are returned.
WITH self AS (
    SELECT started_at FROM dl_workers WHERE worker_id = %(worker_id)s::uuid
), wanted AS (
    SELECT d.name, d.task, d.definition
      FROM jsonb_to_recordset(%(schedules)s::jsonb) AS d (name text, task text, definition jsonb)
), written AS (
    INSERT INTO dl_schedules AS s (name, source, task, declared, declared_at, seen_at, last_at, next_at, paused_at, paused_by, paused_reason)
    SELECT name, 'code', task, definition - 'off', self.started_at, clock_timestamp(), clock_timestamp(), clock_timestamp(),
           CASE WHEN (definition ->> 'off')::bool THEN clock_timestamp() END,
           CASE WHEN (definition ->> 'off')::bool THEN 'code' END, CASE WHEN (definition ->> 'off')::bool THEN 'off by default' END
      FROM wanted CROSS JOIN self
     ORDER BY name
        ON CONFLICT (name) DO UPDATE
       SET declared = excluded.declared, declared_at = excluded.declared_at, seen_at = clock_timestamp(), orphaned_at = NULL,
           task = CASE WHEN s.overrides ? 'task' THEN s.task ELSE excluded.task END,
           version = s.version + (s.declared IS DISTINCT FROM excluded.declared OR s.orphaned_at IS NOT NULL)::int,
           -- Times that have come already are fired by one definition or the other. Later ones follow the new one.
           last_at = CASE WHEN s.declared IS DISTINCT FROM excluded.declared AND s.paused_at IS NULL
                               AND (s.next_at <= clock_timestamp()) IS NOT TRUE THEN clock_timestamp() ELSE s.last_at END,
           next_at = CASE WHEN s.declared IS DISTINCT FROM excluded.declared OR s.orphaned_at IS NOT NULL THEN clock_timestamp() ELSE s.next_at END
     WHERE s.source = 'code' AND (s.declared_at IS NULL OR s.declared_at <= excluded.declared_at)
    RETURNING pg_notify('dl_control', 'schedules')
)
SELECT s.name FROM dl_schedules s JOIN wanted ON wanted.name = s.name WHERE s.source = 'people';

-- name: record_schedule_error
-- Nothing if the schedule has been changed since it was read.
UPDATE dl_schedules SET error = %(error)s::text WHERE schedule_id = %(schedule_id)s::uuid AND version = %(version)s::int;

-- name: see_schedules
-- Records which schedules live workers have in their code, and which no longer: those do not fire. Returns those that it orphaned.
WITH live AS (
    SELECT DISTINCT unnest(schedules) AS name FROM dl_live_workers()
), seen AS (
    UPDATE dl_schedules s SET seen_at = clock_timestamp(), orphaned_at = NULL
      FROM live WHERE s.name = live.name AND s.source = 'code' AND s.seen_at < clock_timestamp() - interval '1 minute'
)
UPDATE dl_schedules s SET orphaned_at = clock_timestamp()
 WHERE s.source = 'code' AND s.orphaned_at IS NULL AND s.seen_at < clock_timestamp() - make_interval(secs => %(orphan_after_sec)s::float8)
   AND NOT EXISTS (SELECT FROM live WHERE live.name = s.name)
RETURNING s.name;

-- name: prune_firings
WITH old AS (
    SELECT schedule_id, fire_at FROM dl_firings
     WHERE made_at < clock_timestamp() - make_interval(secs => %(keep_sec)s::float8) ORDER BY made_at LIMIT %(limit)s::int
), deleted AS (
    DELETE FROM dl_firings f USING old WHERE f.schedule_id = old.schedule_id AND f.fire_at = old.fire_at RETURNING 1
)
SELECT count(*) FROM deleted;

-- name: schedules_to_check
-- For doctor, names of at most 50 each: those of people whose name code has too, those that no live worker has in its code, those in
-- error with it, and those that are late.
SELECT (SELECT coalesce(jsonb_agg(name ORDER BY name), '[]')::text
          FROM (SELECT name FROM dl_schedules
                 WHERE source = 'people' AND name IN (SELECT unnest(schedules) FROM dl_live_workers())
                 LIMIT 50) t),
       (SELECT coalesce(jsonb_agg(name ORDER BY name), '[]')::text
          FROM (SELECT name FROM dl_schedules WHERE orphaned_at IS NOT NULL LIMIT 50) o),
       (SELECT coalesce(jsonb_agg(jsonb_build_array(name, left(error, 300)) ORDER BY name), '[]')::text
          FROM (SELECT name, error FROM dl_schedules WHERE error IS NOT NULL LIMIT 50) s),
       (SELECT coalesce(jsonb_agg(name ORDER BY name), '[]')::text
          FROM (SELECT name FROM dl_schedules
                 WHERE next_at < clock_timestamp() - interval '2 minutes' AND paused_at IS NULL AND orphaned_at IS NULL
                 LIMIT 50) l);

-- name: lock_schedule
-- For an undo.
SELECT FROM dl_schedules WHERE name = %(subject_id)s::text FOR NO KEY UPDATE;
