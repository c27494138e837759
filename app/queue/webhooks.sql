-- Who is told of what, and how the telling goes. What is to be told is written by dl_tell (schema.sql), in the transaction
-- of the statement that made it true.

-- name: add_webhook
INSERT INTO dl_webhooks (url, events, queue, task, description, secret)
VALUES (%(url)s::text, %(events)s::text[], %(queue)s::text, %(task)s::text, %(description)s::text, %(secret)s::text)
RETURNING webhook_id, url, events, queue, task, description, created_at, disabled_at, disabled_why, failures,
          failing_since, rest_until, old_secret_until;

-- name: webhooks
SELECT webhook_id, url, events, queue, task, description, created_at, disabled_at, disabled_why, failures,
       failing_since, rest_until, old_secret_until
  FROM dl_webhooks
 WHERE (%(webhook_id)s::uuid IS NULL OR webhook_id = %(webhook_id)s::uuid)
 ORDER BY created_at, webhook_id;

-- name: change_webhook
-- What is NULL stays. Switched on again it begins anew; a filter is taken away by the empty text.
WITH changed AS (
    UPDATE dl_webhooks
       SET url = coalesce(%(url)s::text, url),
           events = coalesce(%(events)s::text[], events),
           queue = nullif(coalesce(%(queue)s::text, queue), ''),
           task = nullif(coalesce(%(task)s::text, task), ''),
           description = coalesce(%(description)s::text, description),
           disabled_at = CASE %(active)s::bool WHEN true THEN NULL WHEN false THEN coalesce(disabled_at, clock_timestamp())
                              ELSE disabled_at END,
           disabled_why = CASE %(active)s::bool WHEN true THEN NULL WHEN false THEN coalesce(disabled_why, 'by hand')
                               ELSE disabled_why END,
           failures = CASE WHEN %(active)s::bool THEN 0 ELSE failures END,
           failing_since = CASE WHEN %(active)s::bool THEN NULL ELSE failing_since END,
           rest_until = CASE WHEN %(active)s::bool OR %(url)s::text IS NOT NULL THEN NULL ELSE rest_until END
     WHERE webhook_id = %(webhook_id)s::uuid
    RETURNING webhook_id, url, events, queue, task, description, created_at, disabled_at, disabled_why, failures,
              failing_since, rest_until, old_secret_until
), calm AS (
    UPDATE dl_alerts a
       SET ended_at = clock_timestamp()
      FROM changed
     WHERE changed.disabled_at IS NULL AND a.kind = 'webhook_disabled' AND a.subject = changed.webhook_id::text
       AND a.ended_at IS NULL
    RETURNING a.alert_id
), dropped AS (
    UPDATE dl_deliveries d
       SET state = 'given_up', due_at = NULL
      FROM changed
     WHERE changed.disabled_at IS NOT NULL AND d.webhook_id = changed.webhook_id AND d.due_at IS NOT NULL
)
SELECT changed.*, (SELECT dl_tell_alerts(array_agg(alert_id), 'alert.over') FROM calm) AS told FROM changed;

-- name: remove_webhook
WITH removed AS (
    DELETE FROM dl_webhooks WHERE webhook_id = %(webhook_id)s::uuid RETURNING webhook_id
), calm AS (
    UPDATE dl_alerts a
       SET ended_at = clock_timestamp()
      FROM removed
     WHERE a.kind = 'webhook_disabled' AND a.subject = removed.webhook_id::text AND a.ended_at IS NULL
    RETURNING a.alert_id
)
SELECT webhook_id, (SELECT dl_tell_alerts(array_agg(alert_id), 'alert.over') FROM calm) AS told FROM removed;

-- name: rotate_webhook_secret
-- The old secret goes on signing for a while, beside the new one.
UPDATE dl_webhooks
   SET old_secret = CASE WHEN %(overlap_sec)s::float8 > 0 THEN secret END,
       old_secret_until = CASE WHEN %(overlap_sec)s::float8 > 0
                               THEN clock_timestamp() + make_interval(secs => %(overlap_sec)s::float8) END,
       secret = %(secret)s::text
 WHERE webhook_id = %(webhook_id)s::uuid
RETURNING webhook_id, url, events, queue, task, description, created_at, disabled_at, disabled_why, failures,
          failing_since, rest_until, old_secret_until;

-- name: ping_webhook
-- Also for one that is disabled: how else to find out whether it may be switched on again.
WITH made AS (
    INSERT INTO dl_deliveries (webhook_id, target, event, body)
    SELECT webhook_id, webhook_id::text, 'webhook.ping',
           jsonb_build_object('type', 'webhook.ping',
                              'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                              'data', jsonb_build_object('webhook_id', webhook_id))::text
      FROM dl_webhooks
     WHERE webhook_id = %(webhook_id)s::uuid
    RETURNING delivery_id
)
SELECT delivery_id, pg_notify('dl_control', 'deliver') AS rung FROM made;

-- name: take_deliveries
-- waiting -> being sent: what is due, of each receiver a few at most, so that one that hangs holds up no other. `busy`:
-- receivers that have enough on their hands here; `half_busy`: those that can take one less. Whoever takes one has `lease_sec` to say how it went; then it is due
-- again. One row with no delivery_id: nothing was taken; `due_in` seconds until the next may be.
WITH due AS (
    SELECT d.delivery_id, d.target, d.due_at
      FROM dl_deliveries d LEFT JOIN dl_webhooks w ON w.webhook_id = d.webhook_id
     WHERE d.due_at <= (SELECT clock_timestamp()) AND d.target <> ALL (%(busy)s::text[])
       AND coalesce(w.rest_until <= clock_timestamp(), true)
     ORDER BY d.due_at
     LIMIT 500
), turns AS (
    SELECT delivery_id, due_at, row_number() OVER (PARTITION BY target ORDER BY due_at, delivery_id)
                                + CASE WHEN target = ANY (%(half_busy)s::text[]) THEN 1 ELSE 0 END AS n
      FROM due
), first AS (
    SELECT d.delivery_id
      FROM dl_deliveries d JOIN turns ON turns.delivery_id = d.delivery_id AND turns.n <= %(of_each)s::int
     WHERE d.due_at <= clock_timestamp()
     ORDER BY turns.due_at, d.delivery_id
     LIMIT %(most)s::int
       FOR NO KEY UPDATE OF d SKIP LOCKED
), taken AS (
    UPDATE dl_deliveries d
       SET tries = d.tries + 1, claim_id = %(claim_id)s::uuid,
           due_at = clock_timestamp() + make_interval(secs => %(lease_sec)s::float8)
      FROM first
     WHERE d.delivery_id = first.delivery_id
    RETURNING d.delivery_id, d.webhook_id, d.url, d.target, d.job_id, d.event, d.body, d.tries, d.first_try
)
SELECT t.delivery_id, t.webhook_id, coalesce(t.url, w.url) AS url, t.target, t.job_id, t.event, t.body, t.tries, t.first_try,
       w.secret, CASE WHEN w.old_secret_until > clock_timestamp() THEN w.old_secret END AS old_secret,
       extract(epoch FROM clock_timestamp())::bigint AS now,
       (SELECT extract(epoch FROM min(due_at) - clock_timestamp())::float8
          FROM dl_deliveries WHERE due_at > (SELECT clock_timestamp())) AS due_in
  FROM (VALUES (1)) AS always (one)
       LEFT JOIN taken t ON true
       LEFT JOIN dl_webhooks w ON w.webhook_id = t.webhook_id;

-- name: note_delivery
-- How a try went: delivered, given up, or to be tried again after a pause. What was taken over meanwhile by another keeps
-- its state; the try is in the log all the same. A receiver that failed rests for a while; one that answers again has
-- never failed.
WITH logged AS (
    INSERT INTO dl_delivery_tries (delivery_id, n, status, duration_ms, answer, error)
    SELECT %(delivery_id)s::uuid, %(n)s::int, %(status)s::int, %(duration_ms)s::float8, %(answer)s::text, %(error)s::text
      FROM dl_deliveries
     WHERE delivery_id = %(delivery_id)s::uuid
        ON CONFLICT DO NOTHING
), noted AS (
    UPDATE dl_deliveries
       SET state = %(state)s::text, claim_id = NULL,
           due_at = CASE %(state)s::text WHEN 'waiting'
                         THEN clock_timestamp() + make_interval(secs => %(pause_sec)s::float8) END,
           delivered_at = CASE %(state)s::text WHEN 'delivered' THEN clock_timestamp() END
     WHERE delivery_id = %(delivery_id)s::uuid AND claim_id = %(claim_id)s::uuid
    RETURNING delivery_id
), well AS (
    UPDATE dl_webhooks
       SET failures = 0, failing_since = NULL, rest_until = NULL
     WHERE webhook_id = %(webhook_id)s::uuid AND %(state)s::text = 'delivered' AND failures > 0
), ill AS (
    UPDATE dl_webhooks
       SET failures = failures + 1, failing_since = coalesce(failing_since, clock_timestamp()),
           rest_until = CASE WHEN %(down)s::bool
                             THEN clock_timestamp() + make_interval(secs => least(300, 2.5 * 2 ^ least(failures + 1, 10)))
                             ELSE rest_until END
     WHERE webhook_id = %(webhook_id)s::uuid AND %(state)s::text <> 'delivered'
)
SELECT delivery_id FROM noted;

-- name: disable_webhook
-- It has failed for too long, or said that it is gone: nothing is written for it any more, what waits is given up, and
-- an alert tells of it through the others.
WITH tired AS (
    UPDATE dl_webhooks
       SET disabled_at = clock_timestamp(), disabled_why = %(why)s::text
     WHERE webhook_id = %(webhook_id)s::uuid AND disabled_at IS NULL
       AND (%(at_once)s::bool
            OR failures >= 10 AND failing_since < clock_timestamp() - make_interval(secs => %(patience_sec)s::float8))
    RETURNING webhook_id, url, disabled_why
), dropped AS (
    UPDATE dl_deliveries d
       SET state = 'given_up', due_at = NULL
      FROM tired
     WHERE d.webhook_id = tired.webhook_id AND d.due_at IS NOT NULL
), raised AS (
    INSERT INTO dl_alerts (kind, name, subject, detail)
    SELECT 'webhook_disabled', 'webhook disabled', webhook_id::text,
           'the webhook to ' || substring(url FROM '^[^/]*//([^/?#]*)') || ' is disabled: ' || disabled_why
      FROM tired
        ON CONFLICT DO NOTHING
    RETURNING alert_id
)
SELECT dl_tell_alerts(array_agg(alert_id), 'alert.firing') AS told, (SELECT count(*) FROM tired) AS disabled FROM raised;

-- name: deliveries
-- Newest first, from before the one that was shown last.
SELECT d.delivery_id, d.webhook_id, coalesce(d.url, w.url) AS url, d.job_id, d.event, d.state, d.tries, d.created_at, d.due_at,
       d.delivered_at, last.status, last.error, d.body
  FROM dl_deliveries d
       LEFT JOIN dl_webhooks w ON w.webhook_id = d.webhook_id
       LEFT JOIN LATERAL (SELECT status, error FROM dl_delivery_tries t
                           WHERE t.delivery_id = d.delivery_id ORDER BY n DESC LIMIT 1) last ON true
 WHERE (%(delivery_id)s::uuid IS NULL OR d.delivery_id = %(delivery_id)s::uuid)
   AND (%(webhook_id)s::uuid IS NULL OR d.webhook_id = %(webhook_id)s::uuid)
   AND (%(job_id)s::uuid IS NULL OR d.job_id = %(job_id)s::uuid)
   AND (%(state)s::text IS NULL OR d.state = %(state)s::text)
   AND (%(before)s::uuid IS NULL
        OR (d.created_at, d.delivery_id) < (SELECT b.created_at, b.delivery_id FROM dl_deliveries b
                                             WHERE b.delivery_id = %(before)s::uuid))
 ORDER BY d.created_at DESC, d.delivery_id DESC
 LIMIT %(limit)s::int;

-- name: delivery_tries
SELECT n, at, status, duration_ms, answer, error
  FROM dl_delivery_tries
 WHERE delivery_id = %(delivery_id)s::uuid
 ORDER BY n;

-- name: redeliver
-- Once more, with a fresh day of tries and the same id. One that is just being sent is sent again when that has ended.
WITH again AS (
    UPDATE dl_deliveries
       SET state = 'waiting', due_at = clock_timestamp(), claim_id = NULL, first_try = tries, delivered_at = NULL
     WHERE delivery_id = %(delivery_id)s::uuid
    RETURNING delivery_id, webhook_id
), rested AS (
    UPDATE dl_webhooks w SET rest_until = NULL FROM again WHERE w.webhook_id = again.webhook_id AND w.rest_until IS NOT NULL
)
SELECT delivery_id, pg_notify('dl_control', 'deliver') AS rung FROM again;

-- name: prune_deliveries
-- Those that are over and old, a few at a time, by one process at a time.
WITH old AS MATERIALIZED (
    SELECT delivery_id
      FROM (SELECT delivery_id, created_at, due_at FROM dl_deliveries ORDER BY created_at LIMIT %(most)s::int) oldest
     WHERE due_at IS NULL AND created_at < (SELECT clock_timestamp()) - make_interval(secs => %(keep_sec)s::float8)
       AND (SELECT pg_try_advisory_xact_lock(1684828530, 0))
)
DELETE FROM dl_deliveries WHERE delivery_id IN (SELECT delivery_id FROM old) RETURNING delivery_id;

-- name: webhook_backlog
-- How many deliveries wait, how many of them have failed before, since when the oldest could have gone, and how many
-- webhooks are disabled. A backlog is counted up to a bound.
SELECT count(*), count(*) FILTER (WHERE tries > first_try),
       coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8,
       (SELECT count(*) FROM dl_webhooks WHERE disabled_at IS NOT NULL)
  FROM (SELECT tries, first_try, created_at FROM dl_deliveries WHERE due_at IS NOT NULL LIMIT 10000) waiting;
