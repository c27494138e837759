-- The statements of a job's life, in their order. Rules for all of them:
--   * The database's clock is the only clock, read when it is needed: clock_timestamp(), not now(). In a condition that
--     an index answers, it is in a sub-select, which is evaluated once.
--   * A run is identified by job_id + run_id while the job is running. The status is compared as text there, so that no
--     index on running jobs is preferred to the primary key.
--   * A statement that frees a key or blocks a job holds the key's transaction lock, (1684828526, hashtext(lock_key)),
--     from before it reads until it commits. Several are waited for in the order of their hashes; a claim, which has
--     rows locked already, only tries them.
--   * Rows are locked in job_id order wherever a statement waits for several.
--   * A job is looked up by `= ANY (ARRAY[id])`, not by `= id`. Plans are kept; a plan of the latter that was made while
--     the table was empty may walk the whole primary key and compare each job with each id. For the same reason a key is
--     looked up with OFFSET 0: once for each key, not by a join with all of them.
-- A statement of several parts (between `;`) is one message and one transaction; each part sees what was committed when
-- that part began. The rows of the last part are the result.

-- name: enqueue
-- prepared
-- -> queued. No row: the request is invalid, or another session's insert with this key was not visible yet.
WITH request AS MATERIALIZED (
    SELECT r.*, coalesce(r.available_at, clock_timestamp()) AS due_at,
           CASE WHEN r.idempotency_key IS NOT NULL THEN dl_request_hash(r.queue, r.task, r.args) END AS request_hash
      FROM jsonb_populate_record(NULL::dl_enqueue_request, %(job)s::jsonb) r
     WHERE dl_request_problem(r) IS NULL
), inserted AS (
    INSERT INTO dl_jobs (
        -- fields of a job: plain_columns,
        idempotency_key, live_key, args, available_at, expires_at, fair_key, request_hash, wait_state)
    SELECT
           -- fields of a job: plain_values,
           r.idempotency_key, r.live_key, r.args, r.due_at,
           coalesce(r.expires_at, greatest(r.due_at, clock_timestamp()) + make_interval(secs => r.start_within_sec)),
           coalesce(r.fair_key, CASE WHEN EXISTS (SELECT FROM dl_queues WHERE fair IS NOT NULL)
                                     THEN dl_fair_key(r.queue, coalesce(r.partition_key, ''), r.producer, r.args) END),
           r.request_hash, CASE WHEN r.available_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END::dl_wait_state
      FROM request r
        ON CONFLICT DO NOTHING
    RETURNING job_id, status
)
(
    SELECT job_id, status::text, true AS created, true AS is_same FROM inserted
    UNION ALL
    SELECT j.job_id, j.status::text, false,
           CASE WHEN j.request_hash IS NULL
                THEN j.queue = r.queue AND j.task = r.task AND j.args = r.args
                ELSE j.request_hash = r.request_hash END
      FROM dl_jobs j, request r
     WHERE j.idempotency_key = r.idempotency_key AND NOT EXISTS (SELECT FROM inserted)
    UNION ALL
    SELECT j.job_id, j.status::text, false, j.task = r.task AND (j.queue = r.queue OR r.live_key LIKE 'slice:%%')
      FROM dl_jobs j, request r
     WHERE j.live_key = r.live_key AND j.status IN ('queued', 'running') AND NOT EXISTS (SELECT FROM inserted)
) LIMIT 1;

-- name: claim
-- prepared
-- queued -> running: see dl_claim in schema.sql. The last row has no job: it is the hint for the next claim.
SELECT * FROM dl_claim(%(queue)s::text, %(tasks)s::text[], %(wanted)s::int, %(scan_limit)s::int, %(after)s::text[], %(in_turn)s::bool,
                       %(promotes)s::bool, %(run_ids)s::uuid[], %(worker)s::text, %(worker_id)s::uuid,
                       %(takes_session_locks)s::bool, %(min_lease_sec)s::int, %(release)s::text);

-- name: take_permit
-- In front of a claim that prefetches, so that the claim's snapshot is taken after the wait.
SELECT dl_take_claim_permit(%(queue)s::text);

-- name: prefetch = take_permit + claim
-- prepared

-- name: recover_claim
-- Reads the jobs of a claim whose response was lost: their queue, and then the columns that the claim returns.
SELECT j.queue, j.job_id, j.run_id, j.task, dl_json_text(j.args), j.lock_key, hashtext(j.lock_key)::bigint AS key_hash, j.priority, j.attempt, j.max_attempts, j.lease_ttl_sec, j.producer, dl_json_text(j.progress), dl_json_text(j.checkpoint),
       j.time_limit_sec, dl_json_text(j.retry), j.crashes, j.traceparent,
       date_part('epoch', j.heartbeat_at - greatest(least(greatest(j.created_at, j.available_at), j.heartbeat_at),
                                                    j.heartbeat_at - interval '10 years')) AS waited_sec,  -- may be infinite
       j.partition_key, j.logical_at, j.interval_start, j.interval_end
  FROM dl_jobs j
 WHERE j.status = 'running' AND j.run_id = ANY (%(run_ids)s::uuid[]);

-- name: lock_keys
-- Takes the session locks of the keys of claimed jobs, for the life of each run, and checks that the runs still own their
-- jobs. The process keeps the connection: a former owner that lost its lease but not its session still holds its lock.
SELECT runs.n, pg_try_advisory_lock(runs.key_hash) AS locked,
       EXISTS (SELECT FROM dl_jobs j
                WHERE j.job_id = ANY (ARRAY[runs.job_id]) AND j.run_id = runs.run_id AND j.status::text = 'running') AS owned
  FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[], %(key_hashes)s::bigint[])
       WITH ORDINALITY AS runs (job_id, run_id, key_hash, n);

-- name: unlock_keys
-- Releases session locks; a hash is in the list as often as it was locked.
SELECT count(pg_advisory_unlock(key_hash)) FROM unnest(%(key_hashes)s::bigint[]) AS freed (key_hash);

-- name: beat
-- Proves that a process lives, for all its runs. The reaper takes the same lock before it reads the last heartbeat, so that one comes
-- first: it finds this heartbeat, or its runs are missing below. Runs are read and not written. The rows are those that the process
-- does not own any more, that are asked to stop, whose lease an UPDATE made too short (its row is renewed at once), or that are at
-- another place than `row_ctids` says: a row that has not moved is read there, where no older versions of it are in the way; otherwise
-- its job id finds it. (IS NOT DISTINCT FROM, so that no plan looks the id up first.) The commit does not wait for the disk: after a crash of the server, reapers wait for the time of a heartbeat.
SELECT pg_advisory_xact_lock(1684828534, hashtext(%(worker_id)s::text)), set_config('synchronous_commit', 'off', true);

DELETE FROM dl_heartbeats WHERE worker_id = %(worker_id)s::uuid AND seen_at > (SELECT clock_timestamp());  -- the clock was ahead

INSERT INTO dl_heartbeats (worker_id, seen_at, rss_bytes)
VALUES (%(worker_id)s::uuid, clock_timestamp(), %(rss_bytes)s::bigint);

SELECT r.run_id, j.job_id IS NOT NULL AS is_owned, coalesce(j.cancel_requested, false), short.is_short, j.row_ctid
  FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[], %(row_ctids)s::tid[]) AS r (job_id, run_id, row_ctid)
       LEFT JOIN LATERAL (
           SELECT j.job_id, j.run_id, j.status, j.cancel_requested, j.lease_ttl_sec, j.lease_expires_at, j.ctid AS row_ctid
             FROM dl_jobs j WHERE j.ctid = r.row_ctid AND j.job_id IS NOT DISTINCT FROM r.job_id
           UNION ALL
           SELECT j.job_id, j.run_id, j.status, j.cancel_requested, j.lease_ttl_sec, j.lease_expires_at, j.ctid
             FROM dl_jobs j WHERE j.job_id = ANY (ARRAY[r.job_id])
            LIMIT 1) j ON j.job_id = r.job_id AND j.run_id = r.run_id AND j.status::text = 'running'
       CROSS JOIN LATERAL (SELECT coalesce(j.lease_ttl_sec < %(min_lease_sec)s::int
                                           OR coalesce(j.lease_expires_at, '-infinity')
                                              < clock_timestamp() + make_interval(secs => j.lease_ttl_sec / 3.0), false) AS is_short) short
 WHERE j.job_id IS NULL OR j.cancel_requested OR short.is_short OR j.row_ctid <> coalesce(r.row_ctid, '(0,0)');

-- name: save_progress
-- Of runs that own their job; `row_ctids` as in beat. The commit does not wait for the disk: a crash of the server may lose the last second.
SELECT set_config('synchronous_commit', 'off', true);

INSERT INTO dl_progress (job_id, run_id, ts, progress)
SELECT j.job_id, j.run_id, clock_timestamp(), r.progress::jsonb
  FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[], %(row_ctids)s::tid[], %(progress)s::text[]) AS r (job_id, run_id, row_ctid, progress)
       JOIN LATERAL (
           SELECT j.job_id, j.run_id, j.status FROM dl_jobs j WHERE j.ctid = r.row_ctid AND j.job_id IS NOT DISTINCT FROM r.job_id
           UNION ALL
           SELECT j.job_id, j.run_id, j.status FROM dl_jobs j WHERE j.job_id = ANY (ARRAY[r.job_id])
            LIMIT 1) j ON j.job_id = r.job_id AND j.run_id = r.run_id AND j.status::text = 'running'
RETURNING run_id;

-- name: renew
-- prepared
-- running -> running: the rows of runs, seldom, so that those who know only the row never take a live run for dead, and that a run ends
-- whose process has forgotten it. The next time is in `next_secs` seconds; until then and for the length of a lease the row's lease is valid. A lease that an UPDATE made shorter than this process can
-- renew is lengthened again. Progress and checkpoint are NULL where the row has them. A row that another transaction has
-- locked is left out. The result has the runs that were renewed, and where their rows are now.
SELECT set_config('dl.own_update', 'on', true);  -- no trigger has anything to do

WITH requested AS (
    SELECT *
      FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[], %(progress)s::text[], %(checkpoints)s::text[], %(next_secs)s::float8[])
           AS r (job_id, run_id, progress, checkpoint, next_sec)
), owned AS MATERIALIZED (
    SELECT j.job_id, requested.progress, requested.checkpoint, requested.next_sec
      FROM requested JOIN dl_jobs j ON j.job_id = ANY (ARRAY[requested.job_id]) AND j.run_id = requested.run_id AND j.status::text = 'running'
     ORDER BY requested.job_id
       FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE dl_jobs j
   SET heartbeat_at = clock_timestamp(),
       lease_ttl_sec = greatest(j.lease_ttl_sec, %(min_lease_sec)s::int),
       lease_expires_at = clock_timestamp() + make_interval(secs => owned.next_sec + greatest(j.lease_ttl_sec, %(min_lease_sec)s::int)),
       progress = coalesce(owned.progress::jsonb, j.progress),
       checkpoint = coalesce(owned.checkpoint::jsonb, j.checkpoint)
  FROM owned
 WHERE j.job_id = ANY (ARRAY[owned.job_id])
RETURNING j.run_id, j.ctid;

-- name: disown
-- running -> running: the process has given up these runs, though it lives. Their leases end now, so that a reaper takes them. One that
-- has already ended becomes no longer. The result has those whose row another transaction has locked.
SELECT set_config('dl.own_update', 'on', true);

WITH owned AS MATERIALIZED (
    SELECT j.job_id, r.run_id
      FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[]) AS r (job_id, run_id)
           JOIN dl_jobs j ON j.job_id = ANY (ARRAY[r.job_id]) AND j.run_id = r.run_id AND j.status::text = 'running'
     ORDER BY r.job_id
       FOR NO KEY UPDATE OF j SKIP LOCKED
), ended AS (
    UPDATE dl_jobs j
       SET lease_expires_at = least(clock_timestamp(), greatest(dl_lease_end(j.worker_id, j.lease_expires_at, j.heartbeat_at, j.lease_ttl_sec), j.heartbeat_at))
      FROM owned
     WHERE j.job_id = ANY (ARRAY[owned.job_id])
    RETURNING j.run_id
)
SELECT r.run_id
  FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[]) AS r (job_id, run_id)
 WHERE r.run_id NOT IN (SELECT run_id FROM ended)
   AND EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = ANY (ARRAY[r.job_id]) AND j.run_id = r.run_id AND j.status::text = 'running');

-- name: record_late_heartbeat
-- Records for the runs of a process that it has sent no heartbeat for `silence_sec`. The lock of a row keeps the event in front of those of
-- the run's end; a row that another transaction has locked is left out.
INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
SELECT job_id, queue, clock_timestamp(), 'heartbeat',
       jsonb_build_object('status', 'running', 'attempt', attempt, 'run_id', run_id, 'late_sec', round(silence_sec::numeric, 1))
  FROM (SELECT j.*, least(%(silence_sec)s::float8, extract(epoch FROM clock_timestamp() - j.heartbeat_at)) AS silence_sec
          FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[]) AS r (job_id, run_id)
               JOIN dl_jobs j ON j.job_id = ANY (ARRAY[r.job_id]) AND j.run_id = r.run_id AND j.status::text = 'running'
           FOR SHARE OF j SKIP LOCKED) owned
 WHERE silence_sec > %(late_sec)s::float8;

-- name: settle
-- prepared
-- running -> succeeded | failed | canceled | queued: see dl_settle in schema.sql. `made_ready`: the ids of jobs that waited for the keys
-- and limits of these runs, with spaces between them.
SELECT s.*, current_setting('dl.made_ready', true) AS made_ready
  FROM dl_settle(%(key_hashes)s::bigint[], %(plain_jobs)s::uuid[], %(plain_runs)s::uuid[], %(job_ids)s::uuid[], %(run_ids)s::uuid[],
                 %(statuses)s::dl_status[], %(errors)s::text[], %(tracebacks)s::text[], %(results)s::text[], %(progress)s::text[],
                 %(checkpoints)s::text[], %(pauses)s::float8[], %(refunds)s::int[], %(crashes)s::int[], %(event_fields)s::text[],
                 %(fingerprints)s::text[], %(reports)s::jsonb) s;

-- name: find_settlement
-- Of settlements that were not applied: the status of those that the same run had applied before, if the response was lost.
SELECT DISTINCT ON (r.run_id) r.run_id, e.payload ->> 'status' AS status
  FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[]) AS r (job_id, run_id)
       JOIN dl_job_events e ON e.job_id = r.job_id AND e.payload ->> 'run_id' = r.run_id::text
 WHERE e.kind IN ('done', 'failed', 'canceled', 'requeue')
   AND coalesce(e.payload ->> 'reason', 'error') NOT IN ('lease_expired', 'process_died', 'upgrade')
 ORDER BY r.run_id, e.event_id DESC;

-- name: release
-- running -> queued, the attempt not counted: the owner stops, or could not start (its key's session lock is held). A job
-- whose cancel was requested is canceled instead. With the reason lock_busy the job is blocked, else it is ready.
SELECT count(pg_advisory_xact_lock(1684828526, hash))
  FROM (SELECT DISTINCT hashtext(key) AS hash FROM unnest(%(lock_keys)s::text[]) AS k (key) ORDER BY 1 OFFSET 0) ordered;

WITH owned AS MATERIALIZED (
    SELECT j.job_id, r.reason, r.progress, r.checkpoint, r.event_fields, clock_timestamp() AS released_at
      FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[], %(reasons)s::text[], %(progress)s::text[],
                  %(checkpoints)s::text[], %(event_fields)s::text[])
           AS r (job_id, run_id, reason, progress, checkpoint, event_fields)
           JOIN dl_jobs j ON j.job_id = ANY (ARRAY[r.job_id]) AND j.run_id = r.run_id AND j.status::text = 'running'
     ORDER BY r.job_id
       FOR NO KEY UPDATE OF j
), released AS (
    UPDATE dl_jobs j
       SET status = CASE WHEN cancel_requested THEN 'canceled' ELSE 'queued' END::dl_status,
           wait_state = CASE WHEN cancel_requested THEN 'scheduled' WHEN owned.reason = 'lock_busy' THEN 'blocked' ELSE 'ready' END::dl_wait_state,
           attempt = CASE WHEN cancel_requested THEN attempt ELSE greatest(attempt - 1, 0) END,
           progress = coalesce(owned.progress::jsonb, j.progress),
           checkpoint = coalesce(owned.checkpoint::jsonb, j.checkpoint),
           finished_at = CASE WHEN cancel_requested THEN released_at END,
           lease_expires_at = NULL, worker_id = NULL
      FROM owned
     WHERE j.job_id = ANY (ARRAY[owned.job_id])
    RETURNING j.job_id, j.run_id, j.queue, j.lock_key, j.status, j.attempt, j.webhook, owned.reason,
              owned.event_fields, owned.released_at
), events AS (
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, released_at, CASE status WHEN 'queued' THEN 'requeue' ELSE 'canceled' END,
           coalesce(event_fields::jsonb, '{}')
           || jsonb_build_object('status', status, 'attempt', attempt, 'run_id', run_id, 'reason', reason)
      FROM released
)
SELECT r.run_id, r.status::text,
       (SELECT count(*) FROM dl_unblock_next((SELECT array_agg(DISTINCT lock_key) FROM released WHERE reason <> 'lock_busy'))) AS unblocked,
       (SELECT dl_jobs_ended(job_ids => array_agg(job_id) FILTER (WHERE status = 'canceled'),
                             has_webhook => bool_or(webhook IS NOT NULL), runs => array_agg(job_id), reports => %(reports)s::jsonb)
          FROM released) AS woken
  FROM released r;

-- name: expired_runs
-- prepared
-- The runs whose lease has expired, and since when, and the server: how long it has been up, and an identifier that another server,
-- timeline or session does not have. The timeline is that of the log being written: after a promotion
-- pg_control_checkpoint() has the former one until the next checkpoint.
SELECT j.job_id, j.run_id, j.lock_key,
       dl_lease_end(j.worker_id, j.lease_expires_at, j.heartbeat_at, j.lease_ttl_sec)::text AS lease_end,
       extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8 AS up_sec,
       concat_ws(' ', left(pg_walfile_name(pg_current_wal_lsn()), 8), extract(epoch FROM pg_postmaster_start_time()),
                 pg_backend_pid()) AS server
  FROM (VALUES (1)) AS single (n)
       LEFT JOIN dl_jobs j ON j.status = 'running'
                              AND dl_lease_end(j.worker_id, j.lease_expires_at, j.heartbeat_at, j.lease_ttl_sec) < clock_timestamp();

-- name: reap
-- running -> queued | lost | canceled: for a run whose lease was found expired twice and still is, with the same end; or, with `worker_id`, whose
-- process is proved dead. The first such death of a job costs no delay, since hosts and processes die; from the second on
-- the job itself may be the cause. `server` identifies the one that found the lease expired (see expired_runs): on another
-- connection nothing is reaped, since after a failover the owners must have had time to renew. The heartbeats of the owners are
-- read under the lock that each of them takes (see beat).
SELECT count(pg_advisory_xact_lock(1684828526, hash))
  FROM (SELECT DISTINCT hashtext(key) AS hash FROM unnest(%(lock_keys)s::text[]) AS k (key) ORDER BY 1 OFFSET 0) ordered;

SELECT count(pg_advisory_xact_lock(1684828534, hash))
  FROM (SELECT DISTINCT hashtext(j.worker_id::text) AS hash
          FROM unnest(%(job_ids)s::uuid[]) AS d (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[d.job_id]) AND j.worker_id IS NOT NULL
         ORDER BY 1 OFFSET 0) ordered;

WITH dead AS MATERIALIZED (
    SELECT j.job_id, clock_timestamp() AS reaped_at, d.sessions_left::jsonb AS sessions_left,
           dl_lease_end(j.worker_id, j.lease_expires_at, j.heartbeat_at, j.lease_ttl_sec) AS lease_end,
           CASE WHEN %(worker_id)s::uuid IS NULL THEN 'lease_expired' ELSE 'process_died' END AS reason,
           CASE WHEN %(worker_id)s::uuid IS NULL OR EXISTS (
                     SELECT FROM dl_job_events e
                      WHERE e.job_id = j.job_id AND e.kind = 'requeue' AND e.payload ->> 'reason' = 'process_died'
                        AND NOT EXISTS (SELECT FROM dl_job_events r
                                         WHERE r.job_id = j.job_id AND r.event_id > e.event_id AND r.kind = 'requeue'
                                           AND r.payload ->> 'reason' IN ('retry', 'redrive')))
                THEN %(pause_sec)s::float8 * j.attempt ELSE 0 END AS delay_sec
      FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[], %(sessions_left)s::text[], %(lease_ends)s::text[])
           AS d (job_id, run_id, sessions_left, lease_end)
           JOIN dl_jobs j ON j.job_id = ANY (ARRAY[d.job_id]) AND j.run_id IS NOT DISTINCT FROM d.run_id AND j.status::text = 'running'
     WHERE CASE WHEN %(worker_id)s::uuid IS NULL
                THEN dl_lease_end(j.worker_id, j.lease_expires_at, j.heartbeat_at, j.lease_ttl_sec) < clock_timestamp()
                     AND coalesce(d.lease_end = dl_lease_end(j.worker_id, j.lease_expires_at, j.heartbeat_at, j.lease_ttl_sec)::text, true)
                ELSE j.worker_id = %(worker_id)s::uuid END
       AND (%(server)s::text IS NULL
            OR %(server)s::text = (SELECT concat_ws(' ', left(pg_walfile_name(pg_current_wal_lsn()), 8),
                                                    extract(epoch FROM pg_postmaster_start_time()), pg_backend_pid())))
     ORDER BY d.job_id
       FOR NO KEY UPDATE OF j SKIP LOCKED
), reaped AS (
    UPDATE dl_jobs j
       SET status = CASE WHEN cancel_requested THEN 'canceled' WHEN attempt < max_attempts THEN 'queued' ELSE 'lost' END::dl_status,
           available_at = CASE WHEN attempt < max_attempts AND NOT cancel_requested
                               THEN reaped_at + make_interval(secs => dead.delay_sec) ELSE j.available_at END,
           error = 'the worker ' || coalesce(worker, '')
                   || CASE dead.reason WHEN 'process_died' THEN ' died: its process is gone'
                                       ELSE ' vanished: its lease ran out at ' || CASE WHEN isfinite(dead.lease_end) THEN least(dead.lease_end, reaped_at) ELSE reaped_at END END
                   || coalesce(', and its SQL may still run on ' || (SELECT string_agg(target, ', ')
                                                                       FROM jsonb_array_elements_text(dead.sessions_left) AS t (target)), ''),
           error_fingerprint = dead.reason,
           finished_at = CASE WHEN cancel_requested OR attempt >= max_attempts THEN reaped_at END,
           progress = dl_current_progress(j.status, j.job_id, j.run_id, j.heartbeat_at, j.progress),
           lease_expires_at = NULL, worker_id = NULL
      FROM dead
     WHERE j.job_id = ANY (ARRAY[dead.job_id])
    RETURNING j.job_id, j.run_id, j.queue, j.lock_key, j.task, j.status, j.attempt, j.max_attempts, j.error,
              j.available_at, j.webhook, dead.reaped_at, dead.reason, dead.sessions_left
), events AS (
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, reaped_at, CASE status WHEN 'queued' THEN 'requeue' ELSE status::text END,
           jsonb_build_object('status', status, 'attempt', attempt, 'run_id', run_id, 'reason', reason, 'error', error)
           || CASE WHEN sessions_left IS NULL THEN '{}' ELSE jsonb_build_object('sessions_left', sessions_left) END
      FROM reaped
)
SELECT job_id, queue, task, status::text, attempt, run_id, max_attempts, error, available_at,
       (SELECT count(*) FROM dl_unblock_next((SELECT array_agg(DISTINCT lock_key) FROM reaped))) AS unblocked,
       (SELECT dl_jobs_ended(job_ids => array_agg(job_id), has_webhook => bool_or(webhook IS NOT NULL), runs => array_agg(job_id))
          FROM reaped) AS woken
  FROM reaped;

-- name: unblock_keys
-- queued -> queued: the next blocked job of each key becomes ready, after its session lock was released without a settlement: a
-- claim that came before found it locked.
SELECT count(pg_advisory_xact_lock(1684828526, hash))
  FROM (SELECT DISTINCT hash::int FROM unnest(%(key_hashes)s::bigint[]) AS k (hash) ORDER BY 1 OFFSET 0) ordered;

SELECT count(*) FROM dl_unblock_next(%(lock_keys)s::text[]);

-- name: cancel
-- queued -> canceled; running: sets the flag. See dl_cancel_jobs in schema.sql.
SELECT dl_cancel_jobs(%(job_ids)s::uuid[]);

-- name: retry
-- failed | canceled | lost -> queued. See dl_retry_jobs in schema.sql.
SELECT unnest(dl_retry_jobs(ARRAY[%(job_id)s::uuid], keep_time => %(keep_time)s::bool)) AS job_id;

-- name: get_job
-- prepared
-- In the order of the fields of `Job`. Values too large to be shown are replaced by {"$dropped": …}.
SELECT job_id, queue, task, dl_json_text(args, 8388608), idempotency_key, lock_key, partition_key, priority, available_at,
       status::text, attempt, max_attempts, lease_ttl_sec, lease_expires_at, dl_last_heartbeat(status, worker_id, heartbeat_at), cancel_requested,
       dl_json_text(dl_current_progress(status, job_id, run_id, heartbeat_at, progress), 1048576), error, producer, consumer_group, created_at, started_at, finished_at, run_id, worker,
       dl_json_text(result, 8388608), traceback, live_key, time_limit_sec, dl_json_text(retry, 1048576),
       dl_json_text(checkpoint, 8388608), crashes, parent_id, dl_json_text(webhook, 1048576), traceparent, limits::text, waits_on,
       graph_id, graph_key, need, skipped, fair_key, debounce_key, throttle_key, expires_at, error_fingerprint,
       schedule_id, backfill_id, logical_at, interval_start, interval_end, warnings, tags
  FROM dl_jobs
 WHERE job_id = %(job_id)s::uuid;
