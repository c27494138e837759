-- Targets: where the attempts of jobs wrote, and with which fence. See schema.sql.

-- name: draw_fence
SELECT dl_draw_fence(%(job_id)s::uuid, %(run_id)s::uuid, %(target)s::text, %(problem)s::text);

-- name: job_targets
SELECT target, run_id, fence, problem, claimed_at, deleted_at FROM dl_job_targets WHERE job_id = %(job_id)s::uuid ORDER BY target;

-- name: ended_job_targets
-- Of jobs that succeeded longer ago than rows in targets are kept, or do not exist any more; the oldest first. Others may be retried.
SELECT t.job_id, t.target
  FROM dl_job_targets t LEFT JOIN dl_jobs j ON j.job_id = ANY (ARRAY[t.job_id])
 WHERE t.deleted_at IS NULL AND t.claimed_at < clock_timestamp() - %(keep_sec)s * interval '1 second'
   AND t.target = ANY (%(targets)s::text[])
   AND (j.job_id IS NULL
        OR (j.status::text = 'succeeded'
            AND j.finished_at < clock_timestamp() - %(keep_sec)s * interval '1 second'))
 ORDER BY t.claimed_at
 LIMIT %(max_rows)s;

-- name: mark_target_rows_deleted
UPDATE dl_job_targets SET deleted_at = clock_timestamp()
 WHERE target = %(target)s::text AND job_id = ANY (%(job_ids)s::uuid[]) AND deleted_at IS NULL;

-- name: prune_job_targets
-- Of jobs that do not exist any more.
DELETE FROM dl_job_targets
 WHERE (job_id, target) IN (
       SELECT t.job_id, t.target
         FROM dl_job_targets t
        WHERE t.deleted_at IS NOT NULL AND NOT EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = ANY (ARRAY[t.job_id]))
        LIMIT %(max_rows)s);
