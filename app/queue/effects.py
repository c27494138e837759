"""A run's own connections: what a pipeline writes through them, and how they are made to stop.

They are ordinary blocking psycopg2 connections, for pipelines are ordinary code. Each carries the job's id in its
`application_name`. A transaction in the queue's own database commits only while the run still owns its job.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg2
from psycopg2 import extensions as ext

from app.errors import RunLost, UnknownTarget
from app.queue.job import Enqueued, NewJob
from app.queue.jobqueue import JobQueue
from app.queue.pool import Handed
from app.queue.refusals import translated
from app.queue.values import clean_json

_LARGEST_CHECKPOINT = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where a run may write: the queue's own database, and the targets that the settings name."""

    dsn: str
    schema: str
    targets: Mapping[str, str]
    connect_timeout_sec: float = 10.0


class Effects:
    """Used by the pipeline's thread; `cancel` and `terminate` are called by whoever stops it."""

    def __init__(self, places: Places, job_id: UUID, run_id: UUID) -> None:
        self._places, self._job_id, self._run_id = places, job_id, run_id
        self._lock = threading.Lock()
        self._open: dict[int, tuple[Any, str, int]] = {}  # id → connection, its DSN, its backend; under the lock
        self._own: Any = None  # the connection to the queue's database, kept between transactions
        self._inside = False
        self.finished = False  # a final transaction has settled the job

    @property
    def application_name(self) -> str:
        return f"dataloader:{self._job_id}"

    # ── for the pipeline ────────────────────────────────────────────────────────────────────────────────────────

    def connect(self, name: str) -> Any:
        """A connection to a target of the settings."""
        dsn = self._places.targets.get(name) or self._places.targets.get("default")
        if dsn is None:
            raise UnknownTarget(name, tuple(self._places.targets))
        return self._connect(dsn)

    @contextmanager
    def transaction(self, *, checkpoint: Any, final: Mapping[str, Any] | None) -> Iterator[Any]:
        """One transaction in the queue's own database. `checkpoint()` gives what is to be remembered with it, or None;
        `final` holds the settlement's values."""
        if self._inside:
            raise RuntimeError("a transaction is open already; they do not nest")
        connection = self._home()
        self._inside = True
        try:
            with connection:  # commits, or rolls back on any error
                yield connection
                self._seal(connection, checkpoint(), final)
            self.finished = self.finished or final is not None
        finally:
            self._inside = False

    def _seal(self, connection: Any, checkpoint: Any, final: Mapping[str, Any] | None) -> None:
        """The last words before the commit: the fence, and what goes with it."""
        handed = Handed(connection, schema=self._places.schema)
        who = {"job_id": str(self._job_id), "run_id": str(self._run_id)}
        if checkpoint is not None and final is None:
            sealed = handed.ask("save_checkpoint", who | {"checkpoint": clean_json(checkpoint, _LARGEST_CHECKPOINT)})
        elif final is not None:
            sealed = [row for row in handed.ask("settle", final) if row[0] is not None]
        else:
            sealed = handed.ask("still_owned", who)
        if not sealed:
            raise RunLost(self._job_id)

    def enqueue(self, new: NewJob) -> Enqueued:
        """Within a transaction: with it. Else at once."""
        connection = self._home()
        queue = JobQueue(Handed(connection, schema=self._places.schema))
        if self._inside:
            return queue.enqueue(new)
        with connection:
            return queue.enqueue(new)

    def _home(self) -> Any:
        if self._own is None or self._own.closed:
            self._own = self._connect(self._places.dsn)
        return self._own

    def _connect(self, dsn: str) -> Any:
        connection = psycopg2.connect(
            ext.make_dsn(
                dsn,
                application_name=self.application_name,
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
            ),
            connect_timeout=max(2, int(self._places.connect_timeout_sec)),
        )
        with self._lock:
            self._open = {key: kept for key, kept in self._open.items() if not kept[0].closed} | {
                id(connection): (connection, dsn, connection.info.backend_pid)
            }
        return connection

    def close(self) -> None:
        """Roll back and close whatever the pipeline has left open."""
        with self._lock:
            left, self._open, self._own = list(self._open.values()), {}, None
        for connection, _, _ in left:
            with suppress(psycopg2.Error):
                connection.close()

    # ── for whoever stops it ────────────────────────────────────────────────────────────────────────────────────

    @property
    def in_use(self) -> bool:
        with self._lock:
            return any(not connection.closed for connection, _, _ in self._open.values())

    def cancel(self) -> int:
        """Cancel what the sessions are doing: a thread that is blocked in libpq wakes with QueryCanceled."""
        return self._each("SELECT pg_cancel_backend(%s)")

    def terminate(self) -> int:
        """End the sessions."""
        return self._each("SELECT pg_terminate_backend(%s)")

    def _each(self, statement: str) -> int:
        with self._lock:
            sessions = [(dsn, pid) for connection, dsn, pid in self._open.values() if not connection.closed]
        reached = 0
        for dsn, pid in sessions:
            with suppress(psycopg2.Error):
                reached += tell_backends(dsn, statement, pid)
        return reached


def tell_backends(dsn: str, statement: str, which: int | str) -> int:
    """Ask over a connection of its own, for the one in question is busy."""
    connection = psycopg2.connect(dsn, connect_timeout=5, application_name="dataloader-stop")
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement, (which,))
            (answer,) = cursor.fetchone() or (0,)
            return int(answer)
    finally:
        connection.close()


def terminate_sessions_of(dsn: str, job_id: UUID) -> int:
    """End all sessions that carry the job's name: those that a killed process has left behind."""
    statement = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = %s"
    with translated():
        return tell_backends(dsn, statement, f"dataloader:{job_id}")
