-- What an autoscaler needs to know of each queue. Bounded by the numbers of queues, running jobs and workers, and by `max_exact`.

-- name: scaling
-- One row for each queue. Ready jobs are counted along their index up to `max_exact`. Of the first ones, in the order of claims,
-- `samples` has those that a claim could start: the first of each key that is free, by their limits and the room in these. Claims
-- mark a job as blocked or limited when they meet it, so the ready ones that no claim has met yet may be either.
-- Other waiting jobs are not read.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true);

WITH live AS MATERIALIZED (
    SELECT worker_id, queues, queue_threads, NOT draining AND NOT stopping AS can_claim FROM dl_live_workers()
     WHERE dead_at IS NULL
), running AS MATERIALIZED (
    SELECT j.queue, count(*) AS n, count(w.worker_id) AS busy, count(*) FILTER (WHERE w.can_claim) AS claiming,
           percentile_disc(0.5) WITHIN GROUP (ORDER BY date_part('epoch', clock_timestamp()) - date_part('epoch', j.started_at))
               FILTER (WHERE isfinite(j.started_at)) AS median_sec
      FROM dl_jobs j LEFT JOIN live w ON w.worker_id = j.worker_id
     WHERE j.status = 'running'
     GROUP BY j.queue
), serving AS MATERIALIZED (
    SELECT q.queue, coalesce(sum((w.queue_threads ->> q.queue)::int) FILTER (WHERE w.can_claim), 0) AS threads,
           count(*) FILTER (WHERE NOT w.can_claim) AS draining
      FROM live w CROSS JOIN LATERAL unnest(w.queues) q (queue)
     GROUP BY q.queue
), due AS MATERIALIZED (
    SELECT queue, count(*) AS n
      FROM (SELECT queue FROM dl_jobs
             WHERE status = 'queued' AND wait_state = 'scheduled' AND NOT unknown_task
               AND available_at < clock_timestamp() + make_interval(secs => %(soon_sec)s::float8)
             ORDER BY available_at
             LIMIT %(max_exact)s::int) scheduled
     GROUP BY queue
), firing AS MATERIALIZED (
    SELECT coalesce(s.overrides ->> 'queue', s.declared ->> 'queue',
                    (SELECT r.queue FROM dl_recent_runs r WHERE r.task = s.task ORDER BY r.event_id DESC LIMIT 1),
                    'default') AS queue, count(*) AS n
      FROM dl_schedules s
     WHERE s.paused_at IS NULL AND s.orphaned_at IS NULL
       AND s.next_at < clock_timestamp() + make_interval(secs => %(soon_sec)s::float8)
     GROUP BY 1
), listed AS MATERIALIZED (
    SELECT DISTINCT queue
      FROM (SELECT dl_ready_queues(%(max_queues)s::int) AS queue UNION ALL SELECT queue FROM running UNION ALL SELECT queue FROM serving
            UNION ALL SELECT queue FROM due UNION ALL SELECT queue FROM firing UNION ALL SELECT queue FROM dl_queues) known
     WHERE queue IS NOT NULL
     ORDER BY queue
     LIMIT %(max_queues)s::int
), has_limits AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM dl_limits) OR EXISTS (SELECT FROM dl_breakers WHERE state <> 'closed') AS known
), first AS MATERIALIZED (
    SELECT l.queue, f.*
      FROM listed l
           CROSS JOIN LATERAL (SELECT DISTINCT ON (c.lock_key) c.task, c.limits
                                 FROM (SELECT j.lock_key, j.task, j.limits FROM dl_jobs j
                                        WHERE j.queue = l.queue AND j.status = 'queued' AND j.wait_state = 'ready'
                                        ORDER BY j.priority, j.created_at, j.job_id
                                        LIMIT %(max_sampled)s::int) c
                                WHERE NOT EXISTS (SELECT FROM dl_jobs r
                                                   WHERE r.lock_key BETWEEN c.lock_key AND c.lock_key AND r.status = 'running')) f
), grouped AS MATERIALIZED (
    SELECT f.queue, CASE WHEN h.known THEN f.task END AS task, CASE WHEN h.known THEN f.limits END AS limits, count(*) AS n
      FROM first f CROSS JOIN has_limits h
     GROUP BY 1, 2, 3
), limit_states AS MATERIALIZED (
    SELECT name, concurrency - used AS room
      FROM dl_limit_states(ARRAY(SELECT DISTINCT u.name FROM grouped g CROSS JOIN LATERAL dl_job_limits(g.limits, g.queue, g.task) u
                                  WHERE g.task IS NOT NULL))
     WHERE concurrency IS NOT NULL
), samples AS MATERIALIZED (
    SELECT g.queue, jsonb_agg(jsonb_build_object('jobs', g.n, 'limits', u.limits))::text AS samples
      FROM grouped g
           CROSS JOIN LATERAL (SELECT jsonb_agg(jsonb_build_object('name', c.name, 'weight', c.weight, 'room', s.room)) AS limits
                                 FROM dl_job_limits(g.limits, g.queue, g.task) c JOIN limit_states s ON s.name = c.name) u
     GROUP BY g.queue
)
SELECT l.queue, coalesce(q.state, 'open'), q.concurrency, coalesce(r.n, 0), coalesce(r.busy, 0), coalesce(r.claiming, 0), r.median_sec,
       coalesce(s.threads, 0), coalesce(s.draining, 0), ready.n, coalesce(due.n, 0) + coalesce(firing.n, 0), samples.samples
  FROM listed l
       CROSS JOIN LATERAL (SELECT count(*) AS n
                             FROM (SELECT FROM dl_jobs j
                                    WHERE j.queue = l.queue AND j.status = 'queued' AND j.wait_state = 'ready'
                                    LIMIT %(max_exact)s::int) limited) ready
       LEFT JOIN dl_queues q ON q.queue = l.queue
       LEFT JOIN running r ON r.queue = l.queue
       LEFT JOIN serving s ON s.queue = l.queue
       LEFT JOIN due ON due.queue = l.queue
       LEFT JOIN firing ON firing.queue = l.queue
       LEFT JOIN samples ON samples.queue = l.queue
 ORDER BY l.queue;
