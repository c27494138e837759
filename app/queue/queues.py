"""The settings of queues, and what worker processes report and fetch of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, from_row
from dataloader.app.db.statements import Executor
from dataloader.app.queue.labels import Labels

MAX_QUEUES = 500


class QueueState(StrEnum):
    OPEN = "open"
    PAUSED = "paused"  # no job is claimed
    DRAINING = "draining"  # no job is claimed, and triggers over HTTP are rejected


@dataclass(frozen=True)
class QueueSettings:
    """The settings of a queue, as operators last changed them."""

    queue: str
    state: QueueState = QueueState.OPEN
    concurrency: int | None = None  # jobs at a time in all worker processes together
    per_worker: int | None = None  # jobs at a time in each worker process
    note: str | None = None
    changed_by: str | None = None
    changed_at: datetime | None = None
    fair: str | None = None  # what distinguishes tenants, which are served in turn; None: jobs are served by age
    share: float | None = None  # the part of the threads that one tenant may have while others wait; None: half
    weights: dict[str, int] = field(default_factory=dict)  # tenant → jobs for each job of another


@dataclass(frozen=True)
class KnownNames:
    """Queues and tasks that exist, as far as the database knows."""

    queues: frozenset[str]
    tasks: frozenset[str]


@dataclass(frozen=True)
class LiveWorker:
    """The queues and tasks that a group of live worker processes serves."""

    queues: frozenset[str]
    tasks: frozenset[str]
    can_claim: bool = True  # neither drained nor shutting down
    labels: dict[str, bool | str] = field(default_factory=dict)
    unserved_tasks: dict[str, dict[str, bool | str]] = field(default_factory=dict)  # what they require


def find_requirements(task: str, workers: Iterable[LiveWorker]) -> Labels | None:
    """Return what the task requires, if one of these workers leaves it to others; None otherwise."""
    return next((worker.unserved_tasks[task] for worker in workers if task in worker.unserved_tasks), None)


class QueueControl:
    """What every process knows of queues and worker processes."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def names(self) -> list[str]:
        """Every known queue."""
        return [row[0] for row in self._execute("queue_names", {"queue": None, "limit": MAX_QUEUES})]

    def known(self) -> KnownNames:
        """The queues and tasks that the database has rows of."""
        rows = self._execute("known_names")
        queues = {*self.names(), *(name for kind, name in rows if kind == "queue")}
        return KnownNames(frozenset(queues), frozenset(name for kind, name in rows if kind == "task"))

    def settings(self) -> dict[str, QueueSettings]:
        """The settings of each queue that has any; every other queue is open and has no limit."""
        return {row[0]: from_row(QueueSettings, row) for row in self._execute("queue_settings")}

    def live_workers(self) -> list[LiveWorker]:
        """The queues and tasks that live worker processes serve."""
        return [from_row(LiveWorker, row) for row in self._execute("live_workers")]

    # Called by worker processes

    def report_and_fetch(
        self,
        worker_id: UUID,
        queue_threads: Mapping[str, int],
        *,
        listener: str,
        attempts: Any,
        is_stopping: bool = False,
    ) -> tuple[dict[str, QueueSettings], bool]:
        """Report this worker's state, and return its queues' settings and whether it is drained.

        `queue_threads` has the number of threads of each queue. `attempts` describes the running attempts; None leaves
        the last report as it is.
        """
        parameters = {
            "worker_id": str(worker_id),
            "queues": array(queue_threads),
            "queue_threads": json.dumps(dict(queue_threads)),
            "stopping": is_stopping,
            "listener": listener,
            "attempts": None if attempts is None else json.dumps(attempts),
        }
        rows = self._execute("report_and_fetch", parameters)
        settings = {
            queue: QueueSettings(queue, QueueState(state), concurrency, per_worker, fair=fair)
            for queue, state, concurrency, per_worker, fair, _ in rows
            if queue is not None
        }
        return settings, any(row[5] for row in rows)

    def is_maintenance_lock_held(self) -> bool:
        """Return whether some process is the maintenance leader."""
        return bool(self._execute("is_maintenance_lock_held")[0][0])

    def acquire_maintenance_lock(self) -> bool:
        """Become the maintenance leader for as long as this session lasts; False if another process is."""
        return bool(self._execute("acquire_maintenance_lock")[0][0])
