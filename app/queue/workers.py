"""Worker processes: heartbeats, takeover of a dead one's jobs, and which of them need notifications for a queue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from dataloader.app.db.encoding import array, from_row, validate_json
from dataloader.app.db.statements import Executor
from dataloader.app.queue.labels import Labels


@dataclass(frozen=True)
class WorkerInfo:
    """What a worker process registers about itself."""

    id: UUID
    name: str
    version: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    threads: int
    queue_threads: Mapping[str, int] = field(default_factory=dict)  # how many of its threads run jobs of each queue
    schedules: tuple[str, ...] = ()  # that its tasks declare
    labels: Labels = field(default_factory=dict)
    unserved_tasks: Mapping[str, Labels] = field(default_factory=dict)  # what the tasks require that others serve
    reaps: bool = True  # it takes jobs of dead processes
    code_release: str | None = None  # of the pipelines' code


@dataclass(frozen=True)
class HostFacts:
    """What a worker process records about itself so that others can prove its death. None: not known."""

    boot_id: str | None = None
    pid_namespace: str | None = None
    time_namespace: str | None = None
    pid: int | None = None
    start_time: int | None = None
    lock_file: str | None = None
    child_tasks: tuple[str, ...] = ()  # tasks that run in a child process
    worker_name: str | None = None  # at most one process has this name


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
class HeartbeatResult:
    is_superseded: bool = False  # another process has taken over this one's name
    is_new: bool = True  # the database had no row of this process
    incarnation: int | None = None  # how many processes have held the name so far
    others: Sequence[OtherWorker] = ()
    has_others: bool = True  # `others` was read in this heartbeat
    is_led: bool = True  # there is a maintenance leader
    next_schedule_in_sec: float | None = None  # less than 0: it is late
    has_silent_workers: bool = False  # a process has missed heartbeats: its leases may have expired
    has_ready_jobs: bool = False  # in `idle_queues`
    has_waiting_work: bool = False  # blocked jobs, or updates of datasets that schedules wait for
    has_due_deliveries: bool = False  # of webhooks
    settings_version: str = ""  # changes when an operator changes this process or its queues


@dataclass(frozen=True)
class HeldAttempt:
    """A run that a dead process has left."""

    job_id: UUID
    run_id: UUID
    lock_key: str
    may_have_child: bool


class WorkerLiveness:
    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def send_heartbeat(
        self,
        info: WorkerInfo,
        facts: HostFacts | None = None,
        *,
        heartbeat_sec: float,
        watched: int | None = None,
        idle_queues: Iterable[str] = (),
        finds_others: bool = True,
    ) -> HeartbeatResult:
        """Register this process or renew its row; return what there is to do, in `idle_queues` too. With `finds_others`
        also other processes whose death it can detect: `watched` of them, or all."""
        facts, parameters = facts or HostFacts(), {"worker_id": str(info.id), "idle_queues": array(idle_queues)}
        rows = self._execute("record_heartbeat", parameters)
        is_new = not rows
        if is_new:
            self._register(info, facts, heartbeat_sec)
            rows = self._execute("record_heartbeat", parameters)
        is_superseded, incarnation, *answers = rows[0][:9] if rows else (False, None)
        others = self._other_workers(info, facts, watched) if finds_others else ()
        return HeartbeatResult(is_superseded, is_new, incarnation, others, finds_others, *answers)

    def _register(self, info: WorkerInfo, facts: HostFacts, heartbeat_sec: float) -> None:
        parameters = {
            **vars(info),
            "worker_id": str(info.id),
            "queues": array(info.queues),
            "tasks": array(info.tasks),
            "schedules": array(info.schedules),
            "queue_threads": json.dumps(dict(info.queue_threads)),
            "labels": json.dumps(dict(info.labels)),
            "unserved_tasks": validate_json("unserved_tasks", info.unserved_tasks),
            "heartbeat_sec": heartbeat_sec,
            **vars(facts),
            "child_tasks": array(facts.child_tasks),
        }
        self._execute("register_worker", parameters)

    def _other_workers(self, info: WorkerInfo, facts: HostFacts, watched: int | None) -> tuple[OtherWorker, ...]:
        parameters = {**vars(facts), "worker_id": str(info.id), "reaps": info.reaps, "watched": watched}
        return tuple(from_row(OtherWorker, row) for row in self._execute("other_workers", parameters))

    def deregister(self, worker_id: UUID) -> None:
        self._execute("deregister_worker", {"worker_id": str(worker_id)})

    def request_heartbeat(self, worker_id: UUID) -> datetime:
        """Ask a process for a heartbeat at once; return the time from which on a heartbeat is its response."""
        requested_at: datetime = self._execute("request_heartbeat", {"worker_id": str(worker_id)})[0][0]
        return requested_at

    def supersede(self, worker_id: UUID, *, by: UUID, requested_at: datetime) -> bool | None:
        """Take over the name of a process that has sent no heartbeat since. False: it is alive; None: it has no row."""
        parameters = {"worker_id": str(worker_id), "by": str(by), "requested_at": requested_at}
        rows = self._execute("supersede_worker", parameters)
        return bool(rows[0][0]) if rows else None

    def begin_takeover(self, worker_id: UUID, *, exclusive_sec: float) -> bool:
        """Whether this process is the one that may take over a dead one's jobs, for so many seconds."""
        return bool(self._execute("begin_takeover", {"worker_id": str(worker_id), "exclusive_sec": exclusive_sec}))

    def held_attempts(self, worker_id: UUID) -> list[HeldAttempt]:
        rows = self._execute("held_attempts", {"worker_id": str(worker_id)})
        return [from_row(HeldAttempt, row) for row in rows]

    def end_sessions(self, worker_id: UUID) -> int:
        """End the queue's own sessions of a process; return how many there still were. Ending takes a moment."""
        return int(self._execute("end_worker_sessions", {"worker_id": str(worker_id)})[0][1])

    def end_takeover(self, worker_id: UUID) -> None:
        self._execute("end_takeover", {"worker_id": str(worker_id)})


class NotifyStateTable:
    """Which queues this worker process needs notifications for."""

    def __init__(self, executor: Executor, worker_id: UUID) -> None:
        self._execute, self._worker_id = executor.execute, str(worker_id)

    def set_needs_notification(self, queues: Iterable[str], *, needs_notification: bool) -> None:
        self._execute(
            "set_needs_notification",
            {"queues": array(queues), "worker_id": self._worker_id, "needs_notification": needs_notification},
        )

    def has_no_silent_insert(self, queue: str) -> bool:
        """Whether no transaction is open that inserted a job of the queue without a notification."""
        return bool(self._execute("has_no_silent_insert", {"queue": queue})[0][0])

    def clear(self) -> None:
        """Delete the rows of this process: inserts then always notify it."""
        self._execute("clear_notify_state", {"worker_id": self._worker_id})


def notify_waiting_queues(executor: Executor) -> None:
    """Notify every queue that has a ready job: repairs a lost notification within the caller's interval."""
    executor.execute("notify_waiting_queues")


def prune_heartbeats(executor: Executor) -> None:
    """Delete heartbeats that no reader needs any more."""
    executor.execute("prune_heartbeats")


def prune_notify_state(executor: Executor) -> None:
    """Delete the rows of worker processes that send no heartbeats."""
    executor.execute("clear_notify_state", {"worker_id": str(UUID(int=0))})
