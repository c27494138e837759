-- Many jobs in one statement; dl_enqueue_many in schema.sql says how.

-- name: enqueue_batch
SELECT outcome, job_id, status, field, detail FROM dl_enqueue_many(%(jobs)s::jsonb, %(whole)s::bool) ORDER BY n;
