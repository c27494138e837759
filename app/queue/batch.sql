-- Enqueues many jobs in one statement, by dl_enqueue_many of schema.sql.

-- name: enqueue_batch
SELECT outcome, job_id, status, field, detail FROM dl_enqueue_many(%(jobs)s::jsonb, %(all_or_none)s::bool) ORDER BY n;
