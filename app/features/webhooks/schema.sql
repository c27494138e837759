-- Receivers of events. A webhook without a queue or a task gets those of all.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE; none of readers
CREATE TABLE dl_webhooks (
    webhook_id       uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    url              text        NOT NULL,
    events           text[]      NOT NULL DEFAULT '{job.succeeded,job.failed,job.canceled,job.lost}',
    queue            text,
    task             text,
    description      text        NOT NULL DEFAULT '',
    secret           text        NOT NULL,
    format           text        NOT NULL DEFAULT 'json' CHECK (format IN ('json', 'slack', 'teams', 'google_chat', 'email')),
    -- After a rotation both secrets sign for a while, so that a receiver can change over at any time.
    old_secret       text,
    old_secret_until timestamptz,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    disabled_at      timestamptz,                         -- by an operator, or because it failed for too long
    disabled_reason  text,
    failures         int         NOT NULL DEFAULT 0,      -- in a row
    failing_since    timestamptz,
    paused_until     timestamptz                          -- the receiver is down
);

-- Deliveries, written in the transaction that made the event true. No foreign key to the job: they outlive it.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_deliveries (
    delivery_id      uuid        PRIMARY KEY DEFAULT gen_random_uuid(),  -- the same in each attempt
    webhook_id       uuid        REFERENCES dl_webhooks (webhook_id) ON DELETE CASCADE,
    url              text,                                               -- of a job's own webhook
    target           text        NOT NULL,                               -- deliveries of one target wait for each other
    job_id           uuid,
    event            text        NOT NULL,
    body             text        NOT NULL,
    state            text        NOT NULL DEFAULT 'pending',             -- pending, delivered, failed
    attempts         int         NOT NULL DEFAULT 0,
    earlier_attempts int         NOT NULL DEFAULT 0,                     -- those before it was last redelivered
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at           timestamptz DEFAULT clock_timestamp(),              -- while it is being sent: when the sender's lease ends
    claim_id         uuid,
    delivered_at     timestamptz,
    CONSTRAINT dl_deliveries_chk_url CHECK ((webhook_id IS NULL) <> (url IS NULL))
);
CREATE INDEX dl_deliveries_due_idx ON dl_deliveries (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX dl_deliveries_webhook_idx ON dl_deliveries (webhook_id, created_at, delivery_id);
CREATE INDEX dl_deliveries_created_idx ON dl_deliveries (created_at, delivery_id);
CREATE INDEX dl_deliveries_job_idx ON dl_deliveries (job_id);

-- rights of the service: SELECT, INSERT
CREATE TABLE dl_delivery_attempts (
    delivery_id uuid        NOT NULL REFERENCES dl_deliveries (delivery_id) ON DELETE CASCADE,
    number      int         NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    status      int,
    duration_ms float8      NOT NULL,
    answer      text        NOT NULL DEFAULT '',  -- the first bytes of the response
    error       text,
    PRIMARY KEY (delivery_id, number)
);

-- Create the deliveries for the present state of these jobs. Called by the statements that end an attempt or a wait, only
-- when there is a webhook: the test costs them nothing a job. The rows are read as those statements have left them.
CREATE OR REPLACE FUNCTION dl_create_deliveries(job_ids uuid[]) RETURNS bigint
    LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    written bigint;
BEGIN
    WITH changed AS (
        SELECT j.*, 'job.' || CASE j.status WHEN 'queued' THEN 'retrying' ELSE j.status::text END AS event
          FROM dl_jobs j
         WHERE j.job_id = ANY (job_ids)
           AND (j.status NOT IN ('queued', 'running') OR j.status = 'queued' AND j.error IS NOT NULL)
    ), receivers AS (
        SELECT t.job_id, w.webhook_id, NULL AS url, w.webhook_id::text AS target
          FROM changed t
               JOIN dl_webhooks w ON w.disabled_at IS NULL AND t.event = ANY (w.events)
                                     AND coalesce(w.queue = t.queue, true) AND coalesce(w.task = t.task, true)
        UNION ALL
        SELECT job_id, NULL, webhook ->> 'url', left(substring(webhook ->> 'url' FROM '^[^/]*//[^/?#]*'), 300)
          FROM changed
         WHERE webhook ->> 'url' LIKE 'http%//%'
           AND coalesce(webhook -> 'events' ? event, event <> 'job.retrying')
    )
    INSERT INTO dl_deliveries (webhook_id, url, target, job_id, event, body)
    SELECT receivers.webhook_id, receivers.url, receivers.target, t.job_id, t.event,
           jsonb_build_object(
               'type', t.event,
               'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'data', jsonb_build_object(
                   'job_id', t.job_id, 'queue', t.queue, 'task', t.task, 'status', t.status, 'attempt', t.attempt,
                   'max_attempts', t.max_attempts, 'lock_key', t.lock_key, 'partition_key', t.partition_key,
                   'idempotency_key', t.idempotency_key, 'producer', t.producer, 'consumer_group', t.consumer_group,
                   'created_at', t.created_at, 'started_at', t.started_at, 'finished_at', t.finished_at,
                   'available_at', CASE t.status WHEN 'queued' THEN t.available_at END,
                   'error', left(t.error, 2000), 'progress', dl_json_text_limited(t.progress, 65536)::jsonb,
                   'result', dl_json_text_limited(t.result, 65536)::jsonb))::text
      FROM receivers JOIN changed t USING (job_id);
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written > 0 THEN
        PERFORM pg_notify('dl_control', 'deliver');
    END IF;
    RETURN written;
END $$;

CREATE OR REPLACE TRIGGER dl_webhooks_audit AFTER INSERT OR UPDATE OR DELETE ON dl_webhooks
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('webhook', 'webhook_id', 'webhook_id,created_at,failures,failing_since,paused_until',
                                  'url,secret,old_secret');

CREATE OR REPLACE TRIGGER dl_deliveries_audit AFTER UPDATE OF earlier_attempts ON dl_deliveries
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('delivery', 'delivery_id', 'due_at,claim_id', 'url,body');

REVOKE EXECUTE ON FUNCTION
    dl_create_deliveries
  FROM PUBLIC;
