"""Who waits to be rung for a queue: what a worker process says of itself, and what it must make sure of."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from app.db.encoding import array
from app.queue.jobs import Executor


class NotifyStateTable:
    def __init__(self, executor: Executor, worker_id: UUID) -> None:
        self._execute, self._worker_id = executor.execute, str(worker_id)

    def set_needs_notification(self, queues: Iterable[str], *, needs_notification: bool) -> None:
        """Say whether this process is to be rung for these queues."""
        self._execute(
            "set_needs_notification",
            {"queues": array(queues), "worker_id": self._worker_id, "needs_notification": needs_notification},
        )

    def has_no_silent_insert(self, queue: str) -> bool:
        """Nobody is about to commit a job of the queue for which he has rung nobody."""
        return bool(self._execute("has_no_silent_insert", {"queue": queue})[0][0])

    def clear(self) -> None:
        """Take all marks of this process away: it is rung for everything."""
        self._execute("clear_notify_state", {"worker_id": self._worker_id})


def notify_waiting_queues(executor: Executor) -> None:
    """Notify every queue that has a ready job: repairs a lost notification within the caller's interval."""
    executor.execute("notify_waiting_queues")


def prune_notify_state(executor: Executor) -> None:
    """Delete the rows of worker processes that stopped beating."""
    executor.execute("clear_notify_state", {"worker_id": str(UUID(int=0))})
