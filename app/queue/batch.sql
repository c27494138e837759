-- Enqueues many jobs in one statement, by dl_enqueue_many of schema.sql.

-- name: enqueue_batch
SELECT outcome, job_id, status, field, detail FROM dl_enqueue_many(%(jobs)s::jsonb, %(all_or_none)s::bool) ORDER BY n;

-- name: visible_jobs
-- Which of these jobs a caller sees that is limited to tasks or queues; NULL: to none.
SELECT job_id
  FROM dl_jobs
 WHERE job_id = ANY (%(job_ids)s::uuid[])
   AND (%(tasks)s::text[] IS NULL OR task = ANY (%(tasks)s::text[]))
   AND (%(queues)s::text[] IS NULL OR queue = ANY (%(queues)s::text[]));
