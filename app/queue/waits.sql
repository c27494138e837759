-- The release of a run whose task waits for other jobs, or for its work on other engines. Rules as in jobs.sql.

-- name: lock_awaited
-- Before one run is released until other jobs have ended: their rows and its own, in one order. Not for long: an end waits.
SELECT pg_advisory_xact_lock(1684828526, hashtext(key)) FROM unnest(%(lock_keys)s::text[]) AS k (key);

SELECT set_config('lock_timeout', '2s', true);

SELECT FROM dl_jobs j WHERE j.job_id = ANY (%(awaited)s::uuid[] || %(job_ids)s::uuid[]) ORDER BY j.job_id FOR NO KEY UPDATE;

-- name: wait_for_jobs
SELECT r.run_id, w.status
  FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[]) AS r (job_id, run_id)
       CROSS JOIN LATERAL dl_wait_for_jobs(r.job_id, r.run_id, %(awaited)s::uuid[]) AS w (status)
 WHERE w.status IS NOT NULL;

-- name: release_waiting = lock_awaited + release + wait_for_jobs

-- name: await_offloads
-- After the release of a run in the same transaction: it waits for these. One that ends meanwhile is seen by the next poll.
WITH awaited AS (
    UPDATE dl_offloads o
       SET is_awaited = true, awaited_since = clock_timestamp(), next_poll_at = clock_timestamp(), unavailable_since = NULL
      FROM unnest(%(job_ids)s::uuid[]) AS r (job_id)
     WHERE o.job_id = r.job_id AND o.name = ANY (%(offloads)s::text[]) AND o.ended_at IS NULL
    RETURNING o.job_id
), waiting AS (
    UPDATE dl_jobs j SET wait_state = 'waiting'
      FROM (SELECT DISTINCT job_id FROM awaited) a
     WHERE j.job_id = a.job_id AND j.run_id = ANY (%(run_ids)s::uuid[]) AND j.status::text = 'queued'
    RETURNING j.run_id
)
SELECT j.run_id, j.status::text
  FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[]) AS r (job_id, run_id)
       JOIN dl_jobs j ON j.job_id = r.job_id AND j.run_id = r.run_id AND j.xmin = pg_current_xact_id()::xid;

-- name: release_for_offloads = release + await_offloads
