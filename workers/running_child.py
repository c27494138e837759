"""The process of an isolated attempt, as threads see it that do not watch it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

_MAX_MOMENTS = 300  # that nothing has read


class RunningChild:
    """A process group, and the stacks of its Python threads.

    Any thread may request the stacks. The thread that watches the process sends the request and receives the answer.
    """

    def __init__(self, pid: int, wake: Callable[[], None], *, has_channel: bool) -> None:
        """`pid`: of the process group, and of the watchdog that leads it. `wake` wakes the thread that watches it."""
        self.pid, self.has_channel, self._wake = pid, has_channel, wake
        self._lock = threading.Condition()
        self._requests = self._sent = self._answered = 0  # under the lock, as the next
        self._threads: list[Any] = []
        self._moments_interval_sec: float | None = None  # to be sent, under the lock
        self.moments: deque[Any] = deque(maxlen=_MAX_MOMENTS)  # as the child describes them; any thread
        self.usage: tuple[float, int] | None = None  # CPU time and peak memory in kB, once it has ended

    def request_moments(self, interval_sec: float) -> None:
        """Have the child describe what its task does, again and again."""
        with self._lock:
            self._moments_interval_sec = interval_sec
        self._wake()

    def next_message(self) -> dict[str, Any] | None:
        """The message to send, if there is one."""
        with self._lock:
            interval_sec, self._moments_interval_sec = self._moments_interval_sec, None
        if interval_sec is not None:
            return {"moments": interval_sec}
        number = self.next_request()
        return None if number is None else {"stacks": number}

    def request_stacks(self) -> int:
        """Request the stacks; return the number of the request."""
        with self._lock:
            self._requests += 1
            number = self._requests
        self._wake()
        return number

    def await_stacks(self, number: int, timeout_sec: float) -> list[Any] | None:
        """The stacks, as the child describes them; None: it has not answered."""
        with self._lock:
            answered = self._lock.wait_for(lambda: self._answered >= number, timeout_sec)
            return self._threads if answered else None

    def next_request(self) -> int | None:
        """The request to send, if there is one that was not sent."""
        with self._lock:
            if self._sent == self._requests:
                return None
            self._sent = self._requests
            return self._sent

    def receive_stacks(self, number: int, threads: list[Any]) -> None:
        with self._lock:
            if self._answered < number <= self._sent:
                self._answered, self._threads = number, threads
                self._lock.notify_all()
