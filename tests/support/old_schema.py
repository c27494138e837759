"""Tables as they were before versions, with jobs in every status."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from dataloader.app.features.doctor.facts import DatabaseFacts
from tests.support.queue_fixture import QueueFixture

BEFORE = """
CREATE TYPE dl_status AS ENUM ('queued', 'running', 'succeeded', 'failed', 'canceled', 'lost');

CREATE TABLE dl_jobs (
    job_id           uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    queue            text        NOT NULL,
    task             text        NOT NULL,
    args             jsonb       NOT NULL DEFAULT '{}',
    idempotency_key  text        UNIQUE,
    lock_key         text        NOT NULL,
    partition_key    text        NOT NULL DEFAULT '',
    priority         int         NOT NULL DEFAULT 100,
    available_at     timestamptz NOT NULL DEFAULT now(),
    status           dl_status   NOT NULL DEFAULT 'queued',
    attempt          int         NOT NULL DEFAULT 0,
    max_attempts     int         NOT NULL DEFAULT 5,
    lease_ttl_sec    int         NOT NULL DEFAULT 60,
    lease_expires_at timestamptz,
    heartbeat_at     timestamptz,
    cancel_requested bool        NOT NULL DEFAULT false,
    progress         jsonb       NOT NULL DEFAULT '{}',
    error            text,
    producer         text,
    consumer_group   text,
    created_at       timestamptz NOT NULL DEFAULT now(),
    started_at       timestamptz,
    finished_at      timestamptz,
    CONSTRAINT dl_jobs_chk_positive CHECK (priority >= 0 AND attempt >= 0 AND max_attempts >= 0 AND lease_ttl_sec > 0)
);

CREATE TABLE dl_job_events (
    event_id bigserial   PRIMARY KEY,
    job_id   uuid        NOT NULL REFERENCES dl_jobs (job_id) ON DELETE CASCADE,
    queue    text        NOT NULL,
    ts       timestamptz NOT NULL DEFAULT now(),
    kind     text        NOT NULL,
    payload  jsonb
);

CREATE FUNCTION notify_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('dl_jobs', NEW.queue);
    RETURN NEW;
END $$;

CREATE TRIGGER dl_jobs_notify_ins AFTER INSERT ON dl_jobs
    FOR EACH ROW WHEN (NEW.status = 'queued') EXECUTE FUNCTION notify_job();
CREATE TRIGGER dl_jobs_notify_upd AFTER UPDATE OF status, available_at ON dl_jobs
    FOR EACH ROW WHEN (NEW.status = 'queued') EXECUTE FUNCTION notify_job();
"""

ROWS = """
INSERT INTO dl_jobs (task, queue, lock_key, status, attempt, max_attempts, lease_expires_at, finished_at, error,
                     available_at, cancel_requested, args)
VALUES ('ready',     'q', 'a', 'queued',    0, 5, NULL, NULL, NULL, now(), false, '{"n": 1}'),
       ('later',     'q', 'b', 'queued',    1, 5, NULL, NULL, 'once', now() + interval '1 h', false, '{}'),
       ('past',      'q', 'c', 'queued',    9, 5, NULL, NULL, 'often', now(), false, '{}'),
       ('alive',     'q', 'd', 'running',   1, 5, now() + interval '1 h', NULL, NULL, now(), false, '{}'),
       ('behind',    'q', 'd', 'queued',    0, 5, NULL, NULL, NULL, now(), false, '{}'),
       ('expired',   'q', 'e', 'running',   1, 5, now() - interval '1 h', NULL, NULL, now(), false, '{}'),
       ('used up',   'q', 'f', 'running',   5, 5, now() - interval '1 h', NULL, NULL, now(), false, '{}'),
       ('no lease',  'q', 'g', 'running',   1, 5, NULL, NULL, NULL, now(), false, '{}'),
       ('twin',      'q', 'h', 'running',   1, 5, now() + interval '1 h', NULL, NULL, now(), false, '{}'),
       ('twin 2',    'q', 'h', 'running',   5, 5, now() + interval '9 m', NULL, NULL, now(), false, '{}'),
       ('twin 3',    'q', 'h', 'running',   2, 5, NULL, NULL, NULL, now(), true, '{}'),
       ('done',      'q', 'i', 'succeeded', 1, 5, NULL, now(), NULL, now(), false, '{}'),
       ('broken',    'q', 'j', 'failed',    5, 5, NULL, now(), 'why', now(), false, '{}'),
       ('canceled',  'q', 'k', 'canceled',  1, 5, NULL, now(), NULL, now(), true, '{}'),
       ('lost',      'q', 'l', 'lost',      5, 5, NULL, now(), NULL, now(), false, '{}');
INSERT INTO dl_job_events (job_id, queue, kind, payload) SELECT job_id, queue, 'queued', NULL FROM dl_jobs;
"""

OLD_COLUMNS = (
    "task, job_id, queue, args, idempotency_key, lock_key, partition_key, priority, available_at, status, attempt,"
    " max_attempts, lease_ttl_sec, lease_expires_at, heartbeat_at, cancel_requested, progress, error, producer,"
    " consumer_group, created_at, started_at, finished_at"
)


def rows(queue_db: QueueFixture) -> dict[str, tuple[Any, ...]]:
    return {row[0]: row for row in queue_db.sql(f"SELECT {OLD_COLUMNS} FROM dl_jobs")}


def job_of(queue_db: QueueFixture, task: str) -> UUID:
    return UUID(queue_db.fetch_row("SELECT job_id FROM dl_jobs WHERE task = %s", task))


def definitions(queue_db: QueueFixture) -> dict[str, str]:
    """Tables, columns, constraints, indexes, triggers, functions and types, as the doctor compares them."""
    return {name: item.definition for name, item in DatabaseFacts(queue_db.session).schema_objects().items()}
