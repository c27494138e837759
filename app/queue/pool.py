"""The API's connections: psycopg2-pool behind a wrapper that waits, checks and gives up in time."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import psycopg2
from psycopg2_pool import ThreadSafeConnectionPool

from app.errors import DatabaseUnavailable, PoolExhausted
from app.queue.audit import accompanied
from app.queue.refusals import translated
from app.queue.session import STALE_PLAN, Row, Wire, connect
from app.queue.statements import Statement, statements

_DOUBTFUL_AFTER = 30.0  # seconds idle, after which a connection is asked whether it lives
_QUIET_AFTER_FAILURE = 1.0  # seconds in which a failed connect stands for all

# Asked for all day, and along unique indexes only: prepared, they cost the server half. The others are better planned
# for what they are asked each time.
_PREPARED = frozenset({"enqueue", "enqueue_together", "get"})
# A plan is kept that may have been made while the table was small; this leaves it the index.
_ALONG_INDEXES = "SET LOCAL enable_seqscan = off; "


@dataclass(frozen=True)
class PoolStats:
    size: int
    in_use: int
    idle: int
    waiting: int
    exhausted: int  # how often nobody gave a connection back in time


class _Connections(ThreadSafeConnectionPool):  # type: ignore[misc] # the package has no types
    """Connections that keep nobody else waiting while one of them is being opened."""

    def __init__(self, dsn: Callable[[], str], *, name: str, connect_timeout: float, **settings: Any) -> None:
        self.open: Callable[[], Any] = lambda: connect(dsn(), name=name, timeout=connect_timeout)
        super().__init__(minconn=0, **settings)

    def _connect(self, for_immediate_use: bool = False) -> Any:
        lock: threading.RLock = self.lock
        lock.release()
        try:
            connection = self.open()
        finally:
            lock.acquire()
        self.connections_in_use.add(connection)
        return connection


class Pool:
    """At most `size + overflow` connections; `size` of them are kept open.

    While the database is away a request fails at once, after the first has found out, and only a few may wait for a
    connection: threads of the web server stay free to say that the service lives.
    """

    def __init__(  # noqa: PLR0913 - each is a knob of its own
        self,
        dsn: str | Callable[[], str],  # called when the first connection is wanted
        *,
        size: int = 5,
        overflow: int = 5,
        recycle_sec: float = 3600.0,
        connect_timeout_sec: float = 5.0,
        command_timeout_sec: float = 30.0,
        wait_sec: float = 2.0,
        most_waiting: int = 4,
        application_name: str = "dataloader-api",
        use_pool: bool = True,
        schema: str = "public",
        transactions_only: bool = False,  # a pooler gives each transaction another session of the server
    ) -> None:
        self.schema = schema
        self._size, self._most = size if use_pool else 0, size + overflow
        self._recycle, self._connect_timeout = recycle_sec, connect_timeout_sec
        self._timeout, self._wait = command_timeout_sec, wait_sec
        self._statements = statements(schema)
        # Compiling a statement costs more than running any of ours: a plan without a scan is dear on paper alone.
        settings = {"statement_timeout": int(command_timeout_sec * 1000), "client_min_messages": "error", "jit": "off"}
        # A prepared statement would be planned again for each set of parameters, which costs more than running it.
        kept = {"plan_cache_mode": "force_generic_plan"}
        # What is set for a session would stay with whomever the pooler gives it to next; but time zones it keeps apart.
        of_session = {} if transactions_only else settings | kept
        self._settings = "".join(f"SET {key} = {it};" for key, it in of_session.items())
        self._bounds = "".join(f"SET LOCAL {key} = {it};" for key, it in settings.items()) if transactions_only else ""
        self._pool = _Connections(
            dsn if callable(dsn) else lambda: dsn,
            name=application_name,
            connect_timeout=connect_timeout_sec,
            maxconn=self._most,
            idle_timeout=0,
        )
        self._pool.idle_timeout = None  # kept until it is too old; what is beyond `size` we close ourselves
        self._free = threading.BoundedSemaphore(self._most)
        self._room = threading.BoundedSemaphore(most_waiting)
        self._born: dict[int, float] = {}  # id of a connection → when it was opened; under the pool's lock
        self._used: dict[int, float] = {}  # and when it was last given back; likewise
        self._plans = {} if transactions_only else {name: _Plan.of(self._statements[name]) for name in _PREPARED}
        self._prepared: set[tuple[int, str]] = set()  # id of a connection, statement; touched by its borrower only
        self._waiting = 0  # under the pool's lock, as the two below
        self._exhausted = 0
        self._quiet_until = 0.0

    def ask(self, name: str, parameters: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> list[Row]:
        """Run a named statement as one transaction."""
        with translated(), self._borrowed() as connection:
            wire, timeout = Wire(connection), timeout or self._timeout
            if name in self._plans:
                try:
                    return self._ask_prepared(wire, connection, name, parameters or {}, timeout)
                except psycopg2.Error as error:
                    if error.pgcode not in STALE_PLAN:
                        raise  # else nothing has taken effect: the text will do, and another connection prepares again
                    self._prepared.discard((id(connection), name))
            return wire.ask(self._bounds + self._statements[name].text, parameters or {}, timeout)

    def _ask_prepared(
        self, wire: Wire, connection: Any, name: str, parameters: Mapping[str, Any], timeout: float
    ) -> list[Row]:
        plan, key = self._plans[name], (id(connection), name)
        if key not in self._prepared:
            try:
                wire.ask(plan.prepare, None, timeout)
            except psycopg2.Error as error:
                if error.pgcode not in STALE_PLAN:
                    connection.close()  # a part of it may be prepared
                raise
            self._prepared.add(key)
        return wire.ask(plan.execute, parameters, timeout)

    def stats(self) -> PoolStats:
        with self._pool.lock:
            in_use, idle = len(self._pool.connections_in_use), len(self._pool.idle_connections)
            return PoolStats(self._most, in_use, idle, self._waiting, self._exhausted)

    def close(self) -> None:
        self._pool.clear()

    @contextmanager
    def _borrowed(self) -> Iterator[Any]:
        with self._turn():
            connection = self._take()
            try:
                yield connection
            except psycopg2.Error as error:
                if (error.pgcode or "").startswith(("08", "57P", "25006")):
                    connection.close()
                raise
            finally:
                self._give_back(connection)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._free.acquire(blocking=False) and not self._wait_for_turn():
            with self._pool.lock:
                self._exhausted += 1
            raise PoolExhausted(f"all {self._most} connections are busy; PG_POOL_SIZE and PG_MAX_OVERFLOW bound them")
        try:
            yield
        finally:
            self._free.release()

    def _wait_for_turn(self) -> bool:
        if not self._room.acquire(blocking=False):
            return False
        try:
            with self._pool.lock:
                self._waiting += 1
            return self._free.acquire(timeout=self._wait)
        finally:
            with self._pool.lock:
                self._waiting -= 1
            self._room.release()

    def _take(self) -> Any:
        while True:
            if time.monotonic() < self._quiet_until and not self._pool.idle_connections:
                raise DatabaseUnavailable("the database was away a moment ago; not asked again yet")
            try:
                connection = self._pool.getconn()
            except psycopg2.Error:
                self._quiet_until = time.monotonic() + _QUIET_AFTER_FAILURE
                raise
            with self._pool.lock:  # the package counts a connection as in use only when it has just been opened
                self._pool.connections_in_use.add(connection)
            if id(connection) not in self._born:
                self._greet(connection)
                return connection
            if self._lives(connection):
                return connection
            self._discard(connection)

    def _greet(self, connection: Any) -> None:
        try:
            Wire(connection).ask(f"{self._settings} SET timezone = 'UTC'", None, self._connect_timeout)
        except BaseException:
            self._discard(connection)
            raise
        with self._pool.lock:
            self._born[id(connection)] = time.monotonic()

    def _lives(self, connection: Any) -> bool:
        if connection.closed or _readable(connection):
            return False  # nobody asked it anything, so what it has to say is good-bye
        if time.monotonic() - self._used.get(id(connection), 0.0) < _DOUBTFUL_AFTER:
            return True
        try:
            Wire(connection).ask("SELECT 1", None, self._connect_timeout)
        except psycopg2.Error:
            return False
        return True

    def _give_back(self, connection: Any) -> None:
        with self._pool.lock:
            age = time.monotonic() - self._born.get(id(connection), 0.0)
            spare = len(self._pool.idle_connections) >= self._size
        if connection.closed or spare or age > self._recycle or connection.isexecuting():
            self._discard(connection)
        else:
            with self._pool.lock:
                self._used[id(connection)] = time.monotonic()
            self._pool.putconn(connection)

    def _discard(self, connection: Any) -> None:
        with self._pool.lock:
            self._born.pop(id(connection), None)
            self._used.pop(id(connection), None)
            self._prepared -= {(id(connection), name) for name in self._plans}
            self._pool.connections_in_use.discard(connection)
        connection.close()


@dataclass(frozen=True)
class _Plan:
    """A statement as it is prepared and executed. Its name is made of its text: in a session that a pooler had lent to
    another version or schema one could not be taken for the other."""

    prepare: str
    execute: str

    @classmethod
    def of(cls, statement: Statement) -> _Plan:
        names = {f"dl_{statement.name}_{sha256(part.text.encode()).hexdigest()[:12]}": part for part in statement.parts}
        return cls(
            "; ".join(part.prepare(name) for name, part in names.items()),
            _ALONG_INDEXES + "; ".join(part.execute(name) for name, part in names.items()),
        )


class Handed:
    """Somebody else's connection, in the midst of their transaction: what is asked on it commits or not with them."""

    def __init__(self, connection: Any, *, schema: str = "public") -> None:
        self.schema = schema
        self._connection, self._statements = connection, statements(schema)

    def ask(self, name: str, parameters: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> list[Row]:
        with translated(), self._connection.cursor() as cursor:
            cursor.execute(*accompanied(self._statements[name].text, parameters or {}))
            return cursor.fetchall() if cursor.description else []


def _readable(connection: Any) -> bool:
    waiter = select.poll()
    waiter.register(connection.fileno(), select.POLLIN)
    return bool(waiter.poll(0))
