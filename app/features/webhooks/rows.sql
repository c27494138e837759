-- Webhooks and their deliveries. dl_create_deliveries (schema.sql) creates deliveries, in the transaction of the statement
-- that caused the event.

-- define: webhook_columns
       webhook_id, url, events, queue, task, description, disabled_at IS NULL AS active, created_at, disabled_at,
       disabled_reason, failures, failing_since, paused_until, old_secret_until, format

-- name: add_webhook
-- No row: there is one with this id.
INSERT INTO dl_webhooks (webhook_id, url, events, queue, task, description, secret, format)
VALUES (%(webhook_id)s::uuid, %(url)s::text, %(events)s::text[], %(queue)s::text, %(task)s::text, %(description)s::text,
        %(secret)s::text, %(format)s::text)
    ON CONFLICT (webhook_id) DO NOTHING
RETURNING
       -- include: webhook_columns;

-- name: webhooks
SELECT
       -- include: webhook_columns
  FROM dl_webhooks
 WHERE (%(webhook_id)s::uuid IS NULL OR webhook_id = %(webhook_id)s::uuid)
 ORDER BY created_at, webhook_id;

-- name: change_webhook
-- A parameter that is NULL leaves its column unchanged; an empty text removes a filter. Activating a webhook resets its
-- failures.
WITH changed AS (
    UPDATE dl_webhooks
       SET url = coalesce(%(url)s::text, url),
           format = coalesce(%(format)s::text, format),
           events = coalesce(%(events)s::text[], events),
           queue = nullif(coalesce(%(queue)s::text, queue), ''),
           task = nullif(coalesce(%(task)s::text, task), ''),
           description = coalesce(%(description)s::text, description),
           disabled_at = CASE %(active)s::bool WHEN true THEN NULL WHEN false THEN coalesce(disabled_at, clock_timestamp())
                              ELSE disabled_at END,
           disabled_reason = CASE %(active)s::bool WHEN true THEN NULL WHEN false THEN coalesce(disabled_reason, 'by hand')
                               ELSE disabled_reason END,
           failures = CASE WHEN %(active)s::bool THEN 0 ELSE failures END,
           failing_since = CASE WHEN %(active)s::bool THEN NULL ELSE failing_since END,
           paused_until = CASE WHEN %(active)s::bool OR %(url)s::text IS NOT NULL THEN NULL ELSE paused_until END
     WHERE webhook_id = %(webhook_id)s::uuid
    RETURNING
       -- include: webhook_columns
), resolved AS (
    UPDATE dl_alerts a
       SET ended_at = clock_timestamp()
      FROM changed
     WHERE changed.disabled_at IS NULL AND a.kind = 'webhook_disabled' AND a.subject = changed.webhook_id::text
       AND a.ended_at IS NULL
    RETURNING a.alert_id
), failed_deliveries AS (
    UPDATE dl_deliveries d
       SET state = 'failed', due_at = NULL
      FROM changed
     WHERE changed.disabled_at IS NOT NULL AND d.webhook_id = changed.webhook_id AND d.due_at IS NOT NULL
)
SELECT changed.*, (SELECT dl_create_alert_deliveries(array_agg(alert_id), 'alert.resolved') FROM resolved) AS deliveries FROM changed;

-- name: remove_webhook
WITH removed AS (
    DELETE FROM dl_webhooks WHERE webhook_id = %(webhook_id)s::uuid RETURNING webhook_id
), resolved AS (
    UPDATE dl_alerts a
       SET ended_at = clock_timestamp()
      FROM removed
     WHERE a.kind = 'webhook_disabled' AND a.subject = removed.webhook_id::text AND a.ended_at IS NULL
    RETURNING a.alert_id
)
SELECT webhook_id, (SELECT dl_create_alert_deliveries(array_agg(alert_id), 'alert.resolved') FROM resolved) AS deliveries FROM removed;

-- name: rotate_webhook_secret
-- For `overlap_sec`, deliveries are signed with both the old and the new secret.
UPDATE dl_webhooks
   SET old_secret = CASE WHEN %(overlap_sec)s::float8 > 0 THEN secret END,
       old_secret_until = CASE WHEN %(overlap_sec)s::float8 > 0
                               THEN clock_timestamp() + make_interval(secs => %(overlap_sec)s::float8) END,
       secret = %(secret)s::text
 WHERE webhook_id = %(webhook_id)s::uuid
RETURNING
       -- include: webhook_columns;

-- name: ping_webhooks
-- A test delivery to a webhook, also for a disabled one, so that it can be tested before it is activated; without an id to each that
-- gets alerts.
WITH created AS (
    INSERT INTO dl_deliveries (webhook_id, target, event, body)
    SELECT webhook_id, webhook_id::text, 'webhook.ping',
           jsonb_build_object('type', 'webhook.ping',
                              'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                              'data', jsonb_build_object('webhook_id', webhook_id))::text
      FROM dl_webhooks
     WHERE CASE WHEN %(webhook_id)s::uuid IS NULL THEN disabled_at IS NULL AND 'alert.firing' = ANY (events)
                ELSE webhook_id = %(webhook_id)s::uuid END
    RETURNING delivery_id
)
SELECT delivery_id, pg_notify('dl_control', 'deliver') AS notified FROM created;

-- name: last_deliveries
-- The last delivery of each webhook that gets alerts.
SELECT last.*
  FROM dl_webhooks w
       CROSS JOIN LATERAL (SELECT d.webhook_id, d.delivery_id, d.event, d.state, d.created_at FROM dl_deliveries d
                            WHERE d.webhook_id = w.webhook_id ORDER BY d.created_at DESC, d.delivery_id DESC LIMIT 1) last
 WHERE 'alert.firing' = ANY (w.events);

-- name: lease_deliveries
-- prepared
-- Lease due deliveries, at most `max_per_target` of each receiver, so that one that hangs delays no other. `busy`: receivers
-- to skip; `half_busy`: receivers that get one delivery less. The result must be saved within `lease_sec`; then the delivery
-- is due redelivered. One row without a delivery_id: nothing was leased. `due_in`: seconds until the next delivery may be due,
-- or the pause of a receiver ends.
WITH due AS (
    SELECT d.delivery_id, d.target, d.due_at
      FROM dl_deliveries d LEFT JOIN dl_webhooks w ON w.webhook_id = d.webhook_id
     WHERE d.due_at <= (SELECT clock_timestamp()) AND d.target <> ALL (%(busy)s::text[])
       AND coalesce(w.paused_until <= clock_timestamp(), true)
     ORDER BY d.due_at
     LIMIT 500
), ranked AS (
    SELECT delivery_id, due_at, row_number() OVER (PARTITION BY target ORDER BY due_at, delivery_id)
                                + CASE WHEN target = ANY (%(half_busy)s::text[]) THEN 1 ELSE 0 END AS n
      FROM due
), first AS (
    SELECT d.delivery_id
      FROM dl_deliveries d JOIN ranked ON ranked.delivery_id = d.delivery_id AND ranked.n <= %(max_per_target)s::int
     WHERE d.due_at <= clock_timestamp()
     ORDER BY ranked.due_at, d.delivery_id
     LIMIT %(limit)s::int
       FOR NO KEY UPDATE OF d SKIP LOCKED
), leased AS (
    UPDATE dl_deliveries d
       SET attempts = d.attempts + 1, claim_id = %(claim_id)s::uuid,
           due_at = clock_timestamp() + make_interval(secs => %(lease_sec)s::float8)
      FROM first
     WHERE d.delivery_id = first.delivery_id
    RETURNING d.delivery_id, d.webhook_id, d.url, d.target, d.job_id, d.event, d.body, d.attempts, d.earlier_attempts
)
SELECT t.delivery_id, t.webhook_id, coalesce(t.url, w.url) AS url, t.target, t.job_id, t.event, t.body, t.attempts, t.earlier_attempts,
       coalesce(w.format, 'json') AS format,
       array_remove(ARRAY[w.secret, CASE WHEN w.old_secret_until > clock_timestamp() THEN w.old_secret END], NULL) AS secrets,
       extract(epoch FROM clock_timestamp())::bigint AS now,
       extract(epoch FROM least((SELECT min(due_at) FROM dl_deliveries WHERE due_at > (SELECT clock_timestamp())),
                                (SELECT min(paused_until) FROM dl_webhooks WHERE paused_until > clock_timestamp()))
                          - clock_timestamp())::float8 AS due_in
  FROM (VALUES (1)) AS single (n)
       LEFT JOIN leased t ON true
       LEFT JOIN dl_webhooks w ON w.webhook_id = t.webhook_id;

-- name: save_delivery_result
-- Save the result of an attempt: delivered, failed, or pending after a pause. If another sender has leased the delivery
-- since, only the attempt is recorded. A receiver that is down is paused; a success resets the failures.
WITH logged AS (
    INSERT INTO dl_delivery_attempts (delivery_id, number, status, duration_ms, answer, error)
    SELECT %(delivery_id)s::uuid, %(number)s::int, %(status)s::int, %(duration_ms)s::float8, %(response)s::text, %(error)s::text
      FROM dl_deliveries
     WHERE delivery_id = %(delivery_id)s::uuid
        ON CONFLICT DO NOTHING
), saved AS (
    UPDATE dl_deliveries
       SET state = %(state)s::text, claim_id = NULL,
           due_at = CASE %(state)s::text WHEN 'pending'
                         THEN clock_timestamp() + make_interval(secs => %(retry_in_sec)s::float8) END,
           delivered_at = CASE %(state)s::text WHEN 'delivered' THEN clock_timestamp() END
     WHERE delivery_id = %(delivery_id)s::uuid AND claim_id = %(claim_id)s::uuid
    RETURNING delivery_id
), recovered AS (
    UPDATE dl_webhooks
       SET failures = 0, failing_since = NULL, paused_until = NULL
     WHERE webhook_id = %(webhook_id)s::uuid AND %(state)s::text = 'delivered' AND failures > 0
), failing AS (
    UPDATE dl_webhooks
       SET failures = failures + 1, failing_since = coalesce(failing_since, clock_timestamp()),
           paused_until = CASE WHEN %(receiver_down)s::bool
                             THEN clock_timestamp() + make_interval(secs => least(300, 2.5 * 2 ^ least(failures + 1, 10)))
                             ELSE paused_until END
     WHERE webhook_id = %(webhook_id)s::uuid AND %(state)s::text <> 'delivered'
)
SELECT delivery_id FROM saved;

-- name: disable_webhook
-- Disable a webhook that has failed for too long, or whose receiver is gone: its pending deliveries fail, and an alert is
-- fired, which the other webhooks deliver.
WITH disabled AS (
    UPDATE dl_webhooks
       SET disabled_at = clock_timestamp(), disabled_reason = %(reason)s::text
     WHERE webhook_id = %(webhook_id)s::uuid AND disabled_at IS NULL
       AND (%(immediately)s::bool
            OR failures >= 10 AND failing_since < clock_timestamp() - make_interval(secs => %(failing_for_sec)s::float8))
    RETURNING webhook_id, url, disabled_reason
), failed_deliveries AS (
    UPDATE dl_deliveries d
       SET state = 'failed', due_at = NULL
      FROM disabled
     WHERE d.webhook_id = disabled.webhook_id AND d.due_at IS NOT NULL
), fired AS (
    INSERT INTO dl_alerts (kind, name, subject, detail)
    SELECT 'webhook_disabled', 'webhook disabled', webhook_id::text,
           'the webhook to ' || coalesce(substring(url FROM '^[^/]*//([^/?#]*)'), url) || ' is disabled: ' || disabled_reason
      FROM disabled
        ON CONFLICT DO NOTHING
    RETURNING alert_id
)
SELECT dl_create_alert_deliveries(array_agg(alert_id), 'alert.firing') AS deliveries, (SELECT count(*) FROM disabled) AS disabled FROM fired;

-- name: deliveries
-- Newest first; `before` is the last delivery of the previous page. A paused receiver gets nothing before the end of its pause.
SELECT d.delivery_id, d.webhook_id, coalesce(d.url, w.url) AS url, coalesce(w.format, 'json') AS format, d.job_id, d.event, d.state,
       d.attempts, d.created_at,
       CASE WHEN d.due_at IS NOT NULL THEN greatest(d.due_at, w.paused_until) END AS next_attempt_at,
       d.delivered_at, last.status, last.error, d.body
  FROM dl_deliveries d
       LEFT JOIN dl_webhooks w ON w.webhook_id = d.webhook_id
       LEFT JOIN LATERAL (SELECT status, error FROM dl_delivery_attempts t
                           WHERE t.delivery_id = d.delivery_id ORDER BY number DESC LIMIT 1) last ON true
 WHERE (%(delivery_id)s::uuid IS NULL OR d.delivery_id = %(delivery_id)s::uuid)
   AND (%(webhook_id)s::uuid IS NULL OR d.webhook_id = %(webhook_id)s::uuid)
   AND (%(job_id)s::uuid IS NULL OR d.job_id = %(job_id)s::uuid)
   AND (%(state)s::text IS NULL OR d.state = %(state)s::text)
   AND (%(before)s::uuid IS NULL
        OR (d.created_at, d.delivery_id) < (SELECT b.created_at, b.delivery_id FROM dl_deliveries b
                                             WHERE b.delivery_id = %(before)s::uuid))
 ORDER BY d.created_at DESC, d.delivery_id DESC
 LIMIT %(limit)s::int;

-- name: delivery_attempts
SELECT number, at, status, duration_ms, answer, error
  FROM dl_delivery_attempts
 WHERE delivery_id = %(delivery_id)s::uuid
 ORDER BY number;

-- name: redeliver
-- Send a delivery again under the same id, with all its attempts. One that is being sent is sent again afterwards.
WITH redelivered AS (
    UPDATE dl_deliveries
       SET state = 'pending', due_at = clock_timestamp(), claim_id = NULL, earlier_attempts = attempts, delivered_at = NULL
     WHERE delivery_id = %(delivery_id)s::uuid
    RETURNING delivery_id, webhook_id
), resumed AS (
    UPDATE dl_webhooks w SET paused_until = NULL FROM redelivered WHERE w.webhook_id = redelivered.webhook_id AND w.paused_until IS NOT NULL
)
SELECT delivery_id, pg_notify('dl_control', 'deliver') AS notified FROM redelivered;

-- name: redeliver_undelivered
-- The same for the oldest deliveries of a webhook that were not delivered. No row: there is no such webhook.
WITH undelivered AS (
    SELECT delivery_id FROM dl_deliveries
     WHERE webhook_id = %(webhook_id)s::uuid AND state <> 'delivered'
     ORDER BY created_at, delivery_id
     LIMIT %(limit)s::int
), redelivered AS (
    UPDATE dl_deliveries d
       SET state = 'pending', due_at = clock_timestamp(), claim_id = NULL, earlier_attempts = attempts
      FROM undelivered
     WHERE d.delivery_id = undelivered.delivery_id
    RETURNING d.delivery_id
), resumed AS (
    UPDATE dl_webhooks SET paused_until = NULL WHERE webhook_id = %(webhook_id)s::uuid AND paused_until IS NOT NULL
)
SELECT (SELECT count(*) FROM redelivered), pg_notify('dl_control', 'deliver') FROM dl_webhooks WHERE webhook_id = %(webhook_id)s::uuid;

-- name: prune_deliveries
-- Delete old finished deliveries in batches; an advisory lock lets one process do so at a time.
WITH old AS MATERIALIZED (
    SELECT delivery_id
      FROM (SELECT delivery_id, created_at, due_at FROM dl_deliveries ORDER BY created_at LIMIT %(limit)s::int) oldest
     WHERE due_at IS NULL AND created_at < (SELECT clock_timestamp()) - make_interval(secs => %(keep_sec)s::float8)
       AND (SELECT pg_try_advisory_xact_lock(1684828530, 0))
)
DELETE FROM dl_deliveries WHERE delivery_id IN (SELECT delivery_id FROM old) RETURNING delivery_id;

-- name: webhook_backlog
-- The number of pending deliveries (up to a limit), how many of them failed before, the age of the oldest, and the number of
-- disabled webhooks.
SELECT count(*), count(*) FILTER (WHERE attempts > earlier_attempts),
       coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8,
       (SELECT count(*) FROM dl_webhooks WHERE disabled_at IS NOT NULL)
  FROM (SELECT attempts, earlier_attempts, created_at FROM dl_deliveries WHERE due_at IS NOT NULL LIMIT 10000) pending;
