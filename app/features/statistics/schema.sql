-- Counts for each minute, quarter of an hour and hour, by queue and task, aggregated from the events. One row a number.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_statistics (
    span_sec   int         NOT NULL,  -- 60, 900, 3600; negative: of all queues and tasks together, which are ''
    started_at timestamptz NOT NULL,
    queue      text        NOT NULL,
    task       text        NOT NULL,
    -- queued, started, succeeded, failed, canceled, lost, retried (bucket 0); waited, ran (bucket: see dl_duration_bucket)
    measure    text        NOT NULL,
    bucket     int         NOT NULL,
    count      bigint      NOT NULL,
    total_sec  float8      NOT NULL DEFAULT 0,  -- seconds waited or run, added up
    PRIMARY KEY (span_sec, started_at, queue, task, measure, bucket)
);

-- The histogram bucket of a duration: half powers of two from 5 ms on. A percentile read from the buckets is at most a
-- fifth off.
CREATE OR REPLACE FUNCTION dl_duration_bucket(sec float8) RETURNS int
    LANGUAGE sql IMMUTABLE
    RETURN least(60, ceil(2 * ln(greatest(sec, 0.005) / 0.005) / ln(2)))::int;

-- How many jobs waited and ran, recorded once a minute.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_queue_depths (
    at               timestamptz NOT NULL,
    queue            text        NOT NULL,
    ready            bigint      NOT NULL,
    scheduled        bigint      NOT NULL,
    blocked          bigint      NOT NULL,
    running          bigint      NOT NULL,
    oldest_ready_sec float8,
    limited          bigint      NOT NULL DEFAULT 0,
    waiting          bigint      NOT NULL DEFAULT 0,
    PRIMARY KEY (at, queue)
);

-- The latest finished attempts of each task.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_recent_runs (
    task     text        NOT NULL,
    event_id bigint      NOT NULL,
    job_id   uuid        NOT NULL,
    queue    text        NOT NULL,
    ended_at timestamptz NOT NULL,
    outcome  text        NOT NULL,  -- succeeded, failed, canceled, lost, retried
    attempt  int,
    ran_sec  float8,
    PRIMARY KEY (task, event_id)
);

-- How far the events have been aggregated. Events commit out of the order of their ids, so the unread ones are a set of
-- ranges. A gap is given up once every transaction that might still fill it has ended: those that held the events' table
-- lock when a later event was there already.
-- rights of the service: SELECT, UPDATE
CREATE TABLE dl_statistics_state (
    singleton    bool           PRIMARY KEY DEFAULT true CHECK (singleton),
    unread       int8multirange NOT NULL,
    safe_id      bigint         NOT NULL DEFAULT 0,   -- no event up to this id will appear any more
    candidate_id bigint         NOT NULL DEFAULT 0,   -- becomes safe_id when the open writers have ended
    open_writers text[]         NOT NULL DEFAULT '{}'
);
INSERT INTO dl_statistics_state (unread) VALUES ('{[0,)}');
