-- Jobs whose task no live worker knows: they are deferred, so that they are not in front of others.

-- name: defer_unknown_tasks
-- prepared
-- queued -> queued, later: ready jobs whose task neither this process nor any live worker of the queue knows, so that they
-- do not block the front of the queue. The delay grows with the age; a worker that knows the task ends it
-- (restore_unknown_tasks). A job that was deferred before gets no event and is not counted.
WITH unknown AS (
    SELECT job_id, unknown_task AS was_deferred
      FROM dl_jobs j
     WHERE queue = %(queue)s::text AND status = 'queued' AND wait_state = 'ready' AND task <> ALL (%(tasks)s::text[])
       AND NOT EXISTS (SELECT FROM dl_live_workers() w
                        WHERE j.queue = ANY (w.queues) AND j.task = ANY (w.tasks))
     ORDER BY priority, created_at, job_id
     LIMIT 500
       FOR NO KEY UPDATE SKIP LOCKED
), deferred AS (
    UPDATE dl_jobs j
       SET wait_state = 'scheduled', waits_on = NULL, unknown_task = true,
           error = CASE WHEN EXISTS (SELECT FROM dl_live_workers() w
                                      WHERE j.queue = ANY (w.queues) AND w.unserved_tasks ? j.task)
                        THEN 'no live worker has the labels that are required by the task ' ELSE 'no live worker knows the task ' END
                   || quote_literal(left(j.task, 200)),
           available_at = clock_timestamp() + make_interval(
               secs => least(600, greatest(5, (date_part('epoch', clock_timestamp()) - date_part('epoch', j.created_at)) / 2)))
      FROM unknown
     WHERE j.job_id = ANY (ARRAY[unknown.job_id])
    RETURNING j.job_id, j.queue, j.task, j.attempt, unknown.was_deferred
), events AS (
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, clock_timestamp(), 'requeue',
           jsonb_build_object('status', 'queued', 'attempt', attempt, 'reason', 'unknown_task')
      FROM deferred
     WHERE NOT was_deferred
)
SELECT task, count(*) FROM deferred WHERE NOT was_deferred GROUP BY task;

-- name: restore_unknown_tasks
-- queued -> queued, now: deferred jobs whose task this worker knows.
WITH known AS (
    SELECT job_id
      FROM dl_jobs
     WHERE status = 'queued' AND wait_state::text = 'scheduled' AND unknown_task  -- as text: of many scheduled jobs few are deferred
       AND queue = ANY (%(queues)s::text[]) AND task = ANY (%(tasks)s::text[])
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE dl_jobs j
   SET unknown_task = false, error = NULL, available_at = clock_timestamp()
  FROM known
 WHERE j.job_id = ANY (ARRAY[known.job_id]);
