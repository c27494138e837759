"""The thread vocabulary: a clock that counts sleep too, a bell that `poll` can wait on, a loop with a turn."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from app import log
from app.errors import DatabaseUnavailable

_log = log.get(__name__)
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds that never go back, and that go on while the machine is suspended: leases are measured by it."""
    return time.clock_gettime(_CLOCK)


class Bell:
    """Wakes one waiter from another thread, also out of a `poll` on sockets."""

    def __init__(self) -> None:
        self._ears, self._rope = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()
        self._lock = threading.Lock()  # a closed descriptor's number may be a file of somebody else's by now
        self._closed = False  # under the lock

    def ring(self) -> None:
        with self._lock:
            if not self._closed:
                with suppress(BlockingIOError):  # full: it rings already
                    os.write(self._rope, b"!")

    def wait(self, timeout: float, *others: int | None) -> bool:
        """Wait for the bell or for one of the other descriptors to be readable; False: the time was over."""
        waiter = select.poll()
        for number in (self._ears, *others):
            if number is not None:
                waiter.register(number, select.POLLIN)
        heard = waiter.poll(max(0.0, timeout) * 1000)
        with suppress(BlockingIOError):
            while os.read(self._ears, 4096):
                pass
        return bool(heard)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._ears)
                os.close(self._rope)


def _pipe() -> tuple[int, int]:
    ears, rope = os.pipe()
    os.set_blocking(ears, False)
    os.set_blocking(rope, False)
    return ears, rope


class Loop:
    """A thread that takes turns until it is stopped. A turn returns the seconds until the next one.

    A turn that finds the database away is told once and taken again; any other error is a bug, and `died` is called
    with the loop's name: a process must not go on without one of its keepers.
    """

    def __init__(self, name: str, turn: Callable[[], float], *, died: Callable[[str], None], away: float = 1.0) -> None:
        self.name = name
        self.last_turn = clock()  # written by the loop, read by whoever asks how old its claims are
        self._turn, self._died, self._away = turn, died, away
        self._stopping = threading.Event()
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._told_away = False

    def start(self) -> None:
        self._thread.start()

    def ring(self) -> None:
        """Take the next turn now."""
        if not self._bell.is_set():  # one that is set has not been heard yet: what was done before it will be seen
            self._bell.set()

    def stop(self) -> None:
        self._stopping.set()
        self._bell.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end; False: it still runs."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                pause = self._one_turn()
                self.last_turn = clock()
                self._bell.wait(pause)
                self._bell.clear()
        except BaseException:
            _log.exception("keeper.died", keeper=self.name)
            self._died(self.name)

    def _one_turn(self) -> float:
        try:
            pause = self._turn()
        except DatabaseUnavailable as error:
            if not self._told_away:
                _log.warning("database.away", keeper=self.name, error=str(error))
            self._told_away = True
            return self._away
        if self._told_away:
            _log.info("database.back", keeper=self.name)
            self._told_away = False
        return pause
