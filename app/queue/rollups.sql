-- What happened, by the minute, quarter and hour: folded from the journal, off the path of any job.

-- name: fold_journal
-- The next events that were not folded yet, up to `most`, into dl_rollups and dl_last_runs; how many? One process at a
-- time; another gets no row.
--
-- Events become visible out of the order of their numbers, so what is unread is kept as ranges, and each event is taken
-- once, whenever it appears. A number that never appears (its transaction failed, or a part of the journal begins at a
-- higher one) must be given up some day: whoever writes to the journal holds a lock on it from before he draws a number
-- until he ends. So when an event is there, and all who held the lock by then have ended, nothing before it can appear.
UPDATE dl_rollup_state s
   SET safe = CASE WHEN look.writers = '{}' THEN look.top WHEN s.writers && look.writers THEN s.safe ELSE s.probe END,
       probe = CASE WHEN s.writers && look.writers THEN s.probe ELSE look.top END,
       writers = CASE WHEN s.writers && look.writers
                      THEN ARRAY(SELECT unnest(s.writers) INTERSECT SELECT unnest(look.writers))
                      ELSE look.writers END
  FROM (SELECT coalesce((SELECT max(event_id) FROM dl_job_events), 0) AS top,
               ARRAY(SELECT DISTINCT virtualtransaction
                       FROM pg_locks
                      WHERE locktype = 'relation' AND mode = 'RowExclusiveLock'
                        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                        AND relation = to_regclass(quote_ident(%(schema)s::text) || '.dl_job_events')) AS writers) look
 WHERE pg_try_advisory_xact_lock(1684828527, 2);

-- Planned each time: a plan that was kept from when there were no jobs would go through all of them for each line.
SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_hashjoin', 'on', true), set_config('jit', 'off', true),
       set_config('plan_cache_mode', 'force_custom_plan', true);

WITH state AS MATERIALIZED (
    SELECT unread, safe FROM dl_rollup_state WHERE pg_try_advisory_xact_lock(1684828527, 2)
), read AS MATERIALIZED (
    SELECT e.*
      FROM state
           CROSS JOIN LATERAL unnest(state.unread) AS r (part)
           CROSS JOIN LATERAL (SELECT event_id, job_id, queue, ts, kind, payload
                                 FROM dl_job_events
                                WHERE event_id >= coalesce(lower(r.part), 0)
                                  AND event_id < coalesce(upper(r.part), 9223372036854775807)
                                ORDER BY event_id
                                LIMIT %(most)s::int) e
     ORDER BY e.event_id
     LIMIT %(most)s::int
), steps AS MATERIALIZED (
    SELECT event_id, job_id, queue, ts, kind, payload ->> 'task' AS task, payload ->> 'reason' AS reason,
           CASE WHEN payload ->> 'attempt' ~ '^[0-9]{1,9}$' THEN (payload ->> 'attempt')::int END AS attempt,
           lag(kind) OVER w AS prior, lag(ts) OVER w AS prior_ts
      FROM read
     WHERE kind IN ('queued', 'picked', 'done', 'failed', 'canceled', 'lost', 'requeue')
    WINDOW w AS (PARTITION BY job_id ORDER BY event_id)
), jobs AS MATERIALIZED (
    SELECT j.job_id, j.task, j.available_at, j.created_at, j.started_at
      FROM (SELECT DISTINCT job_id FROM steps WHERE task IS NULL) s JOIN dl_jobs j USING (job_id)
), known AS MATERIALIZED (
    SELECT s.event_id, s.job_id, s.queue, coalesce(s.task, j.task, '') AS task, s.ts, s.kind, s.reason, s.attempt,
           coalesce(s.prior, p.kind, CASE WHEN first THEN 'queued' END) AS prior,
           -- Others write times too, and may write that a job was made at the beginning of all.
           greatest(0, CASE WHEN isfinite(since.at) AND isfinite(s.ts) THEN extract(epoch FROM s.ts - since.at) END)::float8 AS sec
      FROM steps s
           LEFT JOIN jobs j USING (job_id)
           -- Its first try, as nearly all are: what was before needs no look into the journal.
           CROSS JOIN LATERAL (SELECT coalesce(s.kind = 'picked' AND s.attempt = 1
                                               AND j.started_at BETWEEN s.ts - interval '1 second' AND s.ts, false)) AS f (first)
           LEFT JOIN LATERAL (SELECT kind, ts
                                FROM dl_job_events b
                               WHERE s.prior IS NULL AND s.kind <> 'queued'  -- it was read before, or does not exist
                                 AND NOT f.first
                                 AND b.job_id = s.job_id AND b.event_id < s.event_id
                                 AND b.kind IN ('queued', 'requeue', 'picked')
                               ORDER BY b.event_id DESC
                               LIMIT 1) p ON true
           CROSS JOIN LATERAL (SELECT CASE WHEN s.kind = 'picked' AND j.available_at <= s.ts
                                           THEN greatest(s.prior_ts, p.ts, j.available_at)
                                           ELSE coalesce(s.prior_ts, p.ts, j.created_at) END AS at) since
), ends AS (
    SELECT k.*, CASE kind WHEN 'done' THEN 'succeeded' WHEN 'requeue' THEN 'retried' ELSE kind END AS outcome
      FROM known k
     WHERE kind IN ('done', 'failed', 'canceled', 'lost')
        OR kind = 'requeue' AND prior = 'picked' AND reason IN ('error', 'lease_expired', 'process_died')
), facts AS (
    SELECT ts, queue, task, 'queued' AS what, 0 AS bucket, 0 AS sec
      FROM known WHERE kind = 'queued' OR kind = 'requeue' AND reason IN ('retry', 'by_hand')
    UNION ALL
    SELECT ts, queue, task, 'started', 0, 0 FROM known WHERE kind = 'picked'
    UNION ALL
    SELECT ts, queue, task, 'waited', dl_bucket(sec), sec FROM known WHERE kind = 'picked' AND sec IS NOT NULL
    UNION ALL
    SELECT ts, queue, task, outcome, 0, 0 FROM ends
    UNION ALL
    SELECT ts, queue, task, 'ran', dl_bucket(sec), sec FROM ends WHERE prior = 'picked'
), minutes AS MATERIALIZED (
    SELECT date_trunc('minute', ts) AS minute, queue, task, what, bucket, count(*) AS n, sum(sec) AS sec
      FROM facts
     GROUP BY 1, 2, 3, 4, 5
), folded AS (
    INSERT INTO dl_rollups AS d (span, at, queue, task, what, bucket, n, sec)
    SELECT s.span, date_bin(make_interval(secs => abs(s.span)), minute, '2000-01-01T00:00Z'),
           CASE WHEN s.span > 0 THEN queue ELSE '' END, CASE WHEN s.span > 0 THEN task ELSE '' END, what, bucket,
           sum(n), sum(sec)
      FROM minutes CROSS JOIN (VALUES (60), (900), (3600), (-60), (-900), (-3600)) AS s (span)
     GROUP BY 1, 2, 3, 4, 5, 6
        ON CONFLICT (span, at, queue, task, what, bucket) DO UPDATE SET n = d.n + excluded.n, sec = d.sec + excluded.sec
), runs AS (
    INSERT INTO dl_last_runs (task, event_id, job_id, queue, ended_at, outcome, attempt, ran_sec)
    SELECT task, event_id, job_id, queue, ts, outcome, attempt, sec
      FROM (SELECT e.*, row_number() OVER (PARTITION BY task ORDER BY event_id DESC) AS turn
              FROM ends e WHERE prior = 'picked') latest
     WHERE turn <= %(runs)s::int
        ON CONFLICT DO NOTHING
), older AS (
    DELETE FROM dl_last_runs l
     USING (SELECT DISTINCT task FROM ends) touched
     WHERE l.task = touched.task
       AND l.event_id < (SELECT event_id FROM dl_last_runs k WHERE k.task = touched.task
                          ORDER BY event_id DESC OFFSET %(runs)s::int LIMIT 1)
), done AS (
    SELECT count(*) AS n, max(event_id) AS last, range_agg(int8range(event_id, event_id + 1)) AS ids FROM read
), on_ AS (
    UPDATE dl_rollup_state s
       SET unread = s.unread - coalesce(done.ids, '{}')
                    - int8multirange(int8range(NULL, 1 + CASE WHEN done.n >= %(most)s::int
                                                              THEN least(s.safe, done.last) ELSE s.safe END))
      FROM done
     WHERE EXISTS (SELECT FROM state)
    RETURNING done.n, depths_at < clock_timestamp() - interval '1 minute' AS depths_due,
              pruned_at < clock_timestamp() - interval '10 minutes' AS pruning_due
)
SELECT n, depths_due, pruning_due FROM on_;

-- name: note_depths
-- How much stands where at this moment, for the charts. Counted along the partial indexes, up to two million of a kind.
SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
       set_config('statement_timeout', '20s', true);

WITH turn AS (
    UPDATE dl_rollup_state SET depths_at = clock_timestamp()
     WHERE depths_at < clock_timestamp() - interval '1 minute' AND pg_try_advisory_xact_lock(1684828527, 2)
    RETURNING date_trunc('minute', depths_at) AS at
), stand AS (
    SELECT queue, 'ready' AS place, count(*) AS n
      FROM (SELECT queue FROM dl_jobs WHERE status = 'queued' AND place = 'ready' LIMIT 2000000) r GROUP BY queue
    UNION ALL
    SELECT queue, 'timed', count(*)
      FROM (SELECT queue FROM dl_jobs WHERE status = 'queued' AND place = 'timed' LIMIT 2000000) t GROUP BY queue
    UNION ALL
    SELECT queue, 'parked', count(*)
      FROM (SELECT queue FROM dl_jobs WHERE status = 'queued' AND place = 'parked' LIMIT 2000000) p GROUP BY queue
    UNION ALL
    SELECT queue, 'running', count(*) FROM dl_jobs WHERE status = 'running' GROUP BY queue
    UNION ALL
    SELECT queue, 'known', 0 FROM dl_queues
    UNION ALL
    SELECT DISTINCT queue, 'known', 0 FROM dl_depths WHERE at > clock_timestamp() - interval '1 hour'
), ages AS (
    SELECT queue, age_sec FROM unnest(%(queues)s::text[], %(ages)s::float8[]) AS a (queue, age_sec)
)
INSERT INTO dl_depths (at, queue, ready, timed, parked, running, oldest_ready_sec)
SELECT turn.at, s.queue, coalesce(sum(n) FILTER (WHERE place = 'ready'), 0), coalesce(sum(n) FILTER (WHERE place = 'timed'), 0),
       coalesce(sum(n) FILTER (WHERE place = 'parked'), 0), coalesce(sum(n) FILTER (WHERE place = 'running'), 0),
       max(ages.age_sec)
  FROM turn CROSS JOIN stand s LEFT JOIN ages ON ages.queue = s.queue
 GROUP BY turn.at, s.queue
    ON CONFLICT DO NOTHING;

-- name: prune_rollups
-- Minutes are kept for six hours, quarters for three days, hours for ninety, depths for eight days.
WITH turn AS (
    UPDATE dl_rollup_state SET pruned_at = clock_timestamp()
     WHERE pruned_at < clock_timestamp() - interval '10 minutes' AND pg_try_advisory_xact_lock(1684828527, 2)
    RETURNING one
), minutes AS (
    DELETE FROM dl_rollups WHERE span IN (60, -60) AND at < clock_timestamp() - interval '6 hours' AND EXISTS (SELECT FROM turn)
), quarters AS (
    DELETE FROM dl_rollups WHERE span IN (900, -900) AND at < clock_timestamp() - interval '3 days' AND EXISTS (SELECT FROM turn)
), hours AS (
    DELETE FROM dl_rollups WHERE span IN (3600, -3600) AND at < clock_timestamp() - interval '90 days' AND EXISTS (SELECT FROM turn)
)
DELETE FROM dl_depths WHERE at < clock_timestamp() - interval '8 days' AND EXISTS (SELECT FROM turn);

-- name: rollup_series
-- What happened in each span since then, of one queue or task, or of all together: these are added up already, under the
-- negative span. A line for each thing that happened, with its buckets.
SELECT at, what, array_agg(bucket), array_agg(n), sum(sec)
  FROM (SELECT at, what, bucket, sum(n)::bigint AS n, sum(sec) AS sec
          FROM dl_rollups
         WHERE span = CASE WHEN %(queue)s::text IS NULL AND %(task)s::text IS NULL THEN -%(span)s::int ELSE %(span)s::int END
           AND at = ANY (ARRAY(SELECT generate_series(
                   date_bin(make_interval(secs => %(span)s::int), %(since)s::timestamptz, '2000-01-01T00:00Z'),
                   clock_timestamp(), make_interval(secs => %(span)s::int))))
           AND at >= %(since)s::timestamptz
           AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
           AND (%(task)s::text IS NULL OR task = %(task)s::text)
         GROUP BY at, what, bucket) buckets
 GROUP BY at, what
 ORDER BY at;

-- name: rollup_totals
-- What happened in the last `back` seconds, by queue or by task. The spans are listed one by one, so that the index is gone
-- along for one queue as well.
SELECT name, what, array_agg(bucket), array_agg(n), sum(sec)
  FROM (SELECT CASE WHEN %(by_task)s::bool THEN task ELSE queue END AS name, what, bucket, sum(n)::bigint AS n,
               sum(sec) AS sec
          FROM dl_rollups
         WHERE span = %(span)s::int
           AND at = ANY (ARRAY(SELECT generate_series(
                   date_bin(make_interval(secs => %(span)s::int), clock_timestamp() - make_interval(secs => %(back)s::float8),
                            '2000-01-01T00:00Z') + make_interval(secs => %(span)s::int),
                   clock_timestamp(), make_interval(secs => %(span)s::int))))
           AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
           AND (%(task)s::text IS NULL OR task = %(task)s::text)
         GROUP BY 1, 2, 3) buckets
 GROUP BY name, what;

-- name: depth_series
-- How many stood where, at most, in each span since then, of one queue or of all together. Over longer times not every
-- minute is looked at, but each `every`-th: a week has ten thousand of them for each queue.
SELECT date_bin(make_interval(secs => %(span)s::int), at, '2000-01-01T00:00Z') AS since, max(ready), max(timed), max(parked),
       max(running), max(oldest)
  FROM (SELECT at, sum(ready)::bigint AS ready, sum(timed)::bigint AS timed, sum(parked)::bigint AS parked,
               sum(running)::bigint AS running, max(oldest_ready_sec) AS oldest
          FROM dl_depths
         WHERE at = ANY (ARRAY(SELECT generate_series(
                   date_bin(make_interval(mins => %(every)s::int), %(since)s::timestamptz, '2000-01-01T00:00Z'),
                   clock_timestamp(), make_interval(mins => %(every)s::int))))
           AND at >= %(since)s::timestamptz AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
         GROUP BY at) minutes
 GROUP BY 1
 ORDER BY 1;

-- name: last_runs
SELECT task, job_id, queue, ended_at, outcome, attempt, ran_sec
  FROM (SELECT l.*, row_number() OVER (PARTITION BY task ORDER BY event_id DESC) AS turn
          FROM dl_last_runs l
         WHERE %(task)s::text IS NULL OR task = %(task)s::text) runs
 WHERE turn <= %(most)s::int
 ORDER BY task, turn;

-- name: database_time
SELECT clock_timestamp();
