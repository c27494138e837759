"""The schema built both ways: schema.sql in an empty database, and each older release's tables with data, migrated."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg2
import pytest
from psycopg2.errors import LockNotAvailable
from psycopg2.extensions import make_dsn

from dataloader.app.db.schema import COMPATIBLE_FROM, SCHEMA_VERSION, check, migrate, migration_files, schema_text
from dataloader.app.db.table_locks import TableLocks
from dataloader.app.errors import (
    DatabaseUnavailable,
    RightsMissing,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
)
from dataloader.app.queue.job import Status
from tests.support.databases import another_role
from tests.support.old_schema import BEFORE, ROWS, definitions, job_of, rows
from tests.support.queue_fixture import QueueFixture
from tests.support.waiting import eventually


@pytest.fixture
def old(empty_dsn) -> Iterator[QueueFixture]:
    queue_db = QueueFixture(empty_dsn)
    queue_db.sql(BEFORE)
    queue_db.sql(ROWS)
    yield queue_db
    queue_db.close()


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
        migrate(dsn, lock_wait_sec=1)

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


def test_many_migrations_at_once_are_one(old):
    dsn = make_dsn(old.dsn, options="-c default_transaction_isolation=serializable")  # as it may be of the database
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(migrate, [dsn] * 4))

    assert sorted(bool(one.steps) for one in done) == [False, False, False, True]
    assert old.fetch_row("SELECT count(*) FROM dl_schema WHERE version > 0") == 1


def test_migration_that_cannot_lock_tables_changes_nothing(old):
    before = definitions(old)
    with old.open_transaction() as step:
        step("LOCK TABLE dl_jobs IN ACCESS SHARE MODE")
        with pytest.raises(DatabaseUnavailable, match=r"no lock .* within 200 ms; they are locked by .*pid \d+"):
            migrate(old.dsn, lock_wait_sec=0.2)

    assert definitions(old) == before
    migrate(old.dsn)


def test_statements_go_on_while_a_migration_waits_for_a_long_transaction(dsn):
    queue_db = QueueFixture(dsn)
    job_id = str(queue_db.enqueue())
    queue_db.sql("UPDATE dl_schema SET fingerprint = 'of another file'")

    with ThreadPoolExecutor(1) as threads:
        with queue_db.open_transaction() as step:
            step("UPDATE dl_jobs SET consumer_group = 'x' WHERE job_id = %s", job_id)
            migration = threads.submit(migrate, dsn)
            queue_db.wait_for_lock_waiters()
            started_at = time.monotonic()
            other = queue_db.enqueue_and_claim("other")  # it waits for a try at most
            assert time.monotonic() - started_at < 10
            assert not migration.done()
        assert migration.result().steps

    assert queue_db.settle(other).outcome == "applied"
    queue_db.close()


def test_a_migration_makes_no_statement_wait_for_many_locks_one_after_the_other(dsn):
    """Each of these tables is let go 150 ms after the migration has come to it: one try has time for two of them."""
    queue_db = QueueFixture(dsn)
    queue_db.sql("UPDATE dl_schema SET fingerprint = 'of another file'")
    tables = ["dl_alerts", "dl_api_keys", "dl_breakers", "dl_bulk"]
    waited_for: list[tuple[object, str]] = []  # by its transaction
    are_locked = threading.Barrier(len(tables) + 1)

    def hold(table: str) -> None:
        with (
            closing(psycopg2.connect(dsn)) as holder,
            holder.cursor() as cursor,
            closing(psycopg2.connect(dsn)) as watcher,
            watcher.cursor() as watching,
        ):
            watcher.autocommit = True
            cursor.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
            are_locked.wait()
            eventually(lambda: waiters(watching, table))
            waited_for.append((waiters(watching, table), table))
            time.sleep(0.15)

    with ThreadPoolExecutor(len(tables) + 1) as threads:
        holders = [threads.submit(hold, table) for table in tables]
        are_locked.wait()
        assert migrate(dsn).steps
        for holder in holders:
            holder.result()

    tries = Counter(transaction for transaction, _ in waited_for)
    assert max(tries.values()) <= 2, waited_for
    queue_db.close()


def test_statements_go_on_while_a_migration_waits_for_a_vacuum(dsn):
    queue_db = QueueFixture(dsn)
    queue_db.sql("UPDATE dl_schema SET fingerprint = 'of another file'")

    with ThreadPoolExecutor(1) as threads, closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        with queue_db.open_transaction() as step:
            step("LOCK TABLE dl_jobs IN SHARE UPDATE EXCLUSIVE MODE")  # as a vacuum does
            migration = threads.submit(migrate, dsn)
            waited_for = eventually(lambda: waiters(cursor, "dl_jobs"))
            other = queue_db.enqueue_and_claim("other")
            assert waiters(cursor, "dl_jobs") == waited_for  # in the same try
        assert migration.result().steps

    assert queue_db.settle(other).outcome == "applied"
    queue_db.close()


def waiters(cursor: Any, table: str) -> Any:
    """When the transaction began that waits for the table."""
    cursor.execute(
        "SELECT a.xact_start FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " WHERE l.relation = to_regclass(%s) AND NOT l.granted",
        (table,),
    )
    row = cursor.fetchone()
    return None if row is None else row[0]


def test_a_migration_waits_for_a_vacuum_until_postgresql_cancels_it():
    asked = []

    def ask(question):
        asked.append(question)
        return [(1000.0,)] if "deadlock_timeout" in question else [(7, None, "", "autovacuum worker", 3.0)]

    def migrate_when_patient(try_sec):
        if try_sec < 1:
            raise DatabaseUnavailable("lock timeout") from LockNotAvailable()
        return try_sec

    assert TableLocks(ask, 30.0, print).repeat(migrate_when_patient) == 1.2
    assert len(asked) == 2


def test_a_server_that_is_too_old_is_refused(old, monkeypatch):
    from dataloader.app.db import schema

    monkeypatch.setattr(schema, "_MIN_SERVER_VERSION", 990000)
    with pytest.raises(SchemaOutdated, match="15 or newer"):
        migrate(old.dsn)


def test_a_file_that_is_missing_is_named(monkeypatch, tmp_path):
    from dataloader.app.db import schema

    monkeypatch.setattr(schema, "__file__", str(tmp_path / "app" / "db" / "schema.py"))
    with pytest.raises(FileNotFoundError, match=r"schema\.sql"):
        schema.schema_text()


def test_a_role_that_owns_nothing_can_neither_harm_nor_hide(old):
    """An upgrade by someone who may not is refused by the server, and its message is shown as it is."""
    with another_role(old.dsn) as role, pytest.raises(RightsMissing, match=r"must be owner|permission denied"):
        migrate(make_dsn(old.dsn, user=role, password="x"))


def test_schema_applied_by_hand_is_known_to_migrate(empty_dsn):
    with closing(psycopg2.connect(empty_dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(schema_text())

    check(empty_dsn)
    first, second = migrate(empty_dsn), migrate(empty_dsn)

    assert (first.from_version, first.to_version) == (SCHEMA_VERSION, SCHEMA_VERSION)
    assert second.steps == ()
