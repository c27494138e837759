-- Find jobs by a part of their id.

-- name: find_jobs_by_id
-- Jobs whose ids lie in a range, the last first; with `suffix` only those whose id ends so, among the last `max_scanned` of
-- the range.
SELECT j.job_id, j.queue, j.task, j.status::text, j.created_at
  FROM (SELECT job_id
          FROM (SELECT job_id FROM dl_jobs
                 WHERE job_id >= %(first)s::uuid AND job_id <= %(last)s::uuid
                 ORDER BY job_id DESC
                 LIMIT %(max_scanned)s::int) in_range
         WHERE right(job_id::text, length(%(suffix)s::text)) = %(suffix)s::text
         LIMIT %(limit)s::int) matching
       JOIN dl_jobs j USING (job_id)
 ORDER BY j.job_id DESC;
