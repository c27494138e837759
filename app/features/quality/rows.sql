-- Data checks and datasets, as dl_record_reports writes them.

-- name: job_checks
SELECT name, at, job_id, attempt, partition_key, value, low, high, median, outcome, detail
  FROM dl_checks
 WHERE job_id = %(job_id)s::uuid
 ORDER BY check_id
 LIMIT %(limit)s::int;

-- name: job_datasets
SELECT dataset, kind, at, partition_key, rows
  FROM dl_dataset_events
 WHERE job_id = %(job_id)s::uuid
 ORDER BY event_id
 LIMIT %(limit)s::int;

-- name: task_checks
-- The last results of each check of a task, whose names are found by a loose scan.
WITH RECURSIVE names AS (
    SELECT coalesce(%(name)s::text,
                    (SELECT c.name FROM dl_checks c WHERE c.task = %(task)s::text ORDER BY c.name LIMIT 1)) AS name
    UNION ALL
    SELECT next.name
      FROM names CROSS JOIN LATERAL (
               SELECT c.name FROM dl_checks c
                WHERE c.task = %(task)s::text AND c.name > names.name AND %(name)s::text IS NULL ORDER BY c.name LIMIT 1) next
)
SELECT last.*
  FROM (SELECT name FROM names LIMIT %(max_names)s::int) n
       CROSS JOIN LATERAL (SELECT c.name, c.at, c.job_id, c.attempt, c.partition_key, c.value, c.low, c.high, c.median, c.outcome,
                                  c.detail
                             FROM dl_checks c
                            WHERE c.task = %(task)s::text AND c.name = n.name
                            ORDER BY c.at DESC
                            LIMIT %(limit)s::int) last
 ORDER BY last.name, last.at DESC;

-- name: datasets
-- Datasets after a name, by a loose scan, each with the last event of each kind and task.
WITH RECURSIVE names AS (
    (SELECT dataset FROM dl_dataset_events WHERE dataset > %(after)s::text ORDER BY dataset LIMIT 1)
    UNION ALL
    SELECT next.dataset
      FROM names CROSS JOIN LATERAL (
               SELECT e.dataset FROM dl_dataset_events e WHERE e.dataset > names.dataset ORDER BY e.dataset LIMIT 1) next
)
SELECT n.dataset, l.updates[1].at, l.updates[1].task, l.updates[1].job_id, l.updates[1].partition_key, l.updates[1].rows,
       coalesce(cardinality(l.updates), 0), l.consumers, l.read_at,
       EXISTS (SELECT FROM dl_alerts a WHERE a.kind = 'stale_dataset' AND a.subject = n.dataset AND a.ended_at IS NULL)
  FROM (SELECT dataset FROM names LIMIT %(limit)s::int) n
       CROSS JOIN LATERAL (SELECT array_agg(e ORDER BY e.at DESC) FILTER (WHERE e.kind = 'produced') AS updates,
                                  count(*) FILTER (WHERE e.kind = 'consumed') AS consumers,
                                  max(e.at) FILTER (WHERE e.kind = 'consumed') AS read_at
                             FROM dl_last_dataset_events(n.dataset) e) l
 ORDER BY n.dataset;

-- name: dataset_names
WITH RECURSIVE names AS (
    (SELECT dataset FROM dl_dataset_events ORDER BY dataset LIMIT 1)
    UNION ALL
    SELECT next.dataset
      FROM names CROSS JOIN LATERAL (
               SELECT e.dataset FROM dl_dataset_events e WHERE e.dataset > names.dataset ORDER BY e.dataset LIMIT 1) next
)
SELECT dataset FROM names LIMIT %(limit)s::int;

-- name: dataset_tasks
-- The last event of each kind and task, newest first.
SELECT e.task, e.at, e.job_id, e.partition_key, e.rows, e.kind, dl_json_text(e.schema),
       EXISTS (SELECT FROM dl_alerts a WHERE a.kind = 'stale_dataset' AND a.subject = e.dataset AND a.ended_at IS NULL)
  FROM dl_last_dataset_events(%(dataset)s::text) e
 ORDER BY e.at DESC, e.task;

-- name: dataset_updates
SELECT u.task, u.at, u.job_id, u.partition_key, u.rows
  FROM dl_last_dataset_events(%(dataset)s::text) last
       CROSS JOIN LATERAL (SELECT e.event_id, e.task, e.at, e.job_id, e.partition_key, e.rows
                             FROM dl_dataset_events e
                            WHERE e.dataset = last.dataset AND e.kind = last.kind AND e.task = last.task
                            ORDER BY e.at DESC
                            LIMIT %(limit)s::int) u
 WHERE last.kind = 'produced'
 ORDER BY u.at DESC, u.event_id DESC
 LIMIT %(limit)s::int;

-- name: prune_reports
-- Deletes old checks, and those dataset events of a dataset, kind and task that are older than the last one.
WITH old_checks AS (
    SELECT check_id FROM dl_checks
     WHERE at < clock_timestamp() - make_interval(secs => %(keep_sec)s::float8)
     ORDER BY check_id
     LIMIT %(limit)s::int
), deleted_checks AS (
    DELETE FROM dl_checks c USING old_checks old WHERE c.check_id = old.check_id RETURNING 1
), old_events AS (
    SELECT e.event_id FROM dl_dataset_events e
     WHERE e.at < clock_timestamp() - make_interval(secs => %(keep_sec)s::float8)
       AND EXISTS (SELECT FROM dl_dataset_events newer
                    WHERE newer.dataset = e.dataset AND newer.kind = e.kind AND newer.task = e.task AND newer.at > e.at)
     ORDER BY e.event_id
     LIMIT %(limit)s::int
), deleted_events AS (
    DELETE FROM dl_dataset_events e USING old_events old WHERE e.event_id = old.event_id RETURNING 1
)
SELECT greatest((SELECT count(*) FROM deleted_checks), (SELECT count(*) FROM deleted_events));

-- name: check_history
-- The last values of a check that did not fail, other than this job's own: a retry must not make its value the usual one.
SELECT value
  FROM dl_checks
 WHERE task = %(task)s::text AND name = %(name)s::text AND outcome <> 'failed' AND job_id <> %(job_id)s::uuid
 ORDER BY at DESC, check_id DESC
 LIMIT %(count)s::int;
