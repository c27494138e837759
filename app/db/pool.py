"""The API's connection pool: psycopg2-pool with bounded waiting, liveness checks and a fast failure during outages."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2 import extensions as ext
from psycopg2.extensions import make_dsn
from psycopg2_pool import ThreadSafeConnectionPool

from dataloader.app.db.connection import (
    READ_COMMITTED,
    READ_COMMITTED_SESSION,
    READ_WRITE_SESSION,
    AsyncConnection,
    Row,
    connect,
    is_lost_server,
    is_stale_plan,
    refuse_other_queue,
    translate_errors,
)
from dataloader.app.db.known_servers import KNOWN_TIMELINES
from dataloader.app.db.statements import Executor, statements, with_audit_setting
from dataloader.app.errors import DatabaseUnavailable, PoolExhausted

_CHECK_AFTER_IDLE_SEC = 30.0
_FAILURE_COOLDOWN_SEC = 1.0  # after a failed connect, others fail without trying

# The plan of a prepared statement is kept, and may have been made while the table was small: leave it the index only.
_PREPARED_SETTINGS = "SET LOCAL enable_seqscan = off; "


@dataclass(frozen=True)
class PoolStats:
    size: int
    in_use: int
    idle: int
    waiting: int
    exhausted: int  # requests that got no connection in time


class _ConnectionPool(ThreadSafeConnectionPool):  # type: ignore[misc] # the package has no types
    """Releases the pool's lock while a connection is opened, so that other threads need not wait for it."""

    def __init__(self, open_connection: Callable[[], AsyncConnection], max_connections: int) -> None:
        self._open_connection = open_connection
        super().__init__(minconn=0, maxconn=max_connections, idle_timeout=0)
        self.idle_timeout = None  # connections are kept until they are too old; `Pool` closes those beyond its size

    def _connect(self, for_immediate_use: bool = False) -> AsyncConnection:
        self.lock.release()
        try:
            connection = self._open_connection()
        finally:
            self.lock.acquire()
        self.connections_in_use.add(connection)
        return connection


class Pool:
    """At most `size + overflow` connections; `size` of them are kept open.

    While the database is unavailable requests fail at once after the first failure, and only a few may wait for a
    connection: the web server keeps threads free for health checks.
    """

    def __init__(  # noqa: PLR0913 - each is a knob of its own
        self,
        dsn: str | Callable[[], str],  # called when the first connection is opened
        *,
        size: int = 5,
        overflow: int = 5,
        recycle_sec: float = 3600.0,
        connect_timeout_sec: float = 5.0,
        command_timeout_sec: float = 30.0,
        wait_sec: float = 2.0,
        max_waiting: int = 4,
        application_name: str = "dataloader-api",
        use_pool: bool = True,
        schema: str = "public",
        transactions_only: bool = False,  # a pooler gives each transaction another server session
        standby_only: bool = False,
    ) -> None:
        self.schema = schema
        self._size, self._max_connections = size if use_pool else 0, size + overflow
        self._max_age_sec, self._connect_timeout_sec = recycle_sec, connect_timeout_sec
        self._command_timeout_sec, self._max_wait_sec = command_timeout_sec, wait_sec
        self._statements = statements(schema)
        timeout_ms = int(command_timeout_sec * 1000)
        settings: dict[str, str | int] = {
            "statement_timeout": timeout_ms, "lock_timeout": 0, "client_min_messages": "error", "jit": "off",
        }  # fmt: skip
        settings["array_nulls"] = "on"  # with `off`, which a role may have, NULL in an array would be a text
        # Where the network fails within a transaction, the server would keep its locks for two hours.
        settings["idle_in_transaction_session_timeout"] = timeout_ms
        self._transactions_only, self._standby_only = transactions_only, standby_only
        if transactions_only:  # a session setting would stay with whichever client the pooler serves next
            self._session_settings = ""
            self._transaction_settings = READ_COMMITTED + "".join(
                f"SET LOCAL {key} = {value};" for key, value in settings.items()
            )
        else:
            settings["plan_cache_mode"] = "force_generic_plan"
            self._session_settings = (
                READ_COMMITTED_SESSION
                + READ_WRITE_SESSION
                + "".join(f"SET {key} = {value};" for key, value in settings.items())
            )
            self._transaction_settings = ""
        self._dsn, self._application_name = dsn, application_name
        self._pool = _ConnectionPool(self._open, self._max_connections)
        self._free_slots = threading.BoundedSemaphore(self._max_connections)
        self._wait_slots = threading.BoundedSemaphore(max_waiting)
        self._waiting = 0  # under the pool's lock, as the two below
        self._exhausted_count = 0
        self._cooldown_until = 0.0

    def execute(
        self, name: str, parameters: Mapping[str, Any] | None = None, *, timeout_sec: float | None = None
    ) -> list[Row]:
        """Execute a named statement as one transaction."""
        statement, timeout_sec = self._statements[name], timeout_sec or self._command_timeout_sec
        text, values = self._transaction_settings + statement.text, parameters or {}
        with translate_errors(), self._borrowed() as connection:
            try:
                if statement.is_prepared and not self._transactions_only:
                    return connection.execute_statement(statement, values, timeout_sec, settings=_PREPARED_SETTINGS)
                return connection.execute(text, values, timeout_sec)
            except psycopg2.Error as error:
                if not is_stale_plan(error):
                    raise
            connection.forget_prepared(timeout_sec)  # nothing has taken effect: the text will do
            return connection.execute(text, values, timeout_sec)

    @contextmanager
    def transaction(self) -> Iterator[Executor]:
        """Several statements as one transaction on one connection."""
        with translate_errors(), self._borrowed() as connection:
            connection.execute(f"BEGIN; {self._transaction_settings}", None, self._command_timeout_sec)
            try:
                yield _OpenTransaction(connection, self.schema, self._command_timeout_sec)
                connection.execute("COMMIT", None, self._command_timeout_sec)
            except BaseException:
                with suppress(psycopg2.Error):
                    connection.execute("ROLLBACK", None, self._command_timeout_sec)
                raise

    def stats(self) -> PoolStats:
        with self._pool.lock:
            in_use, idle = len(self._pool.connections_in_use), len(self._pool.idle_connections)
            return PoolStats(self._max_connections, in_use, idle, self._waiting, self._exhausted_count)

    def close(self) -> None:
        self._pool.clear()

    @contextmanager
    def _borrowed(self) -> Iterator[AsyncConnection]:
        if not self._free_slots.acquire(blocking=False):
            self._wait_for_slot()
        try:
            connection = self._checkout()
            try:
                yield connection
            except psycopg2.Error as error:
                if is_lost_server(error):
                    connection.close()
                raise
            finally:
                self._checkin(connection)
        finally:
            self._free_slots.release()

    def _wait_for_slot(self) -> None:
        """Raises PoolExhausted. Few may wait: the web server keeps threads for health checks."""
        is_free = False
        if self._wait_slots.acquire(blocking=False):
            with self._pool.lock:
                self._waiting += 1
            is_free = self._free_slots.acquire(timeout=self._max_wait_sec)
            with self._pool.lock:
                self._waiting -= 1
            self._wait_slots.release()
        if not is_free:
            with self._pool.lock:
                self._exhausted_count += 1
            raise PoolExhausted(
                f"all {self._max_connections} connections are busy; PG_POOL_SIZE and PG_MAX_OVERFLOW bound them"
            )

    def _checkout(self) -> AsyncConnection:
        while True:
            if time.monotonic() < self._cooldown_until and not self._pool.idle_connections:
                raise DatabaseUnavailable("a connection attempt failed a moment ago; not tried again yet")
            try:
                connection: AsyncConnection = self._pool.getconn()
            except psycopg2.Error:
                self._cooldown_until = time.monotonic() + _FAILURE_COOLDOWN_SEC
                raise
            with self._pool.lock:  # the package counts a connection as in use only when it has just been opened
                self._pool.connections_in_use.add(connection)
            if self._is_alive(connection):
                return connection
            self._discard(connection)

    def _open(self) -> AsyncConnection:
        dsn = self._dsn() if callable(self._dsn) else self._dsn
        if self._standby_only:
            dsn = str(make_dsn(dsn, target_session_attrs="standby"))
        connection = connect(dsn, name=self._application_name, timeout_sec=self._connect_timeout_sec)
        try:
            if self._standby_only and connection.cluster and not KNOWN_TIMELINES.knows(connection.cluster):
                raise psycopg2.OperationalError("the server is a standby of another one than the queue's")
            connection.execute(f"{self._session_settings} SET timezone = 'UTC'", None, self._connect_timeout_sec)
            refuse_other_queue(connection, dsn, self.schema, self._connect_timeout_sec)
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_alive(self, connection: AsyncConnection) -> bool:
        if connection.closed or _has_unread_input(connection):
            return False  # no statement is in progress: the server has closed the connection
        if time.monotonic() - connection.last_used_at < _CHECK_AFTER_IDLE_SEC:
            return True
        try:
            connection.execute("SELECT 1", None, self._connect_timeout_sec)
        except psycopg2.Error:
            return False
        return True

    def _checkin(self, connection: AsyncConnection) -> None:
        connection.last_used_at = time.monotonic()
        with self._pool.lock:
            is_spare = len(self._pool.idle_connections) >= self._size
        is_too_old = connection.last_used_at - connection.opened_at > self._max_age_sec
        if connection.closed or is_spare or is_too_old or connection.isexecuting():
            self._discard(connection)
        else:
            self._pool.putconn(connection)

    def _discard(self, connection: AsyncConnection) -> None:
        with self._pool.lock:
            self._pool.connections_in_use.discard(connection)
        connection.close()


class _OpenTransaction:
    """A connection of the pool inside a transaction."""

    def __init__(self, connection: AsyncConnection, schema: str, timeout_sec: float) -> None:
        self.schema = schema
        self._connection, self._statements, self._timeout_sec = connection, statements(schema), timeout_sec

    def execute(
        self, name: str, parameters: Mapping[str, Any] | None = None, *, timeout_sec: float | None = None
    ) -> list[Row]:
        text, timeout_sec = self._statements[name].text, timeout_sec or self._timeout_sec
        with translate_errors():
            try:
                return self._connection.execute(text, parameters or {}, timeout_sec)
            except psycopg2.Error as error:
                if is_lost_server(error):
                    self._connection.close()
                raise


class BorrowedConnection:
    """A caller's connection inside its transaction: statements commit or roll back with it."""

    def __init__(self, connection: Any, *, schema: str = "public") -> None:
        self.schema = schema
        self._connection, self._statements = connection, statements(schema)

    def execute(
        self, name: str, parameters: Mapping[str, Any] | None = None, *, timeout_sec: float | None = None
    ) -> list[Row]:
        # The connection may make other things of rows; these are tuples.
        with translate_errors(), self._connection.cursor(cursor_factory=ext.cursor) as cursor:
            cursor.execute(*with_audit_setting(self._statements[name].text, parameters or {}))
            return cursor.fetchall() if cursor.description else []


def _has_unread_input(connection: Any) -> bool:
    waiter = select.poll()
    waiter.register(connection.fileno(), select.POLLIN)
    return bool(waiter.poll(0))
