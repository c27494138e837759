"""The thread that reads the logs of work on other engines: a log may be long, and an engine may send it slowly. What
polls the states does not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dataloader.pipelines.portable import clock
from dataloader.workers.threads import BackgroundThread

_READ_INTERVAL_SEC = 0.2  # five a second
_IDLE_SEC = 3600.0


class LogThread:
    """Thread `offload-logs`. Reads are added by any thread, and run in their order: one a name at a time."""

    def __init__(self, *, on_crash: Callable[[str], None] = lambda name: None) -> None:
        self._lock = threading.Lock()
        self._reads: dict[str, Callable[[], None]] = {}  # by name; under the lock, as the next two
        self._current: str | None = None
        self._is_ended = False
        self._next_read_at = 0.0  # the thread's
        self.thread = BackgroundThread("offload-logs", self.run_once, on_crash=on_crash)

    def add(self, name: str, read: Callable[[], None]) -> bool:
        """Return whether it will run: not while one of the same name waits or runs."""
        with self._lock:
            if self._is_ended or name in self._reads or name == self._current:
                return False
            self._reads[name] = read
        self.thread.wake()
        return True

    def end(self) -> list[str]:
        """Accept no more reads; return the names of those that have not ended."""
        with self._lock:
            self._is_ended = True
            names = [*self._reads, *([] if self._current is None else [self._current])]
            self._reads.clear()
            return names

    def run_once(self) -> float:
        """Run the next; return the seconds until another may run."""
        if clock() >= self._next_read_at:
            with self._lock:
                self._current = next(iter(self._reads), None)
                if self._current is None:
                    return _IDLE_SEC
                read = self._reads.pop(self._current)
            try:
                read()
            finally:
                with self._lock:
                    self._current = None
            self._next_read_at = clock() + _READ_INTERVAL_SEC
        return max(0.0, self._next_read_at - clock())
