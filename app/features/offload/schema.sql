-- What jobs gave to other engines, a row for each name; see decision 69. It is written before the submission, and kept after
-- the job: the name is how the work is found again, stopped and deleted.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
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
    detail              text        NOT NULL DEFAULT '',  -- why the work has not started
    submitted           int         NOT NULL DEFAULT 0,  -- how often this name was submitted
    log_position        text        NOT NULL DEFAULT '',
    stop_requested_at   timestamptz,
    ended_at            timestamptz,
    outcome             text        CHECK (outcome IN ('succeeded', 'failed', 'stopped', 'abandoned')),
    UNIQUE (job_id, call, number),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
);

CREATE INDEX dl_offloads_open_idx ON dl_offloads (next_poll_at) WHERE ended_at IS NULL;
CREATE INDEX dl_offloads_ended_idx ON dl_offloads (ended_at) WHERE ended_at IS NOT NULL;
