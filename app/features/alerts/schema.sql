-- Rules for alerts, checked every few seconds by the maintenance leader.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_alert_rules (
    rule_id     uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    name        text        NOT NULL UNIQUE,
    kind        text        NOT NULL CHECK (kind IN ('failure_rate', 'no_success', 'queue_age', 'stalled', 'dead_worker',
                                                          'breaker_open', 'limit_starved', 'schedule_late', 'schedule_behind',
                                                          'check_failed', 'stale_dataset')),
    queue       text,
    task        text,
    threshold   float8      NOT NULL CHECK (threshold >= 0),   -- a share of 1, or seconds
    window_sec  float8      NOT NULL CHECK (window_sec > 0),
    min_runs    int         NOT NULL DEFAULT 1 CHECK (min_runs > 0),
    active      bool        NOT NULL DEFAULT true,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    dataset     text,
    by_time     text        CHECK (by_time ~ '^([01][0-9]|2[0-3]):[0-5][0-9]$'),  -- of a dataset: when its update is due
    zone        text,                                                            -- of by_time; NULL: UTC
    muted_until timestamptz,                                                     -- until then its new alerts are not delivered
    muted_by    text
);

-- The last time at which the clock of the zone showed `by_time`. In a zone that the server does not know it is that of UTC: one
-- rule must not fail the check of all.
CREATE OR REPLACE FUNCTION dl_last_deadline(by_time text, zone text) RETURNS timestamptz
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    today date;
    due   timestamptz;
BEGIN
    today := (clock_timestamp() AT TIME ZONE zone)::date;
    due := (today + by_time::time) AT TIME ZONE zone;
    RETURN CASE WHEN due <= clock_timestamp() THEN due ELSE (today - 1 + by_time::time) AT TIME ZONE zone END;
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN dl_last_deadline(by_time, 'UTC');
END $$;

-- Alerts that fire or have fired, one row from start to end.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_alerts (
    alert_id   uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    rule_id    uuid,
    kind       text        NOT NULL,
    name       text        NOT NULL,
    subject    text        NOT NULL,  -- the task, queue, job or worker it is about
    queue      text,
    task       text,
    value      float8,
    detail     text        NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at   timestamptz,
    sent_at    timestamptz DEFAULT clock_timestamp(),  -- when its deliveries were created; NULL: its rule was muted
    acknowledged_at timestamptz,
    acknowledged_by text
);
CREATE UNIQUE INDEX dl_alerts_firing_idx
    ON dl_alerts (coalesce(rule_id, '00000000-0000-0000-0000-000000000000'), kind, subject) WHERE ended_at IS NULL;
CREATE INDEX dl_alerts_started_idx ON dl_alerts (started_at, alert_id);

-- Since when the progress of a running job has not changed, for rules of kind `stalled`.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_stalled_progress (
    job_id  uuid        PRIMARY KEY,
    run_id  uuid,
    digest  text        NOT NULL,
    since   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- A webhook of our format gets a delivery for each alert, one for people a delivery for all of them, with the first fifty.
CREATE OR REPLACE FUNCTION dl_create_alert_deliveries(alerts uuid[], event text) RETURNS bigint
    LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    written bigint;
BEGIN
    WITH due AS (
        SELECT w.webhook_id, w.format, a.name, a.started_at, a.alert_id,
               jsonb_build_object(
                   'alert_id', a.alert_id, 'rule_id', a.rule_id, 'kind', a.kind, 'name', a.name, 'subject', a.subject,
                   'queue', a.queue, 'task', a.task, 'value', a.value, 'detail', a.detail, 'started_at', a.started_at,
                   'ended_at', a.ended_at) AS data,
               row_number() OVER (PARTITION BY w.webhook_id ORDER BY a.name, a.started_at, a.alert_id) AS place
          FROM dl_alerts a
               JOIN dl_webhooks w ON w.disabled_at IS NULL AND dl_create_alert_deliveries.event = ANY (w.events)
                                     AND coalesce(w.queue = a.queue, true) AND coalesce(w.task = a.task, true)
         WHERE a.alert_id = ANY (alerts)
    ), bodies AS (
        SELECT webhook_id, data FROM due WHERE format = 'json'
        UNION ALL
        SELECT webhook_id, jsonb_build_object('count', count(*), 'alerts', jsonb_agg(data ORDER BY place) FILTER (WHERE place <= 50))
          FROM due WHERE format <> 'json' GROUP BY webhook_id
    )
    INSERT INTO dl_deliveries (webhook_id, target, event, body)
    SELECT webhook_id, webhook_id::text, dl_create_alert_deliveries.event,
           jsonb_build_object(
               'type', dl_create_alert_deliveries.event,
               'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'data', data)::text
      FROM bodies;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written > 0 THEN
        PERFORM pg_notify('dl_control', 'deliver');
    END IF;
    RETURN written;
END $$;

CREATE OR REPLACE TRIGGER dl_alert_rules_audit AFTER INSERT OR UPDATE OR DELETE ON dl_alert_rules
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('alert_rule', 'rule_id', 'rule_id,created_at', '');

CREATE OR REPLACE TRIGGER dl_alerts_audit AFTER UPDATE OF acknowledged_at ON dl_alerts
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('alert', 'alert_id', 'seen_at,value,detail', '');

REVOKE EXECUTE ON FUNCTION
    dl_create_alert_deliveries
  FROM PUBLIC;
