"""Reads and changes queues and worker processes for operators."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, from_row, validate_json, validate_texts
from dataloader.app.db.statements import Executor
from dataloader.app.errors import HostNotFound, WorkerNotFound
from dataloader.app.queue.queues import MAX_QUEUES, QueueControl, QueueSettings, QueueState
from dataloader.app.state.statistics import JobCounts, PeriodStatistics, Statistics

FAIR_RULE = re.compile(r"partition_key|producer|args(\.[^.]+)+")
MAX_EXACT_READY = 1_000  # beyond it the number of ready jobs of a queue is estimated


@dataclass(frozen=True, kw_only=True)
class QueueStatus(QueueSettings):
    """A queue's settings and its jobs. `ready` is exact up to a thousand (`ready_exact`); `scheduled`, `blocked`,
    `limited` and `waiting` are as of `scanned_at`. `is_drained`: it is not open, and none of its jobs runs. `workers`
    counts live worker processes."""

    is_drained: bool
    ready: int
    ready_exact: bool
    scheduled: int
    blocked: int
    limited: int
    waiting: int
    running: int
    workers: int
    oldest_ready_sec: float | None
    scanned_at: datetime | None
    last_hour: PeriodStatistics


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """A job that a worker process runs."""

    job_id: UUID
    queue: str
    task: str
    attempt: int
    started_at: datetime
    heartbeat_at: datetime | None

    @classmethod
    def from_json(cls, text: str) -> RunningJob:
        values = json.loads(text)
        times = {name: values[name] and datetime.fromisoformat(values[name]) for name in ("started_at", "heartbeat_at")}
        return cls(**values | times | {"job_id": UUID(values["job_id"])})


# It listens, or DL_LISTEN=off.
_LISTENERS_IN_ORDER = (None, "listening", "off")


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """A worker process as it registered itself. `alive`: its last heartbeat is less than three intervals old;
    `listener` says whether it receives notifications or polls; `queue_threads` has the threads of each queue;
    `stopping`: it is shutting down; `would_lose_sec`: how long the attempts of its jobs without a checkpoint have run;
    `unserved_tasks`: the tasks that it knows and leaves to others, with the labels that they require; `release`: of
    the pipelines' code that it runs."""

    worker_id: UUID
    name: str
    version: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    threads: int
    busy: int
    started_at: datetime
    last_beat_at: datetime
    alive: bool
    draining: bool
    listener: str | None
    rss_bytes: int | None
    running: tuple[RunningJob, ...]
    pid: int | None
    queue_threads: dict[str, int]
    stopping: bool
    would_lose_sec: float = 0.0
    labels: dict[str, bool | str] = field(default_factory=dict)
    unserved_tasks: dict[str, dict[str, bool | str]] = field(default_factory=dict)
    release: str | None = None

    @property
    def host(self) -> str:
        return self.name.rpartition(":")[0] or self.name

    @property
    def has_lost_notifications(self) -> bool:
        """Whether it polls although it should be notified."""
        return self.listener not in _LISTENERS_IN_ORDER

    def busy_in(self, queue: str) -> int:
        return sum(run.queue == queue for run in self.running)


@dataclass(frozen=True, kw_only=True)
class NextJob:
    """A ready job of a queue; `unknown_task`: no live worker knows its task."""

    job_id: UUID
    task: str
    priority: int
    fair_key: str | None
    unknown_task: bool
    ready_since: datetime


@dataclass(frozen=True)
class Tenant:
    """A tenant of a fair queue: its ready jobs among the first thousand of the queue, its running ones, its weight."""

    name: str
    ready: int
    running: int
    weight: int


class Queues(QueueControl):
    """Reads and changes queues and worker processes."""

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self._counts, self._statistics = JobCounts(executor), Statistics(executor)

    def statuses(self, *, queue: str | None = None) -> list[QueueStatus]:
        """The status of every known queue, by name."""
        names = [row[0] for row in self._execute("queue_names", {"queue": queue, "limit": MAX_QUEUES})]
        rows = self._execute("queue_depths", {"queues": array(names), "max_exact": MAX_EXACT_READY}) if names else []
        oldest = {name: round(age_sec, 3) for name, age_sec in self._counts.oldest_ready().items()}
        recent = self._statistics.by_queue("1h", queue=queue)

        def status(name: str, *rest: Any) -> QueueStatus:
            last_hour = recent.get(name, PeriodStatistics())
            return from_row(QueueStatus, (name, *rest), oldest_ready_sec=oldest.get(name), last_hour=last_hour)

        return [status(*row) for row in rows]

    def next_jobs(self, queue: str, *, limit: int = 10) -> list[NextJob]:
        """The first ready jobs of a queue in the order of claims."""
        return [from_row(NextJob, row) for row in self._execute("next_jobs", {"queue": queue, "limit": limit})]

    def tenants(self, queue: str, *, limit: int = 20) -> list[Tenant]:
        """The tenants of a fair queue, those with the most ready jobs first."""
        parameters = {"queue": queue, "limit": limit, "max_exact": MAX_EXACT_READY}
        return [from_row(Tenant, row) for row in self._execute("waiting_tenants", parameters)]

    def change_settings(
        self,
        queue: str,
        *,
        state: QueueState | None = None,
        concurrency: int | None = None,
        per_worker: int | None = None,
        fair: str | None = None,
        share: float | None = None,
        weights: Mapping[str, int | None] | None = None,
        remove: Iterable[str] = (),
        note: str | None = None,
        changed_by: str | None = None,
    ) -> QueueSettings:
        """Change settings; None leaves a value as it is. They hold from the next claim of any worker process.

        `remove` names settings to remove: concurrency, per_worker, fair, share. None as a weight removes it.
        """
        parameters = validate_texts({"queue": queue, "note": note}) | {
            "state": state and state.value,
            "concurrency": concurrency,
            "per_worker": per_worker,
            "fair": fair,
            "share": share,
            "weights": validate_json("weights", dict(weights or {})),
            "remove": array(remove),
            "changed_by": changed_by,
        }
        return from_row(QueueSettings, self._execute("change_queue_settings", parameters)[0][:-1])

    def workers(self) -> list[WorkerStatus]:
        """The worker processes that registered recently, live ones first."""
        return [from_row(WorkerStatus, row) for row in self._execute("worker_statuses")]

    def worker(self, worker_id: UUID) -> WorkerStatus:
        """Raises WorkerNotFound."""
        for worker in self.workers():
            if worker.worker_id == worker_id:
                return worker
        raise WorkerNotFound(worker_id)

    def drain_host(self, host: str, *, draining: bool) -> list[WorkerStatus]:
        """Make the live worker processes of a host stop claiming jobs, or claim again; return them.

        Raises HostNotFound.
        """
        live = [worker for worker in self.workers() if worker.alive]
        ids = {worker.worker_id for worker in live if worker.host == host}
        if not ids:
            raise HostNotFound(host, {worker.host for worker in live})
        self._execute("drain_host", {"worker_ids": array(sorted(ids)), "draining": draining})
        return [worker for worker in self.workers() if worker.worker_id in ids]

    def drain_worker(self, worker_id: UUID, *, draining: bool) -> WorkerStatus:
        """Make a worker process stop claiming jobs, or claim again. Its running jobs continue."""
        if not self._execute("drain_worker", {"worker_id": str(worker_id), "draining": draining}):
            raise WorkerNotFound(worker_id)
        return self.worker(worker_id)


def read_queue_statuses(executor: Executor) -> list[QueueStatus]:
    return Queues(executor).statuses()


def read_worker_statuses(executor: Executor) -> list[WorkerStatus]:
    return Queues(executor).workers()
