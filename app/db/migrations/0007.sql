-- Schedules, backfills, slices, data checks, datasets and lineage.

ALTER TABLE dl_jobs
    ADD COLUMN schedule_id uuid,
    ADD COLUMN backfill_id uuid,
    ADD COLUMN logical_at timestamptz,
    ADD COLUMN interval_start timestamptz,
    ADD COLUMN interval_end timestamptz,
    ADD COLUMN warnings int;

CREATE INDEX dl_jobs_schedule_idx ON dl_jobs (schedule_id, logical_at) WHERE schedule_id IS NOT NULL AND status IN ('queued', 'running');
CREATE INDEX dl_jobs_backfill_idx ON dl_jobs (backfill_id) WHERE backfill_id IS NOT NULL AND status IN ('queued', 'running');
CREATE INDEX dl_jobs_slice_idx ON dl_jobs (task, partition_key, created_at) WHERE live_key LIKE 'slice:%';

ALTER TABLE dl_workers ADD COLUMN schedules text[] NOT NULL DEFAULT '{}';

CREATE INDEX dl_limits_unnamed_idx ON dl_limits (name) WHERE starts_with(name, 'queue:') OR starts_with(name, 'task:');

CREATE TABLE dl_schedules (
    schedule_id     uuid        PRIMARY KEY DEFAULT dl_new_id(),
    name            text        NOT NULL UNIQUE CHECK (name <> '' AND octet_length(name) <= 200),
    source          text        NOT NULL CHECK (source IN ('code', 'people')),
    task            text        NOT NULL CHECK (task <> '' AND octet_length(task) <= 1000),
    declared        jsonb       NOT NULL DEFAULT '{}',
    overrides       jsonb       NOT NULL DEFAULT '{}',
    declared_at     timestamptz,
    seen_at         timestamptz,
    orphaned_at     timestamptz,
    paused_at       timestamptz,
    paused_by       text,
    paused_reason   text,
    version         int         NOT NULL DEFAULT 1,
    last_at         timestamptz,
    next_at         timestamptz,
    error           text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by      text,
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dl_schedules_next_idx ON dl_schedules (next_at) WHERE paused_at IS NULL AND orphaned_at IS NULL;

CREATE TABLE dl_firings (
    schedule_id uuid        NOT NULL REFERENCES dl_schedules ON DELETE CASCADE,
    fire_at     timestamptz NOT NULL,
    due_at      timestamptz NOT NULL,
    outcome     text        NOT NULL CHECK (outcome IN ('made', 'exists', 'late_skipped', 'overlap_skipped', 'paused_skipped', 'refused')),
    until       timestamptz,
    job_id      uuid,
    made_by     text        NOT NULL CHECK (made_by IN ('clock', 'person', 'dataset')),
    detail      text,
    made_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (schedule_id, fire_at)
);
CREATE INDEX dl_firings_made_idx ON dl_firings (made_at);

CREATE TABLE dl_dataset_updates (
    update_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id uuid        NOT NULL REFERENCES dl_schedules ON DELETE CASCADE,
    dataset     text        NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dl_dataset_updates_schedule_idx ON dl_dataset_updates (schedule_id, dataset);
CREATE INDEX dl_schedules_after_idx ON dl_schedules USING gin (coalesce(overrides -> 'after', declared -> 'after'))
    WHERE coalesce(overrides -> 'after', declared -> 'after') IS NOT NULL;

CREATE TABLE dl_backfills (
    backfill_id         uuid        PRIMARY KEY DEFAULT dl_new_id(),
    task                text        NOT NULL CHECK (task <> '' AND octet_length(task) <= 1000),
    queue               text        NOT NULL CHECK (queue <> '' AND octet_length(queue) <= 1000),
    slices              jsonb       NOT NULL,
    mode                text        NOT NULL CHECK (mode IN ('missing', 'failed', 'unfinished', 'all')),
    newest_first        bool        NOT NULL,
    concurrency         int         NOT NULL CHECK (concurrency >= 1),
    template            jsonb       NOT NULL,
    stop_after_failures int         CHECK (stop_after_failures >= 1),
    state               text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'paused', 'canceled', 'done')),
    reason              text,
    cursor              text,
    total               int         NOT NULL,
    made                int         NOT NULL DEFAULT 0,
    skipped             int         NOT NULL DEFAULT 0,
    note                text,
    created_by          text,
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    resumed_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by          text,
    changed_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at            timestamptz
);
CREATE INDEX dl_backfills_open_idx ON dl_backfills (backfill_id) WHERE state IN ('open', 'paused');

CREATE TABLE dl_slices (
    task           text        NOT NULL,
    partition_key  text        NOT NULL COLLATE "C",
    interval_start timestamptz,
    interval_end   timestamptz,
    state          dl_status   NOT NULL,
    job_id         uuid        NOT NULL,
    backfill_id    uuid,
    runs           int         NOT NULL DEFAULT 0,
    rows           bigint,
    succeeded_at   timestamptz,
    succeeded_job  uuid,
    changed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (task, partition_key)
) WITH (fillfactor = 80);
CREATE INDEX dl_slices_backfill_idx ON dl_slices (backfill_id, state) WHERE backfill_id IS NOT NULL;

CREATE TABLE dl_checks (
    check_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task          text        NOT NULL,
    name          text        NOT NULL CHECK (name <> '' AND octet_length(name) <= 200),
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_id        uuid        NOT NULL,
    attempt       int         NOT NULL,
    partition_key text        NOT NULL,
    value         float8      NOT NULL,
    low           float8,
    high          float8,
    median        float8,
    outcome       text        NOT NULL CHECK (outcome IN ('passed', 'warned', 'failed')),
    detail        text
);
CREATE INDEX dl_checks_name_idx ON dl_checks (task, name, at);
CREATE INDEX dl_checks_job_idx ON dl_checks (job_id);
CREATE INDEX dl_checks_bad_idx ON dl_checks (at) WHERE outcome <> 'passed';

CREATE TABLE dl_dataset_events (
    event_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dataset       text        NOT NULL CHECK (dataset <> '' AND octet_length(dataset) <= 500),
    kind          text        NOT NULL CHECK (kind IN ('produced', 'consumed')),
    task          text        NOT NULL,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_id        uuid        NOT NULL,
    partition_key text        NOT NULL,
    rows          bigint,
    schema        jsonb
);
CREATE INDEX dl_dataset_events_dataset_idx ON dl_dataset_events (dataset, kind, task, at);
CREATE INDEX dl_dataset_events_job_idx ON dl_dataset_events (job_id);

CREATE TABLE dl_lineage_state (
    singleton bool PRIMARY KEY DEFAULT true CHECK (singleton),
    cursor    text
);
INSERT INTO dl_lineage_state DEFAULT VALUES;

ALTER TABLE dl_alert_rules DROP CONSTRAINT dl_alert_rules_kind_check;
ALTER TABLE dl_alert_rules ADD CONSTRAINT dl_alert_rules_kind_check
    CHECK (kind IN ('failure_rate', 'no_success', 'queue_age', 'stalled', 'dead_worker', 'breaker_open', 'limit_starved', 'schedule_late',
                    'schedule_behind', 'check_failed', 'stale_dataset'));
ALTER TABLE dl_alert_rules
    ADD COLUMN dataset text,
    ADD COLUMN by_time text CHECK (by_time ~ '^([01][0-9]|2[0-3]):[0-5][0-9]$'),
    ADD COLUMN zone text;

ALTER TYPE dl_enqueue_request
    ADD ATTRIBUTE schedule_id uuid,
    ADD ATTRIBUTE backfill_id uuid,
    ADD ATTRIBUTE logical_at timestamptz,
    ADD ATTRIBUTE interval_start timestamptz,
    ADD ATTRIBUTE interval_end timestamptz;

-- dl_enqueue has more parameters. Who may execute the old one may execute the new one, which schema.sql replaces.
DO $$
DECLARE
    old     regprocedure := to_regprocedure('dl_enqueue(text, text, text, jsonb, text, text, int, timestamptz, int, int, text,'
                                            ' text, text, int, jsonb, uuid, jsonb, jsonb, text, text, jsonb, jsonb, timestamptz, int)');
    grantee regrole;
BEGIN
    IF old IS NULL THEN
        RETURN;
    END IF;
    CREATE FUNCTION dl_enqueue(
        queue text, task text, lock_key text, args jsonb, idempotency_key text, partition_key text, priority int,
        available_at timestamptz, max_attempts int, lease_ttl_sec int, producer text, consumer_group text, live_key text,
        time_limit_sec int, retry jsonb, parent_id uuid, limits jsonb, after jsonb, need text, fair_key text, debounce jsonb,
        throttle jsonb, expires_at timestamptz, start_within_sec int, logical_at timestamptz, interval_start timestamptz,
        interval_end timestamptz
    ) RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid';
    FOR grantee IN SELECT a.grantee FROM pg_proc p, aclexplode(p.proacl) a
                    WHERE p.oid = old AND a.privilege_type = 'EXECUTE' AND a.grantee <> 0 LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION dl_enqueue(text, text, text, jsonb, text, text, int, timestamptz, int, int,'
                       ' text, text, text, int, jsonb, uuid, jsonb, jsonb, text, text, jsonb, jsonb, timestamptz, int,'
                       ' timestamptz, timestamptz, timestamptz) TO %s',
                       grantee);
    END LOOP;
    EXECUTE format('DROP FUNCTION %s', old);
END $$;
