"""Who waits to be rung for a queue: what a worker process says of itself, and what it must make sure of."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from app.queue.jobqueue import Source
from app.queue.values import array


class Sleep:
    def __init__(self, source: Source, worker_id: UUID) -> None:
        self._ask, self._worker_id = source.ask, str(worker_id)

    def mark(self, queues: Iterable[str], *, asleep: bool) -> None:
        """Say whether this process is to be rung for these queues."""
        self._ask("mark_sleep", {"queues": array(queues), "worker_id": self._worker_id, "asleep": asleep})

    def is_quiet(self, queue: str) -> bool:
        """Nobody is about to commit a job of the queue for which he has rung nobody."""
        return bool(self._ask("is_quiet", {"queue": queue})[0][0])

    def forget(self) -> None:
        """Take all marks of this process away: it is rung for everything."""
        self._ask("forget_sleep", {"worker_id": self._worker_id})
