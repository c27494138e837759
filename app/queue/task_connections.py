"""A run's own connections: what a pipeline writes through them, and how they are made to stop.

They are ordinary blocking psycopg2 connections, for pipelines are ordinary code. Each carries the job's id in its
`application_name`, and the beginning of the run's, so that what ends one run's sessions spares its successor's. A
transaction in the queue's own database commits only while the run still owns its job.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg2
from psycopg2 import extensions as ext

from app.db.connection import connect, connect_any_host
from app.db.encoding import array, sanitize_json
from app.db.pool import BorrowedConnection
from app.errors import AttemptLost, DataloaderError, SessionsRefused, UnknownTarget
from app.queue.attempt_sessions import (
    QUEUE_DATABASE,
    ConnectionSettings,
    SessionsEnded,
    attempt_application_name,
    end_sessions,
)
from app.queue.job import Enqueued, NewJob
from app.queue.jobs import JobQueue

MAX_CHECKPOINT_BYTES = 1_000_000  # bytes of JSON
_SIGNAL_TIMEOUT_SEC = 5.0  # seconds to connect, and again to be answered, when sessions are to be stopped
_CANCEL_BACKENDS = "SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM unnest(%(pids)s::int[]) AS p (pid)"

# With these a server notices that a client has gone: by the first a silent network, by the second a socket that was
# closed during a statement. Servers before 14 refuse the second, as do systems that cannot report a closed socket.
_SET_KEEPALIVES = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
_SET_CLIENT_CHECK = "SET client_connection_check_interval = '2s'"


class TrackedConnection(ext.connection):
    """A connection that remembers that it broke: its statement may still run on the server."""

    is_broken = False

    def close(self) -> None:
        self.is_broken = self.is_broken or self.closed > 1
        super().close()


class FencedConnection(TrackedConnection):
    """The connection to the queue's own database. Within `transaction` nobody else may commit: what is committed beside
    it has passed no fence."""

    in_transaction = False

    def commit(self) -> None:
        self._reject_in_transaction("commit()")
        super().commit()

    @property
    def autocommit(self) -> bool:
        return bool(super().autocommit)

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        self._reject_in_transaction("autocommit")
        ext.connection.autocommit.__set__(self, on)  # type: ignore[attr-defined]  # a property, says C

    def set_session(self, *args: Any, **options: Any) -> None:
        self._reject_in_transaction("set_session()")
        super().set_session(*args, **options)

    def set_isolation_level(self, level: int | None) -> None:
        self._reject_in_transaction("set_isolation_level()")
        super().set_isolation_level(level)

    def _reject_in_transaction(self, operation: str) -> None:
        if self.in_transaction:
            raise RuntimeError(f"{operation} within ctx.transaction(): it commits by itself, at the end of its block")


@dataclass(frozen=True)
class OpenConnection:
    connection: Any
    target: str
    dsn: str  # of the one host
    pid: int  # of its backend


class TaskConnections:
    """Used by the pipeline's thread; `cancel` and `terminate` are called by whoever stops it."""

    def __init__(
        self,
        settings: ConnectionSettings,
        job_id: UUID,
        run_id: UUID,
        *,
        on_check_refused: Callable[[str, str], None] = lambda target, error: (
            None
        ),  # the server does not watch its clients
    ) -> None:
        self._connection_settings, self._job_id, self._run_id, self._on_check_refused = (
            settings,
            job_id,
            run_id,
            on_check_refused,
        )
        self._application_name = attempt_application_name(job_id, run_id)
        self._lock = threading.Lock()
        self._open_connections: dict[
            int, OpenConnection
        ] = {}  # by the connection's id; under the lock, as the two below
        self._broken_servers: dict[
            str, str
        ] = {}  # servers on which a statement may run whose connection is gone: DSN → target
        self._connections_refused = False
        self._queue_connection: Any = None  # the connection to the queue's database, kept between transactions
        self._in_transaction = False
        self.commit_unknown = False  # the last commit was sent, and not answered: nobody knows what became of it
        self.settled = False  # a final transaction has settled the job

    # ── for the pipeline ────────────────────────────────────────────────────────────────────────────────────────

    def connect(self, name: str) -> Any:
        """A connection to a target of the settings: its own, else that of `default`, else the queue's database."""
        targets = self._connection_settings.targets
        dsn = targets.get(name) or targets.get("default") or self._connection_settings.dsn
        if not dsn:
            raise UnknownTarget(name, tuple(targets))
        return self._connect(dsn, TrackedConnection, name)

    @contextmanager
    def transaction(
        self, *, checkpoint: Callable[[], Any], final: Callable[[], Mapping[str, Any]] | None
    ) -> Iterator[Any]:
        """One transaction in the queue's own database. At its end `checkpoint()` gives what is to be remembered with
        it, or None, and `final()` the settlement's values."""
        if self._in_transaction:
            raise RuntimeError("a transaction is open already; they do not nest")
        connection = self._open_queue_connection()
        self._in_transaction = connection.in_transaction = True
        try:
            yield connection
            self._fence_before_commit(connection, checkpoint, final)
            connection.in_transaction = False
            self.commit_unknown = True
            connection.commit()
            self.commit_unknown = False
            self.settled = self.settled or final is not None
        except BaseException as error:
            connection.in_transaction = False
            with suppress(psycopg2.Error):
                connection.rollback()
            if not (isinstance(error, AttemptLost) and final is not None and self._already_settled(connection)):
                raise
            self.settled = True  # by an earlier commit of this very run, whose answer was lost
        finally:
            self._in_transaction = connection.in_transaction = False

    def _fence_before_commit(
        self, connection: Any, checkpoint: Callable[[], Any], final: Callable[[], Mapping[str, Any]] | None
    ) -> None:
        """The last words before the commit: the fence, and what goes with it."""
        if connection.info.transaction_status == ext.TRANSACTION_STATUS_INERROR:
            raise RuntimeError("a statement of this transaction has failed, so nothing of it can be committed")
        handed, cursor = self._borrowed(connection), checkpoint()
        if final is not None:
            sealed = [applied for (applied, *_) in handed.execute("settle", final()) if applied]
        elif cursor is not None:
            sealed = handed.execute(
                "save_checkpoint", self._owner_parameters | {"checkpoint": sanitize_json(cursor, MAX_CHECKPOINT_BYTES)}
            )
        else:
            sealed = handed.execute("assert_owned", self._owner_parameters)
        if not sealed:
            raise AttemptLost(self._job_id)

    def _already_settled(self, connection: Any) -> bool:
        with suppress(psycopg2.Error, DataloaderError), connection:
            asked = {"job_ids": array([self._job_id]), "run_ids": array([self._run_id])}
            return [row[1] for row in self._borrowed(connection).execute("find_settlement", asked)] == ["succeeded"]
        return False

    def enqueue(self, new: NewJob) -> Enqueued:
        """Within `transaction` with it, else in one of its own: a run that lost its job has no follow-ups."""
        if not self._in_transaction:
            with self.transaction(checkpoint=lambda: None, final=None):
                return self.enqueue(new)
        return JobQueue(self._borrowed(self._queue_connection)).enqueue(new)

    @property
    def _owner_parameters(self) -> dict[str, Any]:
        return {"job_id": str(self._job_id), "run_id": str(self._run_id)}

    def _borrowed(self, connection: Any) -> BorrowedConnection:
        return BorrowedConnection(connection, schema=self._connection_settings.schema)

    def _open_queue_connection(self) -> Any:
        """The queue's own database, with nothing left of what may have been done there outside a transaction."""
        self._require_open()
        if self._queue_connection is not None and not self._queue_connection.closed:
            with suppress(psycopg2.Error):
                self._queue_connection.rollback()
                self._queue_connection.autocommit = False
        if self._queue_connection is None or self._queue_connection.closed:
            self._queue_connection = self._connect(self._connection_settings.dsn, FencedConnection)
        return self._queue_connection

    def _connect(self, dsn: str, connection_class: type[Any], target: str = QUEUE_DATABASE) -> Any:
        self._require_open()

        def open_host(host_dsn: str) -> OpenConnection:
            connection = psycopg2.connect(
                host_dsn,
                application_name=self._application_name,
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=30_000,
                connect_timeout=max(2, int(self._connection_settings.connect_timeout_sec)),
                connection_factory=connection_class,
            )
            return OpenConnection(connection, target, host_dsn, connection.info.backend_pid)

        new: OpenConnection = connect_any_host(dsn, open_host)
        with self._lock:
            self._discard_closed()
            self._open_connections[id(new.connection)] = new
        try:
            self._require_open()  # the stop may have come while it was being opened
            self._enable_client_check(new)
        except BaseException:
            new.connection.close()
            raise
        return new.connection

    def _enable_client_check(self, opened: OpenConnection) -> None:
        """By SET, for in the DSN an unknown setting refuses the connection; and committed, for a rollback undoes it."""
        opened.connection.autocommit = True
        with opened.connection.cursor() as cursor:
            cursor.execute(_SET_KEEPALIVES)
            try:
                cursor.execute(_SET_CLIENT_CHECK)
            except psycopg2.Error as error:
                if opened.connection.closed:
                    raise
                self._on_check_refused(opened.target, str(error.diag.message_primary or error))
        opened.connection.autocommit = False

    def _require_open(self) -> None:
        if self._connections_refused:
            raise SessionsRefused(self._job_id)

    def _discard_closed(self) -> None:
        for key, opened in list(self._open_connections.items()):
            if opened.connection.closed:
                if opened.connection.is_broken or opened.connection.closed > 1:
                    self._broken_servers[opened.dsn] = opened.target
                del self._open_connections[key]

    def close(self) -> SessionsEnded:
        """Roll back and close whatever the pipeline has left open. Where a statement may still run, for a thread that
        was left behind waits for it or its connection broke, end the sessions and wait until they are gone."""
        with self._lock:
            self._connections_refused = True
            self._discard_closed()
            left, self._open_connections, self._queue_connection = list(self._open_connections.values()), {}, None
            servers, self._broken_servers = self._broken_servers, {}
        for opened in left:
            if not _close_cleanly(opened.connection):
                servers[opened.dsn] = opened.target
        return self._end_sessions_on(servers)

    def _end_sessions_on(self, servers: Mapping[str, str]) -> SessionsEnded:
        targets = list(servers.values())
        hosts = {dsn: ext.parse_dsn(dsn).get("host", "its address") for dsn in servers}
        labels = {dsn: name if targets.count(name) == 1 else f"{name} at {hosts[dsn]}" for dsn, name in servers.items()}
        return end_sessions({labels[dsn]: dsn for dsn in servers}, [self._application_name])

    # ── for whoever stops it ────────────────────────────────────────────────────────────────────────────────────

    @property
    def in_use(self) -> bool:
        with self._lock:
            return any(not opened.connection.closed for opened in self._open_connections.values())

    def refuse_connections(self) -> None:
        """From now on no session is opened."""
        self._connections_refused = True

    def cancel(self) -> int:
        """Cancel what the sessions are doing: a thread that is blocked in libpq wakes with QueryCanceled.

        May take seconds when a server does not answer, as `terminate` may.
        """
        return self._signal_all_servers(_CANCEL_BACKENDS)

    def terminate(self) -> SessionsEnded:
        """End the sessions, open no more, and wait until they are gone."""
        self.refuse_connections()
        with self._lock:
            servers = self._broken_servers | {opened.dsn: opened.target for opened in self._open_connections.values()}
        return self._end_sessions_on(servers)

    def _signal_all_servers(self, statement: str) -> int:
        with self._lock:
            servers = {opened.dsn for opened in self._open_connections.values()}
        return sum(
            _signal_backends(dsn, statement, pids=lambda dsn=dsn: array(self._backend_pids(dsn))) for dsn in servers
        )

    def _backend_pids(self, dsn: str) -> Iterable[int]:
        """Asked for at the last moment: a session that has ended meanwhile may have left its number to another."""
        with self._lock:
            return [o.pid for o in self._open_connections.values() if o.dsn == dsn and not o.connection.closed]


def _close_cleanly(connection: Any) -> bool:
    """Close it; False: the server may not notice, and go on with a statement."""
    try:
        if connection.info.transaction_status == ext.TRANSACTION_STATUS_ACTIVE:
            _shutdown_socket(connection)  # close() would wait for the thread that is still in a statement
            connection.close()
            return False
        connection.close()
    except (psycopg2.Error, OSError):
        return False
    return not connection.is_broken


def is_connection_loss(error: BaseException) -> bool:
    """Did a connection end under a statement, without the server's word on why?"""
    return isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError) and error.pgcode is None


def _signal_backends(dsn: str, statement: str, **parameters: Any) -> int:
    """Ask over a connection of its own, for the one in question is busy; a server that is away is told nothing."""
    try:
        wire = connect(dsn, name="dataloader-stop", timeout_sec=_SIGNAL_TIMEOUT_SEC)
    except psycopg2.Error:
        return 0
    try:
        given = {name: value() if callable(value) else value for name, value in parameters.items()}
        return int(wire.execute(statement, given, _SIGNAL_TIMEOUT_SEC)[0][0])
    except psycopg2.Error:
        return 0
    finally:
        wire.close()


def _shutdown_socket(connection: Any) -> None:
    with socket.socket(fileno=socket.dup(connection.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)
