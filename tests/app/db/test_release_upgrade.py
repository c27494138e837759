"""The tables of each older release, with data, become those of schema.sql."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from dataloader.app.db.schema import SCHEMA_VERSION, check, migrate, migration_files, schema_text
from dataloader.app.errors import (
    SchemaBlocked,
    SchemaOutdated,
)
from dataloader.app.queue.job_records import LogEntry
from tests.support import eventually
from tests.support.databases import allow_parameter
from tests.support.old_schema import OLD_COLUMNS, ROWS, definitions, job_of
from tests.support.queue_fixture import QueueFixture

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
    allow_parameter(empty_dsn, "dl.ours")
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


def test_an_older_version_is_outdated(version_2):
    with pytest.raises(SchemaOutdated, match="version 2.*dataloader migrate"):
        check(version_2.dsn)
