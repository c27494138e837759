"""Where requests wait for a change of a job: one question to the database for all of them, a few times a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from app.queue.lists import Lists
from app.web.problems import TooManyWaiting

LONGEST_WAIT_SEC = 30
_LOOK_EVERY = 0.2  # seconds


@dataclass(eq=False)
class _Waiter:
    job_id: UUID
    version: str
    rung: threading.Event = field(default_factory=threading.Event)


class Waiting:
    """It is small: whoever waits here holds a thread that could answer others. `closing` ends all waits at once."""

    def __init__(self, lists: Lists, places: int, closing: threading.Event) -> None:
        self._lists, self._closing = lists, closing
        self._places = threading.BoundedSemaphore(places)
        self._lock = threading.Lock()
        self._waiters: set[_Waiter] = set()  # under the lock, as the next
        self._looking = False

    @contextmanager
    def place(self) -> Iterator[None]:
        """Raises TooManyWaiting when there is none."""
        if not self._places.acquire(blocking=False):
            raise TooManyWaiting
        try:
            yield
        finally:
            self._places.release()

    def version(self, job_id: UUID) -> str:
        """What the job's row is now, as `change` wants it; "" if there is none."""
        return self._lists.states([job_id]).get(job_id, ("", None))[0]

    def change(self, job_id: UUID, version: str, deadline: float) -> bool:
        """Wait until the job's row is in another version; False: the time is over, or the service ends."""
        waiter = _Waiter(job_id, version)
        self._join(waiter)
        try:
            while (left := deadline - time.monotonic()) > 0 and not self._closing.is_set():
                if waiter.rung.wait(min(left, 1.0)):
                    return not self._closing.is_set()
            return False
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def _join(self, waiter: _Waiter) -> None:
        with self._lock:
            self._waiters.add(waiter)
            if not self._looking:
                self._looking = True
                threading.Thread(target=self._look, name="web-waiting", daemon=True).start()

    def _look(self) -> None:
        """Until nobody waits any more. Should it fail, all are rung, and find out for themselves what is wrong."""
        try:
            while waiters := self._present():
                states = self._lists.states({waiter.job_id for waiter in waiters})
                for waiter in waiters:
                    if states.get(waiter.job_id, ("", None))[0] != waiter.version:
                        waiter.rung.set()
                if self._closing.wait(_LOOK_EVERY):
                    break
        finally:
            with self._lock:
                self._looking = False
                for waiter in self._waiters:
                    waiter.rung.set()

    def _present(self) -> list[_Waiter]:
        with self._lock:
            self._looking = bool(self._waiters)
            return list(self._waiters)
