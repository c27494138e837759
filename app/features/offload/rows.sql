-- What jobs gave to other engines. A run writes its rows in transactions in which it still owns its job.

-- define: offload_columns
       -- in the order of the fields of `Offload`
       name, job_id, run_id, call, number, engine, address, fingerprint, fence_token, engine_timeout_sec, grace_sec, stop_on_shutdown,
       is_abandoned, extract(epoch FROM deadline_at - clock_timestamp())::float8, is_awaited, log_position,
       extract(epoch FROM clock_timestamp() - unavailable_since)::float8, ended_at IS NOT NULL, outcome,
       stop_requested_at IS NOT NULL, detail

-- name: job_offloads
-- Of one call, or of all.
SELECT
       -- include: offload_columns
  FROM dl_offloads
 WHERE job_id = %(job_id)s::uuid AND (%(call)s::text IS NULL OR call = %(call)s::text)
 ORDER BY created_at, number;

-- name: open_offloads
-- The same of those that have not ended, if the run owns its job.
SELECT
       -- include: offload_columns
  FROM dl_offloads
 WHERE job_id = %(job_id)s::uuid AND ended_at IS NULL
   AND EXISTS (SELECT FROM dl_jobs j
                WHERE j.job_id = %(job_id)s::uuid AND j.run_id = %(run_id)s::uuid AND j.status::text = 'running')
 ORDER BY created_at, number;

-- name: intend_offload
-- Before the submission: what a next attempt needs to find the work.
INSERT INTO dl_offloads (name, job_id, run_id, call, number, engine, address, fingerprint, fence_token, deadline_at, engine_timeout_sec,
                         grace_sec, stop_on_shutdown, is_abandoned)
VALUES (%(name)s::text, %(job_id)s::uuid, %(run_id)s::uuid, %(call)s::text, %(number)s::int, %(engine)s::text, %(address)s::text,
        %(fingerprint)s::text, %(fence_token)s::text, clock_timestamp() + make_interval(secs => %(timeout_sec)s::float8),
        %(engine_timeout_sec)s::float8, %(grace_sec)s::float8, %(stop_on_shutdown)s::bool, %(is_abandoned)s::bool);

-- name: count_offload_submission
-- Before each submission of the name, by any attempt.
UPDATE dl_offloads SET submitted = submitted + 1, detail = '' WHERE name = %(name)s::text AND ended_at IS NULL RETURNING submitted;

-- name: stop_offload
-- From here on the fence of the remote code refuses its commits.
UPDATE dl_offloads SET stop_requested_at = coalesce(stop_requested_at, clock_timestamp())
 WHERE name = %(name)s::text AND ended_at IS NULL;

-- name: end_offload
UPDATE dl_offloads SET ended_at = clock_timestamp(), outcome = %(outcome)s::text, is_awaited = false
 WHERE name = %(name)s::text AND ended_at IS NULL;

-- name: claim_offload_polls
-- The next that this process polls, so that no other process does meanwhile: those for which a job waits, and those left by a job
-- that has ended. Those of running jobs are polled by their attempt.
WITH due AS MATERIALIZED (
    SELECT o.name, j.attempt, j.task, j.args, coalesce(j.run_id, o.run_id) AS run_id, coalesce(j.status::text NOT IN ('queued', 'running'), true) AS is_orphan
      FROM dl_offloads o LEFT JOIN dl_jobs j ON j.job_id = ANY (ARRAY[o.job_id])
     WHERE o.ended_at IS NULL AND o.next_poll_at <= (SELECT clock_timestamp()) AND o.engine = ANY (%(engines)s::text[])
       AND (o.is_awaited AND j.status::text = 'queued' OR coalesce(j.status::text NOT IN ('queued', 'running'), true))
     ORDER BY o.next_poll_at
     LIMIT %(limit)s::int
       FOR NO KEY UPDATE OF o SKIP LOCKED
)
UPDATE dl_offloads o
   SET next_poll_at = clock_timestamp() + interval '1 minute',
       stop_requested_at = CASE WHEN due.is_orphan THEN coalesce(o.stop_requested_at, clock_timestamp()) ELSE o.stop_requested_at END
  FROM due
 WHERE o.name = due.name
RETURNING o.name, o.job_id, due.run_id, o.engine, coalesce(due.task, ''),
          ARRAY(SELECT value #>> '{}' FROM jsonb_path_query(due.args, '$.**."$secret" ? (@.type() == "string")') AS value WHERE NOT due.is_orphan), due.is_orphan, coalesce(due.attempt, 0), o.log_position, o.is_abandoned,
          coalesce(extract(epoch FROM clock_timestamp() - o.unavailable_since) > o.engine_timeout_sec, false),
          coalesce(o.deadline_at <= clock_timestamp(), false),
          coalesce(extract(epoch FROM clock_timestamp() - CASE WHEN due.is_orphan THEN o.stop_requested_at ELSE o.awaited_since END),
                   0)::float8;

-- name: record_offload_poll
UPDATE dl_offloads
   SET next_poll_at = clock_timestamp() + make_interval(secs => %(next_sec)s::float8),
       unavailable_since = CASE WHEN %(is_unavailable)s::bool THEN coalesce(unavailable_since, clock_timestamp()) END,
       detail = coalesce(%(detail)s::text, detail)
 WHERE name = %(name)s::text AND ended_at IS NULL;

-- name: record_offload_progress
-- queued -> queued: what the work of a job that waits without a thread has printed.
UPDATE dl_jobs
   SET progress = CASE WHEN jsonb_typeof(progress) = 'object' THEN progress ELSE '{}' END || %(progress)s::jsonb
 WHERE job_id = %(job_id)s::uuid AND status::text = 'queued' AND wait_state::text = 'waiting';

-- name: wake_offload_job
-- queued -> queued: what the job waited for is over. Its row is locked first: of two that end at once the second sees the first.
SELECT FROM dl_jobs WHERE job_id = %(job_id)s::uuid FOR NO KEY UPDATE;

UPDATE dl_offloads SET is_awaited = false WHERE name = %(name)s::text AND is_awaited;

WITH woken AS (
    UPDATE dl_jobs j SET wait_state = 'ready', available_at = clock_timestamp()
     WHERE j.job_id = %(job_id)s::uuid AND j.status::text = 'queued' AND j.wait_state::text = 'waiting'
       AND NOT EXISTS (SELECT FROM dl_offloads o WHERE o.job_id = j.job_id AND o.is_awaited AND o.ended_at IS NULL)
       AND NOT EXISTS (SELECT FROM dl_edges e WHERE e.child_id = j.job_id AND e.met IS NULL)
    RETURNING j.job_id, j.queue, j.attempt
), events AS (
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, clock_timestamp(), 'released',
           jsonb_build_object('status', 'queued', 'attempt', attempt, 'offload', %(name)s::text)
      FROM woken
)
SELECT count(*)::int, count(dl_notify_queue(queue))::int FROM woken;

-- name: old_offloads
-- Names of jobs that ended long ago, for the engine to forget.
SELECT o.name, o.engine
  FROM dl_offloads o LEFT JOIN dl_jobs j ON j.job_id = ANY (ARRAY[o.job_id])
 WHERE o.ended_at < (SELECT clock_timestamp()) - make_interval(secs => %(keep_sec)s::float8)
   AND coalesce(j.status::text NOT IN ('queued', 'running'), true)
 ORDER BY o.ended_at
 LIMIT %(limit)s::int;

-- name: delete_offloads
DELETE FROM dl_offloads WHERE name = ANY (%(names)s::text[]);

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

-- name: write_offload_positions
-- Records up to which position the log of an engine has been read, in the transaction that writes the lines before it: after this process
-- was killed the next one continues there. Changes nothing if another run has claimed the job: the lines of a run that lost its lease are
-- kept, and the next run may have read them too.
UPDATE dl_offloads o SET log_position = p.position
  FROM unnest(%(offloads)s::text[], %(runs)s::text[], %(positions)s::text[]) AS p (name, run_id, position),
       dl_jobs j
 WHERE o.name = p.name AND o.ended_at IS NULL AND j.job_id = o.job_id AND j.run_id::text = p.run_id;

-- name: write_logs_of_offloads = write_logs + write_offload_positions
