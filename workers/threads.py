"""A wake-up that `poll` can wait on, and named background threads."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable
from dataloader.pipelines.portable import clock

_log = log.get(__name__)


class WakeupPipe:
    """Wakes one waiter from another thread, also out of a `poll` on sockets."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        for descriptor in (self._read_fd, self._write_fd):
            os.set_blocking(descriptor, False)
        self._lock = threading.Lock()  # the number of a closed descriptor may belong to another file
        self._is_closed = False  # under the lock

    def set(self) -> None:
        with self._lock:
            if not self._is_closed:
                with suppress(BlockingIOError):  # the pipe is full, so it is set
                    os.write(self._write_fd, b"!")

    def wait(self, timeout: float, *descriptors: int | None) -> bool:
        """Wait for `set` or for one of the descriptors to be readable; return False on timeout."""
        waiter = select.poll()
        for descriptor in (self._read_fd, *descriptors):
            if descriptor is not None:
                waiter.register(descriptor, select.POLLIN)
        events = waiter.poll(max(0.0, timeout) * 1000)
        with suppress(BlockingIOError):
            while os.read(self._read_fd, 4096):
                pass
        return bool(events)

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._read_fd)
                os.close(self._write_fd)


class Backoff:
    """The pause after each failure in a row: it doubles up to a bound. One thread uses it."""

    def __init__(self, *, first_sec: float = 1.0, max_sec: float = 60.0) -> None:
        self._next_sec, self._max_sec = first_sec, max_sec

    def next_sec(self) -> float:
        """Return the seconds to wait after one more failure."""
        pause_sec = self._next_sec
        self._next_sec = min(self._max_sec, 2 * pause_sec)
        return pause_sec


class BackgroundThread(threading.Thread):
    """A thread that runs a step until it is stopped. A step returns the seconds until the next one.

    An outage of the database is logged once, and the step is retried. Any other error is a bug: `on_crash` is called
    with the thread's name, because the process must not go on without one of its threads.
    """

    def __init__(
        self, name: str, step: Callable[[], float], *, on_crash: Callable[[str], None], outage_retry_sec: float = 1.0
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.last_step_at = clock()  # written by the thread, read by any
        self._step, self._on_crash, self._outage_retry_sec = step, on_crash, outage_retry_sec
        self._stop_requested = threading.Event()
        self._wakeup = threading.Event()
        self.outage: str | None = None  # why the last step could not reach the database; written by the thread

    def wake(self) -> None:
        """Run the next step now."""
        if not self._wakeup.is_set():  # else the next step is still to come, and sees what was done before
            self._wakeup.set()

    def stop(self) -> None:
        self._stop_requested.set()
        self._wakeup.set()

    def run(self) -> None:
        try:
            while not self._stop_requested.is_set():
                try:
                    pause = self._step()
                    if self.outage is not None:
                        _log.info("database.available")
                        self.outage = None
                except DatabaseUnavailable as error:
                    if self.outage is None:
                        _log.warning("database.unavailable", error=str(error))
                    self.outage = str(error)
                    pause = self._outage_retry_sec
                self.last_step_at = clock()
                self._wakeup.wait(pause)
                self._wakeup.clear()
        except BaseException:
            _log.exception("thread.crashed")
            self._on_crash(self.name)
