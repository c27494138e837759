"""A release works next to the one before: its migrations keep no statement waiting, and the statements of the former
processes mean something on its tables. docs/upgrading.md has the policy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dataloader.app.db.connection import Session
from dataloader.app.db.pool import Pool
from dataloader.app.db.schema import SCHEMA_VERSION, migrate, migration_files, schema_text
from dataloader.app.db.schema_statements import schema_statements
from dataloader.app.queue.job import NewJob
from dataloader.app.queue.job_records import LogEntry
from dataloader.app.queue.jobs import JobQueue
from tests.rehearsal.releases import MIGRATION
from tests.support.queue_fixture import QueueFixture
from tests.support.release_check import (
    KEPT,
    kept_statements,
    migration_problems,
    read_kept,
    statement_problems,
)

# They need functions and tables of this release, whose processes refuse to start before `dataloader migrate`.
NEED_MIGRATION = {
    "cancel", "cancel_graph", "bulk_cancel", "retry", "retry_graph", "bulk_retry", "prune_limit_starts", "limits",
    "limits_of_queue", "wake_limited", "queue_names", "notify_waiting_queues", "count_exact", "scaling",
}  # fmt: skip
FIRST_VERSION = 13  # of the tables of 0.3.0, from which on the policy holds
BAD_MIGRATIONS = {
    "ALTER TABLE dl_jobs ALTER COLUMN priority TYPE bigint;": "rewrites dl_jobs",
    "ALTER TABLE dl_jobs ADD COLUMN note timestamptz DEFAULT clock_timestamp();": "rewrites dl_jobs",
    "ALTER TABLE dl_jobs ADD CONSTRAINT short_task CHECK (task <> 'x');": "reads all rows of dl_jobs while",
    "CREATE INDEX dl_jobs_producer_idx ON dl_jobs (producer);": "reads all rows of dl_jobs while",
    "ALTER TABLE dl_job_events ALTER COLUMN payload SET NOT NULL;": "reads all rows of dl_job_events",
    "UPDATE dl_jobs SET producer = 'etl';": "changes 3 rows of dl_jobs in one transaction",
    "CREATE INDEX dl_job_logs_line_idx ON dl_job_logs (line);": "reads all rows of dl_job_logs",
    "DROP TABLE dl_breakers;": "drops dl_breakers",
    "ALTER TABLE dl_breakers RENAME TO dl_circuits;": "renames dl_breakers",
}
GOOD_MIGRATIONS = [
    MIGRATION,
    "ALTER TABLE dl_jobs ADD COLUMN is_paid bool NOT NULL DEFAULT false;",
    "CREATE TABLE dl_notes (job_id uuid PRIMARY KEY, note text);\nCREATE INDEX dl_notes_idx ON dl_notes (note);",
    "ALTER TABLE dl_jobs ADD CONSTRAINT short_task CHECK (task <> 'x') NOT VALID;",
    "ALTER TABLE dl_jobs ALTER COLUMN priority SET DEFAULT 50;",
]
BREAKING = {
    "ALTER TABLE dl_jobs RENAME COLUMN checkpoint TO save_point": r"column .*checkpoint.* does not exist",
    "ALTER TABLE dl_workers DROP COLUMN labels CASCADE": r"column .*labels.* does not exist",
    "DROP FUNCTION dl_live_workers CASCADE": r"function .*dl_live_workers\(\) does not exist",
    "ALTER TABLE dl_job_logs ALTER COLUMN attempt TYPE text": r"operator does not exist|is of type text",
}


@pytest.fixture
def queue_db(dsn: str) -> Iterator[QueueFixture]:
    """The tables of the release before, with rows."""
    made = QueueFixture(dsn)
    fill(made)
    yield made
    made.close()


def fill(queue_db: QueueFixture) -> None:
    for key in ("a", "b", "c"):
        queue_db.enqueue(key)
    (run, *_) = queue_db.claim(2)
    queue_db.save_progress(run, {"done": 1})
    queue_db.queue.write_logs([LogEntry(run.id, 1, 0.0, "INFO", "log", "a line")])


@pytest.fixture
def cursor(queue_db: QueueFixture):
    with queue_db.connect() as connection, connection.cursor() as made:
        yield made
        connection.rollback()


@pytest.mark.parametrize("text", GOOD_MIGRATIONS)
def test_migration_that_locks_for_a_moment_is_accepted(cursor, text):
    assert migration_problems(cursor, text) == []


@pytest.mark.parametrize(("text", "problem"), BAD_MIGRATIONS.items(), ids=BAD_MIGRATIONS)
def test_migration_that_keeps_others_waiting_is_refused(cursor, text, problem):
    assert any(problem in found for found in migration_problems(cursor, text))


def test_statements_of_a_release_mean_something_on_its_own_tables(cursor):
    assert statement_problems(cursor, kept_statements()) == []


@pytest.mark.parametrize(("text", "problem"), BREAKING.items(), ids=BREAKING)
def test_change_that_breaks_statements_of_the_release_before_is_refused(cursor, text, problem):
    cursor.execute(text)

    found = statement_problems(cursor, kept_statements())

    assert any(re.search(problem, each) for each in found), found


def test_migrations_since_the_last_release_keep_its_processes_working(empty_dsn: str):
    """Of each release since the policy holds: its tables, the migrations that follow, its statements."""
    files = {path.stem.removeprefix("schema-"): path.read_text(encoding="utf-8") for path in KEPT.glob("schema-*.sql")}
    recorded = {name: re.search(r"VALUES \((\d+), 'by hand'", text) for name, text in files.items()}
    kept = {int(found[1]): name for name, found in recorded.items() if found and int(found[1]) >= FIRST_VERSION}
    later = migration_files(after=FIRST_VERSION)

    assert SCHEMA_VERSION == FIRST_VERSION or FIRST_VERSION in kept, "keep the files of the release before the change"
    if not kept:
        assert later == []
        return
    version, name = max((v, n) for v, n in kept.items() if v < SCHEMA_VERSION or len(kept) == 1)
    queue_db = QueueFixture(empty_dsn)
    queue_db.sql((KEPT / f"schema-{name}.sql").read_text(encoding="utf-8"))
    with queue_db.connect() as connection, connection.cursor() as cursor:
        for number, text in migration_files(after=version):
            assert (number, migration_problems(cursor, text)) == (number, [])
        connection.rollback()
    migrate(empty_dsn)
    with queue_db.connect() as connection, connection.cursor() as cursor:
        assert statement_problems(cursor, read_kept(name)) == []
    queue_db.close()


def test_statements_that_need_functions_of_this_release_are_known(empty_dsn: str):
    queue_db = QueueFixture(empty_dsn)
    queue_db.sql((KEPT / "schema-0.3.0.sql").read_text(encoding="utf-8"))
    with queue_db.connect() as connection, connection.cursor() as cursor:
        problems = statement_problems(cursor, kept_statements())
    queue_db.close()

    assert {problem.partition(":")[0] for problem in problems} == NEED_MIGRATION


@pytest.mark.parametrize("connect", [Session, Pool])
def test_statement_that_began_before_an_upgrade_is_repeated(queue_db: QueueFixture, connect):
    """It was read with the former type of a request, waits for the table, and finds the type gone."""
    connection = connect(queue_db.dsn, application_name="in flight")
    replaced = [
        statement.text for statement in schema_statements(schema_text())
        if (statement.is_replaceable and not statement.table) or statement.object_name == "type dl_enqueue_request"
    ]  # fmt: skip
    with queue_db.connect() as upgrading, ThreadPoolExecutor(1) as threads:
        cursor = upgrading.cursor()
        cursor.execute("LOCK TABLE dl_jobs")
        enqueued = threads.submit(JobQueue(connection).enqueue, NewJob(queue="q", task="t", lock_key="in flight"))
        queue_db.wait_for_lock_waiters()
        cursor.execute("DROP TYPE dl_enqueue_request CASCADE")
        for text in replaced:
            cursor.execute(text)
        upgrading.commit()
        assert enqueued.result(60).created
    connection.close()
