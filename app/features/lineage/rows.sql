-- What lineage events are made of, and how far they have been sent.

-- name: lineage_cursor
SELECT cursor FROM dl_lineage_state;

-- name: save_lineage_cursor
UPDATE dl_lineage_state SET cursor = %(cursor)s::text;

-- name: lineage_jobs
-- Jobs with their datasets; the partitions that a job has reported of a dataset are one.
SELECT j.job_id, j.task, j.interval_start, j.interval_end,
       j.status <> 'canceled' OR EXISTS (SELECT FROM dl_job_events e WHERE e.job_id = j.job_id AND e.kind = 'picked') AS was_started,
       (SELECT coalesce(json_agg(json_build_object('dataset', d.dataset, 'kind', d.kind, 'rows', d.rows,
                                                   'schema', d.schema::json) ORDER BY d.dataset), '[]')::text
          FROM (SELECT e.dataset, e.kind, sum(e.rows)::bigint AS rows,
                       (array_agg(dl_json_text(e.schema) ORDER BY e.event_id DESC))[1] AS schema
                  FROM dl_dataset_events e
                 WHERE e.job_id = j.job_id
                 GROUP BY e.dataset, e.kind) d) AS datasets
  FROM dl_jobs j
 WHERE j.job_id = ANY (%(job_ids)s::uuid[]);
