-- Operations on all jobs that match a filter, run in batches by the maintenance leader.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_bulk (
    bulk_id          uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    action           text        NOT NULL CHECK (action IN ('cancel', 'retry', 'redrive', 'delete', 'reprioritise')),
    filter           jsonb       NOT NULL,
    priority         int         CHECK (priority >= 0),  -- what reprioritise sets
    expected         bigint      NOT NULL,               -- counted before the request: bounds how many are changed
    state            text        NOT NULL DEFAULT 'waiting'
                                 CHECK (state IN ('waiting', 'running', 'done', 'canceled', 'stopped', 'failed')),
    cancel_requested bool        NOT NULL DEFAULT false,
    scanned          bigint      NOT NULL DEFAULT 0,
    matched          bigint      NOT NULL DEFAULT 0,
    changed          bigint      NOT NULL DEFAULT 0,
    -- Jobs newer than this are done; of redrive, older ones. A batch moves it in its own transaction, so after a crash the
    -- next process resumes exactly here. It starts at the request: later jobs are not included.
    cursor_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    cursor_id        uuid        NOT NULL DEFAULT 'ffffffff-ffff-ffff-ffff-ffffffffffff',
    failed_batches   int         NOT NULL DEFAULT 0,     -- in a row
    requested_by     text,
    error            text,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at       timestamptz,
    finished_at      timestamptz,
    -- Of redrive: at most so many jobs a minute and in all, what their args are merged with, and when the next step is due.
    per_minute       int         CHECK (per_minute >= 1),
    max_jobs         bigint      CHECK (max_jobs >= 1),
    args_patch       jsonb,
    next_step_at     timestamptz
);
CREATE INDEX dl_bulk_created_idx ON dl_bulk (created_at, bulk_id);
CREATE INDEX dl_bulk_open_idx ON dl_bulk (created_at) WHERE state IN ('waiting', 'running');

CREATE OR REPLACE TRIGGER dl_bulk_audit AFTER INSERT OR UPDATE OF cancel_requested ON dl_bulk
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('bulk', 'bulk_id', 'scanned,matched,changed,cursor_at,cursor_id,failed_batches,requested_by,created_at,next_step_at',
                                  'args_patch');
