"""Requests that wait for a change of a job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from dataloader.app.http.problems import ProblemCode, RequestRejected

_POLL_INTERVAL_SEC = 0.25

T = TypeVar("T")


class JobWatcher:
    """Polls for requests that wait, each in its own thread. Their number is limited: they must not take up all threads
    that answer requests. `closing` ends all waits."""

    def __init__(self, max_waiters: int, closing: threading.Event) -> None:
        self._slots = threading.BoundedSemaphore(max_waiters)
        self._closing = closing

    def wait(self, fetch: Callable[[], T], is_done: Callable[[T], bool], timeout_sec: float) -> T:
        """Fetch until the value is done or the time is over, and return the last value. Raises RequestRejected."""
        value = fetch()
        if timeout_sec <= 0 or is_done(value):
            return value
        if not self._slots.acquire(blocking=False):
            raise RequestRejected(ProblemCode.TOO_MANY_WAITING, headers={"Retry-After": "1"})
        try:
            deadline = time.monotonic() + timeout_sec
            while not is_done(value) and (remaining_sec := deadline - time.monotonic()) > 0:
                if self._closing.wait(min(_POLL_INTERVAL_SEC, remaining_sec)):
                    break
                value = fetch()
            return value
        finally:
            self._slots.release()
