-- The data of the benchmark of pages: see pages.py. `%(name)s` are its parameters.

-- name: finished
INSERT INTO dl_jobs (job_id, queue, task, lock_key, partition_key, status, attempt, run_id, created_at, started_at, finished_at,
                     args, error, error_fingerprint, producer, warnings, worker)
SELECT (overlay(lpad(to_hex((date_part('epoch', moment) * 4096000)::bigint), 15, '0') PLACING '7' FROM 13 FOR 0)
        || substr(gen_random_uuid()::text, 20))::uuid,
       'queue ' || n %% 8, 'task ' || n %% 20, 'key ' || n %% 100000, '', s, 1, gen_random_uuid(), moment,
       moment + interval '1 s', moment + interval '5 s', jsonb_build_object('day', n %% 365, 'name', 'file ' || n),
       CASE s WHEN 'failed' THEN 'ValueError: row ' || n || ' cannot be read' WHEN 'lost' THEN 'the lease expired' END,
       CASE s WHEN 'failed' THEN (ARRAY['ValueError', 'OSError', 'KeyError'])[1 + n / 500 %% 3] || ' rows.py:read' END,
       CASE WHEN n %% 3 > 0 THEN 'service ' || n %% 5 END, CASE WHEN n %% 2000 = 3 THEN 1 END, 'worker ' || n %% 4
  FROM generate_series(%(first)s, %(last)s) n,
       LATERAL (SELECT now() - interval '30 days' + interval '30 days' * (n / %(rows)s::float8) AS moment,
                       CASE WHEN n %% 500 = 0 THEN 'failed' WHEN n %% 5000 = 1 THEN 'canceled'
                            WHEN n %% 10000 = 7 THEN 'lost' ELSE 'succeeded' END::dl_status AS s) it;

-- name: waiting
INSERT INTO dl_jobs (queue, task, lock_key, wait_state, available_at, waits_on, limits)
SELECT 'queue ' || n %% 8, 'task ' || n %% 20, 'waits ' || n, p::dl_wait_state,
       CASE p WHEN 'scheduled' THEN now() + interval '1 h' ELSE now() END,
       CASE p WHEN 'limited' THEN 'limit ' || n %% 30 END,
       CASE p WHEN 'limited' THEN jsonb_build_object('limit ' || n %% 30, 1) END
  FROM generate_series(1, %(rows)s) n,
       LATERAL (SELECT (ARRAY['ready', 'scheduled', 'blocked', 'ready', 'scheduled', 'limited'])[1 + n %% 6] AS p) it;

-- name: ready
INSERT INTO dl_jobs (queue, task, lock_key, wait_state, created_at, priority)
SELECT 'queue ' || n %% 8, 'task ' || n %% 20, 'ready ' || n, 'ready', now() - interval '1 d' * (1 - n / %(rows)s::float8),
       (ARRAY[100, 100, 100, 50, 10])[1 + n %% 5]
  FROM generate_series(1, %(rows)s) n;

-- name: running
INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, run_id, lease_expires_at, heartbeat_at, started_at, worker,
                     progress)
SELECT 'queue ' || n %% 8, 'task ' || n %% 20, 'runs ' || n, 'running', 1, gen_random_uuid(), now() + interval '1 d',
       now(), now() - interval '1 h', 'worker ' || n %% 4, '{"processed": 400, "total": 1000, "unit": "rows"}'
  FROM generate_series(1, %(rows)s) n;

-- name: log
INSERT INTO dl_job_logs (job_id, attempt, ts, level, stream, line)
SELECT (SELECT job_id FROM dl_jobs WHERE status = 'running' ORDER BY created_at DESC LIMIT 1), 1, now(), 'INFO',
       'stdout', 'page ' || n || ' of the source was read and written'
  FROM generate_series(1, 200000) n;

-- name: schedules
INSERT INTO dl_schedules (name, source, task, overrides, next_at, paused_at, paused_by)
SELECT 'schedule ' || n, 'people', 'task ' || n %% 20,
       jsonb_build_object('kind', 'cron', 'expression', n %% 60 || ' * * * *', 'queue', 'queue ' || n %% 8),
       now() + n * interval '1 min', CASE WHEN n %% 50 = 0 THEN now() END, CASE WHEN n %% 50 = 0 THEN 'on-call' END
  FROM generate_series(1, 200) n;

-- name: firings
INSERT INTO dl_firings (schedule_id, fire_at, due_at, outcome, job_id, made_by, made_at)
SELECT s.schedule_id, h.at, h.at, CASE WHEN h.n %% 100 = 7 THEN 'overlap_skipped' ELSE 'made' END,
       CASE WHEN h.n %% 100 <> 7 THEN j.ids[1 + (h.n * 200 + s.n) %% cardinality(j.ids)] END, 'clock', h.at
  FROM (SELECT ARRAY(SELECT job_id FROM dl_jobs WHERE status <> 'queued' ORDER BY created_at DESC LIMIT 100000) AS ids) j,
       (SELECT schedule_id, row_number() OVER (ORDER BY name) AS n FROM dl_schedules) s,
       (SELECT n, date_trunc('hour', now()) - n * interval '1 h' AS at FROM generate_series(0, 719) n) h;

-- name: limits
INSERT INTO dl_limits (name, concurrency, rate, per_sec)
SELECT 'limit ' || n, 5, CASE WHEN n %% 2 = 0 THEN 100 END, CASE WHEN n %% 2 = 0 THEN 60 END FROM generate_series(0, 49) n;

-- name: breakers
INSERT INTO dl_breakers (task, failures, state, opened_at, probe_at, reason)
SELECT 'task ' || n, 5, CASE WHEN n %% 9 = 0 THEN 'open' ELSE 'closed' END, CASE WHEN n %% 9 = 0 THEN now() END,
       CASE WHEN n %% 9 = 0 THEN now() + interval '1 h' END, CASE WHEN n %% 9 = 0 THEN '5 attempts in a row failed' END
  FROM generate_series(0, 19) n;

-- name: backfills
INSERT INTO dl_backfills (task, queue, slices, mode, newest_first, concurrency, template, state, total, made, note, created_at, ended_at)
SELECT 'task ' || 4 + n %% 5, 'queue 3', '{"unit": "hour", "zone": "UTC", "start": "2015-01-01T00+00:00", "end": "2026-05-30T15+00:00"}', 'missing', false, 4, '{}',
       CASE n WHEN 1 THEN 'open' ELSE 'done' END, 100000, 100000, 'the first ten years',
       now() - n * interval '1 h', CASE WHEN n > 1 THEN now() END
  FROM generate_series(1, 60) n;

-- name: slices
INSERT INTO dl_slices (task, partition_key, interval_start, interval_end, state, job_id, backfill_id, runs, rows, succeeded_at, succeeded_job)
SELECT b.task, to_char(h.at, 'YYYY-MM-DD"T"HH24+00:00'), h.at, h.at + interval '1 h', h.state, h.job_id, b.backfill_id, 1, 1000,
       CASE WHEN h.state = 'succeeded' THEN now() END, CASE WHEN h.state = 'succeeded' THEN h.job_id END
  FROM (SELECT * FROM dl_backfills ORDER BY created_at DESC LIMIT 2) b,
       (SELECT timestamptz '2015-01-01Z' + n * interval '1 h' AS at, gen_random_uuid() AS job_id,
               (CASE WHEN n > 99000 THEN 'queued' WHEN n %% 100 = 7 THEN 'failed' ELSE 'succeeded' END)::dl_status AS state
          FROM generate_series(0, 99999) n) h;

-- name: graphs
WITH graphs AS (
    INSERT INTO dl_graphs (name, created_by, created_at)
    SELECT 'graph ' || n, 'on-call', now() - n * interval '1 h' FROM generate_series(1, 300) n RETURNING graph_id, created_at
)
INSERT INTO dl_jobs (queue, task, lock_key, status, wait_state, created_at, finished_at, graph_id, graph_key)
SELECT 'queue ' || n %% 8, 'task ' || n %% 20, 'graph ' || g.graph_id || n, s.status::dl_status,
       CASE s.status WHEN 'queued' THEN 'waiting' ELSE 'ready' END::dl_wait_state,
       g.created_at, CASE s.status WHEN 'succeeded' THEN g.created_at + interval '9 s' END, g.graph_id, 'part ' || n
  FROM graphs g, generate_series(1, 20) n,
       LATERAL (SELECT CASE WHEN n > 15 AND g.created_at > now() - interval '1 d' THEN 'queued' ELSE 'succeeded' END AS status) s;

-- name: edges
INSERT INTO dl_edges (child_id, parent_id, met)
SELECT child.job_id, parent.job_id, CASE parent.status WHEN 'succeeded' THEN true END
  FROM dl_jobs child JOIN dl_jobs parent ON parent.graph_id = child.graph_id
 WHERE child.lock_key ^@ 'graph ' AND parent.lock_key ^@ 'graph ' AND substr(child.graph_key, 6)::int - substr(parent.graph_key, 6)::int IN (1, 3);

-- name: queues
INSERT INTO dl_queues (queue, state, concurrency, fair, note)
SELECT 'queue ' || n, CASE n WHEN 7 THEN 'paused' ELSE 'open' END, 20, CASE n WHEN 5 THEN 'producer' END, 'of the benchmark'
  FROM generate_series(3, 7) n;

-- name: checks
INSERT INTO dl_checks (task, name, at, job_id, attempt, partition_key, value, low, outcome)
SELECT 'task ' || n %% 20, 'check ' || n / 20 %% 5, now() - n * interval '20 s', gen_random_uuid(), 1, '', n %% 1000, 5,
       CASE WHEN n %% 1000 < 5 THEN 'warned' ELSE 'passed' END
  FROM generate_series(1, 100000) n;

-- name: datasets
INSERT INTO dl_dataset_events (dataset, kind, task, at, job_id, partition_key, rows)
SELECT 'dataset ' || n %% 100, CASE WHEN n %% 3 = 0 THEN 'consumed' ELSE 'produced' END, 'task ' || n %% 20,
       now() - n * interval '20 s', gen_random_uuid(), '', n
  FROM generate_series(1, 100000) n;

-- name: offloads
INSERT INTO dl_offloads (name, job_id, run_id, call, number, engine, fingerprint, fence_token, created_at, ended_at, outcome)
SELECT 'offload ' || job_id, job_id, run_id, '1', 1, 'kubernetes', 'f', 't', started_at, NULL, NULL FROM dl_jobs WHERE status = 'running'
UNION ALL
SELECT 'offload ' || job_id, job_id, run_id, '1', 1, 'kubernetes', 'f', 't', started_at, finished_at, 'succeeded'
  FROM (SELECT * FROM dl_jobs WHERE status = 'succeeded' AND run_id IS NOT NULL ORDER BY created_at DESC LIMIT 10000) ended;

-- name: bulk
INSERT INTO dl_bulk (action, filter, expected, state, scanned, matched, changed, created_at, finished_at)
SELECT 'retry', '{"status": "{failed}", "task": "task 3"}', 100, 'done', 1000, 100, 100, now() - n * interval '1 h', now()
  FROM generate_series(1, 200) n;

-- name: webhooks
INSERT INTO dl_webhooks (url, secret) SELECT 'https://receiver.example/' || n, 'secret' FROM generate_series(1, 20) n;

-- name: deliveries
INSERT INTO dl_deliveries (webhook_id, target, job_id, event, body, state, attempts, created_at, due_at, delivered_at)
SELECT w.ids[1 + n %% 20], w.ids[1 + n %% 20]::text, gen_random_uuid(), 'job.failed', '{"type": "job.failed"}',
       CASE WHEN n < 1000 THEN 'pending' WHEN n %% 100 = 0 THEN 'failed' ELSE 'delivered' END, 1, now() - n * interval '20 s',
       CASE WHEN n < 1000 THEN now() + interval '1 d' END, CASE WHEN n >= 1000 THEN now() END
  FROM (SELECT ARRAY(SELECT webhook_id FROM dl_webhooks) AS ids) w, generate_series(1, 100000) n;

-- name: delivery_attempts
INSERT INTO dl_delivery_attempts (delivery_id, number, status, duration_ms) SELECT delivery_id, 1, 200, 20 FROM dl_deliveries;

-- name: alert_rules
INSERT INTO dl_alert_rules (name, kind, task, threshold, window_sec)
SELECT 'rule ' || n, 'failure_rate', 'task ' || n %% 20, 0.5, 3600 FROM generate_series(1, 50) n;

-- name: alerts
INSERT INTO dl_alerts (rule_id, kind, name, subject, task, value, detail, started_at, ended_at)
SELECT r.ids[1 + n %% 50], 'failure_rate', 'rule ' || n %% 50, 'task ' || n %% 20 || CASE WHEN n > 30 THEN '' ELSE ' ' || n END,
       'task ' || n %% 20, 0.7, '7 of 10 runs failed',
       now() - n * interval '2 min', CASE WHEN n > 30 THEN now() - n * interval '1 min' END
  FROM (SELECT ARRAY(SELECT rule_id FROM dl_alert_rules) AS ids) r, generate_series(1, 20000) n;

-- name: keys
INSERT INTO dl_api_keys (key_id, name, digest, scopes, created_by)
SELECT 'key' || n, 'service ' || n, decode(md5(n::text), 'hex'), ARRAY['read', 'trigger'], 'on-call' FROM generate_series(1, 100) n;

-- name: events
INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
SELECT j.job_id, j.queue, j.created_at + k.n * interval '1 s', coalesce(k.kind, CASE j.status WHEN 'succeeded' THEN 'done' ELSE j.status::text END),
       jsonb_build_object('status', j.status, 'attempt', least(k.n, 1), 'run_id', j.run_id, 'worker', j.worker)
  FROM ((SELECT * FROM dl_jobs WHERE status = 'failed' ORDER BY created_at DESC LIMIT 1000)
        UNION ALL (SELECT * FROM dl_jobs WHERE status = 'running')
        UNION ALL (SELECT * FROM dl_jobs WHERE status IN ('succeeded', 'canceled', 'lost') ORDER BY created_at DESC LIMIT 20000)) j,
       (VALUES (0, 'queued'), (1, 'picked'), (5, NULL)) k (n, kind)
 WHERE j.status <> 'running' OR k.kind IS NOT NULL;

-- name: audit
INSERT INTO dl_audit (at, action, actor, via, subject, subject_id, before, after)
SELECT now() - n * interval '1 s', action, 'on-call', 'key', 'job', gen_random_uuid(),
       CASE action WHEN 'cancel' THEN '{"status": "queued"}'::jsonb END,
       CASE action WHEN 'cancel' THEN '{"status": "canceled"}' ELSE '{"queue": "queue 3"}' END::jsonb
  FROM generate_series(1, %(rows)s) n, LATERAL (SELECT CASE n %% 3 WHEN 0 THEN 'cancel' ELSE 'trigger' END AS action) it;

-- name: statistics
INSERT INTO dl_statistics (span_sec, started_at, queue, task, measure, bucket, count, total_sec)
SELECT span, date_bin(make_interval(secs => span), now(), '2001-01-01') - i * make_interval(secs => span),
       'queue ' || (t + q) %% 8, 'task ' || t, measure,
       CASE WHEN measure IN ('waited', 'ran') THEN 8 + (t + b) %% 12 ELSE 0 END, 100 + t, 300
  FROM (VALUES (60, 60), (900, 96), (3600, 168)) s (span, steps), generate_series(0, steps - 1) i,
       generate_series(0, 19) t, generate_series(0, 1) q,
       unnest(ARRAY['queued', 'started', 'succeeded', 'failed', 'waited', 'ran']) measure,
       generate_series(1, CASE WHEN measure IN ('waited', 'ran') THEN 6 ELSE 1 END) b;

-- name: totals
INSERT INTO dl_statistics (span_sec, started_at, queue, task, measure, bucket, count, total_sec)
SELECT -span_sec, started_at, '', '', measure, bucket, sum(count), sum(total_sec)
  FROM dl_statistics WHERE span_sec > 0 GROUP BY span_sec, started_at, measure, bucket;

-- name: depths
INSERT INTO dl_queue_depths (at, queue, ready, scheduled, blocked, running, oldest_ready_sec)
SELECT date_trunc('minute', now()) - i * interval '1 min', 'queue ' || q, 10, 20, 30, 4, 1
  FROM generate_series(0, 7 * 1440) i, generate_series(0, 7) q;

-- name: recent_runs
INSERT INTO dl_recent_runs (task, event_id, job_id, queue, ended_at, outcome, attempt, ran_sec)
SELECT 'task ' || n %% 20, n, j.job_id, j.queue, now() - n * interval '10 s',
       CASE WHEN j.status = 'failed' THEN 'failed' ELSE 'succeeded' END, 1, 4
  FROM (SELECT *, row_number() OVER (ORDER BY created_at DESC) AS n
          FROM (SELECT * FROM dl_jobs WHERE finished_at IS NOT NULL ORDER BY created_at DESC LIMIT 2000) newest) j;

-- name: workers
INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec, seen_at, running_attempts, rss_bytes, listener)
SELECT gen_random_uuid(), 'worker ' || n, '1', ARRAY(SELECT 'queue ' || q FROM generate_series(0, 7) q),
       ARRAY(SELECT 'task ' || t FROM generate_series(0, 19) t), 10, 10, now() + interval '1 h' - n / 20 * interval '2 h',
       coalesce((SELECT jsonb_agg(jsonb_build_object('run_id', run_id, 'queue', queue, 'progress_age_sec', 30)) FROM dl_jobs
                  WHERE status = 'running' AND worker = 'worker ' || n), '[]'), 100000000, 'listening'
  FROM generate_series(0, 99) n;
INSERT INTO dl_heartbeats (worker_id, seen_at, rss_bytes)
SELECT worker_id, seen_at - n * interval '10 seconds', 100000000 FROM dl_workers CROSS JOIN generate_series(0, 5) n;
INSERT INTO dl_progress (job_id, run_id, ts, progress)
SELECT job_id, run_id, now() - n * interval '10 seconds', jsonb_build_object('done', 10 - n, 'total', 20)
  FROM dl_jobs CROSS JOIN generate_series(0, 9) n WHERE status = 'running';
INSERT INTO dl_task_targets (task, target) VALUES ('task 1', 'warehouse');
INSERT INTO dl_job_targets (job_id, target, run_id, fence)
SELECT job_id, 'warehouse', run_id, row_number() OVER () FROM dl_jobs WHERE status = 'running' AND task = 'task 1';
INSERT INTO dl_fence_history (timeline, server, epoch) VALUES (1, 'server', 1);

-- name: accounts
-- Of the last runs, and the totals of three months.
INSERT INTO dl_accounts (run_id, job_id, task, attempt, written_at, ended_at, wall_sec, cpu_sec, rows, bytes, cost, account)
SELECT run_id, job_id, task, 1, finished_at, finished_at, 600, 60, 100000, 10000000, 0.02,
       '{"watched_sec": 590, "looks": 590, "kinds": {"sql": 500, "python": 90}, "problems": {}, "entries": ['
       '{"kind": "sql", "sec": 500, "place": "load in acme/sales.py:73", "detail": "IO: DataFileRead",'
       ' "statement": "INSERT INTO mart.sales SELECT …", "holder": null},'
       '{"kind": "python", "sec": 90, "place": "load in acme/sales.py:57", "detail": null, "statement": null, "holder": null}]}'
  FROM (SELECT * FROM dl_jobs WHERE finished_at IS NOT NULL AND run_id IS NOT NULL ORDER BY created_at DESC LIMIT 2000) newest;
INSERT INTO dl_account_days (day, task, attempts, wall_sec, cpu_sec, memory_gb_sec, rows, bytes, cost)
SELECT current_date - d, 'task ' || t, 100, 60000, 6000, 3000, 10000000, 1000000000, 2
  FROM generate_series(0, 90) d, generate_series(0, 19) t;

-- name: clear_current
TRUNCATE dl_accounts, dl_account_days, dl_statistics, dl_queue_depths, dl_recent_runs, dl_workers, dl_heartbeats, dl_progress, dl_task_targets, dl_job_targets, dl_fence_history;

-- name: renew_running
UPDATE dl_jobs SET heartbeat_at = now(), lease_expires_at = now() + interval '1 d' WHERE status = 'running';
