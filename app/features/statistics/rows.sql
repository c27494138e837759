-- Statistics by minute, quarter of an hour and hour: aggregated from events in the background.

-- name: has_unread_events
-- prepared
-- Whether there is something to aggregate: an event, or ranges of ids in which one may still appear.
SELECT EXISTS (SELECT FROM dl_statistics_state
                WHERE unread <> int8multirange(int8range(safe_id + 1, NULL))
                   OR safe_id < (SELECT max(event_id) FROM dl_job_events));

-- name: aggregate_events
-- Aggregate the next `limit` events into dl_statistics and dl_recent_runs; return their number and the age of the last
-- one. One process at a time does so; another gets no row.
--
-- Events become visible out of the order of their ids, so unread ids are kept as ranges, and each event is read once,
-- whenever it appears. An id that never appears (its transaction failed, or a partition starts at a higher id) must be
-- dropped from the ranges at some time. A writer locks the events table before it draws an id and until its transaction
-- ends. So once all transactions have ended that held this lock when an event was visible, no smaller id can appear.
UPDATE dl_statistics_state s
   SET safe_id = CASE WHEN head.open_writers = '{}' THEN head.top WHEN s.open_writers && head.open_writers THEN s.safe_id ELSE s.candidate_id END,
       candidate_id = CASE WHEN s.open_writers && head.open_writers THEN s.candidate_id ELSE head.top END,
       open_writers = CASE WHEN s.open_writers && head.open_writers
                      THEN ARRAY(SELECT unnest(s.open_writers) INTERSECT SELECT unnest(head.open_writers))
                      ELSE head.open_writers END
  FROM (SELECT coalesce((SELECT max(event_id) FROM dl_job_events), 0) AS top,
               ARRAY(SELECT DISTINCT virtualtransaction
                       FROM pg_locks
                      WHERE locktype = 'relation' AND mode = 'RowExclusiveLock'
                        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                        AND relation = to_regclass(quote_ident(%(schema)s::text) || '.dl_job_events')) AS open_writers) head
 WHERE pg_try_advisory_xact_lock(1684828527, 2);

-- A custom plan each time: a generic plan from when the table was empty would scan all jobs for each event.
SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_hashjoin', 'on', true), set_config('jit', 'off', true),
       set_config('plan_cache_mode', 'force_custom_plan', true);

WITH state AS MATERIALIZED (
    SELECT unread, safe_id FROM dl_statistics_state WHERE pg_try_advisory_xact_lock(1684828527, 2)
), read AS MATERIALIZED (
    SELECT e.*
      FROM state
           CROSS JOIN LATERAL unnest(state.unread) AS r (part)
           CROSS JOIN LATERAL (SELECT event_id, job_id, queue, ts, kind, payload
                                 FROM dl_job_events
                                WHERE event_id >= coalesce(lower(r.part), 0)
                                  AND event_id < coalesce(upper(r.part), 9223372036854775807)
                                ORDER BY event_id
                                LIMIT %(limit)s::int) e
     ORDER BY e.event_id
     LIMIT %(limit)s::int
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
           -- Other services write timestamps too, and these may be infinite.
           greatest(0, CASE WHEN isfinite(since.at) AND isfinite(s.ts) THEN extract(epoch FROM s.ts - since.at) END)::float8 AS sec
      FROM steps s
           LEFT JOIN jobs j USING (job_id)
           -- A first attempt, as nearly all are: its previous event need not be read.
           CROSS JOIN LATERAL (SELECT coalesce(s.kind = 'picked' AND s.attempt = 1
                                               AND j.started_at BETWEEN s.ts - interval '1 second' AND s.ts, false)) AS f (first)
           LEFT JOIN LATERAL (SELECT kind, ts
                                FROM dl_job_events b
                               WHERE s.prior IS NULL AND s.kind <> 'queued'  -- it was read in an earlier batch, or does not exist
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
    SELECT ts, queue, task, 'queued' AS measure, 0 AS bucket, 0 AS sec
      FROM known WHERE kind = 'queued' OR kind = 'requeue' AND reason IN ('retry', 'redrive', 'by_hand')
    UNION ALL
    SELECT ts, queue, task, 'started', 0, 0 FROM known WHERE kind = 'picked'
    UNION ALL
    SELECT ts, queue, task, 'waited', dl_duration_bucket(sec), sec FROM known WHERE kind = 'picked' AND sec IS NOT NULL
    UNION ALL
    SELECT ts, queue, task, outcome, 0, 0 FROM ends
    UNION ALL
    SELECT ts, queue, task, 'ran', dl_duration_bucket(sec), sec FROM ends WHERE prior = 'picked'
), minutes AS MATERIALIZED (
    SELECT date_trunc('minute', ts) AS minute, queue, task, measure, bucket, count(*) AS n, sum(sec) AS sec
      FROM facts
     GROUP BY 1, 2, 3, 4, 5
), aggregated AS (
    INSERT INTO dl_statistics AS d (span_sec, started_at, queue, task, measure, bucket, count, total_sec)
    SELECT s.span, date_bin(make_interval(secs => abs(s.span)), minute, '2000-01-01T00:00Z'),
           CASE WHEN s.span > 0 THEN queue ELSE '' END, CASE WHEN s.span > 0 THEN task ELSE '' END, measure, bucket,
           sum(n), sum(sec)
      FROM minutes CROSS JOIN (VALUES (60), (900), (3600), (-60), (-900), (-3600)) AS s (span)
     GROUP BY 1, 2, 3, 4, 5, 6
        ON CONFLICT (span_sec, started_at, queue, task, measure, bucket)
        DO UPDATE SET count = d.count + excluded.count, total_sec = d.total_sec + excluded.total_sec
), runs AS (
    INSERT INTO dl_recent_runs (task, event_id, job_id, queue, ended_at, outcome, attempt, ran_sec)
    SELECT task, event_id, job_id, queue, ts, outcome, attempt, sec
      FROM (SELECT e.*, row_number() OVER (PARTITION BY task ORDER BY event_id DESC) AS rank
              FROM ends e WHERE prior = 'picked') latest
     WHERE rank <= %(runs)s::int
        ON CONFLICT DO NOTHING
), older AS (
    DELETE FROM dl_recent_runs l
     USING (SELECT DISTINCT task FROM ends) touched
     WHERE l.task = touched.task
       AND l.event_id < (SELECT event_id FROM dl_recent_runs k WHERE k.task = touched.task
                          ORDER BY event_id DESC OFFSET %(runs)s::int LIMIT 1)
), done AS (
    SELECT count(*) AS n, max(event_id) AS last, max(ts) AS last_ts, range_agg(int8range(event_id, event_id + 1)) AS ids FROM read
), advanced AS (
    UPDATE dl_statistics_state s
       SET unread = s.unread - coalesce(done.ids, '{}')
                    - int8multirange(int8range(NULL, 1 + CASE WHEN done.n >= %(limit)s::int
                                                              THEN least(s.safe_id, done.last) ELSE s.safe_id END))
      FROM done
     WHERE EXISTS (SELECT FROM state)
    RETURNING done.n, done.last_ts
)
SELECT n, CASE WHEN isfinite(last_ts) THEN greatest(0, extract(epoch FROM clock_timestamp() - last_ts)) ELSE 0 END::float8
  FROM advanced;

-- name: record_depths
-- Record the current queue depths for the charts, counted along the partial indexes up to two million of each kind.
SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
       set_config('statement_timeout', '20s', true);

WITH turn AS (  -- once a minute
    SELECT date_trunc('minute', clock_timestamp()) AS at
     WHERE NOT EXISTS (SELECT FROM dl_queue_depths WHERE at = date_trunc('minute', clock_timestamp()))
), counted AS (
    SELECT queue, 'ready' AS wait_state, count(*) AS n
      FROM (SELECT queue FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready' LIMIT 2000000) r GROUP BY queue
    UNION ALL
    SELECT queue, 'scheduled', count(*)
      FROM (SELECT queue FROM dl_jobs WHERE status = 'queued' AND wait_state = 'scheduled' LIMIT 2000000) t GROUP BY queue
    UNION ALL
    SELECT queue, 'blocked', count(*)
      FROM (SELECT queue FROM dl_jobs WHERE status = 'queued' AND wait_state = 'blocked' LIMIT 2000000) p GROUP BY queue
    UNION ALL
    SELECT queue, 'limited', count(*)
      FROM (SELECT queue FROM dl_jobs WHERE status = 'queued' AND wait_state = 'limited' AND waits_on IS NOT NULL
             LIMIT 2000000) w GROUP BY queue
    UNION ALL
    SELECT queue, 'waiting', count(*)
      FROM (SELECT queue FROM dl_jobs WHERE status = 'queued' AND wait_state = 'waiting' LIMIT 2000000) g GROUP BY queue
    UNION ALL
    SELECT queue, 'running', count(*) FROM dl_jobs WHERE status = 'running' GROUP BY queue
    UNION ALL
    SELECT queue, 'known', 0 FROM dl_queues
    UNION ALL
    SELECT DISTINCT queue, 'known', 0 FROM dl_queue_depths WHERE at > clock_timestamp() - interval '1 hour'
), ages AS (
    SELECT queue, age_sec FROM unnest(%(queues)s::text[], %(ages)s::float8[]) AS a (queue, age_sec)
)
INSERT INTO dl_queue_depths (at, queue, ready, scheduled, blocked, running, limited, waiting, oldest_ready_sec)
SELECT turn.at, s.queue, coalesce(sum(n) FILTER (WHERE wait_state = 'ready'), 0), coalesce(sum(n) FILTER (WHERE wait_state = 'scheduled'), 0),
       coalesce(sum(n) FILTER (WHERE wait_state = 'blocked'), 0), coalesce(sum(n) FILTER (WHERE wait_state = 'running'), 0),
       coalesce(sum(n) FILTER (WHERE wait_state = 'limited'), 0),
       coalesce(sum(n) FILTER (WHERE wait_state = 'waiting'), 0), max(ages.age_sec)
  FROM turn CROSS JOIN counted s LEFT JOIN ages ON ages.queue = s.queue
 GROUP BY turn.at, s.queue
    ON CONFLICT DO NOTHING;

-- name: prune_statistics
-- Keep minutes for six hours, quarters for three days, hours for ninety days, and depths for eight days.
WITH minutes AS (
    DELETE FROM dl_statistics WHERE span_sec IN (60, -60) AND started_at < clock_timestamp() - interval '6 hours'
), quarters AS (
    DELETE FROM dl_statistics WHERE span_sec IN (900, -900) AND started_at < clock_timestamp() - interval '3 days'
), hours AS (
    DELETE FROM dl_statistics WHERE span_sec IN (3600, -3600) AND started_at < clock_timestamp() - interval '90 days'
)
DELETE FROM dl_queue_depths WHERE at < clock_timestamp() - interval '8 days';

-- name: span_totals
-- Statistics of whole hours by task; those of the task '' are of all tasks together.
SELECT task, measure, array_agg(bucket), array_agg(n), sum(sec)
  FROM (SELECT task, measure, bucket, sum(count)::bigint AS n, sum(total_sec) AS sec
          FROM dl_statistics
         WHERE span_sec IN (3600, -3600)
           AND started_at >= %(since)s::timestamptz AND started_at < %(until)s::timestamptz
           AND (%(task)s::text IS NULL OR task = %(task)s::text)
         GROUP BY task, measure, bucket) buckets
 GROUP BY task, measure;

-- name: span_rows
-- The rows that jobs reported in a span, by task. None if the newest 20,000 reports do not reach back to its start. A
-- subquery without references is executed once; as a table in FROM it was joined to, and executed for, each report.
WITH newest AS MATERIALIZED (
    SELECT task, kind, rows, at FROM dl_dataset_events ORDER BY event_id DESC LIMIT 20001
)
SELECT task, sum(rows)::bigint
  FROM newest
 WHERE (SELECT count(*) <= 20000 OR min(at) < %(since)s::timestamptz FROM newest)
   AND kind = 'produced' AND rows IS NOT NULL
   AND at >= %(since)s::timestamptz AND at < %(until)s::timestamptz
   AND (%(task)s::text IS NULL OR task = %(task)s::text)
 GROUP BY task;
