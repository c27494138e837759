-- Alerts: rules are muted, firing alerts acknowledged.

ALTER TABLE dl_alert_rules
    ADD COLUMN muted_until timestamptz,
    ADD COLUMN muted_by text;
ALTER TABLE dl_alerts
    ADD COLUMN sent_at timestamptz DEFAULT clock_timestamp(),
    ADD COLUMN acknowledged_at timestamptz,
    ADD COLUMN acknowledged_by text;

-- Audit: changes are read without the triggers of jobs between them.

CREATE INDEX dl_audit_changes_idx ON dl_audit (audit_id) WHERE subject <> 'job' OR before IS NOT NULL OR after IS NULL;

-- Job logs: how many lines a note says were left out.

ALTER TABLE dl_job_logs ADD COLUMN dropped int;

-- Jobs: all jobs of a lock key are found, of whatever age.

-- An operator class of its own, so that no claim sorts by this index: a plan made on an empty table did, and read all jobs.
CREATE INDEX dl_jobs_lock_key_idx ON dl_jobs (lock_key text_pattern_ops, job_id);

-- Offloads: what jobs gave to other engines.

CREATE TABLE dl_offloads (
    name                text        NOT NULL PRIMARY KEY,
    job_id              uuid        NOT NULL,
    run_id              uuid        NOT NULL,  -- that submitted it
    call                text        NOT NULL,  -- its number among the job's calls, or its key
    number              int         NOT NULL,  -- of the submissions of this call
    engine              text        NOT NULL,
    address             text        NOT NULL DEFAULT '',
    fingerprint         text        NOT NULL,  -- of code and arguments
    fence_token         text        NOT NULL,  -- what the remote code proves itself with
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    deadline_at         timestamptz,
    engine_timeout_sec  float8      NOT NULL DEFAULT 900,
    stop_on_shutdown    bool        NOT NULL DEFAULT false,
    is_abandoned        bool        NOT NULL DEFAULT false,  -- its stop is not waited for
    grace_sec           float8      NOT NULL DEFAULT 30,
    is_awaited          bool        NOT NULL DEFAULT false,  -- its job waits for it without a thread
    awaited_since       timestamptz,
    next_poll_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    unavailable_since   timestamptz,  -- the engine does not answer
    log_position        text        NOT NULL DEFAULT '',
    stop_requested_at   timestamptz,
    ended_at            timestamptz,
    outcome             text        CHECK (outcome IN ('succeeded', 'failed', 'stopped', 'abandoned')),
    UNIQUE (job_id, call, number),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
);

CREATE INDEX dl_offloads_open_idx ON dl_offloads (next_poll_at) WHERE ended_at IS NULL;
CREATE INDEX dl_offloads_ended_idx ON dl_offloads (ended_at) WHERE ended_at IS NOT NULL;

-- Schedules: the calendar reads the first firings of each day.
CREATE INDEX dl_firings_fire_idx ON dl_firings (fire_at);

-- Workers: labels, and the tasks that a process leaves to others for want of them.

ALTER TABLE dl_workers
    ADD COLUMN labels jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN unserved_tasks jsonb NOT NULL DEFAULT '{}';
-- Heartbeats would have new statistics taken each minute, and every session plan its claims again.
ALTER TABLE dl_workers SET (autovacuum_analyze_threshold = 100000);
