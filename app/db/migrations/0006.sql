-- Fairness between tenants, circuit breakers, debounced, throttled and expiring jobs.

ALTER TABLE dl_jobs
    ADD COLUMN fair_key text CHECK (octet_length(fair_key) <= 500),
    ADD COLUMN debounce_key text,
    ADD COLUMN throttle_key text,
    ADD COLUMN expires_at timestamptz,
    ADD COLUMN error_fingerprint text;

CREATE INDEX dl_jobs_fair_idx ON dl_jobs (queue, priority, fair_key, created_at, job_id)
    WHERE status = 'queued' AND wait_state = 'ready' AND fair_key IS NOT NULL;
CREATE UNIQUE INDEX dl_jobs_debounce_key_idx ON dl_jobs (debounce_key) WHERE status = 'queued' AND debounce_key IS NOT NULL;
CREATE UNIQUE INDEX dl_jobs_throttle_key_idx ON dl_jobs (throttle_key) WHERE throttle_key IS NOT NULL;
CREATE INDEX dl_jobs_expires_idx ON dl_jobs (expires_at) WHERE status = 'queued' AND expires_at IS NOT NULL;

ALTER TABLE dl_queues
    ADD COLUMN fair text CHECK (fair ~ '^(partition_key|producer|args(\.[^.]+)+)$' AND octet_length(fair) <= 200),
    ADD COLUMN share float8 CHECK (share > 0 AND share <= 1);

CREATE TABLE dl_fair_weights (
    queue    text NOT NULL,
    fair_key text NOT NULL CHECK (octet_length(fair_key) <= 500),
    weight   int  NOT NULL CHECK (weight BETWEEN 1 AND 1000),
    PRIMARY KEY (queue, fair_key)
);

CREATE TABLE dl_breakers (
    task          text        PRIMARY KEY CHECK (task <> '' AND octet_length(task) <= 1000),
    failures      int         CHECK (failures >= 1),
    window_sec    int         CHECK (window_sec >= 1),
    resume_sec    int         NOT NULL DEFAULT 300 CHECK (resume_sec >= 1),
    state         text        NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'half_open')),
    failed_in_row int         NOT NULL DEFAULT 0,
    failed_at     timestamptz,
    opened_at     timestamptz,
    pause_sec     int,
    probe_at      timestamptz,
    reason        text,
    is_declared   bool        NOT NULL DEFAULT false,
    changed_by    text,
    changed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

ALTER TABLE dl_alert_rules DROP CONSTRAINT dl_alert_rules_kind_check;
ALTER TABLE dl_alert_rules ADD CONSTRAINT dl_alert_rules_kind_check
    CHECK (kind IN ('failure_rate', 'no_success', 'queue_age', 'stalled', 'dead_worker', 'breaker_open', 'limit_starved'));

ALTER TABLE dl_bulk
    DROP CONSTRAINT dl_bulk_action_check,
    ADD CONSTRAINT dl_bulk_action_check CHECK (action IN ('cancel', 'retry', 'redrive', 'delete', 'reprioritise')),
    ADD COLUMN per_minute int CHECK (per_minute >= 1),
    ADD COLUMN max_jobs bigint CHECK (max_jobs >= 1),
    ADD COLUMN args_patch jsonb,
    ADD COLUMN next_step_at timestamptz;

ALTER TYPE dl_enqueue_request
    ADD ATTRIBUTE fair_key text,
    ADD ATTRIBUTE debounce jsonb,
    ADD ATTRIBUTE throttle jsonb,
    ADD ATTRIBUTE expires_at timestamptz,
    ADD ATTRIBUTE start_within_sec int;

-- dl_enqueue has more parameters. Who may execute the old one may execute the new one, which schema.sql replaces.
DO $$
DECLARE
    old     regprocedure := to_regprocedure('dl_enqueue(text, text, text, jsonb, text, text, int, timestamptz, int, int, text,'
                                            ' text, text, int, jsonb, uuid, jsonb, jsonb, text)');
    grantee regrole;
BEGIN
    IF old IS NULL THEN
        RETURN;
    END IF;
    CREATE FUNCTION dl_enqueue(
        queue text, task text, lock_key text, args jsonb, idempotency_key text, partition_key text, priority int,
        available_at timestamptz, max_attempts int, lease_ttl_sec int, producer text, consumer_group text, live_key text,
        time_limit_sec int, retry jsonb, parent_id uuid, limits jsonb, after jsonb, need text, fair_key text, debounce jsonb,
        throttle jsonb, expires_at timestamptz, start_within_sec int
    ) RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid';
    FOR grantee IN SELECT a.grantee FROM pg_proc p, aclexplode(p.proacl) a
                    WHERE p.oid = old AND a.privilege_type = 'EXECUTE' AND a.grantee <> 0 LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION dl_enqueue(text, text, text, jsonb, text, text, int, timestamptz, int, int,'
                       ' text, text, text, int, jsonb, uuid, jsonb, jsonb, text, text, jsonb, jsonb, timestamptz, int) TO %s',
                       grantee);
    END LOOP;
    EXECUTE format('DROP FUNCTION %s', old);
END $$;
