"""A run's connections: what a pipeline writes through them is fenced, and another thread can stop them.

They are blocking psycopg2 connections, because pipelines are ordinary code. Their `application_name` has the job's id
and the start of the run's, so ending one run's sessions spares its successor's. A transaction in the queue's own
database commits only while the run still owns its job.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import psycopg2
from psycopg2 import extensions as ext

from dataloader.app.db.connection import READ_WRITE_SESSION, connect, connect_any_host
from dataloader.app.db.encoding import array
from dataloader.app.db.pool import BorrowedConnection
from dataloader.app.db.statements import Executor
from dataloader.app.errors import AttemptLost, DataloaderError, SessionsRefused
from dataloader.app.queue.attempt_sessions import (
    QUEUE_DATABASE,
    ConnectionSettings,
    SessionsEnded,
    attempt_application_name,
    end_sessions,
    start_thread,
)
from dataloader.app.queue.job import Enqueued, NewJob
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.commit_guard import CommitGuard
from dataloader.pipelines.json_values import MAX_CHECKPOINT_BYTES, sanitize_json
from dataloader.workers.connections.own_sessions import OwnSession

T = TypeVar("T")
_SIGNAL_TIMEOUT_SEC = 5.0  # to connect, and again for the statement
_CLOSE_SEC = 1.0  # of a connection that no thread uses
_LOSSES = {(driver, name) for driver in ("psycopg2", "psycopg") for name in ("OperationalError", "InterfaceError")}
_CANCEL_BACKENDS = "SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM unnest(%(pids)s::int[]) AS p (pid)"

# Make a server notice that its client is gone: the first after a silent network, the second after the socket was closed
# during a statement. Servers before 14 refuse the second, as do systems that cannot report a closed socket.
_SET_KEEPALIVES = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
_SET_CLIENT_CHECK = "SET client_connection_check_interval = '2s'"


class TrackedConnection(ext.connection):
    """A connection that remembers that it broke: its statement may still run on the server."""

    is_broken = False

    def close(self) -> None:
        self.is_broken = self.is_broken or self.closed > 1
        super().close()


class FencedConnection(CommitGuard, TrackedConnection):
    """A connection for transactions, which are committed with a fence right before."""


class QueueConnection(FencedConnection):
    """The connection to the queue's own database."""


@dataclass(frozen=True)
class OpenConnection:
    connection: Any
    target: str
    dsn: str  # of the one host
    pid: int  # of its backend


class TaskConnections:
    """Used by the pipeline's thread; other threads call `cancel` and `terminate` to stop it."""

    def __init__(
        self,
        settings: ConnectionSettings,
        job_id: UUID,
        run_id: UUID,
        *,
        on_check_refused: Callable[[str, str], None] | None = None,
    ) -> None:
        """`on_check_refused` gets the target and the error of a server that does not check its clients."""
        self._connection_settings, self._job_id, self._run_id = settings, job_id, run_id
        self._on_check_refused = on_check_refused
        self._application_name = attempt_application_name(job_id, run_id)
        self.offload_lock = threading.Lock()  # held while a thread of the pipeline uses the connection for offloads
        self._lock = threading.Lock()
        self._open_connections: dict[int, OpenConnection] = {}  # by the object's id; under the lock, as the next three
        self._own_sessions: set[OwnSession] = set()  # that the pipeline opened without this class
        # By DSN, the targets on whose server a statement may still run although its connection is gone.
        self._broken_servers: dict[str, str] = {}
        self._connections_refused = False
        self._queue_connection: Any = None  # kept between transactions
        self._is_lent = False  # the pipeline may have set it up, such as with temporary tables
        self._in_transaction = False
        self.commit_unknown = False  # the last commit was sent, and its response was lost
        self.settled = False  # by a final transaction
        self._is_answer_lost = False  # to the commit of a transaction of the pipeline

    # Called by the pipeline

    @property
    def has_open_transaction(self) -> bool:
        """Whether a transaction in the queue's database is open."""
        return self._in_transaction

    @property
    def has_queue(self) -> bool:
        """Whether there is a database of the queue: a local run may have none."""
        return bool(self._connection_settings.dsn)

    def connect(self, name: str) -> Any:
        """Connect to a target of the settings: its own DSN, else that of `default`, else the queue's database."""
        return self._connect(self._connection_settings.dsn_of(name), TrackedConnection, name)

    def connect_for_transactions(self, name: str) -> FencedConnection | None:
        """Likewise, for transactions with a fence; None: the target is the queue's database."""
        dsn = self._connection_settings.dsn_of(name)
        if dsn == self._connection_settings.dsn:
            return None
        connection: FencedConnection = self._connect(dsn, FencedConnection, name)
        return connection

    @contextmanager
    def transaction(
        self, *, checkpoint: Callable[[], Any], final: Callable[[], Mapping[str, Any]] | None
    ) -> Iterator[Any]:
        """One transaction in the queue's own database. It commits with the checkpoint that `checkpoint()` returns, if
        any, or with the settlement whose parameters `final()` returns."""
        if self._is_answer_lost:
            raise RuntimeError(
                "whether the last transaction in the queue's database was committed is not known, because its answer"
                " was lost; the next attempt resumes from what is there"
            )
        try:
            with self._fenced(checkpoint=checkpoint, final=final) as connection:
                self._is_lent = True
                yield connection
        except psycopg2.Error as error:
            # A final transaction may be repeated: it finds that the job has been settled.
            self._is_answer_lost = final is None and self.commit_unknown and error.pgcode is None
            raise

    @contextmanager
    def _fenced(
        self, *, checkpoint: Callable[[], Any] = lambda: None, final: Callable[[], Mapping[str, Any]] | None = None
    ) -> Iterator[Any]:
        if self._in_transaction:
            raise RuntimeError("a transaction is open already; transactions do not nest")
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
            self.settled = True  # by an earlier commit of this run, whose response was lost
        finally:
            self._in_transaction = connection.in_transaction = False

    def _fence_before_commit(
        self, connection: Any, checkpoint: Callable[[], Any], final: Callable[[], Mapping[str, Any]] | None
    ) -> None:
        """Execute the last statement before the commit, which fails if the run has lost its job."""
        if connection.info.transaction_status == ext.TRANSACTION_STATUS_INERROR:
            raise RuntimeError("a statement of this transaction has failed, so it cannot be committed")
        executor, cursor = self._borrowed(connection), checkpoint()
        owner = self._owner
        if final is not None:
            is_owned = executor.execute("settle", final())[0][0] > 0
        elif cursor is not None:
            saved = owner | {"checkpoint": sanitize_json(cursor, MAX_CHECKPOINT_BYTES)}
            is_owned = bool(executor.execute("save_checkpoint", saved))
        else:
            is_owned = bool(executor.execute("assert_owned", owner))
        if not is_owned:
            raise AttemptLost(self._job_id)

    @property
    def _owner(self) -> dict[str, str]:
        return {"job_id": str(self._job_id), "run_id": str(self._run_id)}

    def _already_settled(self, connection: Any) -> bool:
        with suppress(psycopg2.Error, DataloaderError), connection:
            run = {"job_ids": array([self._job_id]), "run_ids": array([self._run_id])}
            return [row[1] for row in self._borrowed(connection).execute("find_settlement", run)] == ["succeeded"]
        return False

    def enqueue(self, new: NewJob) -> Enqueued:
        """Enqueue: a run that lost its job enqueues nothing."""
        return self.call_fenced(lambda executor: JobQueue(executor).enqueue(new))

    def call_fenced(self, call: Callable[[Executor], T]) -> T:
        """Call with an executor of the open transaction, else of one of its own: it commits only if the run still owns
        its job."""
        if self._in_transaction:
            return call(self._borrowed(self._queue_connection))
        with self._fenced() as connection:
            return call(self._borrowed(connection))

    def execute_owned(self, name: str, parameters: Mapping[str, Any]) -> list[Any]:
        """Execute a named statement in a transaction of its own: a run that lost its job changes nothing."""
        with self._fenced() as connection:
            borrowed = self._borrowed(connection)
            borrowed.execute("assert_owned", self._owner)  # before the statement's locks: rows come first
            return borrowed.execute(name, parameters)

    def close_unused(self) -> None:
        """Close the connection to the queue's database unless the pipeline has used it. The next use opens one."""
        if self._queue_connection is not None and not self._is_lent:
            with suppress(psycopg2.Error):
                self._queue_connection.close()

    def _borrowed(self, connection: Any) -> BorrowedConnection:
        return BorrowedConnection(connection, schema=self._connection_settings.schema)

    def _open_queue_connection(self) -> Any:
        """Connect to the queue's database, and roll back what the pipeline did there outside a transaction."""
        self._require_open()
        if self._queue_connection is not None and not self._queue_connection.closed:
            with suppress(psycopg2.Error):
                self._queue_connection.rollback()
                self._queue_connection.autocommit = False
        if self._queue_connection is None or self._queue_connection.closed:
            self._queue_connection = self._connect(self._connection_settings.dsn, QueueConnection)
        # With an older snapshot the fence would fail whenever a heartbeat has renewed the lease meanwhile.
        self._queue_connection.isolation_level = ext.ISOLATION_LEVEL_READ_COMMITTED
        return self._queue_connection

    def _connect(self, dsn: str, connection_class: type[Any], target: str = QUEUE_DATABASE) -> Any:
        self._require_open()

        def open_host(host_dsn: str) -> OpenConnection:
            connection = psycopg2.connect(
                host_dsn,
                application_name=self._application_name,
                connection_factory=connection_class,
                **self._connection_settings.client_options,
            )
            return OpenConnection(connection, target, host_dsn, connection.info.backend_pid)

        opened: OpenConnection = connect_any_host(dsn, open_host)
        with self._lock:
            self._discard_closed()
            self._open_connections[id(opened.connection)] = opened
        try:
            self._require_open()  # a stop may have come meanwhile
            self._enable_client_check(opened)
        except BaseException:
            opened.connection.close()
            raise
        return opened.connection

    def _enable_client_check(self, opened: OpenConnection) -> None:
        """By SET: in the DSN an unknown setting refuses the connection. Committed: a rollback would undo it."""
        opened.connection.autocommit = True
        with opened.connection.cursor() as cursor:
            cursor.execute(_SET_KEEPALIVES)
            if isinstance(opened.connection, QueueConnection):
                cursor.execute(READ_WRITE_SESSION)  # it commits nothing without a look at the job's row, under a lock
            try:
                cursor.execute(_SET_CLIENT_CHECK)
            except psycopg2.Error as error:
                if opened.connection.closed:
                    raise
                if self._on_check_refused is not None:
                    self._on_check_refused(opened.target, str(error.diag.message_primary or error))
        opened.connection.autocommit = False

    def _require_open(self) -> None:
        if self._connections_refused:
            raise SessionsRefused(self._job_id)

    def adopt(self, session: OwnSession) -> None:
        """Stop a connection of the pipeline's own with the run."""
        with self._lock:
            self._require_open()
            self._discard_closed()
            self._own_sessions.add(session)

    def drop(self, session: OwnSession) -> None:
        """Another run uses it now."""
        with self._lock:
            self._own_sessions.discard(session)

    def _discard_closed(self) -> None:
        for key, opened in list(self._open_connections.items()):
            if opened.connection.closed:
                if opened.connection.is_broken or opened.connection.closed > 1:
                    self._broken_servers[opened.dsn] = opened.target
                del self._open_connections[key]
        for session in [session for session in self._own_sessions if session.is_closed]:
            if session.may_execute:
                self._broken_servers[session.dsn] = session.target
            self._own_sessions.discard(session)

    def close(self) -> SessionsEnded:
        """Roll back and close what the pipeline left open. Where a statement may still run, because an abandoned thread
        waits for it or its connection broke, end the sessions and wait until they are gone."""
        with self._lock:
            self._connections_refused = True
            self._discard_closed()
            open_connections, self._open_connections = list(self._open_connections.values()), {}
            servers, self._broken_servers = self._broken_servers, {}
            own_sessions, self._own_sessions = self._own_sessions, set()
            self._queue_connection = None
        for opened in open_connections:
            if not _close_cleanly(opened.connection):
                servers[opened.dsn] = opened.target
        # Those that are idle may be in a pool, which another run uses.
        for session in own_sessions:
            session.disown()
            if session.may_execute:
                servers[session.dsn] = session.target
        return self._end_sessions_on(servers)

    def _end_sessions_on(self, servers: Mapping[str, str]) -> SessionsEnded:
        targets = list(servers.values())
        hosts = {dsn: ext.parse_dsn(dsn).get("host", "its address") for dsn in servers}
        labels = {dsn: name if targets.count(name) == 1 else f"{name} at {hosts[dsn]}" for dsn, name in servers.items()}
        labeled: dict[str, str] = {}
        for dsn, label in labels.items():
            labeled[label if label not in labeled else f"{label} ({len(labeled) + 1})"] = dsn
        return end_sessions(labeled, [self._application_name])

    # Called by other threads

    @property
    def in_use(self) -> bool:
        with self._lock:
            return any(not opened.connection.closed for opened in self._open_connections.values()) or any(
                session.is_executing for session in self._own_sessions
            )

    def refuse_connections(self) -> None:
        self._connections_refused = True

    def cancel(self) -> int:
        """Cancel the running statements: a thread that is blocked in libpq raises QueryCanceled. Returns their number.

        May take seconds when a server does not respond, as `terminate` may.
        """
        with self._lock:
            servers = {opened.dsn for opened in self._open_connections.values()}
            own_sessions = list(self._own_sessions)
        return sum(session.cancel() for session in own_sessions) + sum(map(self._cancel_backends, servers))

    def terminate(self) -> SessionsEnded:
        """End the sessions, open no more, and wait until they are gone."""
        self.refuse_connections()
        with self._lock:
            servers = self._broken_servers | {opened.dsn: opened.target for opened in self._open_connections.values()}
            servers |= {session.dsn: session.target for session in self._own_sessions if not session.is_closed}
        return self._end_sessions_on(servers)

    def _cancel_backends(self, dsn: str) -> int:
        """Cancel over a separate connection, because the ones in question are busy."""
        try:
            with closing(connect(dsn, name="dataloader-stop", timeout_sec=_SIGNAL_TIMEOUT_SEC)) as connection:
                with self._lock:  # read last: the pid of a session that has ended meanwhile may be another one's
                    sessions = [o for o in self._open_connections.values() if o.dsn == dsn and not o.connection.closed]
                parameters = {"pids": array(opened.pid for opened in sessions)}
                return int(connection.execute(_CANCEL_BACKENDS, parameters, _SIGNAL_TIMEOUT_SEC)[0][0])
        except psycopg2.Error:  # the server is unavailable
            return 0


def _close_cleanly(connection: Any) -> bool:
    """Close it; False: the server may not notice, and continue with a statement."""
    was_broken = threading.Event()

    def break_off() -> None:  # else close() would wait for the thread that executes a statement
        was_broken.set()
        with suppress(OSError):
            duplicate.shutdown(socket.SHUT_RDWR)

    try:
        with socket.socket(fileno=socket.dup(connection.fileno())) as duplicate:
            timer = threading.Timer(_CLOSE_SEC, break_off)
            if _is_active(connection) or not start_thread(timer):
                break_off()
            try:
                connection.close()
            finally:
                timer.cancel()
    except (psycopg2.Error, OSError):
        return False
    return not (connection.is_broken or was_broken.is_set())


def _is_active(connection: Any) -> bool:
    """Whether it executes a statement; another thread may begin one right after this."""
    return bool(connection.info.transaction_status == ext.TRANSACTION_STATUS_ACTIVE)


def is_connection_loss(error: BaseException) -> bool:
    """Whether a connection of either driver broke during a statement, without an error from the server."""
    cause = getattr(error, "orig", error)  # SQLAlchemy's has it
    sqlstate = getattr(cause, "pgcode", None) or getattr(cause, "sqlstate", None)
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(cause).__mro__}
    return sqlstate is None and not kinds.isdisjoint(_LOSSES)
