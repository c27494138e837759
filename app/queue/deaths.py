"""Worker processes as they make themselves known to each other, and how the jobs of a dead one are taken over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from app.db.rows import from_row
from app.queue.job import HostFacts, WorkerInfo
from app.queue.jobs import Executor, JobQueue


@dataclass(frozen=True)
class OtherWorker:
    """Another worker process: of the same host, or with the same name."""

    id: UUID
    name: str
    boot_id: str | None
    pid_namespace: str | None
    time_namespace: str | None
    pid: int | None
    start_time: int | None
    lock_file: str | None
    worker_name: str | None
    listener: str | None
    heartbeat_sec: float
    is_stopping: bool


@dataclass(frozen=True)
class BeatResult:
    """The answer to a beat."""

    is_superseded: bool = False  # another process has taken over this one's name
    is_new: bool = True  # the database did not know this process
    incarnation: int | None = None  # of the name: how many have held it one after the other
    others: Sequence[OtherWorker] = field(default_factory=tuple)


@dataclass(frozen=True)
class HeldAttempt:
    """A run that a dead process has left."""

    job_id: UUID
    run_id: UUID
    lock_key: str
    may_have_child: bool


class WorkerLiveness:
    def __init__(self, executor: Executor) -> None:
        self._execute, self._job_queue = executor.execute, JobQueue(executor)

    def beat(self, info: WorkerInfo, facts: HostFacts, *, heartbeat_sec: float) -> BeatResult:
        """Make this process known, and learn which others it may outlive."""
        rows = self._job_queue.register_worker(info, heartbeat_sec=heartbeat_sec, facts=facts)
        is_superseded, is_new, incarnation = rows[0][:3]
        others = tuple(from_row(OtherWorker, row[3:15]) for row in rows if row[3] is not None)
        return BeatResult(is_superseded, is_new, incarnation, others)

    def request_beat(self, worker_id: UUID) -> datetime:
        """Ask a process to beat at once; return the time from which on a beat is its answer."""
        asked_at: datetime = self._execute("request_beat", {"worker_id": str(worker_id)})[0][0]
        return asked_at

    def supersede(self, worker_id: UUID, *, by: UUID, requested_at: datetime) -> bool | None:
        """Take over the name of a process that has not beaten since. False: it lives; None: it is not there."""
        rows = self._execute("supersede_worker", {"worker_id": str(worker_id), "by": str(by), "asked_at": requested_at})
        return bool(rows[0][0]) if rows else None

    def begin_takeover(self, worker_id: UUID, *, exclusive_sec: float) -> bool:
        """Be the one process that takes over from a dead one, for so many seconds."""
        return bool(self._execute("begin_takeover", {"worker_id": str(worker_id), "again_sec": exclusive_sec}))

    def held_attempts(self, worker_id: UUID) -> list[HeldAttempt]:
        rows = self._execute("held_attempts", {"worker_id": str(worker_id)})
        return [from_row(HeldAttempt, row) for row in rows]

    def end_sessions(self, worker_id: UUID) -> int:
        """End the queue's own sessions of a process; return how many there were still. Ending takes a moment."""
        return int(self._execute("end_worker_sessions", {"worker_id": str(worker_id)})[0][1])

    def end_takeover(self, worker_id: UUID) -> None:
        """Nothing is left of a dead process."""
        self._execute("end_takeover", {"worker_id": str(worker_id)})
