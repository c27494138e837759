"""The schema built both ways: schema.sql in an empty database, and each older release's tables with data, migrated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg2
import pytest

from app.db.schema import COMPATIBLE_FROM, SCHEMA_VERSION, check, migrate, migration_files, schema_text
from app.doctor.facts import DatabaseFacts
from app.errors import (
    DatabaseUnavailable,
    RightsMissing,
    SchemaBlocked,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
)
from app.queue.job import LogEntry, Status
from tests.support import eventually
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


@pytest.fixture
def old(empty_dsn) -> Iterator[QueueFixture]:
    queue_db = QueueFixture(empty_dsn)
    queue_db.sql(BEFORE)
    queue_db.sql(ROWS)
    yield queue_db
    queue_db.close()


def rows(queue_db: QueueFixture) -> dict[str, tuple[Any, ...]]:
    return {row[0]: row for row in queue_db.sql(f"SELECT {OLD_COLUMNS} FROM dl_jobs")}


def job_of(queue_db: QueueFixture, task: str) -> UUID:
    return UUID(queue_db.fetch_row("SELECT job_id FROM dl_jobs WHERE task = %s", task))


# ── an upgrade ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_upgrade_keeps_rows_but_second_run_of_key(old):
    before = rows(old)

    migration = migrate(old.dsn)

    after = rows(old)
    changed = {task for task in before if before[task] != after[task]}
    assert (migration.from_version, migration.to_version) == (0, SCHEMA_VERSION)
    assert [step.split(":")[0] for step in migration.steps[:-1]] == [
        f"migrated to version {number}" for number, _ in migration_files(after=0)
    ]
    assert migration.steps[-1].startswith("replaced ")
    assert changed == {"no lease", "twin 2", "twin 3"}
    assert len(after) == len(before)
    assert old.fetch_row("SELECT count(*) FROM dl_job_events WHERE kind = 'queued'") == len(before)


def test_of_two_runs_of_one_key_the_later_lease_stays(old):
    migrate(old.dsn)

    result = {task: old.job(job_of(old, task)) for task in ("twin", "twin 2", "twin 3")}

    assert [job.status for job in result.values()] == [Status.RUNNING, Status.QUEUED, Status.CANCELED]
    assert [job.attempt for job in result.values()] == [1, 4, 2]
    assert result["twin 3"].finished_at is not None
    event = old.queue.events(result["twin 2"].id)[-1]
    assert (event.kind, event.payload["reason"]) == ("requeue", "upgrade")


def test_leftover_jobs_are_reaped_claimed_and_settled(old):
    migrate(old.dsn)
    known = list(rows(old))

    reaped = {one.task: one.status for one in old.reap()}
    assert reaped == {"expired": Status.QUEUED, "used up": Status.LOST, "no lease": Status.QUEUED}

    done = set()
    for _ in range(20):
        for run in old.claim(20, tasks=known):
            assert run.attempt <= run.max_attempts
            assert old.settle(run).outcome == "applied"
            done.add(run.task)

    assert done == {"ready", "past", "expired", "no lease"}
    assert old.wait_state(job_of(old, "later")) == "scheduled"
    old.expire_lease(job_of(old, "alive"))
    old.expire_lease(job_of(old, "twin"))
    assert len(old.reap()) == 2
    assert sorted(run.lock_key for run in old.claim(20, tasks=known)) == ["d", "h"]
    assert old.queue.retry(job_of(old, "broken")).status is Status.QUEUED


def test_an_old_event_without_a_payload_is_shown(old):
    migrate(old.dsn)

    assert old.queue.events(job_of(old, "done"))[0].payload == {}


def test_an_upgraded_and_a_fresh_schema_are_the_same(old, dsn):
    migrate(old.dsn)
    fresh = QueueFixture(dsn)

    assert definitions(old) == definitions(fresh)
    fresh.close()


def definitions(queue_db: QueueFixture) -> dict[str, str]:
    """Tables, columns, constraints, indexes, triggers, functions and types, as the doctor compares them."""
    return {name: item.definition for name, item in DatabaseFacts(queue_db.session).schema_objects().items()}


# ── from a release ──────────────────────────────────────────────────────────────────────────────────────────────────

TESTS = Path(__file__).parents[2]
SCHEMA_0_1_0 = TESTS / "support" / "version_1.sql"
SCHEMA_0_2_0 = TESTS / "releases" / "schema-0.2.0.sql"
ROWS_0_2_0 = """
INSERT INTO dl_webhooks (url, secret, events, disabled_why)
VALUES ('http://a', 's', '{job.failed,alert.over}', 'by hand');
INSERT INTO dl_deliveries (url, target, event, body, state, tries) VALUES
       ('http://a', 'a', 'e', 'b', 'waiting', 1), ('http://a', 'a', 'e', 'b', 'given_up', 9),
       ('http://a', 'a', 'e', 'b', 'delivered', 2);
INSERT INTO dl_delivery_tries (delivery_id, n, duration_ms) SELECT delivery_id, 1, 5 FROM dl_deliveries;
INSERT INTO dl_rollups (span, at, queue, task, what, bucket, n, sec)
VALUES (60, '2026-01-01', 'q', 't', 'ran', 3, 7, 1.5);
INSERT INTO dl_bulk (action, filter, expected, looked, asked_by) VALUES ('cancel', '{}', 9, 5, 'op');
INSERT INTO dl_retired_keys (key_hash, job_id, status, request_hash) VALUES ('x', gen_random_uuid(), 'lost', 'h');
UPDATE dl_jobs SET place = 'ready' WHERE task = 'ready';
UPDATE dl_jobs SET place = 'parked' WHERE task = 'behind';
"""


def build_release(queue_db: QueueFixture, schema: str, *more: str) -> QueueFixture:
    """Tables of a release with jobs in every status, their events and their logs."""
    queue_db.sql(schema)
    queue_db.sql(re.sub(r"'(twin \d)', ( *)'q', 'h'", r"'\1', \2'q', '\1'", ROWS))  # one running job a key
    queue_db.sql("INSERT INTO dl_job_events (job_id, queue, kind) SELECT job_id, queue, 'picked' FROM dl_jobs")
    queue_db.sql(
        "INSERT INTO dl_job_logs (job_id, attempt, ts, level, stream, line)"
        " SELECT job_id, 1, now(), 'INFO', 'log', 'line ' || n FROM dl_jobs, generate_series(1, 3) n"
    )
    for text in more:
        queue_db.sql(text)
    return queue_db


@pytest.fixture
def version_1(empty_dsn) -> Iterator[QueueFixture]:
    queue_db = QueueFixture(empty_dsn)
    yield build_release(queue_db, SCHEMA_0_1_0.read_text(encoding="utf-8"))
    queue_db.close()


@pytest.fixture
def version_2(empty_dsn) -> Iterator[QueueFixture]:
    queue_db = QueueFixture(empty_dsn)
    yield build_release(queue_db, SCHEMA_0_2_0.read_text(encoding="utf-8"), ROWS_0_2_0)
    queue_db.close()


def contents(queue_db: QueueFixture) -> dict[str, list[tuple[Any, ...]]]:
    questions = {
        "jobs": f"SELECT {OLD_COLUMNS}, run_id, live_key FROM dl_jobs ORDER BY job_id",
        "events": "SELECT event_id, job_id, queue, ts, kind, payload FROM dl_job_events ORDER BY event_id",
        "logs": "SELECT log_id, job_id, attempt, ts, level, stream, line FROM dl_job_logs ORDER BY log_id",
    }
    return {name: queue_db.sql(question) for name, question in questions.items()}


def test_version_1_keeps_every_row_number_and_log_line(version_1, dsn):
    queue_db, fresh = version_1, QueueFixture(dsn)
    before = contents(queue_db)
    given_a_lease = {"no lease", "twin 3"}
    before["jobs"] = [row for row in before["jobs"] if row[0] not in given_a_lease]

    migration = migrate(queue_db.dsn)

    after = contents(queue_db)
    after["jobs"] = [row for row in after["jobs"] if row[0] not in given_a_lease]
    assert (migration.from_version, migration.to_version) == (1, SCHEMA_VERSION)
    assert after == before
    assert definitions(queue_db) == definitions(fresh)
    assert migrate(queue_db.dsn).steps == ()
    queue_db.sql("UPDATE dl_schema SET fingerprint = 'of another file'")
    migrate(queue_db.dsn)
    assert definitions(queue_db) == definitions(fresh)
    fresh.close()


def test_version_2_keeps_every_row_under_the_new_names(version_2, dsn):
    queue_db, fresh = version_2, QueueFixture(dsn)
    before = contents(queue_db)["events"], contents(queue_db)["logs"]

    migration = migrate(queue_db.dsn)

    assert (migration.from_version, migration.to_version) == (2, SCHEMA_VERSION)
    assert (contents(queue_db)["events"], contents(queue_db)["logs"]) == before
    assert definitions(queue_db) == definitions(fresh)
    assert migrate(queue_db.dsn).steps == ()
    assert queue_db.sql("SELECT events, disabled_reason FROM dl_webhooks") == [
        (["job.failed", "alert.resolved"], "by hand")
    ]
    assert sorted(queue_db.sql("SELECT state, attempts FROM dl_deliveries")) == [
        ("delivered", 2),
        ("failed", 9),
        ("pending", 1),
    ]
    assert queue_db.fetch_row("SELECT count(*) FROM dl_delivery_attempts WHERE number = 1") == 3
    assert queue_db.sql("SELECT measure, count, total_sec FROM dl_statistics WHERE span_sec = 60") == [("ran", 7, 1.5)]
    assert queue_db.sql("SELECT scanned, requested_by FROM dl_bulk") == [(5, "op")]
    assert [queue_db.wait_state(job_of(queue_db, task)) for task in ("ready", "behind", "later")] == [
        "ready",
        "blocked",
        "scheduled",
    ]
    fresh.close()


def test_version_3_becomes_the_same_schema(version_2, dsn):
    queue_db, fresh = version_2, QueueFixture(dsn)
    ((number, text), *_) = migration_files(after=2)
    queue_db.sql(text)
    queue_db.sql("INSERT INTO dl_schema (version, fingerprint, serves_from) VALUES (%s, 'x', 1)", number)

    migration = migrate(queue_db.dsn)

    assert (migration.from_version, len(migration.steps)) == (3, 1 + SCHEMA_VERSION - 3)
    assert definitions(queue_db) == definitions(fresh)
    fresh.close()


def test_upgrade_is_refused_while_a_worker_lives(version_2):
    version_2.sql(
        "INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec)"
        " VALUES (gen_random_uuid(), 'host:17', '0.2.0', '{q}', '{t}', 1, 10)"
    )

    with pytest.raises(SchemaBlocked, match=r"still running: worker host:17\. Nothing was changed: stop"):
        migrate(version_2.dsn)

    version_2.sql("UPDATE dl_workers SET seen_at = now() - interval '31 s'")
    assert migrate(version_2.dsn).from_version == 2


def test_upgrade_is_refused_while_a_session_is_open(version_2):
    with closing(psycopg2.connect(version_2.dsn, application_name="dataloader-api")):
        with pytest.raises(SchemaBlocked, match="session dataloader-api from"):
            migrate(version_2.dsn)
        with pytest.raises(SchemaOutdated):
            check(version_2.dsn)

    eventually(lambda: not version_2.session_count("application_name = 'dataloader-api'"))
    assert migrate(version_2.dsn).from_version == 2


def test_schema_file_changes_no_older_tables(version_2):
    before = definitions(version_2)

    with pytest.raises(psycopg2.Error, match="run `dataloader migrate`"):
        version_2.sql(schema_text())

    assert definitions(version_2) == before


def test_events_after_upgrade_follow_older_and_go_with_job(version_1):
    queue_db = version_1
    migrate(queue_db.dsn)
    job_id = job_of(queue_db, "ready")
    lines = [line.line for line in queue_db.queue.logs(job_id).lines]

    (run,) = queue_db.claim(tasks=["ready"])
    queue_db.settle(run)
    queue_db.queue.write_logs([LogEntry(job_id, 1, 0.0, "INFO", "log", "and more")])

    assert queue_db.event_kinds(job_id) == ["queued", "queued", "picked", "picked", "done"]
    assert [line.line for line in queue_db.queue.logs(job_id).lines] == [*lines, "and more"]
    assert len({row[0] for row in queue_db.sql("SELECT tableoid FROM dl_job_events")}) == 2
    queue_db.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(job_id))
    assert queue_db.fetch_row("SELECT count(*) FROM dl_job_events WHERE job_id = %s", str(job_id)) == 0


# ── any migration ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_migration_finds_nothing_to_do(old):
    migrate(old.dsn)
    before = rows(old), definitions(old), old.fetch_row("SELECT count(*) FROM dl_schema")

    again = migrate(old.dsn)

    assert (again.from_version, again.to_version, again.steps) == (SCHEMA_VERSION, SCHEMA_VERSION, ())
    assert (rows(old), definitions(old), old.fetch_row("SELECT count(*) FROM dl_schema")) == before


def test_the_file_applied_again_does_no_harm_while_jobs_run(dsn):
    queue_db = QueueFixture(dsn)
    migrate(dsn)
    run = queue_db.enqueue_and_claim()
    before = queue_db.job(run.id), definitions(queue_db)
    queue_db.sql("UPDATE dl_schema SET fingerprint = 'of another file'")

    again = migrate(dsn)

    assert [step.split(" ")[0] for step in again.steps] == ["replaced"]
    assert (queue_db.job(run.id), definitions(queue_db)) == before
    assert queue_db.settle(run).outcome == "applied"
    queue_db.check_invariants()
    queue_db.close()


def test_schema_applied_again_does_not_wait_for_event_readers(dsn):
    queue_db = QueueFixture(dsn)
    queue_db.sql("UPDATE dl_schema SET fingerprint = 'of another file'")

    with queue_db.open_transaction() as step:
        step("LOCK TABLE dl_job_events IN ACCESS SHARE MODE")
        migrate(dsn, lock_timeout_sec=1)

    queue_db.close()


def test_migration_and_an_open_claim_do_not_deadlock(dsn):
    queue_db = QueueFixture(dsn)
    job_id = str(queue_db.enqueue())
    queue_db.sql("UPDATE dl_schema SET fingerprint = 'of another file'")

    with ThreadPoolExecutor(1) as threads:
        with queue_db.open_transaction() as step:
            step("UPDATE dl_jobs SET consumer_group = 'x' WHERE job_id = %s", job_id)
            migration = threads.submit(migrate, dsn)
            queue_db.wait_for_lock_waiters()
            step("INSERT INTO dl_job_events (job_id, queue, kind) VALUES (%s, 'default', 'noted')", job_id)
        assert migration.result().steps

    queue_db.close()


def test_an_empty_database_gets_the_tables_and_says_so(empty_dsn):
    with pytest.raises(SchemaMissing, match="dataloader migrate"):
        check(empty_dsn)

    migration = migrate(empty_dsn)

    assert migration.from_version is None
    assert "created table dl_jobs" in migration.steps
    check(empty_dsn)


def test_another_schema_is_made_and_the_public_one_left_alone(empty_dsn):
    name = 'Of "ours"'
    migrate(empty_dsn, name)
    check(empty_dsn, name)
    migrate(empty_dsn, name)
    queue_db = QueueFixture(empty_dsn, schema=name)

    job_id = queue_db.enqueue()
    (run,) = queue_db.claim()
    queue_db.settle(run)

    assert queue_db.event_kinds(job_id) == ["queued", "picked", "done"]
    assert queue_db.fetch_row("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace") == 0
    with pytest.raises(SchemaMissing):
        check(empty_dsn)
    queue_db.close()


def test_tables_from_before_versions_are_outdated(old):
    with pytest.raises(SchemaOutdated, match="version 0.*dataloader migrate"):
        check(old.dsn)


def test_a_newer_database_is_refused_and_left_alone(dsn):
    migrate(dsn)
    queue_db = QueueFixture(dsn)
    queue_db.sql("INSERT INTO dl_schema (version, fingerprint) VALUES (%s, 'new')", SCHEMA_VERSION + 1)
    before = definitions(queue_db)

    for ask in (check, migrate):
        with pytest.raises(SchemaTooNew, match="upgrade dataloader"):
            ask(dsn)

    assert definitions(queue_db) == before
    queue_db.close()


def test_newer_compatible_database_is_used_and_not_migrated(dsn):
    migrate(dsn)
    queue_db = QueueFixture(dsn)
    queue_db.sql("INSERT INTO dl_schema VALUES (%s, 'new', now(), %s)", SCHEMA_VERSION + 1, SCHEMA_VERSION)
    before = definitions(queue_db)

    check(dsn)
    migration = migrate(dsn)

    assert (migration.from_version, migration.to_version, migration.steps) == (
        SCHEMA_VERSION + 1,
        SCHEMA_VERSION + 1,
        (),
    )
    assert definitions(queue_db) == before
    queue_db.close()


def test_hand_applied_and_migrated_schema_name_same_versions(empty_dsn):
    with closing(psycopg2.connect(empty_dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(schema_text())
        cursor.execute("SELECT version, serves_from FROM dl_schema")
        assert cursor.fetchall() == [(SCHEMA_VERSION, COMPATIBLE_FROM)]

    migrate(empty_dsn)

    with closing(psycopg2.connect(empty_dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT version, serves_from FROM dl_schema")
        assert cursor.fetchall() == [(SCHEMA_VERSION, COMPATIBLE_FROM)]


def test_an_older_version_is_outdated(version_2):
    with pytest.raises(SchemaOutdated, match="version 2.*dataloader migrate"):
        check(version_2.dsn)


def test_many_migrations_at_once_are_one(old):
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(migrate, [old.dsn] * 4))

    assert sorted(bool(one.steps) for one in done) == [False, False, False, True]
    assert old.fetch_row("SELECT count(*) FROM dl_schema WHERE version > 0") == 1


def test_migration_that_cannot_lock_tables_changes_nothing(old):
    before = definitions(old)
    with old.open_transaction() as step:
        step("LOCK TABLE dl_jobs IN ACCESS SHARE MODE")
        with pytest.raises(DatabaseUnavailable, match="lock timeout"):
            migrate(old.dsn, lock_timeout_sec=0.2)

    assert definitions(old) == before
    migrate(old.dsn)


def test_a_server_that_is_too_old_is_refused(old, monkeypatch):
    from app.db import schema

    monkeypatch.setattr(schema, "_MIN_SERVER_VERSION", 990000)
    with pytest.raises(SchemaOutdated, match="15 or newer"):
        migrate(old.dsn)


def test_a_file_that_is_missing_is_named(monkeypatch, tmp_path):
    from app.db import schema

    monkeypatch.setattr(schema, "__file__", str(tmp_path / "a" / "b" / "schema.py"))
    with pytest.raises(FileNotFoundError, match=r"schema\.sql"):
        schema.schema_text()


def test_a_role_that_owns_nothing_can_neither_harm_nor_hide(old):
    """An upgrade by somebody who may not is refused by the server, and told as it said it."""
    old.sql("DROP ROLE IF EXISTS dl_nobody; CREATE ROLE dl_nobody LOGIN")
    try:
        with pytest.raises(RightsMissing, match=r"must be owner|permission denied"):
            migrate(old.dsn + " options='-c role=dl_nobody'")
    finally:
        old.sql("DROP ROLE dl_nobody")


def test_schema_applied_by_hand_is_known_to_migrate(empty_dsn):
    with closing(psycopg2.connect(empty_dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(schema_text())

    check(empty_dsn)
    first, second = migrate(empty_dsn), migrate(empty_dsn)

    assert (first.from_version, first.to_version) == (SCHEMA_VERSION, SCHEMA_VERSION)
    assert second.steps == ()
