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

from app.errors import DataloaderError, RunLost, SessionsRefused, UnknownTarget
from app.queue.attempt_sessions import QUEUE_DATABASE, Places, SessionsEnded, end_sessions, session_name
from app.queue.job import Enqueued, NewJob
from app.queue.jobqueue import JobQueue
from app.queue.pool import Handed
from app.queue.session import Wire, connect, host_by_host
from app.queue.values import array, clean_json

LARGEST_CHECKPOINT = 1_000_000  # bytes of JSON
_PATIENCE = 5.0  # seconds to connect, and again to be answered, when sessions are to be stopped
_CANCEL = "SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM unnest(%(pids)s::int[]) AS p (pid)"

# With these a server notices that a client has gone: by the first a silent network, by the second a socket that was
# closed during a statement. Servers before 14 refuse the second, as do systems that cannot report a closed socket.
_KEEPALIVES = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
_CHECK_CLIENT = "SET client_connection_check_interval = '2s'"


class Tracked(ext.connection):
    """A connection that remembers that it broke: its statement may still run on the server."""

    is_broken = False

    def close(self) -> None:
        self.is_broken = self.is_broken or self.closed > 1
        super().close()


class Sealed(Tracked):
    """The connection to the queue's own database. Within `transaction` nobody else may commit: what is committed beside
    it has passed no fence."""

    inside = False

    def commit(self) -> None:
        self._refuse("commit()")
        super().commit()

    @property
    def autocommit(self) -> bool:
        return bool(super().autocommit)

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        self._refuse("autocommit")
        ext.connection.autocommit.__set__(self, on)  # type: ignore[attr-defined]  # a property, says C

    def set_session(self, *args: Any, **named: Any) -> None:
        self._refuse("set_session()")
        super().set_session(*args, **named)

    def set_isolation_level(self, level: int | None) -> None:
        self._refuse("set_isolation_level()")
        super().set_isolation_level(level)

    def _refuse(self, what: str) -> None:
        if self.inside:
            raise RuntimeError(f"{what} within ctx.transaction(): it commits by itself, at the end of its block")


@dataclass(frozen=True)
class Opened:
    connection: Any
    target: str
    dsn: str  # of the one host
    pid: int  # of its backend


class Effects:
    """Used by the pipeline's thread; `cancel` and `terminate` are called by whoever stops it."""

    def __init__(
        self,
        places: Places,
        job_id: UUID,
        run_id: UUID,
        *,
        unchecked: Callable[[str, str], None] = lambda target, error: None,  # the server does not watch its clients
    ) -> None:
        self._places, self._job_id, self._run_id, self._unchecked = places, job_id, run_id, unchecked
        self._name = session_name(job_id, run_id)
        self._lock = threading.Lock()
        self._open: dict[int, Opened] = {}  # by the connection's id; under the lock, as the two below
        self._broken: dict[str, str] = {}  # servers on which a statement may run whose connection is gone: DSN → target
        self._refusing = False
        self._own: Any = None  # the connection to the queue's database, kept between transactions
        self._inside = False
        self.doubtful = False  # the last commit was sent, and not answered: nobody knows what became of it
        self.finished = False  # a final transaction has settled the job

    # ── for the pipeline ────────────────────────────────────────────────────────────────────────────────────────

    def connect(self, name: str) -> Any:
        """A connection to a target of the settings: its own, else that of `default`, else the queue's database."""
        targets = self._places.targets
        dsn = targets.get(name) or targets.get("default") or self._places.dsn
        if not dsn:
            raise UnknownTarget(name, tuple(targets))
        return self._connect(dsn, Tracked, name)

    @contextmanager
    def transaction(
        self, *, checkpoint: Callable[[], Any], final: Callable[[], Mapping[str, Any]] | None
    ) -> Iterator[Any]:
        """One transaction in the queue's own database. At its end `checkpoint()` gives what is to be remembered with
        it, or None, and `final()` the settlement's values."""
        if self._inside:
            raise RuntimeError("a transaction is open already; they do not nest")
        connection = self._home()
        self._inside = connection.inside = True
        try:
            yield connection
            self._seal(connection, checkpoint, final)
            connection.inside = False
            self.doubtful = True
            connection.commit()
            self.doubtful = False
            self.finished = self.finished or final is not None
        except BaseException as error:
            connection.inside = False
            with suppress(psycopg2.Error):
                connection.rollback()
            if not (isinstance(error, RunLost) and final is not None and self._was_settled(connection)):
                raise
            self.finished = True  # by an earlier commit of this very run, whose answer was lost
        finally:
            self._inside = connection.inside = False

    def _seal(
        self, connection: Any, checkpoint: Callable[[], Any], final: Callable[[], Mapping[str, Any]] | None
    ) -> None:
        """The last words before the commit: the fence, and what goes with it."""
        if connection.info.transaction_status == ext.TRANSACTION_STATUS_INERROR:
            raise RuntimeError("a statement of this transaction has failed, so nothing of it can be committed")
        handed, cursor = self._handed(connection), checkpoint()
        if final is not None:
            sealed = [applied for (applied, *_) in handed.ask("settle", final()) if applied]
        elif cursor is not None:
            sealed = handed.ask("save_checkpoint", self._who | {"checkpoint": clean_json(cursor, LARGEST_CHECKPOINT)})
        else:
            sealed = handed.ask("still_owned", self._who)
        if not sealed:
            raise RunLost(self._job_id)

    def _was_settled(self, connection: Any) -> bool:
        with suppress(psycopg2.Error, DataloaderError), connection:
            asked = {"job_ids": array([self._job_id]), "run_ids": array([self._run_id])}
            return [row[1] for row in self._handed(connection).ask("settled_as", asked)] == ["succeeded"]
        return False

    def enqueue(self, new: NewJob) -> Enqueued:
        """Within `transaction` with it, else in one of its own: a run that lost its job has no follow-ups."""
        if not self._inside:
            with self.transaction(checkpoint=lambda: None, final=None):
                return self.enqueue(new)
        return JobQueue(self._handed(self._own)).enqueue(new)

    @property
    def _who(self) -> dict[str, Any]:
        return {"job_id": str(self._job_id), "run_id": str(self._run_id)}

    def _handed(self, connection: Any) -> Handed:
        return Handed(connection, schema=self._places.schema)

    def _home(self) -> Any:
        """The queue's own database, with nothing left of what may have been done there outside a transaction."""
        self._refuse_if_over()
        if self._own is not None and not self._own.closed:
            with suppress(psycopg2.Error):
                self._own.rollback()
                self._own.autocommit = False
        if self._own is None or self._own.closed:
            self._own = self._connect(self._places.dsn, Sealed)
        return self._own

    def _connect(self, dsn: str, factory: type[Any], target: str = QUEUE_DATABASE) -> Any:
        self._refuse_if_over()

        def opened(way: str) -> Opened:
            connection = psycopg2.connect(
                way,
                application_name=self._name,
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=30_000,
                connect_timeout=max(2, int(self._places.connect_timeout_sec)),
                connection_factory=factory,
            )
            return Opened(connection, target, way, connection.info.backend_pid)

        new: Opened = host_by_host(dsn, opened)
        with self._lock:
            self._forget_closed()
            self._open[id(new.connection)] = new
        try:
            self._refuse_if_over()  # the stop may have come while it was being opened
            self._have_client_checked(new)
        except BaseException:
            new.connection.close()
            raise
        return new.connection

    def _have_client_checked(self, new: Opened) -> None:
        """By SET, for in the DSN an unknown setting refuses the connection; and committed, for a rollback undoes it."""
        new.connection.autocommit = True
        with new.connection.cursor() as cursor:
            cursor.execute(_KEEPALIVES)
            try:
                cursor.execute(_CHECK_CLIENT)
            except psycopg2.Error as error:
                if new.connection.closed:
                    raise
                self._unchecked(new.target, str(error.diag.message_primary or error))
        new.connection.autocommit = False

    def _refuse_if_over(self) -> None:
        if self._refusing:
            raise SessionsRefused(self._job_id)

    def _forget_closed(self) -> None:
        for key, opened in list(self._open.items()):
            if opened.connection.closed:
                if opened.connection.is_broken or opened.connection.closed > 1:
                    self._broken[opened.dsn] = opened.target
                del self._open[key]

    def close(self) -> SessionsEnded:
        """Roll back and close whatever the pipeline has left open. Where a statement may still run, for a thread that
        was left behind waits for it or its connection broke, end the sessions and wait until they are gone."""
        with self._lock:
            self._refusing = True
            self._forget_closed()
            left, self._open, self._own = list(self._open.values()), {}, None
            servers, self._broken = self._broken, {}
        for opened in left:
            if not _closed_in_order(opened.connection):
                servers[opened.dsn] = opened.target
        return self._end_on(servers)

    def _end_on(self, servers: Mapping[str, str]) -> SessionsEnded:
        targets = list(servers.values())
        hosts = {dsn: ext.parse_dsn(dsn).get("host", "its address") for dsn in servers}
        labels = {dsn: name if targets.count(name) == 1 else f"{name} at {hosts[dsn]}" for dsn, name in servers.items()}
        return end_sessions({labels[dsn]: dsn for dsn in servers}, [self._name])

    # ── for whoever stops it ────────────────────────────────────────────────────────────────────────────────────

    @property
    def in_use(self) -> bool:
        with self._lock:
            return any(not opened.connection.closed for opened in self._open.values())

    def refuse(self) -> None:
        """From now on no session is opened."""
        self._refusing = True

    def cancel(self) -> int:
        """Cancel what the sessions are doing: a thread that is blocked in libpq wakes with QueryCanceled.

        May take seconds when a server does not answer, as `terminate` may.
        """
        return self._each(_CANCEL)

    def terminate(self) -> SessionsEnded:
        """End the sessions, open no more, and wait until they are gone."""
        self.refuse()
        with self._lock:
            servers = self._broken | {opened.dsn: opened.target for opened in self._open.values()}
        return self._end_on(servers)

    def _each(self, statement: str) -> int:
        with self._lock:
            servers = {opened.dsn for opened in self._open.values()}
        return sum(_tell(dsn, statement, pids=lambda dsn=dsn: array(self._backends(dsn))) for dsn in servers)

    def _backends(self, of: str) -> Iterable[int]:
        """Asked for at the last moment: a session that has ended meanwhile may have left its number to another."""
        with self._lock:
            return [o.pid for o in self._open.values() if o.dsn == of and not o.connection.closed]


def _closed_in_order(connection: Any) -> bool:
    """Close it; False: the server may not notice, and go on with a statement."""
    try:
        if connection.info.transaction_status == ext.TRANSACTION_STATUS_ACTIVE:
            _cut(connection)  # close() would wait for the thread that is still in a statement
            connection.close()
            return False
        connection.close()
    except (psycopg2.Error, OSError):
        return False
    return not connection.is_broken


def broke_off(error: BaseException) -> bool:
    """Did a connection end under a statement, without the server's word on why?"""
    return isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError) and error.pgcode is None


def _tell(dsn: str, statement: str, **asked: Any) -> int:
    """Ask over a connection of its own, for the one in question is busy; a server that is away is told nothing."""
    try:
        wire = Wire(connect(dsn, name="dataloader-stop", timeout=_PATIENCE))
    except psycopg2.Error:
        return 0
    try:
        given = {name: value() if callable(value) else value for name, value in asked.items()}
        return int(wire.ask(statement, given, _PATIENCE)[0][0])
    except psycopg2.Error:
        return 0
    finally:
        wire.close()


def _cut(connection: Any) -> None:
    with socket.socket(fileno=socket.dup(connection.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)
