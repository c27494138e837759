-- One job with its attempts, its events and the jobs it is related to.

-- name: row_version
-- The version of a job's row: it differs after every change.
SELECT xmin::text, wait_state::text, unknown_task FROM dl_jobs WHERE job_id = %(job_id)s::uuid;

-- name: attempt_events
-- The last `limit` events that start or end an attempt, oldest first.
SELECT event_id, job_id, queue, ts, kind, coalesce(payload, '{}')::text
  FROM (SELECT *
          FROM dl_job_events
         WHERE job_id = %(job_id)s::uuid AND kind NOT IN ('queued', 'heartbeat', 'edited', 'cloned')
         ORDER BY event_id DESC
         LIMIT %(limit)s::int) latest
 ORDER BY event_id;

-- name: last_events
SELECT event_id, job_id, queue, ts, kind, coalesce(payload, '{}')::text
  FROM (SELECT * FROM dl_job_events WHERE job_id = %(job_id)s::uuid ORDER BY event_id DESC LIMIT %(limit)s::int) latest
 ORDER BY event_id;

-- name: linked_job
SELECT job_id, queue, task, status::text, created_at FROM dl_jobs WHERE job_id = %(job_id)s::uuid;

-- name: children
SELECT job_id, queue, task, status::text, created_at
  FROM dl_jobs
 WHERE parent_id = %(job_id)s::uuid
 ORDER BY created_at
 LIMIT %(limit)s::int;

-- name: key_holder
-- The running job, other than this one, that has the lock key.
SELECT h.job_id, h.queue, h.task, h.status::text, coalesce(h.started_at, h.created_at)
  FROM dl_jobs h
 WHERE h.lock_key BETWEEN %(lock_key)s::text AND %(lock_key)s::text AND h.status = 'running' AND h.job_id <> %(job_id)s::uuid;

-- name: job_of_idempotency_key
SELECT job_id, queue, task, status::text, created_at FROM dl_jobs WHERE idempotency_key = %(idempotency_key)s::text;
