-- Claims other than the usual one, made of the parts in jobs.sql: with a permit, of a fair queue, and of unknown tasks.

-- name: take_permit
-- The first step of a claim that prefetches.
SELECT dl_take_claim_permit(%(queue)s::text);

-- name: prefetch = take_permit + find_oldest + start

-- name: promote_and_prefetch = take_permit + promote_due + find_oldest + start

-- name: find_in_turn
-- The same for a fair queue, whose tenants are served in turn: see dl_fair_candidates. `after` is where the last claim of this
-- process ended: a tenant, and how many of its jobs have had their turn.
WITH chosen AS MATERIALIZED (
    SELECT c.n, c.job_id FROM dl_fair_candidates(%(queue)s::text, %(tasks)s::text[], %(scan_limit)s::int, (%(after)s::text[])[1],
                                                 (%(after)s::text[])[2]::int) c
     WHERE NOT EXISTS (SELECT FROM dl_workers w WHERE w.worker_id = %(worker_id)s::uuid AND w.superseded_by IS NOT NULL)
), candidates AS (
    SELECT j.job_id, j.lock_key, chosen.n
      FROM chosen JOIN dl_jobs j ON j.job_id = ANY (ARRAY[chosen.job_id]) AND j.status::text = 'queued' AND j.wait_state::text = 'ready'
       FOR NO KEY UPDATE OF j SKIP LOCKED
), key_locked AS (
    SELECT job_id, n, pg_try_advisory_xact_lock(1684828526, hashtext(lock_key)) AS is_locked FROM candidates
)
SELECT set_config('dl.candidates', coalesce(string_agg(job_id::text, ',' ORDER BY n) FILTER (WHERE is_locked), ''), true),
       set_config('dl.skipped', (count(*) FILTER (WHERE NOT is_locked) + coalesce(nullif(current_setting('dl.fair_more', true), ''), '0')::int)::text, true),
       set_config('dl.free_slots', CASE WHEN count(*) > 0 THEN dl_free_slots(%(queue)s::text)::text END, true)
  FROM key_locked;

-- name: claim_in_turn = promote_due + find_in_turn + start

-- name: defer_unknown_tasks
-- queued -> queued, later: ready jobs whose task neither this process nor any live worker of the queue knows, so that they
-- do not block the front of the queue. The delay grows with the age; a worker that knows the task ends it
-- (restore_unknown_tasks). A job that was deferred before gets no event and is not counted.
WITH unknown AS (
    SELECT job_id, unknown_task AS was_deferred
      FROM dl_jobs j
     WHERE queue = %(queue)s::text AND status = 'queued' AND wait_state = 'ready' AND task <> ALL (%(tasks)s::text[])
       AND NOT EXISTS (SELECT FROM dl_workers w
                        WHERE j.queue = ANY (w.queues) AND j.task = ANY (w.tasks)
                          AND w.seen_at > clock_timestamp() - make_interval(secs => 3 * w.heartbeat_sec))
     ORDER BY priority, created_at, job_id
     LIMIT 500
       FOR NO KEY UPDATE SKIP LOCKED
), deferred AS (
    UPDATE dl_jobs j
       SET wait_state = 'scheduled', waits_on = NULL, unknown_task = true,
           error = CASE WHEN EXISTS (SELECT FROM dl_workers w
                                      WHERE j.queue = ANY (w.queues) AND w.unserved_tasks ? j.task
                                        AND w.seen_at > clock_timestamp() - make_interval(secs => 3 * w.heartbeat_sec))
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
