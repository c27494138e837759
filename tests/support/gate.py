"""Holds jobs until a test lets them go, and tells who has come."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.support.waiting import eventually


class Gate:
    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.came: list[str] = []  # in the order of their coming; by jobs, under the lock
        self.inside = 0  # how many are held now; under the lock
        self.most_inside = 0

    def pass_through(self, name: str, check: Callable[[], object] | None = None) -> None:
        """Called by a job: wait until the gate is open. With `check`, be as patient as a good pipeline is."""
        with self._lock:
            self.came.append(name)
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        try:
            while not self._open.wait(0.01):
                if check is not None:
                    check()
        finally:
            with self._lock:
                self.inside -= 1

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def until_inside(self, count: int = 1, timeout: float = 60) -> None:
        eventually(lambda: self.inside >= count, timeout, lambda: f"{count} inside; there are {self.inside}")

    def until_came(self, count: int, timeout: float = 60) -> None:
        eventually(lambda: len(self.came) >= count, timeout, lambda: f"{count} to come; came {self.came}")
