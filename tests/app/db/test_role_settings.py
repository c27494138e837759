"""A role whose sessions begin with settings of its own: the queue's sessions do not depend on defaults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest
from psycopg2 import errors
from psycopg2.extensions import parse_dsn

from dataloader.app.acts.findings import Severity
from dataloader.app.config import load_settings
from dataloader.app.db.pool import Pool
from dataloader.app.db.schema import migrate
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import NewJob, Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.runtime.commands import run_doctor
from dataloader.workers.connections.task_connections import TaskConnections
from tests.support.databases import execute_sql
from tests.support.queue_fixture import QueueFixture

ROLE_SETTINGS = (
    "idle_in_transaction_session_timeout = '500ms'", "lock_timeout = '50ms'", "default_transaction_read_only = on",
    "default_transaction_isolation = serializable", "search_path = nowhere", "timezone = 'Asia/Kathmandu'",
    "DateStyle = 'SQL, DMY'", "statement_timeout = '5s'",
)  # fmt: skip


@pytest.fixture
def role_dsn(empty_dsn: str) -> str:
    """The DSN of an empty database in which our role has the settings."""
    known = parse_dsn(empty_dsn)
    of_role = f'ALTER ROLE "{known["user"]}" IN DATABASE "{known["dbname"]}" SET '
    execute_sql(empty_dsn, *(of_role + setting for setting in ROLE_SETTINGS))
    return empty_dsn


@pytest.fixture
def role_queue(role_dsn: str) -> Iterator[QueueFixture]:
    migrate(role_dsn)
    queue_db = QueueFixture(role_dsn)
    yield queue_db
    queue_db.close()


def test_job_runs_for_a_role_with_settings(role_queue: QueueFixture):
    job_id = role_queue.enqueue()

    (run,) = role_queue.claim()
    role_queue.settle(run)

    assert role_queue.status(job_id) is Status.SUCCEEDED


def test_api_enqueues_for_a_role_with_settings(role_queue: QueueFixture):
    with closing(Pool(role_queue.dsn)) as pool:
        made = JobQueue(pool).enqueue(NewJob(queue="q", task="t", lock_key="k"))

    assert role_queue.status(made.job_id) is Status.QUEUED


def test_doctor_finds_the_queue_writable(role_queue: QueueFixture):
    findings = run_doctor(load_settings({"DL_DB_DSN": role_queue.dsn}, dotenv=None))

    assert [one.severity for one in findings if one.check == "writable"] == [Severity.OK]


def test_transaction_of_job_writes_and_its_own_connection_does_not(role_queue: QueueFixture):
    role_queue.enqueue()
    (run,) = role_queue.claim()
    settings = ConnectionSettings(dsn=role_queue.dsn, schema="public", targets={})
    connections = TaskConnections(settings, run.id, run.run_id)

    with connections.transaction(checkpoint=lambda: None, final=None) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE public.loaded AS SELECT 1 AS n")
    with connections.connect("warehouse") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT n FROM public.loaded")
        assert cursor.fetchall() == [(1,)]
        with pytest.raises(errors.ReadOnlySqlTransaction):
            cursor.execute("DELETE FROM public.loaded")
    connections.close()


def test_read_only_default_of_database_holds(role_queue: QueueFixture):
    name = parse_dsn(role_queue.dsn)["dbname"]
    user = parse_dsn(role_queue.dsn)["user"]
    execute_sql(
        role_queue.dsn,
        "SET default_transaction_read_only = off",
        f'ALTER ROLE "{user}" IN DATABASE "{name}" RESET default_transaction_read_only',
        f'ALTER DATABASE "{name}" SET default_transaction_read_only = on',
    )

    with closing(psycopg2.connect(role_queue.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW default_transaction_read_only")
        assert cursor.fetchone() == ("on",)
    with pytest.raises(DatabaseUnavailable, match="read-only"):
        migrate(role_queue.dsn, "another")
