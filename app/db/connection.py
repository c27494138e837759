"""Long-lived connections with a deadline on every wait, for claims, settlements, heartbeats, key locks and LISTEN.

They are in psycopg2's asynchronous mode, and this module waits for them. A blocking call into libpq has no deadline:
with a silent network, a thread was still blocked in it after all timeouts of the server.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, cast

import psycopg2
from psycopg2 import extensions as ext

from dataloader.app.db.known_servers import KNOWN_QUEUES, KNOWN_TIMELINES, TIMELINE_QUERY
from dataloader.app.db.statements import Statement, combine, statements, with_audit_setting
from dataloader.app.errors import (
    ConfigError,
    DatabaseUnavailable,
    InvalidJob,
    RightsMissing,
    SchemaMissing,
    SchemaOutdated,
    SettingError,
)

_INVALID_PARAMETER_CODE = "22023"
_UNDEFINED_TABLE_CODES = {"42P01", "42704", "3F000"}  # no such table, type or schema
_INSUFFICIENT_PRIVILEGE = "42501"
_UNDEFINED_MEMBER_CODES = {"42703", "42883"}  # no such column or function
_LOST_SESSION_CODES = {"42P05", "26000"}  # a prepared statement exists too early, or no longer


class ServerTimeout(psycopg2.OperationalError):
    """The server did not answer in time; the connection is closed."""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise our error in place of psycopg2's, `from` the original."""
    try:
        yield
    except psycopg2.Error as error:
        code = error.pgcode or ""
        message = (error.diag.message_primary or str(error) or type(error).__name__).strip()
        if code in _UNDEFINED_TABLE_CODES:
            raise SchemaMissing(f"{message}; `dataloader migrate` creates the queue's tables") from error
        if code in _UNDEFINED_MEMBER_CODES:
            raise SchemaOutdated(f"{message}; `dataloader migrate` brings the queue's tables up to date") from error
        if code == _INSUFFICIENT_PRIVILEGE:
            raise RightsMissing(f"{message}; `dataloader migrate --roles` prints the rights it needs") from error
        if code in _LOST_SESSION_CODES:  # a pooler hands out another session at each transaction
            raise DatabaseUnavailable(f"{message}; behind a pooler DL_WORKER_DSN names PostgreSQL itself") from error
        if isinstance(error, psycopg2.DataError) or code.startswith("23"):
            field = error.diag.column_name if code == _INVALID_PARAMETER_CODE else None  # raised by our triggers
            raise InvalidJob(f"PostgreSQL refused a value: {message}", field=field or "") from error
        # Without a code the connection broke during a response.
        is_broken = isinstance(error, psycopg2.DatabaseError) and not code
        is_operational = isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError)
        if is_broken or is_operational or code.startswith(("08", "25", "40", "53", "55", "57", "58")):
            raise DatabaseUnavailable(message) from error
        raise


@contextmanager
def translate_dsn_errors() -> Iterator[None]:
    """Raise ConfigError in place of libpq's refusal to read a connection string.

    libpq repeats the whole string, password and all: neither its message nor the original error may leave this block.
    """
    try:
        yield
    except (psycopg2.ProgrammingError, UnicodeError, ValueError):
        remedy = (
            "write % as %25, and @ : / as %40 %3A %2F, in a password within postgresql://…; quote a value that has "
            "blanks in keyword=value pairs"
        )
        settings = "DL_DB_DSN, DL_WORKER_DSN, DL_READ_DSN or DL_TARGETS"
        raise ConfigError([SettingError(settings, "a connection string that libpq cannot read", remedy)]) from None


Row = tuple[Any, ...]

# A prepared statement no longer fits the tables, or is missing, or exists already.
_STALE_PLAN_CODES = ("0A000", "26000", "42P05")
_GONE_OBJECT = "cache lookup failed for"  # an internal error, which the server does not translate
# Read-only after a failover, shutting down, connection failure.
LOST_SERVER_CODES = ("25006", "57P", "08")

# Each part of a statement must see what was committed before it began. The server, the database or the role may have
# another default than READ COMMITTED. For one transaction, in front of its queries, and for a session:
READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; "
READ_COMMITTED_SESSION = "SET default_transaction_isolation = 'read committed'; "

# A role may be read-only by default, against mistakes of people; the queue has to write. The default of a database or a
# server holds: it is the operator's, or that of a server without room.
READ_WRITE_SESSION = (
    "SELECT set_config('default_transaction_read_only', 'off', false) FROM pg_settings"
    " WHERE name = 'default_transaction_read_only' AND source IN ('user', 'database user'); "
)

# Prepared statements keep one generic plan: a plan for each length of an array costs more than running the statement.
# A plan made while a table was small would scan it when it has grown, so only index access is left to choose.
# Compiling a statement (jit) costs more than running any of ours.
_SESSION_SETTINGS = (
    f"{READ_COMMITTED_SESSION}{READ_WRITE_SESSION}"
    # A statement waits for a row as long as it may run: a role may have a shorter limit of its own.
    "SET lock_timeout = 0; "
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off;"
    " SET enable_mergejoin = off; SET jit = off; SET client_min_messages = error; SET timezone = 'UTC';"
    # With `off`, which a role may have, NULL in an array of parameters would be a text.
    " SET array_nulls = on;"
    # Every event that a session writes is of a row that the same statement changes: the integrity check is not needed.
    " SET dl.events_checked = 'yes';"
    # A session whose client was cut off keeps key locks and the maintenance lock: the server ends it after 25 s, or
    # after 10 if the host is back. With its defaults that takes two hours.
    " SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;"
    # No keepalive is sent while an answer waits to be confirmed: that ends by the system's retries, after 15 minutes.
    " SET tcp_user_timeout = 25000"
)

# A plan made while a table was small may walk a whole index when it has grown. Statistics end that, if autovacuum runs.
# A connection that is seldom used keeps its plans for longer: planning would be most of what it costs the server.
_PLAN_LIFETIME_SEC, _IDLE_PLAN_LIFETIME_SEC = 60.0, 600.0
_FEW_EXECUTIONS = 60

# A day within Python's calendar, so that a time can be shown in any zone.
_MIN_TIME, _MAX_TIME = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


def _parse_timestamp(text: str | bytes | None, cursor: Any) -> datetime | None:
    """Parse a timestamp. One outside Python's calendar becomes its nearest end: neither a claim nor a page may fail on
    it."""
    if text is None:
        return None
    try:
        moment = cast("datetime", ext.PYDATETIMETZ(text, cursor))
        return moment if _MIN_TIME.year < moment.year < _MAX_TIME.year else min(max(moment, _MIN_TIME), _MAX_TIME)
    except (ValueError, OverflowError, TypeError):
        return _MIN_TIME if str(text).endswith("BC") or str(text) == "-infinity" else _MAX_TIME


_TIMESTAMPTZ = ext.new_type((1184,), "TIMES", _parse_timestamp)


class AsyncConnection(ext.connection):
    """An asynchronous connection that waits with a deadline. One thread at a time may use it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.prepared: set[str] = set()  # names of statement parts
        self.cluster: str | None = None  # the server's system identifier; None: its function is not permitted
        self.opened_at = self.last_used_at = time.monotonic()  # for a pool
        self.quickest_sec = math.inf  # the time of the quickest statement: about a round trip
        self._plans_discarded_at = time.monotonic()
        self._executed_since = 0  # prepared statements, since then

    def execute(self, sql: str, parameters: Mapping[str, Any] | None, timeout_sec: float) -> list[Row]:
        """Send one message and return the rows of its last part. Raises psycopg2's errors; closes on a timeout."""
        cursor, sent_at = self.cursor(), time.monotonic()
        try:
            cursor.execute(*with_audit_setting(sql, parameters))
            self._wait_for_answer(sent_at + timeout_sec)
            self.quickest_sec = min(self.quickest_sec, time.monotonic() - sent_at)
            return cursor.fetchall() if cursor.description else []
        finally:
            cursor.close()

    def execute_statement(
        self, statement: Statement, parameters: Mapping[str, Any], timeout_sec: float, *, settings: str = ""
    ) -> list[Row]:
        """Execute a statement in its prepared form if it has one, after `settings`: all of it takes effect, or none."""
        if not statement.is_prepared:
            return self.execute(settings + statement.text, parameters, timeout_sec)
        if new := [part for part in statement.parts if part.name not in self.prepared]:
            self.execute("; ".join(part.prepare for part in new), None, timeout_sec)
            self.prepared.update(part.name for part in new)
        self._executed_since += 1
        lifetime_sec = _PLAN_LIFETIME_SEC if self._executed_since > _FEW_EXECUTIONS else _IDLE_PLAN_LIFETIME_SEC
        if time.monotonic() - self._plans_discarded_at > lifetime_sec:
            settings += "DISCARD PLANS; "
            self._plans_discarded_at, self._executed_since = time.monotonic(), 0
        return self.execute(settings + statement.execute, parameters, timeout_sec)

    def forget_prepared(self, timeout_sec: float) -> None:
        """Have the next statements be prepared again, in the server too: it refuses a name that it has."""
        self.prepared.clear()
        self.execute("DEALLOCATE ALL", None, timeout_sec)

    def read_notifications(self) -> list[tuple[str, str]]:
        """Return the (channel, payload) pairs that have arrived. Never waits."""
        self.poll()
        notifications = [(notify.channel, notify.payload) for notify in self.notifies]
        self.notifies.clear()
        return notifications

    def _wait_for_answer(self, deadline: float) -> None:
        try:
            _wait_ready(self, deadline)
        except BaseException:
            if self.isexecuting():  # the rest of an answer may still arrive
                self.close()
            raise


def connect(dsn: str, *, name: str, timeout_sec: float) -> AsyncConnection:
    """Open an asynchronous connection to the first host of the DSN that accepts it; each has the whole timeout."""

    def open_host(host_dsn: str) -> AsyncConnection:
        connection: AsyncConnection = psycopg2.connect(
            ext.make_dsn(
                host_dsn,
                application_name=name,
                client_encoding="UTF8",
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=int(timeout_sec * 2000),
            ),
            async_=True,
            connection_factory=AsyncConnection,
        )
        _wait_ready(connection, time.monotonic() + timeout_sec)
        ext.register_type(_TIMESTAMPTZ, connection)
        try:
            _refuse_former_primary(connection, timeout_sec)
        except BaseException:
            connection.close()
            raise
        return connection

    return cast(AsyncConnection, connect_any_host(dsn, open_host))


def _refuse_former_primary(connection: AsyncConnection, timeout_sec: float) -> None:
    try:
        rows = connection.execute(READ_COMMITTED + TIMELINE_QUERY, None, timeout_sec)  # a standby refuses SERIALIZABLE
    except psycopg2.Error as error:
        if error.pgcode != _INSUFFICIENT_PRIVILEGE:  # the right to the function was revoked: the timeline is not known
            raise
    else:
        connection.cluster = rows[0][0]
        KNOWN_TIMELINES.check(*rows[0])


def refuse_other_queue(connection: AsyncConnection, dsn: str, schema: str, timeout_sec: float) -> None:
    """Raise OperationalError if a host of the DSN has another queue than the one this process has worked with."""
    try:
        rows = connection.execute(READ_COMMITTED + statements(schema)["queue_origin"].text, None, timeout_sec)
    except psycopg2.Error as error:
        if error.pgcode not in (*_UNDEFINED_TABLE_CODES, _INSUFFICIENT_PRIVILEGE):  # there are no tables yet
            raise
    else:
        KNOWN_QUEUES.check((dsn, schema), rows[0][0])


def connect_any_host(dsn: str, open_host: Callable[[str], Any]) -> Any:
    """Return what `open_host` returns for the first host of the DSN with which it does not fail.

    libpq tries the next host only if one cannot be reached: it would stay with a silent one, or with a balancer that
    accepts the connection and closes it.
    """
    last_error: Exception | None = None
    for host in split_hosts(dsn):
        try:
            return open_host(host)
        except psycopg2.Error as error:
            last_error = error
    assert last_error is not None  # noqa: S101 - a DSN names at least one host, if only by default
    raise last_error


def split_hosts(dsn: str) -> list[str]:
    """Return one DSN for each host of this one."""
    with translate_dsn_errors():
        fields = ext.parse_dsn(dsn)
        lists = {key: fields[key].split(",") for key in ("host", "hostaddr", "port") if fields.get(key)}
        count = max((len(values) for values in lists.values()), default=1)
        hosts = [{key: values[n if len(values) > 1 else 0] for key, values in lists.items()} for n in range(count)]
        return [str(ext.make_dsn(dsn, **host)) for host in hosts]


def is_lost_server(error: psycopg2.Error) -> bool:
    """Whether the error means that this server cannot be used: connect again."""
    return (error.pgcode or "").startswith(LOST_SERVER_CODES)


def is_stale_plan(error: psycopg2.Error) -> bool:
    """Whether what a statement was read or planned with has changed meanwhile: nothing of it has taken effect."""
    return error.pgcode in _STALE_PLAN_CODES or (error.diag.message_primary or "").startswith(_GONE_OBJECT)


def _wait_ready(connection: Any, deadline: float) -> None:
    """Wait until libpq is done. `poll`, because `select` fails on descriptors above 1023."""
    while (state := connection.poll()) != ext.POLL_OK:
        waiter = select.poll()
        waiter.register(connection.fileno(), select.POLLIN if state == ext.POLL_READ else select.POLLOUT)
        remaining_sec = deadline - time.monotonic()
        if remaining_sec <= 0 or not waiter.poll(remaining_sec * 1000):
            connection.close()
            raise ServerTimeout("the server did not answer in time")


class Session:
    """A long-lived connection that reopens itself: each statement is answered or raises.

    Threads may share it; one executes at a time. `generation` grows with each new connection: its owner learns
    that the locks and LISTENs of the former one are gone.
    """

    def __init__(
        self,
        dsn: str,
        *,
        application_name: str,
        schema: str = "public",
        connect_timeout_sec: float = 5.0,
        command_timeout_sec: float = 30.0,
    ) -> None:
        self.schema = schema
        self.generation = 0  # written under the lock; read by any thread
        self.lock = threading.RLock()
        self._dsn, self._application_name = dsn, application_name
        self._connect_timeout_sec, self._command_timeout_sec = connect_timeout_sec, command_timeout_sec
        self._statements = statements(schema)
        self._connection: AsyncConnection | None = None

    def execute(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Execute a named statement as one message: all of it takes effect, or none."""
        return self._execute(self._statements[name], parameters)

    def ask(self, names: Iterable[str]) -> Row:
        """Return the single values of these statements, which have no parameters, asked in one."""
        return self._execute(combine(self.schema, tuple(names)), None)[0]

    def _execute(self, statement: Statement, parameters: Mapping[str, Any] | None) -> list[Row]:
        with self.lock, translate_errors():
            try:
                with self._opened() as connection:
                    return connection.execute_statement(statement, parameters or {}, self._command_timeout_sec)
            except psycopg2.Error as error:
                if not is_stale_plan(error):
                    raise
            self.close()  # nothing has taken effect; a new connection prepares the statement again
            with self._opened() as connection:
                return connection.execute_statement(statement, parameters or {}, self._command_timeout_sec)

    def execute_raw(self, sql: str) -> list[Row]:
        """Execute a command about the connection itself, such as LISTEN."""
        with self.lock, translate_errors(), self._opened() as connection:
            return connection.execute(sql, None, self._command_timeout_sec)

    @property
    def quickest_sec(self) -> float:
        """The time of the quickest statement of this connection, about a round trip; 0 without a connection."""
        connection = self._connection
        return 0.0 if connection is None else connection.quickest_sec

    @contextmanager
    def _opened(self) -> Iterator[AsyncConnection]:
        """Open the connection if there is none; drop it after an error that means that it cannot be used again."""
        connection = self._open()
        try:
            yield connection
        except psycopg2.Error as error:
            if connection.closed or is_lost_server(error):
                self.close()
            raise

    @property
    def connected(self) -> bool:
        connection = self._connection
        return connection is not None and not connection.closed

    def read_notifications(self) -> list[tuple[str, str]]:
        """Return the (channel, payload) pairs that have arrived; raise DatabaseUnavailable if the server hung up."""
        with self.lock, translate_errors():
            if self._connection is None:
                raise DatabaseUnavailable("not connected")
            try:
                return self._connection.read_notifications()
            except psycopg2.Error:
                self.close()
                raise

    def fileno(self) -> int | None:
        """Return the descriptor to wait on for notifications, or None while there is no connection."""
        connection = self._connection
        return None if connection is None or connection.closed else int(connection.fileno())

    def close(self) -> None:
        with self.lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open(self) -> AsyncConnection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        connection = connect(self._dsn, name=self._application_name, timeout_sec=self._connect_timeout_sec)
        try:
            timeout = f"SET statement_timeout = {int(self._command_timeout_sec * 1000)}"
            connection.execute(f"{_SESSION_SETTINGS}; {timeout}", None, self._connect_timeout_sec)
            query = self._statements["read_only_reason"].text
            if (reason := connection.execute(query, None, self._connect_timeout_sec)[0][0]) is not None:
                raise psycopg2.OperationalError(reason)
            refuse_other_queue(connection, self._dsn, self.schema, self._connect_timeout_sec)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self.generation += 1
        return connection
