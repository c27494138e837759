"""Tables as they were before our additions are upgraded in place, with their rows; and a migration does no harm."""

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

from app.errors import DatabaseUnavailable, RightsMissing, SchemaMissing, SchemaOutdated, SchemaTooNew
from app.queue.job import Said, Status
from app.queue.schema import SCHEMA_VERSION, SERVES_FROM, check, migrate, schema_text
from tests.support.desk import Desk

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
def old(empty_dsn) -> Iterator[Desk]:
    desk = Desk(empty_dsn)
    desk.sql(BEFORE)
    desk.sql(ROWS)
    yield desk
    desk.close()


def rows(desk: Desk) -> dict[str, tuple[Any, ...]]:
    return {row[0]: row for row in desk.sql(f"SELECT {OLD_COLUMNS} FROM dl_jobs")}


def job_of(desk: Desk, task: str) -> UUID:
    return UUID(desk.one("SELECT job_id FROM dl_jobs WHERE task = %s", task))


# ── an upgrade ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_row_is_kept_but_for_the_second_run_of_a_key_and_a_missing_lease(old):
    before = rows(old)

    migration = migrate(old.dsn)

    after = rows(old)
    changed = {task for task in before if before[task] != after[task]}
    assert (migration.found, migration.now) == (0, SCHEMA_VERSION)
    assert "added column dl_jobs.run_id" in migration.steps
    assert "changed trigger dl_jobs_notify_ins" in migration.steps
    assert changed == {"no lease", "twin 2", "twin 3"}
    assert len(after) == len(before)
    assert old.one("SELECT count(*) FROM dl_job_events WHERE kind = 'queued'") == len(before)


def test_of_two_running_jobs_with_one_key_the_later_lease_stays_and_the_other_try_does_not_count(old):
    migrate(old.dsn)

    told = {task: old.job(job_of(old, task)) for task in ("twin", "twin 2", "twin 3")}

    assert [job.status for job in told.values()] == [Status.RUNNING, Status.QUEUED, Status.CANCELED]
    assert [job.attempt for job in told.values()] == [1, 4, 2]
    assert told["twin 3"].finished_at is not None
    event = old.queue.events(told["twin 2"].id)[-1]
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
            assert old.settle(run).answer == "applied"
            done.add(run.task)

    assert done == {"ready", "past", "expired", "no lease"}
    assert old.place(job_of(old, "later")) == "timed"
    old.expire(job_of(old, "alive"))
    old.expire(job_of(old, "twin"))
    assert len(old.reap()) == 2
    assert sorted(run.lock_key for run in old.claim(20, tasks=known)) == ["d", "h"]
    assert old.queue.retry(job_of(old, "broken")).status is Status.QUEUED


def test_an_old_event_without_a_payload_is_shown(old):
    migrate(old.dsn)

    assert old.queue.events(job_of(old, "done"))[0].payload == {}


def test_an_upgraded_and_a_fresh_schema_are_the_same(old, dsn):
    migrate(old.dsn)
    fresh = Desk(dsn)

    assert definitions(old, but="notify_job") == definitions(fresh)
    fresh.close()


def definitions(desk: Desk, *, but: str = "") -> set[tuple[Any, ...]]:
    return set(
        desk.sql(
            """
            SELECT 'column', c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                   pg_get_expr(d.adbin, d.adrelid)
              FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                   LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
             WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
               AND NOT c.relispartition AND a.attnum > 0
            UNION ALL
            SELECT 'index', i.relname, pg_get_indexdef(i.oid), NULL, NULL
              FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
             WHERE i.relnamespace = 'public'::regnamespace AND NOT t.relispartition
            UNION ALL
            SELECT 'constraint', conname, pg_get_constraintdef(oid), convalidated, NULL
              FROM pg_constraint
             WHERE connamespace = 'public'::regnamespace
               AND conrelid NOT IN (SELECT oid FROM pg_class WHERE relispartition)
            UNION ALL
            SELECT 'trigger', tgname, pg_get_triggerdef(oid), NULL, NULL FROM pg_trigger WHERE NOT tgisinternal
            UNION ALL
            SELECT 'function', proname, prosrc, prosecdef, NULL
              FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname <> %s
            UNION ALL
            SELECT 'table', relname, reloptions::text, NULL, NULL
              FROM pg_class
             WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
            UNION ALL
            SELECT 'label', t.typname || '.' || e.enumlabel, e.enumsortorder::text, NULL, NULL
              FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid
            """,
            but,
        )
    )


# ── from version 1 ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def version_1(empty_dsn) -> Iterator[Desk]:
    """Tables of version 1 with jobs in every status, their journal and their logs."""
    desk = Desk(empty_dsn)
    desk.sql((Path(__file__).parent / "support" / "version_1.sql").read_text(encoding="utf-8"))
    desk.sql(re.sub(r"'(twin \d)', ( *)'q', 'h'", r"'\1', \2'q', '\1'", ROWS))  # one running job a key
    desk.sql("INSERT INTO dl_job_events (job_id, queue, kind) SELECT job_id, queue, 'picked' FROM dl_jobs")
    desk.sql(
        "INSERT INTO dl_job_logs (job_id, attempt, ts, level, stream, line)"
        " SELECT job_id, 1, now(), 'INFO', 'log', 'said ' || n FROM dl_jobs, generate_series(1, 3) n"
    )
    yield desk
    desk.close()


def contents(desk: Desk) -> dict[str, list[tuple[Any, ...]]]:
    questions = {
        "jobs": f"SELECT {OLD_COLUMNS}, run_id, place, stray, live_key FROM dl_jobs ORDER BY job_id",
        "events": "SELECT event_id, job_id, queue, ts, kind, payload FROM dl_job_events ORDER BY event_id",
        "logs": "SELECT log_id, job_id, attempt, ts, level, stream, line FROM dl_job_logs ORDER BY log_id",
    }
    return {name: desk.sql(question) for name, question in questions.items()}


def test_version_1_keeps_every_row_number_and_log_line(version_1, dsn):
    desk, fresh = version_1, Desk(dsn)
    before = contents(desk)
    given_a_lease = {"no lease", "twin 3"}
    before["jobs"] = [row for row in before["jobs"] if row[0] not in given_a_lease]

    migration = migrate(desk.dsn)

    after = contents(desk)
    after["jobs"] = [row for row in after["jobs"] if row[0] not in given_a_lease]
    assert (migration.found, migration.now) == (1, SCHEMA_VERSION)
    assert after == before
    assert definitions(desk) == definitions(fresh)
    assert migrate(desk.dsn).steps == ()
    desk.sql("UPDATE dl_schema SET fingerprint = 'of another file'")
    migrate(desk.dsn)
    assert definitions(desk) == definitions(fresh)
    fresh.close()


def test_what_is_journaled_after_an_upgrade_stands_behind_what_was_there_and_goes_with_its_job(version_1):
    desk = version_1
    migrate(desk.dsn)
    job_id = job_of(desk, "ready")
    said = [line.line for line in desk.queue.logs(job_id).lines]

    (run,) = desk.claim(tasks=["ready"])
    desk.settle(run)
    desk.queue.write_logs([Said(job_id, 1, 0.0, "INFO", "log", "and more")])

    assert desk.kinds(job_id) == ["queued", "queued", "picked", "picked", "done"]
    assert [line.line for line in desk.queue.logs(job_id).lines] == [*said, "and more"]
    assert len({row[0] for row in desk.sql("SELECT tableoid FROM dl_job_events")}) == 2
    desk.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(job_id))
    assert desk.one("SELECT count(*) FROM dl_job_events WHERE job_id = %s", str(job_id)) == 0


# ── any migration ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_migration_finds_nothing_to_do(old):
    migrate(old.dsn)
    before = rows(old), definitions(old), old.one("SELECT count(*) FROM dl_schema")

    again = migrate(old.dsn)

    assert (again.found, again.now, again.steps) == (SCHEMA_VERSION, SCHEMA_VERSION, ())
    assert (rows(old), definitions(old), old.one("SELECT count(*) FROM dl_schema")) == before


def test_the_file_applied_again_does_no_harm_while_jobs_run(dsn):
    desk = Desk(dsn)
    migrate(dsn)
    run = desk.claimed()
    before = desk.job(run.id), definitions(desk)
    desk.sql("UPDATE dl_schema SET fingerprint = 'of another file'")

    again = migrate(dsn)

    assert again.steps == ("applied settings",)
    assert (desk.job(run.id), definitions(desk)) == before
    assert desk.settle(run).answer == "applied"
    desk.check()
    desk.close()


def test_the_file_applied_again_waits_for_nobody_who_reads_the_journal(dsn):
    desk = Desk(dsn)
    desk.sql("UPDATE dl_schema SET fingerprint = 'of another file'")

    with desk.held() as step:
        step("LOCK TABLE dl_job_events IN ACCESS SHARE MODE")
        migrate(dsn, lock_timeout_sec=1)

    desk.close()


def test_an_empty_database_gets_the_tables_and_says_so(empty_dsn):
    with pytest.raises(SchemaMissing, match="dataloader migrate"):
        check(empty_dsn)

    migration = migrate(empty_dsn)

    assert migration.found is None
    assert "created table dl_jobs" in migration.steps
    check(empty_dsn)


def test_another_schema_is_made_and_the_public_one_left_alone(empty_dsn):
    name = 'Of "ours"'
    migrate(empty_dsn, name)
    check(empty_dsn, name)
    migrate(empty_dsn, name)
    desk = Desk(empty_dsn, schema=name)

    job_id = desk.enqueue()
    (run,) = desk.claim()
    desk.settle(run)

    assert desk.kinds(job_id) == ["queued", "picked", "done"]
    assert desk.one("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace") == 0
    with pytest.raises(SchemaMissing):
        check(empty_dsn)
    desk.close()


def test_tables_from_before_versions_are_outdated(old):
    with pytest.raises(SchemaOutdated, match="version 0.*dataloader migrate"):
        check(old.dsn)


def test_a_newer_database_is_refused_and_left_alone(dsn):
    migrate(dsn)
    desk = Desk(dsn)
    desk.sql("INSERT INTO dl_schema (version, fingerprint) VALUES (%s, 'new')", SCHEMA_VERSION + 1)
    before = definitions(desk)

    for ask in (check, migrate):
        with pytest.raises(SchemaTooNew, match="upgrade dataloader"):
            ask(dsn)

    assert definitions(desk) == before
    desk.close()


def test_a_newer_database_that_serves_this_version_is_worked_on_and_left_alone(dsn):
    migrate(dsn)
    desk = Desk(dsn)
    desk.sql("INSERT INTO dl_schema VALUES (%s, 'new', now(), %s)", SCHEMA_VERSION + 1, SCHEMA_VERSION)
    before = definitions(desk)

    check(dsn)
    migration = migrate(dsn)

    assert (migration.found, migration.now, migration.steps) == (SCHEMA_VERSION + 1, SCHEMA_VERSION + 1, ())
    assert definitions(desk) == before
    desk.close()


def test_whom_the_tables_serve_is_said_the_same_by_hand_and_by_migrate(empty_dsn):
    with closing(psycopg2.connect(empty_dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(schema_text())
        cursor.execute("SELECT version, serves_from FROM dl_schema")
        assert cursor.fetchall() == [(SCHEMA_VERSION, SERVES_FROM)]

    migrate(empty_dsn)

    with closing(psycopg2.connect(empty_dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT version, serves_from FROM dl_schema")
        assert cursor.fetchall() == [(SCHEMA_VERSION, SERVES_FROM)]


def test_an_older_version_is_outdated_and_an_upgrade_says_what_it_found(dsn):
    migrate(dsn)
    desk = Desk(dsn)
    desk.sql("UPDATE dl_schema SET version = version - 1")

    with pytest.raises(SchemaOutdated, match="dataloader migrate"):
        check(dsn)
    assert migrate(dsn).found == SCHEMA_VERSION - 1
    check(dsn)
    desk.close()


def test_many_migrations_at_once_are_one(old):
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(migrate, [old.dsn] * 4))

    assert sorted(bool(one.steps) for one in done) == [False, False, False, True]
    assert old.one("SELECT count(*) FROM dl_schema WHERE version > 0") == 1


def test_a_migration_that_cannot_get_at_the_tables_gives_up_whole(old):
    before = definitions(old)
    with old.held() as step:
        step("LOCK TABLE dl_jobs IN ACCESS SHARE MODE")
        with pytest.raises(DatabaseUnavailable, match="lock timeout"):
            migrate(old.dsn, lock_timeout_sec=0.2)

    assert definitions(old) == before
    migrate(old.dsn)


def test_a_server_that_is_too_old_is_refused(old, monkeypatch):
    from app.queue import schema

    monkeypatch.setattr(schema, "_OLDEST_SERVER", 990000)
    with pytest.raises(SchemaOutdated, match="15 or newer"):
        migrate(old.dsn)


def test_a_file_that_is_missing_is_named(monkeypatch, tmp_path):
    from app.queue import schema

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


def test_a_schema_that_was_applied_by_hand_serves_and_is_known_to_migrate(empty_dsn):
    with closing(psycopg2.connect(empty_dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(schema_text())
        cursor.execute(schema_text())

    check(empty_dsn)
    first, second = migrate(empty_dsn), migrate(empty_dsn)

    assert (first.found, first.now) == (SCHEMA_VERSION, SCHEMA_VERSION)
    assert second.steps == ()
