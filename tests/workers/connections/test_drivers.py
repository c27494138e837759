"""Connections that a task's code opens by itself: what is set on them, to whom they belong, and that the code notices
nothing of it. The drivers are wrapped in a process of their own for each test that needs other ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import psycopg2
import psycopg2.extras
import pytest
from psycopg2 import extensions as ext
from psycopg2.extensions import make_dsn
from psycopg2.pool import ThreadedConnectionPool

from dataloader.app.errors import SessionsRefused
from dataloader.workers.connections import own_connections
from dataloader.workers.connections.own_connections import wrap_drivers
from dataloader.workers.connections.task_connections import is_connection_loss
from tests.support import eventually
from tests.support.owning_attempt import QUERY_CANCELED, SLEEP, SLEEPING, OwningAttempt, cancel, error_code, owned_by
from tests.support.real_service import query_rows

SHOW = "SELECT current_setting('application_name'), current_setting('client_connection_check_interval')"


@pytest.fixture(autouse=True, scope="module")
def _wrapped() -> None:
    wrap_drivers()


@pytest.fixture
def attempt(dsn: str) -> OwningAttempt:
    return OwningAttempt(dsn)


@pytest.fixture
def other(dsn: str) -> OwningAttempt:
    return OwningAttempt(dsn)


def shown(connection: Any) -> tuple[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(SHOW)
        row: tuple[str, str] = cursor.fetchone()
        connection.rollback()
        return row


every_connect = pytest.mark.parametrize(
    "driver", [psycopg2, psycopg, psycopg.Connection], ids=["psycopg2", "psycopg", "class"]
)


@every_connect
def test_session_of_an_attempt_has_its_name_and_client_check(dsn: str, attempt: OwningAttempt, driver: Any):
    with owned_by(attempt):
        plain, named = driver.connect(dsn), driver.connect(make_dsn(dsn, application_name="nightly-load"))
        in_options = driver.connect(dsn, application_name="it's")
    outside = driver.connect(dsn, application_name="mine")

    for connection in (plain, named, in_options, outside):
        assert connection.info.transaction_status == ext.TRANSACTION_STATUS_IDLE
        assert not connection.autocommit
    assert [shown(c) for c in (plain, named, in_options)] == [
        (attempt.name, "500ms"),
        (f"{attempt.name}:nightl", "500ms"),
        (f"{attempt.name}:it's", "500ms"),
    ]
    assert shown(outside) == ("mine", "0")
    for connection in (plain, named, in_options, outside):
        connection.close()


def test_connection_keeps_its_class_factory_and_autocommit(dsn: str, attempt: OwningAttempt):
    with owned_by(attempt):
        with closing(psycopg2.connect(dsn, connection_factory=psycopg2.extras.DictConnection)) as connection:
            assert isinstance(connection, psycopg2.extras.DictConnection)
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 AS one")
                assert [row["one"] for row in cursor] == [1]
        with closing(psycopg.connect(dsn, autocommit=True, row_factory=psycopg.rows.dict_row)) as connection:
            assert connection.autocommit
            assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}


@every_connect
def test_server_that_refuses_the_check_keeps_the_connection(dsn: str, attempt: OwningAttempt, driver: Any, monkeypatch):
    monkeypatch.setattr(own_connections, "_CHECKS", "SET no_such_setting = 1")
    with owned_by(attempt), closing(driver.connect(dsn)) as connection:
        assert shown(connection) == (attempt.name, "0")
        assert connection.info.transaction_status == ext.TRANSACTION_STATUS_IDLE
    assert "no_such_setting" in attempt.unchecked[0]


@every_connect
def test_connection_that_cannot_be_made_raises_as_before(attempt: OwningAttempt, driver: Any):
    with owned_by(attempt), pytest.raises((psycopg2.OperationalError, psycopg.OperationalError)):
        driver.connect("host=127.0.0.1 port=1 dbname=none connect_timeout=2")


def test_ended_attempt_opens_no_more_connections(dsn: str, attempt: OwningAttempt):
    attempt.connections.close()

    with owned_by(attempt), pytest.raises(SessionsRefused):
        psycopg2.connect(dsn)


class Statement:
    """A statement that a thread executes for an attempt."""

    def __init__(self, connection: Any, owner: OwningAttempt, dsn: str) -> None:
        self._connection, self._owner = connection, owner
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        active = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND query LIKE '%%pg_sleep%%'"
        eventually(lambda: query_rows(dsn, active, connection.info.backend_pid))

    def _run(self) -> None:
        with owned_by(self._owner):
            try:
                self._connection.cursor().execute("SELECT pg_sleep(60)")
            except (psycopg2.Error, psycopg.Error) as error:
                self.error = error

    def end(self) -> str | None:
        self.thread.join(30)
        return getattr(self.error, "pgcode", None) or getattr(self.error, "sqlstate", None)


@every_connect
def test_pooled_connection_belongs_to_who_uses_it(dsn: str, attempt: OwningAttempt, other: OwningAttempt, driver: Any):
    """One that the first attempt opened, and the second one got from a pool."""
    with owned_by(attempt):
        connection = driver.connect(dsn)
    attempt.connections.close()
    assert not connection.closed

    statement = Statement(connection, other, dsn)
    assert attempt.connections.cancel() == 0
    attempt.connections.terminate()
    assert other.connections.in_use
    assert other.connections.cancel() == 1

    assert statement.end() == "57014"
    connection.rollback()
    assert shown(connection)[0] == other.name
    connection.close()


def test_attempts_end_leaves_idle_connections_of_a_pool_open(dsn: str, attempt: OwningAttempt):
    with owned_by(attempt):
        pool = ThreadedConnectionPool(1, 2, dsn)
        connection = pool.getconn()
        connection.cursor().execute("SELECT 1")
        pool.putconn(connection)

    assert attempt.connections.close().servers == ()

    connection = pool.getconn()
    assert shown(connection)[0] == attempt.name
    pool.closeall()


def test_attempts_end_ends_a_statement_that_still_runs(dsn: str, attempt: OwningAttempt):
    with owned_by(attempt):
        connection = psycopg2.connect(make_dsn(dsn, application_name="nightly"))
    statement = Statement(connection, attempt, dsn)

    report = attempt.connections.close()

    assert (report.ended, report.is_complete) == (1, True)
    statement.end()
    assert isinstance(statement.error, psycopg2.OperationalError)
    assert is_connection_loss(statement.error)


@pytest.fixture
def in_transaction(dsn: str, attempt: OwningAttempt) -> Iterator[Any]:
    with owned_by(attempt):
        connection = psycopg2.connect(dsn)
        connection.cursor().execute("CREATE TEMPORARY TABLE t (n int)")
    yield connection
    connection.close()


def test_use_by_another_attempt_keeps_an_open_transaction(in_transaction: Any, other: OwningAttempt):
    with owned_by(other):
        in_transaction.cursor().execute("INSERT INTO t VALUES (1)")
    in_transaction.commit()
    with in_transaction.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM t")
        assert cursor.fetchone() == (1,)


# ── cursors, and connections that no class makes ────────────────────────────────────────────────────────────────


def connect(*args: Any, **options: Any) -> Any:
    """By the wrapped function, without the types of the driver."""
    return psycopg2.connect(*args, **options)


class Logged(psycopg2.extras.DictCursor):
    def execute(self, query: Any, vars: Any = None, note: str = "") -> Any:
        self.note = note
        return super().execute(query, vars)


def test_cursors_keep_their_class_and_parameters(dsn: str, attempt: OwningAttempt):
    with owned_by(attempt), closing(connect(dsn, cursor_factory=Logged)) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s AS n", (1,), note="one")
            assert (type(cursor).__name__, isinstance(cursor, Logged), cursor.note) == ("Logged", True, "one")
            assert cursor.fetchone()["n"] == 1
        with connection.cursor("rows", withhold=True, scrollable=True) as named:
            named.execute(query="SELECT %(n)s AS n", vars={"n": 2})
            assert (named.withhold, named.scrollable, named.fetchone()["n"]) == (True, True, 2)
        with connection.cursor(cursor_factory=psycopg2.extras.NamedTupleCursor) as plain:
            plain.execute("SELECT 3 AS n")
            assert plain.fetchone().n == 3
            assert psycopg2.extras.execute_values(plain, "SELECT * FROM (VALUES %s) v", [(4,), (5,)], fetch=True)


class Subclass(ext.connection):
    pass


def test_connection_of_a_factory_function_is_stopped(dsn: str, attempt: OwningAttempt):
    with owned_by(attempt), ThreadPoolExecutor(1) as pool:
        connection = connect(dsn, connection_factory=partial(ext.connection))
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('client_connection_check_interval')")
            assert cursor.fetchone() == ("500ms",)
        statement = pool.submit(error_code, lambda: connection.cursor().execute(SLEEP))
        cancel(dsn, attempt)
        assert statement.result() == QUERY_CANCELED
        assert attempt.connections.terminate().is_complete
        # Not how many: one that the first connection needed may be ending still.
        with pytest.raises(psycopg2.OperationalError, match="terminating|closed"):
            connection.cursor().execute("SELECT 1")


def test_subclass_of_a_factory_function_belongs_to_who_uses_it(dsn: str, attempt: OwningAttempt, other: OwningAttempt):
    with owned_by(attempt):
        connection = connect(dsn, connection_factory=partial(Subclass))
    assert isinstance(connection, Subclass)
    attempt.connections.close()

    with owned_by(other), connection.cursor() as cursor:
        cursor.execute(SHOW)
        assert cursor.fetchall()[0][0] == other.name
    connection.close()


def test_asynchronous_connection_is_stopped(dsn: str, attempt: OwningAttempt):
    def wait() -> str:
        return error_code(lambda: psycopg2.extras.wait_select(connection))

    with owned_by(attempt), ThreadPoolExecutor(1) as pool:
        connection = connect(dsn, async_=1)
        psycopg2.extras.wait_select(connection)
        cursor = connection.cursor()
        cursor.execute(SLEEP)
        statement = pool.submit(wait)
        cancel(dsn, attempt)
        assert statement.result() == QUERY_CANCELED
        cursor.execute(SLEEP)
        eventually(lambda: query_rows(dsn, SLEEPING, attempt.name))

        assert attempt.connections.close().is_complete  # not how many: one that the cancel needed may be ending still
    eventually(lambda: not query_rows(dsn, SLEEPING, attempt.name))
    connection.close()
