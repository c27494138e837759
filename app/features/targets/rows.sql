-- Targets: where the attempts of jobs wrote, and with which fence; and the tasks that name targets. See schema.sql.

-- name: draw_fence
SELECT number, former FROM dl_draw_fence(%(job_id)s::uuid, %(run_id)s::uuid, %(target)s::text, %(problem)s::text);

-- name: job_targets
SELECT target, run_id, fence, problem, claimed_at, deleted_at FROM dl_job_targets WHERE job_id = %(job_id)s::uuid ORDER BY target;

-- name: declare_task_targets
-- Writes the targets of the tasks that a process knows, and deletes those that they no longer name.
WITH declared AS MATERIALIZED (
    SELECT d.key AS task, d.value AS target FROM jsonb_each_text(%(targets)s::jsonb) AS d
), deleted AS (
    DELETE FROM dl_task_targets t WHERE t.task = ANY (%(tasks)s::text[]) AND t.task NOT IN (SELECT task FROM declared)
)
INSERT INTO dl_task_targets AS t (task, target)
SELECT task, target FROM declared ORDER BY task
    ON CONFLICT (task) DO UPDATE SET target = excluded.target WHERE t.target <> excluded.target;

-- name: task_targets
-- Of tasks that a live worker knows; of all while none lives.
WITH known AS MATERIALIZED (
    SELECT DISTINCT unnest(tasks) AS task FROM dl_live_workers()
)
SELECT t.task, t.target
  FROM dl_task_targets t
 WHERE t.task IN (SELECT task FROM known) OR NOT EXISTS (SELECT FROM known)
 ORDER BY t.task;

-- name: kept_target_rows
-- Of the oldest rows in targets, by target: how many there are, of how many jobs that ended so long ago that they should have been
-- deleted, and the problem of the last claim.
WITH oldest AS MATERIALIZED (
    SELECT job_id, target, claimed_at
      FROM dl_job_targets
     WHERE deleted_at IS NULL
     ORDER BY claimed_at, job_id, target
     LIMIT %(max_rows)s::int
)
SELECT o.target, count(*)::int,
       count(*) FILTER (WHERE o.claimed_at < clock_timestamp() - make_interval(secs => %(keep_sec)s::float8)
                          AND (j.job_id IS NULL
                               OR (j.status::text = 'succeeded'
                                   AND j.finished_at < clock_timestamp() - make_interval(secs => %(keep_sec)s::float8))))::int
  FROM oldest o LEFT JOIN dl_jobs j ON j.job_id = ANY (ARRAY[o.job_id])
 GROUP BY o.target
 ORDER BY o.target;

-- name: running_runs
-- The runs of these jobs that run now.
SELECT job_id, run_id FROM dl_jobs WHERE job_id = ANY (%(job_ids)s::uuid[]) AND status::text = 'running' AND run_id IS NOT NULL;

-- name: scan_job_targets
-- The next rows that are kept in targets, the oldest first, and whether they are not needed any more: of a job that succeeded
-- longer ago than they are kept, or that does not exist any more. Other jobs may be retried, and resume there.
SELECT t.job_id, t.target, t.fence, t.claimed_at::text,
       j.job_id IS NULL
       OR (j.status::text = 'succeeded' AND j.finished_at < clock_timestamp() - make_interval(secs => %(keep_sec)s::float8)) AS is_due
  FROM (SELECT job_id, target, fence, claimed_at
          FROM dl_job_targets
         WHERE deleted_at IS NULL
           AND (claimed_at, job_id, target) > (%(after_time)s::timestamptz, %(after_job)s::uuid, %(after_target)s::text)
           AND claimed_at < clock_timestamp() - make_interval(secs => %(keep_sec)s::float8)
         ORDER BY claimed_at, job_id, target
         LIMIT %(max_rows)s::int) t
       LEFT JOIN dl_jobs j ON j.job_id = ANY (ARRAY[t.job_id])
 ORDER BY t.claimed_at, t.job_id, t.target;

-- name: mark_target_rows_deleted
-- Unless another attempt has claimed the row meanwhile, after a retry by hand.
UPDATE dl_job_targets t
   SET deleted_at = clock_timestamp()
  FROM unnest(%(job_ids)s::uuid[], %(fences)s::bigint[]) AS d (job_id, fence)
 WHERE t.job_id = d.job_id AND t.target = %(target)s::text AND t.fence = d.fence AND t.deleted_at IS NULL;

-- name: prune_job_targets
-- Among the next rows deletes those of jobs that do not exist any more, once their rows in targets are deleted. Returns the last of
-- these rows, and how many were deleted.
WITH scanned AS MATERIALIZED (
    SELECT job_id, target, deleted_at
      FROM dl_job_targets
     WHERE (job_id, target) > (%(after_job)s::uuid, %(after_target)s::text)
     ORDER BY job_id, target
     LIMIT %(max_rows)s::int
), deleted AS (
    DELETE FROM dl_job_targets t
     USING scanned s
     WHERE t.job_id = s.job_id AND t.target = s.target AND t.deleted_at IS NOT NULL
       AND NOT EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = ANY (ARRAY[s.job_id]))
    RETURNING t.job_id
)
SELECT job_id, target, (SELECT count(*)::int FROM deleted)
  FROM scanned
 ORDER BY job_id DESC, target DESC
 LIMIT 1;
