"""To which attempt a session belongs: work items of pools, kept cursors and connections, threads that outlive their
attempt."""

from __future__ import annotations

import asyncio
import gc
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from inspect import iscoroutinefunction
from multiprocessing.pool import ThreadPool
from typing import Any

import psycopg
import psycopg2
import pytest
import sqlalchemy
from psycopg2 import extensions as ext
from psycopg2.extensions import parse_dsn

from dataloader.app.errors import SessionsRefused
from dataloader.workers.connections.own_connections import wrap_drivers
from tests.support import eventually
from tests.support.owning_attempt import QUERY_CANCELED, SLEEP, SLEEPING, OwningAttempt, cancel, error_code, owned_by
from tests.support.real_service import query_rows

NAME = "SELECT current_setting('application_name')"

both_drivers = pytest.mark.parametrize("driver", [psycopg2, psycopg], ids=["psycopg2", "psycopg"])


@pytest.fixture(autouse=True, scope="module")
def _wrapped() -> None:
    wrap_drivers()


@pytest.fixture
def attempt(dsn: str) -> OwningAttempt:
    return OwningAttempt(dsn)


@pytest.fixture
def other(dsn: str) -> OwningAttempt:
    return OwningAttempt(dsn)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def read_name(dsn: str) -> str:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(NAME)
        ((name,),) = cursor.fetchall()
        return str(name)


def sleep(dsn: str) -> str:
    """The code of the error that ends the statement."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        return error_code(lambda: cursor.execute(SLEEP))


# ── work items of pools ─────────────────────────────────────────────────────────────────────────────────────────


def test_reused_thread_of_ended_attempt_works_for_who_submits(
    dsn: str, attempt: OwningAttempt, other: OwningAttempt, pool: ThreadPoolExecutor
):
    with owned_by(attempt):
        assert pool.submit(read_name, dsn).result() == attempt.name
    attempt.connections.close()

    with owned_by(other):
        statement = pool.submit(sleep, dsn)

    cancel(dsn, other)
    assert statement.result() == QUERY_CANCELED


def test_end_of_attempt_that_started_thread_spares_the_work_of_another(
    dsn: str, attempt: OwningAttempt, other: OwningAttempt, pool: ThreadPoolExecutor
):
    with owned_by(attempt):
        pool.submit(read_name, dsn).result()
    with owned_by(other):
        statement = pool.submit(sleep, dsn)
    eventually(lambda: query_rows(dsn, SLEEPING, other.name))

    assert attempt.connections.cancel() == 0
    attempt.connections.terminate()
    attempt.connections.close()

    cancel(dsn, other)
    assert statement.result() == QUERY_CANCELED


def by_event_loop(pool: ThreadPoolExecutor, call: Callable[[str], str], dsn: str) -> str:
    async def run() -> str:
        return await asyncio.get_running_loop().run_in_executor(pool, call, dsn)

    return asyncio.run(run())


def by_to_thread(pool: ThreadPoolExecutor, call: Callable[[str], str], dsn: str) -> str:
    async def run() -> str:
        asyncio.get_running_loop().set_default_executor(pool)
        return await asyncio.to_thread(call, dsn)

    return asyncio.run(run())


def by_callback(pool: ThreadPoolExecutor, call: Callable[[str], str], dsn: str) -> str:
    result: Future[str] = Future()
    begin = threading.Event()
    pool.submit(begin.wait).add_done_callback(lambda _: result.set_result(call(dsn)))
    begin.set()
    return result.result(20)


@pytest.mark.parametrize(
    "submit",
    [
        lambda pool, call, dsn: pool.submit(call, dsn).result(),
        lambda pool, call, dsn: next(pool.map(call, [dsn])),
        by_event_loop, by_to_thread, by_callback,
    ],
    ids=["submit", "map", "run_in_executor", "to_thread", "callback"],
)  # fmt: skip
def test_executor_runs_a_call_for_who_submits(dsn: str, attempt: OwningAttempt, other: OwningAttempt, submit: Any):
    pool = ThreadPoolExecutor(1)  # the event loop may shut it down
    with owned_by(attempt):
        pool.submit(read_name, dsn).result()
    with owned_by(other):
        assert submit(pool, read_name, dsn) == other.name
    pool.shutdown()


@pytest.mark.parametrize(
    "submit",
    [
        lambda pool, dsn: pool.apply(read_name, (dsn,)),
        lambda pool, dsn: pool.apply_async(func=read_name, args=(dsn,)).get(),
        lambda pool, dsn: pool.map(read_name, [dsn])[0],
        lambda pool, dsn: pool.starmap(read_name, [(dsn,)])[0],
        lambda pool, dsn: next(pool.imap(read_name, [dsn])),
    ],
    ids=["apply", "apply_async", "map", "starmap", "imap"],
)
def test_thread_pool_runs_a_call_for_who_submits(dsn: str, attempt: OwningAttempt, other: OwningAttempt, submit: Any):
    with owned_by(attempt):
        pool = ThreadPool(1)
    with pool, owned_by(other):
        assert submit(pool, dsn) == other.name


def test_work_item_from_outside_an_attempt_has_no_owner(dsn: str, attempt: OwningAttempt, pool: ThreadPoolExecutor):
    with owned_by(attempt):
        pool.submit(read_name, dsn).result()

    assert not pool.submit(read_name, dsn).result().startswith("dataloader")


# ── threads that outlive their attempt ──────────────────────────────────────────────────────────────────────────


class Helper:
    """A thread that an attempt starts. It makes the calls that it gets."""

    def __init__(self, owner: OwningAttempt) -> None:
        self._call: Callable[[], Any] = lambda: None
        self._outcome: Future[Any] = Future()
        self._begin = threading.Event()
        with owned_by(owner):
            threading.Thread(target=self.make_calls, daemon=True).start()

    def make_calls(self) -> None:
        while self._begin.wait(60):
            self._begin.clear()
            call, outcome = self._call, self._outcome
            try:
                outcome.set_result(call())
            except BaseException as error:
                outcome.set_exception(error)

    def run(self, call: Callable[[], Any]) -> Any:
        self._call, self._outcome = call, Future()
        outcome = self._outcome
        self._begin.set()
        return outcome.result(20)


def witnessed(dsn: str) -> list[tuple[Any, ...]]:
    return query_rows(dsn, "SELECT said FROM witness ORDER BY 1")


@pytest.fixture
def witness(dsn: str) -> str:
    query_rows(dsn, "CREATE TABLE witness (said text)")
    return "INSERT INTO witness VALUES ('early')"


@both_drivers
def test_thread_writes_nothing_after_the_end_of_its_attempt(
    dsn: str, attempt: OwningAttempt, witness: str, driver: Any
):
    helper = Helper(attempt)
    connection = helper.run(lambda: driver.connect(dsn))
    connection.autocommit = True
    cursor = connection.cursor()
    helper.run(lambda: cursor.execute(witness))

    attempt.connections.close()

    late = "INSERT INTO witness VALUES ('late')"
    for call in (
        lambda: cursor.execute(late),
        lambda: connection.cursor().execute(late),
        lambda: connection.cursor().executemany(late, [()]),
        lambda: driver.connect(dsn),
    ):
        with pytest.raises(SessionsRefused):
            helper.run(call)
    assert witnessed(dsn) == [("early",)]
    assert not connection.closed
    connection.close()


@both_drivers
def test_thread_commits_nothing_after_the_end_of_its_attempt(
    dsn: str, attempt: OwningAttempt, witness: str, driver: Any
):
    helper = Helper(attempt)
    connection = helper.run(lambda: driver.connect(dsn))
    helper.run(lambda: connection.cursor().execute(witness))

    attempt.connections.close()

    with pytest.raises(SessionsRefused):
        helper.run(connection.commit)
    helper.run(connection.rollback)
    assert witnessed(dsn) == []
    connection.close()


def test_transaction_block_is_rolled_back_after_the_end_of_its_attempt(dsn: str, attempt: OwningAttempt, witness: str):
    helper = Helper(attempt)
    connection = helper.run(lambda: psycopg.connect(dsn))

    def write() -> None:
        with connection.transaction():
            connection.execute(witness)
            attempt.connections.close()

    with pytest.raises(SessionsRefused):
        helper.run(write)
    assert witnessed(dsn) == []
    assert connection.info.transaction_status == ext.TRANSACTION_STATUS_IDLE
    connection.close()


def test_thread_of_attempt_that_is_gone_opens_no_connection(dsn: str):
    helper = Helper(OwningAttempt(dsn))
    gc.collect()

    with pytest.raises(SessionsRefused):
        helper.run(lambda: psycopg2.connect(dsn))


@both_drivers
def test_thread_of_ended_attempt_cannot_use_a_session_of_another(
    dsn: str, attempt: OwningAttempt, other: OwningAttempt, driver: Any
):
    helper = Helper(attempt)
    with owned_by(other), closing(driver.connect(dsn)) as connection:
        connection.autocommit = True
        attempt.connections.close()
        with pytest.raises(SessionsRefused):
            helper.run(lambda: connection.cursor().execute(NAME))
        with connection.cursor() as cursor:
            cursor.execute(NAME)
            assert cursor.fetchone() == (other.name,)


def test_call_that_begins_as_its_attempt_ends_loses_its_session(dsn: str, attempt: OwningAttempt):
    with owned_by(attempt), closing(psycopg2.connect(dsn)) as connection:
        connection.own_session.is_called = True  # type: ignore[attr-defined]

        assert attempt.connections.close().ended == 1


def refill(dsn: str, opened: list[Any]) -> None:
    with suppress(SessionsRefused):
        opened.append(psycopg.connect(dsn))


def test_pool_that_opens_connections_in_threads_of_its_own_outlives_the_attempt(
    dsn: str, attempt: OwningAttempt, other: OwningAttempt, monkeypatch: pytest.MonkeyPatch
):
    """As psycopg_pool does: the thread that opens them was started by the first attempt that used the pool."""
    monkeypatch.setattr(Helper.make_calls, "__module__", "psycopg_pool.pool")
    opener, opened = Helper(attempt), list[Any]()
    attempt.connections.close()

    opener.run(lambda: refill(dsn, opened))

    with owned_by(other), closing(opened[0]) as connection:
        assert connection.execute(NAME).fetchone() == (other.name,)
        connection.rollback()
        assert other.connections.terminate().ended == 1


# ── connections and cursors that a module keeps ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_engine_of_a_module_serves_the_next_attempt(
    dsn: str, attempt: OwningAttempt, other: OwningAttempt, driver: str
):
    engine = sqlalchemy.create_engine(f"postgresql+{driver}://", connect_args=parse_dsn(dsn), pool_size=1)
    pids = []
    for owner in (attempt, other):
        with owned_by(owner), engine.begin() as connection:
            name, pid = connection.exec_driver_sql(f"{NAME}, pg_backend_pid()").one()
            assert name == owner.name
            pids.append(pid)
        owner.connections.close()
    assert pids[0] == pids[1]
    engine.dispose()


def read_copy(cursor: Any) -> None:
    with cursor.copy(f"COPY ({SLEEP}) TO STDOUT") as copy:
        list(copy)


EXECUTIONS = {
    "execute": lambda cursor: cursor.execute(SLEEP),
    "executemany": lambda cursor: cursor.executemany(SLEEP, [()]),
}
OF_PSYCOPG2 = {
    "callproc": lambda cursor: cursor.callproc("pg_sleep", (60,)),
    "copy_expert": lambda cursor: cursor.copy_expert(f"COPY ({SLEEP}) TO STDOUT", io.StringIO()),
}
OF_PSYCOPG = {
    "stream": lambda cursor: list(cursor.stream(SLEEP)),
    "copy": read_copy,
}


@pytest.mark.parametrize(
    ("driver", "execute"),
    [
        *(pytest.param(psycopg2, call, id=f"psycopg2-{name}") for name, call in (EXECUTIONS | OF_PSYCOPG2).items()),
        *(pytest.param(psycopg, call, id=f"psycopg-{name}") for name, call in (EXECUTIONS | OF_PSYCOPG).items()),
    ],
)  # fmt: skip
def test_kept_cursor_belongs_to_who_uses_it(
    dsn: str, attempt: OwningAttempt, other: OwningAttempt, driver: Any, execute: Callable[[Any], Any]
):
    with owned_by(attempt):
        connection = driver.connect(dsn)
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute("SELECT 1")
    attempt.connections.close()

    with owned_by(other), ThreadPoolExecutor(1) as pool:
        statement = pool.submit(error_code, lambda: execute(cursor))
        cancel(dsn, other)
        assert statement.result() == QUERY_CANCELED
    connection.close()


def test_wrapped_coroutines_stay_coroutines():
    wrap_drivers()

    assert iscoroutinefunction(psycopg.AsyncCursor.execute)
    assert iscoroutinefunction(psycopg.AsyncConnection.commit)
    assert not iscoroutinefunction(psycopg.Cursor.execute)
