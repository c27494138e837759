"""A connection of one's own: the worker's claims, settlements, heartbeats, session locks and LISTEN go over these.

The connection is opened in psycopg2's asynchronous mode and waited for here, with a deadline on every wait. A blocking
call into libpq cannot be given one: with the network silent, a thread was still in it after all timeouts of the server.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import psycopg2
from psycopg2 import extensions as ext

from app.errors import DatabaseUnavailable
from app.queue.audit import accompanied
from app.queue.refusals import readable_dsn, translated
from app.queue.statements import Statement, qualified, statements
from app.queue.timeline import MET, NOT_PERMITTED, TIMELINE

Row = tuple[Any, ...]

_WRITABLE = "SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool"

# A prepared statement does not fit the tables any more, or is not there: 0A000, 26000, 42P05.
STALE_PLAN = ("0A000", "26000", "42P05")

# A plan is made once and kept. Made while the table was small it would scan it; these leave the indexes to choose from.
_PLANS = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"

# Each line of the journal that a session writes is of a row that the same statement changes: nobody need look.
_OURS = "SET dl.ours = 'yes'"

_SOON = "SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '2s'"
_SIZE = f"{_SOON}; SELECT pg_relation_size(to_regclass(%(jobs)s))"  # it takes a lock
_SMALL = 131_072  # bytes of the jobs' table, below which plans are made of next to nothing

_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def _time(text: str | bytes | None, cursor: Any) -> datetime | None:
    """A time that Python's calendar does not reach, such as one before Christ, becomes its nearest end: one odd row
    must not spoil the answer to a claim, which has been committed, or a whole list."""
    try:
        return cast("datetime | None", ext.PYDATETIMETZ(text, cursor))
    except (ValueError, OverflowError):
        return _FIRST if str(text).endswith("BC") else _LAST


_TIMES = ext.new_type((1184,), "TIMES", _time)


class Wire:
    """One asynchronous connection and the waiting for it. Not for two threads at once."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def fileno(self) -> int:
        return cast(int, self._connection.fileno())

    @property
    def closed(self) -> bool:
        return bool(self._connection.closed)

    def ask(self, sql: str, parameters: Mapping[str, Any] | None, timeout: float) -> list[Row]:
        """Send one message and wait for its last answer; raises psycopg2's errors, and closes on a time-out."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(*accompanied(sql, parameters))
            self._wait(time.monotonic() + timeout)
            return cursor.fetchall() if cursor.description else []
        finally:
            cursor.close()

    def notifications(self) -> list[tuple[str, str]]:
        """What LISTEN has brought: (channel, payload). Never waits."""
        self._connection.poll()
        heard = [(notify.channel, notify.payload) for notify in self._connection.notifies]
        self._connection.notifies.clear()
        return heard

    def close(self) -> None:
        self._connection.close()

    def _wait(self, deadline: float) -> None:
        try:
            _drive(self._connection, deadline)
        except BaseException:
            # Half an answer may still be on its way: nobody may use this connection again.
            if self._connection.isexecuting():
                self._connection.close()
            raise


def connect(dsn: str, *, name: str, timeout: float) -> Any:
    """Open an asynchronous connection to the first of the DSN's hosts that takes it; each has the whole time-out."""

    def opened(way: str) -> Any:
        connection = psycopg2.connect(
            ext.make_dsn(
                way,
                application_name=name,
                client_encoding="UTF8",
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=int(timeout * 2000),
            ),
            async_=True,
        )
        _drive(connection, time.monotonic() + timeout)
        ext.register_type(_TIMES, connection)
        try:
            _refuse_former_primary(Wire(connection), timeout)
        except BaseException:
            connection.close()
            raise
        return connection

    return host_by_host(dsn, opened)


def _refuse_former_primary(wire: Wire, timeout: float) -> None:
    try:
        rows = wire.ask(TIMELINE, None, timeout)
    except psycopg2.Error as error:
        if error.pgcode != NOT_PERMITTED:  # the right to the function was revoked: the timeline is not known
            raise
    else:
        MET.check(*rows[0])


def host_by_host(dsn: str, opened: Callable[[str], Any]) -> Any:
    """What `opened` makes of the first of the DSN's hosts with which it does not fail.

    libpq goes on to the next one only if a host cannot be reached: it would stay with one that is silent, or that takes
    the connection and hangs up, as a balancer does with nothing behind it.
    """
    last: Exception | None = None
    for host in each_host(dsn):
        try:
            return opened(host)
        except psycopg2.Error as error:
            last = error
    assert last is not None  # noqa: S101 - a DSN names at least one host, if only by default
    raise last


def each_host(dsn: str) -> list[str]:
    """The DSN with one of its hosts each."""
    with readable_dsn():
        given = ext.parse_dsn(dsn)
        names = {key: given[key].split(",") for key in ("host", "hostaddr", "port") if given.get(key)}
        most = max((len(values) for values in names.values()), default=1)
        hosts = [{key: values[n if len(values) > 1 else 0] for key, values in names.items()} for n in range(most)]
        return [str(ext.make_dsn(dsn, **host)) for host in hosts]


def _drive(connection: Any, deadline: float) -> None:
    """Do what libpq asks for until it is done. `poll`, for `select` knows no descriptor above 1023."""
    while (state := connection.poll()) != ext.POLL_OK:
        waiter = select.poll()
        waiter.register(connection.fileno(), select.POLLIN if state == ext.POLL_READ else select.POLLOUT)
        left = deadline - time.monotonic()
        if left <= 0 or not waiter.poll(left * 1000):
            connection.close()
            raise psycopg2.OperationalError("the server did not answer in time")


class Session:
    """A long-lived connection that opens itself again: each question either is answered or raises.

    May be used by several threads; one asks at a time. `generation` grows with each new connection, so that its owner
    can tell that locks and LISTENs of the former one are gone.
    """

    def __init__(
        self,
        dsn: str,
        *,
        name: str,
        schema: str = "public",
        connect_timeout: float = 5.0,
        command_timeout: float = 30.0,
        plans_kept: bool = False,
        ahead: Iterable[str] = (),
    ) -> None:
        """`plans_kept`: for the few statements that each job meets. Else the server makes a plan of its own for each
        length of a list, though all of them come out the same: of a settlement of one job that is more than half.
        `ahead`: statements that are planned as soon as there is a connection, not when the first job waits for them."""
        self.schema = schema
        self.generation = 0  # written under the lock; read by anyone
        self.lock = threading.RLock()
        self._dsn, self._name = dsn, name
        self._connect_timeout, self._command_timeout = connect_timeout, command_timeout
        self._statements = statements(schema)
        self._settings = f"{_PLANS}; {_OURS}" + ("; SET plan_cache_mode = force_generic_plan" if plans_kept else "")
        self._ahead = tuple(ahead)
        self._green = False  # what was planned ahead was planned when there was next to nothing
        self._anew = False  # so it is to be planned once more
        self._too_slow = False  # planning ahead has cost the last connection
        self._wire: Wire | None = None
        self._prepared: set[str] = set()  # names of statements, and of their parts

    def ask(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Run a named statement as one message: all of it takes effect, or none."""
        statement = self._statements[name]
        with self.lock, translated():
            try:
                return self._asked(statement, parameters or {})
            except psycopg2.Error as error:
                if error.pgcode not in STALE_PLAN:
                    raise
                return self._asked(statement, parameters or {})  # nothing has taken effect

    def command(self, sql: str) -> list[Row]:
        """Run a command that is about the connection itself, such as LISTEN."""
        with self.lock, translated():
            wire = self._open()
            try:
                return wire.ask(sql, None, self._command_timeout)
            except psycopg2.Error as error:
                self._drop_if_broken(wire, error)
                raise

    @property
    def connected(self) -> bool:
        wire = self._wire
        return wire is not None and not wire.closed

    @property
    def busy(self) -> bool:
        """Another thread asks something right now, or opens it."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
            return False
        return True

    def notifications(self) -> list[tuple[str, str]]:
        with self.lock, translated():
            if self._wire is None:
                raise DatabaseUnavailable("not connected")
            try:
                return self._wire.notifications()
            except psycopg2.Error:
                self.close()
                raise

    def fileno(self) -> int | None:
        """What to wait on for notifications; None while there is no connection."""
        wire = self._wire
        return None if wire is None or wire.closed else wire.fileno

    def cut(self) -> None:
        """Shut the socket from another thread, and thereby wake whoever waits for the server."""
        number = self.fileno()
        if number is not None:
            with socket.socket(fileno=socket.dup(number)) as other:
                other.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self.lock:
            if self._wire is not None:
                self._wire.close()
                self._wire = None

    def _open(self) -> Wire:
        if self._wire is not None and not self._wire.closed:
            return self._wire
        wire = Wire(connect(self._dsn, name=self._name, timeout=self._connect_timeout))
        try:
            wire.ask(
                f"SET statement_timeout = {int(self._command_timeout * 1000)}; {self._settings};"
                "SET client_min_messages = error; SET timezone = 'UTC'",
                None,
                self._connect_timeout,
            )
            if wire.ask(_WRITABLE, None, self._connect_timeout)[0][0]:
                raise psycopg2.OperationalError("the server takes no writes: it is a standby")
        except BaseException:
            wire.close()
            raise
        self._wire, self._prepared = wire, set()
        self.generation += 1
        self._plan_ahead(wire)
        return wire

    def _plan_ahead(self, wire: Wire) -> None:
        """What is wrong with a statement is for those to hear who ask it, and nobody waits here for a migration.

        Plans outlive the table that they were made for. Of one that is all but empty the server may take an index that
        is as good as any then, and walk along all of it once there are jobs: see `outgrow`.
        """
        parts = {part.name: part for name in self._ahead for part in self._statements[name].parts}
        if not parts or self._too_slow:
            self._too_slow = False  # the next connection tries again
            return
        steps = [_SOON, *(part.prepare() for part in parts.values()), *(part.plan for part in parts.values())]
        self._green, self._anew = True, False
        try:
            ((size,),) = wire.ask(_SIZE, {"jobs": qualified(self.schema, "dl_jobs")}, self._connect_timeout)
            wire.ask(";\n".join(steps), None, self._connect_timeout)
            self._prepared.update(parts, self._ahead)
            self._green = size is None or size < _SMALL
        except psycopg2.Error:
            if wire.closed:
                self._too_slow = True
                raise
            wire.ask("DEALLOCATE ALL", None, self._connect_timeout)

    def outgrow(self) -> None:
        """There are many jobs now: plans that were made of next to nothing would stay until statistics are taken."""
        self._anew, self._green = self._anew or self._green, False

    def _asked(self, statement: Statement, parameters: Mapping[str, Any]) -> list[Row]:
        wire = self._open()
        try:
            if statement.hasty:
                return wire.ask(statement.text, parameters, self._command_timeout)
            self._prepare(wire, statement)
            if self._anew:
                wire.ask("DISCARD PLANS", None, self._command_timeout)
                self._anew = False
            return wire.ask(statement.execute, parameters, self._command_timeout)
        except psycopg2.Error as error:
            self._drop_if_broken(wire, error)
            raise

    def _prepare(self, wire: Wire, statement: Statement) -> None:
        if statement.name in self._prepared:
            return
        new = [part for part in statement.parts if part.name not in self._prepared]
        if new:
            wire.ask(";\n".join(part.prepare() for part in new), None, self._command_timeout)
        self._prepared.update({statement.name, *(part.name for part in new)})

    def _drop_if_broken(self, wire: Wire, error: psycopg2.Error) -> None:
        # 25006: read-only, after a failover.
        stale = error.pgcode == "25006" or error.pgcode in STALE_PLAN or (error.pgcode or "").startswith(("57P", "08"))
        if wire.closed or stale:
            wire.close()
            self._wire = None
