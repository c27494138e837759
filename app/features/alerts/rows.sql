-- Alert rules, the alerts that they fire, and the check of all rules.

-- define: rule_columns
       rule_id, name, kind, queue, task, threshold, window_sec, min_runs, active, created_at, dataset, by_time, zone,
       muted_until, muted_by

-- name: add_alert_rule
-- No row: a rule of this name exists.
INSERT INTO dl_alert_rules (name, kind, queue, task, threshold, window_sec, min_runs, dataset, by_time, zone)
VALUES (%(name)s::text, %(kind)s::text, %(queue)s::text, %(task)s::text, %(threshold)s::float8, %(window_sec)s::float8,
        %(min_runs)s::int, %(dataset)s::text, %(by_time)s::text, %(zone)s::text)
    ON CONFLICT (name) DO NOTHING
RETURNING
       -- include: rule_columns;

-- name: alert_rules
SELECT
       -- include: rule_columns
  FROM dl_alert_rules
 WHERE (%(rule_id)s::uuid IS NULL OR rule_id = %(rule_id)s::uuid)
 ORDER BY name;

-- name: change_alert_rule
-- A parameter that is NULL leaves its column unchanged.
UPDATE dl_alert_rules
   SET threshold = coalesce(%(threshold)s::float8, threshold),
       window_sec = coalesce(%(window_sec)s::float8, window_sec),
       min_runs = coalesce(%(min_runs)s::int, min_runs),
       active = coalesce(%(active)s::bool, active)
 WHERE rule_id = %(rule_id)s::uuid
RETURNING
       -- include: rule_columns;

-- name: mute_alert_rule
-- For `mute_sec`; 0 ends the mute. An alert that fires meanwhile is delivered when the mute ends, if it still fires then.
UPDATE dl_alert_rules
   SET muted_until = CASE WHEN %(mute_sec)s::float8 > 0 THEN clock_timestamp() + make_interval(secs => %(mute_sec)s::float8) END,
       muted_by = CASE WHEN %(mute_sec)s::float8 > 0 THEN %(muted_by)s::text END
 WHERE rule_id = %(rule_id)s::uuid
RETURNING
       -- include: rule_columns;

-- name: remove_alert_rule
-- The next check resolves the alerts of the removed rule.
DELETE FROM dl_alert_rules WHERE rule_id = %(rule_id)s::uuid RETURNING rule_id;

-- name: alerts
SELECT alert_id, rule_id, kind, name, subject, queue, task, value, detail, started_at, seen_at, ended_at, sent_at, acknowledged_at, acknowledged_by
  FROM dl_alerts
 WHERE (ended_at IS NULL OR NOT %(firing)s::bool)
   AND (%(before)s::uuid IS NULL
        OR (started_at, alert_id) < (SELECT b.started_at, b.alert_id FROM dl_alerts b WHERE b.alert_id = %(before)s::uuid))
 ORDER BY started_at DESC, alert_id DESC
 LIMIT %(limit)s::int;

-- name: acknowledge_alert
-- No row: there is no such alert, or it is resolved. The first acknowledgement is kept; NULL takes it back.
UPDATE dl_alerts
   SET acknowledged_at = CASE WHEN %(acknowledged_by)s::text IS NOT NULL THEN coalesce(acknowledged_at, clock_timestamp()) END,
       acknowledged_by = CASE WHEN %(acknowledged_by)s::text IS NOT NULL AND acknowledged_at IS NOT NULL THEN acknowledged_by
                              ELSE %(acknowledged_by)s::text END
 WHERE alert_id = %(alert_id)s::uuid AND ended_at IS NULL
RETURNING alert_id, rule_id, kind, name, subject, queue, task, value, detail, started_at, seen_at, ended_at, sent_at,
          acknowledged_at, acknowledged_by;

-- name: alert_hours
-- Of each rule the hours of the last day in which an alert fired or began, as hours before now.
SELECT a.rule_id, array_agg(DISTINCT h.hour ORDER BY h.hour)
  FROM (SELECT rule_id, started_at, coalesce(ended_at, clock_timestamp()) AS ended_at FROM dl_alerts
         WHERE rule_id IS NOT NULL AND coalesce(ended_at, clock_timestamp()) > clock_timestamp() - interval '1 day'
         ORDER BY started_at DESC LIMIT 10000) a
       CROSS JOIN generate_series(0, 23) AS h (hour)
 WHERE a.started_at < clock_timestamp() - make_interval(hours => h.hour)
   AND a.ended_at > clock_timestamp() - make_interval(hours => h.hour + 1)
 GROUP BY a.rule_id;

-- name: count_alerts
SELECT kind, count(*) FROM dl_alerts WHERE ended_at IS NULL GROUP BY kind;

-- name: check_rules
-- Checks all rules once; the maintenance leader does so periodically. What it reads is bounded: the statistics of a
-- window, the running jobs, the first ready jobs of each queue and priority, the workers, ten thousand checks. An alert fires when its rule is
-- first broken, and is resolved when the rule has held for longer than an interval. Both are queued for delivery in this transaction.
WITH stale AS (
    DELETE FROM dl_stalled_progress s
     WHERE NOT EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = s.job_id AND j.status::text = 'running')
)
INSERT INTO dl_stalled_progress AS s (job_id, run_id, digest)
SELECT job_id, run_id, md5(dl_current_progress(status, job_id, run_id, heartbeat_at, progress)::text || coalesce(checkpoint::text, ''))
  FROM dl_jobs
 WHERE status = 'running'
   AND EXISTS (SELECT FROM dl_alert_rules WHERE kind = 'stalled' AND active)
    ON CONFLICT (job_id) DO UPDATE
   SET run_id = excluded.run_id, digest = excluded.digest, since = clock_timestamp()
 WHERE s.run_id IS DISTINCT FROM excluded.run_id OR s.digest <> excluded.digest;

WITH RECURSIVE rules AS MATERIALIZED (
    SELECT * FROM dl_alert_rules WHERE active
), heads AS (  -- each queue and priority that has ready jobs, by a loose scan of the claim index
    (SELECT queue, priority
       FROM dl_jobs
      WHERE status = 'queued' AND wait_state = 'ready' AND EXISTS (SELECT FROM rules WHERE kind = 'queue_age')
      ORDER BY queue, priority LIMIT 1)
    UNION ALL
    SELECT next.queue, next.priority
      FROM heads CROSS JOIN LATERAL (
               SELECT j.queue, j.priority
                 FROM dl_jobs j
                WHERE j.status = 'queued' AND j.wait_state = 'ready' AND (j.queue, j.priority) > (heads.queue, heads.priority)
                ORDER BY j.queue, j.priority LIMIT 1) next
), waits AS MATERIALIZED (
    SELECT heads.queue, extract(epoch FROM clock_timestamp() - min(first.since) FILTER (WHERE isfinite(first.since)))::float8 AS sec
      FROM heads CROSS JOIN LATERAL (
               SELECT greatest(j.created_at, j.available_at) AS since
                 FROM dl_jobs j
                WHERE j.status = 'queued' AND j.wait_state = 'ready' AND j.queue = heads.queue AND j.priority = heads.priority
                ORDER BY j.created_at, j.job_id LIMIT 20) first
     GROUP BY heads.queue
), limit_names AS (  -- that jobs wait for, by a loose scan
    (SELECT waits_on AS name FROM dl_jobs
      WHERE status = 'queued' AND waits_on IS NOT NULL AND EXISTS (SELECT FROM rules WHERE kind = 'limit_starved')
      ORDER BY waits_on LIMIT 1)
    UNION ALL
    SELECT (SELECT j.waits_on FROM dl_jobs j
             WHERE j.status = 'queued' AND j.waits_on IS NOT NULL AND j.waits_on > n.name ORDER BY j.waits_on LIMIT 1)
      FROM limit_names n WHERE n.name IS NOT NULL
), broken AS MATERIALIZED (
    SELECT r.rule_id, r.kind, r.name, c.task AS subject, r.queue, c.task, c.unsuccessful / c.runs AS value,
           c.unsuccessful || ' of ' || c.runs || ' runs of ' || c.task || ' failed within ' || r.window_sec || ' s' AS detail
      FROM rules r CROSS JOIN LATERAL (
               SELECT u.task, sum(u.count)::float8 AS runs,
                      coalesce(sum(u.count) FILTER (WHERE u.measure <> 'succeeded'), 0)::float8 AS unsuccessful
                 FROM dl_statistics u
                WHERE u.span_sec = 60 AND u.measure IN ('succeeded', 'failed', 'lost')
                  AND u.started_at > clock_timestamp() - make_interval(secs => r.window_sec + 60)
                  AND coalesce(u.task = r.task, true) AND coalesce(u.queue = r.queue, true)
                GROUP BY u.task) c
     WHERE r.kind = 'failure_rate' AND c.runs >= r.min_runs AND c.unsuccessful / c.runs > r.threshold
    UNION ALL
    SELECT r.rule_id, r.kind, r.name, r.task, r.queue, r.task, s.sec,
           r.task || ' has not succeeded for ' || round(s.sec) || ' s'
      FROM rules r CROSS JOIN LATERAL (
               SELECT extract(epoch FROM clock_timestamp() - coalesce(
                          greatest((SELECT max(l.ended_at) FROM dl_recent_runs l
                                     WHERE l.task = r.task AND l.outcome = 'succeeded' AND coalesce(l.queue = r.queue, true)),
                                   (SELECT max(u.started_at) + make_interval(secs => u.span_sec)
                                      FROM dl_statistics u
                                     WHERE u.span_sec = CASE WHEN r.threshold <= 7200 THEN 60
                                                         WHEN r.threshold <= 172800 THEN 900 ELSE 3600 END
                                       AND u.started_at > clock_timestamp() - make_interval(secs => r.threshold + 3600)
                                       AND u.task = r.task AND u.measure = 'succeeded' AND coalesce(u.queue = r.queue, true)
                                     GROUP BY u.span_sec)),
                          r.created_at))::float8 AS sec) s
     WHERE r.kind = 'no_success' AND s.sec > r.threshold
    UNION ALL
    SELECT r.rule_id, r.kind, r.name, w.queue, w.queue, NULL, w.sec,
           'a job of ' || w.queue || ' has been ready for ' || round(w.sec) || ' s'
      FROM rules r JOIN waits w ON coalesce(w.queue = r.queue, true)
     WHERE r.kind = 'queue_age' AND w.sec > r.threshold
    UNION ALL
    SELECT r.rule_id, r.kind, r.name, j.job_id::text, j.queue, j.task, s.sec,
           'job ' || j.job_id || ' (' || j.task || ') runs on ' || coalesce(j.worker, '') || ', and its progress has not changed for '
           || round(s.sec) || ' s'
      FROM rules r CROSS JOIN dl_stalled_progress stalled
           CROSS JOIN LATERAL (SELECT date_part('epoch', clock_timestamp()) - date_part('epoch', stalled.since) AS sec) s
           JOIN dl_jobs j ON j.job_id = stalled.job_id AND j.run_id = stalled.run_id
     WHERE r.kind = 'stalled' AND s.sec > r.threshold AND j.status::text = 'running'
       AND coalesce(j.task = r.task, true) AND coalesce(j.queue = r.queue, true)
    UNION ALL
    SELECT r.rule_id, r.kind, r.name, w.name, r.queue, NULL, s.sec,
           'the worker ' || w.name || ' has been silent for ' || round(s.sec) || ' s'
      FROM rules r CROSS JOIN dl_workers w
           CROSS JOIN LATERAL (SELECT date_part('epoch', clock_timestamp()) - date_part('epoch', dl_last_beat(w.worker_id, w.seen_at)) AS sec) s
     WHERE r.kind = 'dead_worker' AND s.sec > greatest(r.threshold, 3 * w.heartbeat_sec) AND s.sec < r.window_sec
       AND coalesce(r.queue = ANY (w.queues), true)
    UNION ALL
    SELECT r.rule_id, r.kind, r.name, b.task, r.queue, b.task, s.sec,
           'the circuit breaker of ' || b.task || ' is ' || replace(b.state, '_', '-') || coalesce(': ' || b.reason, '')
      FROM rules r CROSS JOIN dl_breakers b
           CROSS JOIN LATERAL (SELECT date_part('epoch', clock_timestamp()) - date_part('epoch', b.opened_at) AS sec) s
     WHERE r.kind = 'breaker_open' AND b.state <> 'closed' AND s.sec > r.threshold AND coalesce(b.task = r.task, true)
    UNION ALL
    SELECT r.rule_id, r.kind, r.name, l.name, r.queue, NULL, l.sec,
           'a job has waited for the limit ' || l.name || ' for ' || round(l.sec) || ' s'
      FROM rules r CROSS JOIN LATERAL (
               SELECT n.name, extract(epoch FROM clock_timestamp() - min(first.since) FILTER (WHERE isfinite(first.since)))::float8 AS sec
                 FROM (SELECT name FROM limit_names WHERE name IS NOT NULL LIMIT 1000) n CROSS JOIN LATERAL (
                          SELECT greatest(j.created_at, j.available_at) AS since
                            FROM dl_jobs j
                           WHERE j.waits_on = n.name AND j.status = 'queued' AND j.wait_state = 'limited'
                             AND coalesce(j.queue = r.queue, true)
                           ORDER BY j.priority, j.created_at LIMIT 20) first
                GROUP BY n.name) l
     WHERE r.kind = 'limit_starved' AND l.sec > r.threshold
    UNION ALL
    SELECT r.rule_id, r.kind, r.name, s.name, r.queue, s.task, coalesce(late.sec, 0),
           'the schedule ' || s.name || CASE WHEN s.orphaned_at IS NOT NULL THEN ' is in no live worker''s code any more'
                                             WHEN s.error IS NOT NULL THEN ' makes no jobs: ' || s.error
                                             WHEN late.sec > r.threshold THEN ' is ' || round(late.sec) || ' s late'
                                             ELSE ' fired ' || replace(last.outcome, '_', ' ') || coalesce(': ' || last.detail, '') END
      FROM rules r CROSS JOIN dl_schedules s
           CROSS JOIN LATERAL (SELECT date_part('epoch', clock_timestamp()) - date_part('epoch', s.next_at) AS sec) late
           LEFT JOIN LATERAL (SELECT f.outcome, f.detail FROM dl_firings f
                               WHERE f.schedule_id = s.schedule_id ORDER BY f.fire_at DESC LIMIT 1) last ON true
     WHERE r.kind = 'schedule_late' AND s.paused_at IS NULL AND coalesce(s.task = r.task, true)
       AND (s.orphaned_at IS NOT NULL OR s.error IS NOT NULL OR late.sec > r.threshold OR last.outcome IN ('refused', 'late_skipped'))
    UNION ALL
    SELECT r.rule_id, r.kind, r.name, s.name, r.queue, s.task, live.jobs,
           live.jobs || ' jobs of the schedule ' || s.name || ' have not ended'
      FROM rules r CROSS JOIN LATERAL (
               SELECT j.schedule_id, count(*)::float8 AS jobs FROM dl_jobs j
                WHERE j.schedule_id IS NOT NULL AND j.status IN ('queued', 'running') AND coalesce(j.queue = r.queue, true)
                GROUP BY j.schedule_id) live
           JOIN dl_schedules s ON s.schedule_id = live.schedule_id
     WHERE r.kind = 'schedule_behind' AND live.jobs > r.threshold AND coalesce(s.task = r.task, true)
    UNION ALL
    SELECT r.rule_id, r.kind, r.name, c.task || ': ' || c.name, r.queue, c.task, c.count,
           'the check ' || c.name || ' of ' || c.task || ' ' || last.outcome || coalesce(': ' || last.detail, '')
      FROM rules r CROSS JOIN LATERAL (
               SELECT b.task, b.name, count(*)::float8 AS count
                 FROM (SELECT task, name FROM dl_checks
                        WHERE outcome <> 'passed' AND at > clock_timestamp() - make_interval(secs => r.window_sec)
                        ORDER BY at DESC LIMIT 10000) b
                WHERE coalesce(b.task = r.task, true)
                GROUP BY b.task, b.name) c
           CROSS JOIN LATERAL (SELECT l.outcome, l.detail FROM dl_checks l
                                WHERE l.task = c.task AND l.name = c.name ORDER BY l.at DESC, l.check_id DESC LIMIT 1) last
     WHERE r.kind = 'check_failed' AND c.count > r.threshold AND last.outcome <> 'passed'
    UNION ALL
    SELECT r.rule_id, r.kind, r.name, r.dataset, r.queue, NULL, late.sec,
           'the dataset ' || r.dataset
           || coalesce(' was last updated ' || round(extract(epoch FROM clock_timestamp() - last.at)) || ' s ago', ' has not been updated')
           || coalesce(', and an update was due by ' || r.by_time || ' ' || coalesce(r.zone, 'UTC'), '')
      FROM rules r
           CROSS JOIN LATERAL (SELECT max(e.at) AS at FROM dl_last_dataset_events(r.dataset) e WHERE e.kind = 'produced') last
           CROSS JOIN LATERAL (SELECT extract(epoch FROM coalesce(dl_last_deadline(r.by_time, coalesce(r.zone, 'UTC')), clock_timestamp())
                                                         - coalesce(last.at, r.created_at))::float8 AS sec) late
     WHERE r.kind = 'stale_dataset' AND late.sec > r.threshold
), new_alerts AS (
    INSERT INTO dl_alerts AS a (rule_id, kind, name, subject, queue, task, value, detail, sent_at)
    SELECT DISTINCT ON (rule_id, subject) rule_id, kind, name, subject, queue, task, value, detail,
           CASE WHEN (SELECT r.muted_until FROM rules r WHERE r.rule_id = broken.rule_id) > clock_timestamp() THEN NULL
                ELSE transaction_timestamp() END
      FROM broken
     ORDER BY rule_id, subject, value DESC
        ON CONFLICT (coalesce(rule_id, '00000000-0000-0000-0000-000000000000'), kind, subject) WHERE ended_at IS NULL
        DO UPDATE SET seen_at = clock_timestamp(), value = excluded.value, detail = excluded.detail,
                      sent_at = coalesce(a.sent_at, excluded.sent_at)
    RETURNING a.alert_id, a.xmax = 0 AS new, a.sent_at = transaction_timestamp() AS is_due
), ended_alerts AS (
    UPDATE dl_alerts a
       SET ended_at = clock_timestamp()
     WHERE a.ended_at IS NULL AND a.rule_id IS NOT NULL
       AND a.seen_at < clock_timestamp() - make_interval(secs => 1.5 * %(interval_sec)s::float8)
       AND NOT EXISTS (SELECT FROM broken b WHERE b.rule_id = a.rule_id AND b.subject = a.subject)
    RETURNING a.alert_id, a.sent_at
)
SELECT (SELECT count(*) FROM new_alerts WHERE new) AS fired,
       (SELECT count(*) FROM ended_alerts) AS resolved,
       (SELECT dl_create_alert_deliveries(array_agg(alert_id), 'alert.firing') FROM new_alerts WHERE is_due) AS fired_deliveries,
       (SELECT dl_create_alert_deliveries(array_agg(alert_id), 'alert.resolved') FROM ended_alerts
         WHERE sent_at IS NOT NULL) AS resolved_deliveries;

-- name: prune_alerts
DELETE FROM dl_alerts WHERE ended_at < clock_timestamp() - make_interval(secs => %(keep_sec)s::float8);

-- name: lock_alert
-- For an undo.
SELECT FROM dl_alerts WHERE alert_id = %(subject_id)s::uuid FOR NO KEY UPDATE;

-- name: lock_alert_rule
-- For an undo.
SELECT FROM dl_alert_rules WHERE rule_id = %(subject_id)s::uuid FOR NO KEY UPDATE;
