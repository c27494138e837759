-- What a run does to its own job while it runs. No row is changed, or none returned, if it does not own it any more.

-- name: assert_owned
-- The last statement before a pipeline's own COMMIT into this database: locks the run's row against everything that could
-- take the job away. No row: the run has lost it.
SELECT 1
  FROM dl_jobs
 WHERE job_id = %(job_id)s::uuid AND run_id = %(run_id)s::uuid AND status::text = 'running'
   FOR SHARE;

-- name: save_checkpoint
UPDATE dl_jobs
   SET checkpoint = %(checkpoint)s::jsonb
 WHERE job_id = %(job_id)s::uuid AND run_id = %(run_id)s::uuid AND status::text = 'running'
RETURNING 1;

-- name: record_stop_pending
-- running -> running: all stop steps are used up and the run continues. Recorded once.
WITH recorded AS (
    UPDATE dl_jobs
       SET error = %(error)s::text
     WHERE job_id = %(job_id)s::uuid AND run_id = %(run_id)s::uuid AND status::text = 'running'
    RETURNING job_id, queue, attempt, run_id
)
INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
SELECT job_id, queue, clock_timestamp(), 'stop_pending',
       jsonb_build_object('status', 'running', 'attempt', attempt, 'run_id', run_id, 'reason', %(reason)s::text)
  FROM recorded;
