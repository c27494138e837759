-- Data checks and datasets, as dl_record_reports writes them.

-- name: prune_checks
WITH old AS (
    SELECT check_id FROM dl_checks
     WHERE at < clock_timestamp() - make_interval(secs => %(keep_sec)s::float8)
     ORDER BY check_id
     LIMIT %(limit)s::int
), deleted AS (
    DELETE FROM dl_checks c USING old WHERE c.check_id = old.check_id RETURNING 1
)
SELECT count(*) FROM deleted;

-- name: prune_dataset_events
-- Those of a dataset, kind and task that are older than the last one.
WITH old AS (
    SELECT e.event_id FROM dl_dataset_events e
     WHERE e.at < clock_timestamp() - make_interval(secs => %(keep_sec)s::float8)
       AND EXISTS (SELECT FROM dl_dataset_events newer
                    WHERE newer.dataset = e.dataset AND newer.kind = e.kind AND newer.task = e.task AND newer.at > e.at)
     ORDER BY e.event_id
     LIMIT %(limit)s::int
), deleted AS (
    DELETE FROM dl_dataset_events e USING old WHERE e.event_id = old.event_id RETURNING 1
)
SELECT count(*) FROM deleted;
