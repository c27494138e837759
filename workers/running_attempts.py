"""The attempts that a process holds."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from uuid import UUID

from dataloader.workers.attempt import Attempt


class RunningAttempts:
    """The attempts that a process holds, from claim to settlement, by run id.

    The dispatcher adds them, the settler removes them, any thread reads them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: dict[str, Attempt] = {}  # by the run id's text
        self._given_up: list[Attempt] = []

    def add(self, attempts: Iterable[Attempt]) -> None:
        with self._lock:
            self._attempts.update([(attempt.job.run_text, attempt) for attempt in attempts])

    def remove(self, attempts: Iterable[Attempt]) -> None:
        with self._lock:
            for attempt in attempts:
                self._attempts.pop(attempt.job.run_text, None)

    def give_up(self, attempts: Iterable[Attempt]) -> None:
        """Remove attempts that the database still has as running: the heartbeat has to end their leases."""
        with self._lock:
            for attempt in attempts:
                self._attempts.pop(attempt.job.run_text, None)
                self._given_up.append(attempt)

    def take_given_up(self) -> list[Attempt]:
        with self._lock:
            given_up, self._given_up = self._given_up, []
        return given_up

    def get(self, run_id: UUID | str) -> Attempt | None:
        return self._attempts.get(str(run_id))

    def all(self) -> list[Attempt]:
        with self._lock:
            return list(self._attempts.values())

    def __len__(self) -> int:
        return len(self._attempts)
