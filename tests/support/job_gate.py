"""Holds jobs until a test releases them, and records which have started."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.support.waiting import eventually


class JobGate:
    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.arrived: list[str] = []  # in the order of their coming; by jobs, under the lock
        self.inside_count = 0  # how many are held now; under the lock
        self.max_inside = 0

    def wait_inside(self, name: str, check: Callable[[], object] | None = None) -> None:
        """Called by a job: wait until the gate is open. With `check`, be as patient as a good pipeline is."""
        with self._lock:
            self.arrived.append(name)
            self.inside_count += 1
            self.max_inside = max(self.max_inside, self.inside_count)
        try:
            while not self._open.wait(0.01):
                if check is not None:
                    check()
        finally:
            with self._lock:
                self.inside_count -= 1

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.clear()

    def wait_for_inside(self, count: int = 1, timeout: float = 60) -> None:
        eventually(
            lambda: self.inside_count >= count, timeout, lambda: f"{count} inside; there are {self.inside_count}"
        )

    def wait_for_arrivals(self, count: int, timeout: float = 60) -> None:
        eventually(lambda: len(self.arrived) >= count, timeout, lambda: f"{count} to come; came {self.arrived}")
