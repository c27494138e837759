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

-- name: statistics_series
-- Statistics of each span since a time, of one queue or task, or of all: the totals of all are stored under the negative
-- span. One row for each span and measure, with its histogram buckets; without `has_times` the counts alone.
SELECT started_at, measure, array_agg(bucket), array_agg(n), sum(sec)
  FROM (SELECT started_at, measure, bucket, sum(count)::bigint AS n, sum(total_sec) AS sec
          FROM dl_statistics
         WHERE span_sec = CASE WHEN %(queue)s::text IS NULL AND %(task)s::text IS NULL THEN -%(span)s::int ELSE %(span)s::int END
           AND started_at = ANY (ARRAY(SELECT generate_series(
                   date_bin(make_interval(secs => %(span)s::int), %(since)s::timestamptz, '2000-01-01T00:00Z'),
                   clock_timestamp(), make_interval(secs => %(span)s::int))))
           AND started_at >= %(since)s::timestamptz
           AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
           AND (%(task)s::text IS NULL OR task = %(task)s::text)
           AND (%(has_times)s::bool OR measure NOT IN ('waited', 'ran'))
         GROUP BY started_at, measure, bucket) buckets
 GROUP BY started_at, measure
 ORDER BY started_at;

-- name: statistics_totals
-- Statistics of the last `period_sec` seconds, by queue or by task: of the long spans that begin in the period, the last of which
-- is still growing, and of the short ones before the first of these. Spans are listed one by one, so that the index is used for a
-- single queue too. Without `has_times` the counts alone.
WITH period AS (
    SELECT s.first, date_bin(make_interval(secs => %(long_span)s::int), s.first - interval '1 microsecond', '2000-01-01T00:00Z')
                    + make_interval(secs => %(long_span)s::int) AS first_long
      FROM (SELECT date_bin(make_interval(secs => %(span)s::int), clock_timestamp() - make_interval(secs => %(period_sec)s::float8),
                            '2000-01-01T00:00Z') + make_interval(secs => %(span)s::int) AS first) s
)
SELECT name, measure, array_agg(bucket), array_agg(n), sum(sec)
  FROM (SELECT CASE WHEN %(by_task)s::bool THEN task ELSE queue END AS name, measure, bucket, sum(count)::bigint AS n,
               sum(total_sec) AS sec
          FROM (SELECT queue, task, measure, bucket, count, total_sec
                  FROM dl_statistics
                 WHERE span_sec = %(span)s::int
                   AND started_at = ANY (ARRAY(SELECT generate_series(first, first_long - interval '1 microsecond',
                                                                      make_interval(secs => %(span)s::int)) FROM period))
                   AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
                   AND (%(task)s::text IS NULL OR task = %(task)s::text)
                UNION ALL
                SELECT queue, task, measure, bucket, count, total_sec
                  FROM dl_statistics
                 WHERE span_sec = %(long_span)s::int
                   AND started_at = ANY (ARRAY(SELECT generate_series(first_long, clock_timestamp(),
                                                                      make_interval(secs => %(long_span)s::int)) FROM period))
                   AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
                   AND (%(task)s::text IS NULL OR task = %(task)s::text)) spans
         WHERE %(has_times)s::bool OR measure NOT IN ('waited', 'ran')
         GROUP BY 1, 2, 3) buckets
 GROUP BY name, measure;

-- name: depth_series
-- The largest depths in each span since a time, of one queue or of all together. For long periods only every
-- `interval_min`-th minute is read: a week has ten thousand minutes for each queue.
SELECT date_bin(make_interval(secs => %(span)s::int), at, '2000-01-01T00:00Z') AS since, max(ready), max(scheduled), max(blocked),
       max(running), max(limited), max(waiting), max(oldest)
  FROM (SELECT at, sum(ready)::bigint AS ready, sum(scheduled)::bigint AS scheduled, sum(blocked)::bigint AS blocked,
               sum(running)::bigint AS running, sum(limited)::bigint AS limited,
               sum(waiting)::bigint AS waiting, max(oldest_ready_sec) AS oldest
          FROM dl_queue_depths
         WHERE at = ANY (ARRAY(SELECT generate_series(
                   date_bin(make_interval(mins => %(interval_min)s::int), %(since)s::timestamptz, '2000-01-01T00:00Z'),
                   clock_timestamp(), make_interval(mins => %(interval_min)s::int))))
           AND at >= %(since)s::timestamptz AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
         GROUP BY at) minutes
 GROUP BY 1
 ORDER BY 1;

-- name: recent_runs
SELECT task, job_id, queue, ended_at, outcome, attempt, ran_sec
  FROM (SELECT l.*, row_number() OVER (PARTITION BY task ORDER BY event_id DESC) AS rank
          FROM dl_recent_runs l
         WHERE %(task)s::text IS NULL OR task = %(task)s::text) runs
 WHERE rank <= %(limit)s::int
 ORDER BY task, rank;

-- name: usual_durations
-- The median duration of the last runs of each of these tasks that succeeded.
SELECT t.task, percentile_cont(0.5) WITHIN GROUP (ORDER BY last.ran_sec)
  FROM unnest(%(tasks)s::text[]) AS t (task)
       CROSS JOIN LATERAL (SELECT r.outcome, r.ran_sec
                             FROM dl_recent_runs r
                            WHERE r.task = t.task
                            ORDER BY r.event_id DESC
                            LIMIT %(limit)s::int) last
 WHERE last.outcome = 'succeeded' AND last.ran_sec IS NOT NULL
 GROUP BY t.task;

-- name: task_names
-- By a loose scan of the index of recent runs.
WITH RECURSIVE names AS (
    (SELECT task FROM dl_recent_runs ORDER BY task LIMIT 1)
    UNION ALL
    SELECT (SELECT r.task FROM dl_recent_runs r WHERE r.task > names.task ORDER BY r.task LIMIT 1)
      FROM names
     WHERE names.task IS NOT NULL
)
SELECT task FROM names WHERE task IS NOT NULL LIMIT %(limit)s::int;

-- name: failures_of_task
-- Failed and lost jobs of a task by fingerprint, along the index of finished jobs, the newest `max_scanned` of each status.
-- The first column: whether that limit was reached.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

WITH newest AS MATERIALIZED (
    (SELECT job_id, status, error_fingerprint, finished_at
       FROM dl_jobs
      WHERE status = 'failed' AND task = %(task)s::text
        AND finished_at >= clock_timestamp() - make_interval(secs => %(period_sec)s::float8)
      ORDER BY finished_at DESC
      LIMIT %(max_scanned)s::int)
    UNION ALL
    (SELECT job_id, status, error_fingerprint, finished_at
       FROM dl_jobs
      WHERE status = 'lost' AND task = %(task)s::text
        AND finished_at >= clock_timestamp() - make_interval(secs => %(period_sec)s::float8)
      ORDER BY finished_at DESC
      LIMIT %(max_scanned)s::int)
), groups AS MATERIALIZED (
    SELECT error_fingerprint, count(*) AS jobs, max(finished_at) AS last_at,
           (array_agg(job_id ORDER BY finished_at DESC, job_id DESC))[1] AS job_id
      FROM newest
     GROUP BY error_fingerprint
     ORDER BY jobs DESC, last_at DESC
     LIMIT 50
), capped AS (
    SELECT EXISTS (SELECT FROM newest GROUP BY status HAVING count(*) >= %(max_scanned)s::int) AS reached
)
SELECT capped.reached, g.error_fingerprint, g.jobs, g.last_at, g.job_id, left(j.error, 500)
  FROM groups g CROSS JOIN capped LEFT JOIN dl_jobs j ON j.job_id = g.job_id
 ORDER BY g.jobs DESC, g.last_at DESC, g.error_fingerprint;

-- name: datasets_of_runs
SELECT e.kind, e.dataset, e.job_id, sum(e.rows)::bigint
  FROM unnest(%(jobs)s::uuid[]) AS r (job_id) JOIN dl_dataset_events e ON e.job_id = r.job_id
 GROUP BY e.kind, e.dataset, e.job_id
 ORDER BY e.kind, e.dataset
 LIMIT 4000;

-- Counts of jobs, now. Except for count_all, which is for small tables, every statement reads a bounded number of rows.

-- name: count_pages
-- The number of pages of the jobs table.
SELECT pg_relation_size(to_regclass(quote_ident(%(schema)s::text) || '.dl_jobs'))
       / current_setting('block_size')::int AS pages;

-- name: count_all
SELECT queue, status::text, count(*) FROM dl_jobs GROUP BY queue, status;

-- name: count_exact
-- Count along partial indexes: up to `max_exact` ready jobs of each queue, and as many of each other kind in all queues
-- together. `more`: the group has more jobs than were counted. A row without a queue marks a kind that reached its limit.
-- The settings exclude plans that read the whole table.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

WITH ready AS (
    SELECT q.queue, 'queued' AS status, n
      FROM dl_ready_queues(500) AS q (queue)
           CROSS JOIN LATERAL (SELECT count(*) AS n
                                 FROM (SELECT FROM dl_jobs j
                                        WHERE j.queue = q.queue AND j.status = 'queued' AND j.wait_state = 'ready'
                                        LIMIT %(max_exact)s::int + 1) limited) counted
), others AS (
    SELECT queue, 'queued' AS status, kind
      FROM (SELECT queue, 'scheduled' AS kind FROM dl_jobs
             WHERE status = 'queued' AND wait_state = 'scheduled' LIMIT %(max_exact)s::int + 1) scheduled
    UNION ALL
    SELECT queue, 'queued', kind
      FROM (SELECT queue, 'blocked' AS kind FROM dl_jobs
             WHERE status = 'queued' AND wait_state = 'blocked' LIMIT %(max_exact)s::int + 1) blocked
    UNION ALL
    SELECT queue, 'queued', kind
      FROM (SELECT queue, 'limited' AS kind FROM dl_jobs
             WHERE status = 'queued' AND wait_state = 'limited' AND waits_on IS NOT NULL LIMIT %(max_exact)s::int + 1) limited
    UNION ALL
    SELECT queue, 'queued', kind
      FROM (SELECT queue, 'waiting' AS kind FROM dl_jobs
             WHERE status = 'queued' AND wait_state = 'waiting' LIMIT %(max_exact)s::int + 1) waiting
    UNION ALL
    SELECT queue, 'running', kind
      FROM (SELECT queue, 'running' AS kind FROM dl_jobs WHERE status = 'running' LIMIT %(max_exact)s::int + 1) running
    UNION ALL
    SELECT queue, status, kind
      FROM (SELECT queue, status::text AS status, 'unsuccessful' AS kind FROM dl_jobs
             WHERE status IN ('failed', 'canceled', 'lost') LIMIT %(max_exact)s::int + 1) unsuccessful
), capped AS (
    SELECT kind FROM others GROUP BY kind HAVING count(*) > %(max_exact)s::int
)
SELECT queue, status, n, n > %(max_exact)s::int AS more FROM ready
UNION ALL
SELECT queue, status, count(*), bool_or(kind IN (SELECT kind FROM capped)) FROM others GROUP BY queue, status
UNION ALL
SELECT NULL, CASE kind WHEN 'running' THEN 'running' WHEN 'unsuccessful' THEN 'unsuccessful' ELSE 'queued' END, NULL, true FROM capped;

-- name: waiting_by_task
-- Queued jobs by task and wait state along the partial indexes, up to `max_scanned` of each wait state.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

SELECT task, wait_state, count(*)
  FROM ((SELECT task, 'ready' AS wait_state FROM dl_jobs
          WHERE status = 'queued' AND wait_state = 'ready' LIMIT %(max_scanned)s::int)
        UNION ALL
        (SELECT task, 'scheduled' FROM dl_jobs
          WHERE status = 'queued' AND wait_state = 'scheduled' LIMIT %(max_scanned)s::int)
        UNION ALL
        (SELECT task, 'blocked' FROM dl_jobs
          WHERE status = 'queued' AND wait_state = 'blocked' LIMIT %(max_scanned)s::int)
        UNION ALL
        (SELECT task, 'limited' FROM dl_jobs
          WHERE status = 'queued' AND wait_state = 'limited' AND waits_on IS NOT NULL LIMIT %(max_scanned)s::int)
        UNION ALL
        (SELECT task, 'waiting' FROM dl_jobs
          WHERE status = 'queued' AND wait_state = 'waiting' LIMIT %(max_scanned)s::int)) queued
 GROUP BY task, wait_state;

-- name: count_sample
-- Count in a sample of the pages. REPEATABLE keeps the sample, so that two counts differ only by what has changed.
SELECT queue, status::text, count(*)
  FROM dl_jobs TABLESAMPLE SYSTEM (%(percent)s::float4) REPEATABLE (20)
 GROUP BY queue, status;

-- name: oldest_ready
-- Seconds since the oldest due job of each queue became due. Reads the first ready jobs of each queue and priority, which
-- were created first, and the scheduled jobs that have been due the longest but are not yet promoted.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true);

WITH RECURSIVE heads AS (
    (SELECT queue, priority FROM dl_jobs
      WHERE status = 'queued' AND wait_state = 'ready' ORDER BY queue, priority LIMIT 1)
    UNION ALL
    SELECT next.queue, next.priority
      FROM heads
           CROSS JOIN LATERAL (SELECT j.queue, j.priority FROM dl_jobs j
                                WHERE j.status = 'queued' AND j.wait_state = 'ready'
                                  AND (j.queue, j.priority) > (heads.queue, heads.priority)
                                ORDER BY j.queue, j.priority LIMIT 1) next
), due AS (
    SELECT first.queue, first.at
      FROM (SELECT * FROM heads LIMIT 1000) h
           CROSS JOIN LATERAL (SELECT j.queue, greatest(j.created_at, j.available_at) AS at
                                 FROM dl_jobs j
                                WHERE j.queue = h.queue AND j.priority = h.priority
                                  AND j.status = 'queued' AND j.wait_state = 'ready'
                                ORDER BY j.created_at, j.job_id LIMIT 20) first
    UNION ALL
    SELECT queue, at
      FROM (SELECT queue, greatest(created_at, available_at) AS at
              FROM dl_jobs
             WHERE status = 'queued' AND wait_state = 'scheduled' AND available_at <= (SELECT clock_timestamp())
             ORDER BY available_at LIMIT 1000) not_promoted
)
SELECT queue, extract(epoch FROM clock_timestamp() - min(at))::float8 FROM due WHERE isfinite(at) GROUP BY queue;

-- name: database_metrics
-- Dead and live rows of the queue's tables, the oldest transaction and snapshot, the use of the notification queue, and the
-- number of live workers. Without pg_read_all_stats a role does not see the transactions of other roles.
WITH tables AS (
    SELECT coalesce(jsonb_object_agg(relname, n_dead_tup), '{}') AS dead, coalesce(jsonb_object_agg(relname, n_live_tup), '{}') AS live
      FROM pg_stat_all_tables
     WHERE schemaname = %(schema)s::text AND relname IN ('dl_jobs', 'dl_job_events', 'dl_deliveries')
)
SELECT tables.dead::text, tables.live::text,
       coalesce((SELECT extract(epoch FROM clock_timestamp() - min(a.xact_start))::float8
                   FROM pg_stat_activity a
                  WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'), 0),
       (SELECT coalesce(max(age(a.backend_xmin)), 0) FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid()),
       pg_notification_queue_usage(),
       (SELECT count(*) FROM dl_live_workers())
  FROM tables;

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
