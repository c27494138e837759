"""How a process ends: a signal handler leaves a note, a thread of its own does the rest, and within a time."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Protocol

from app import log

_log = log.get(__name__)
STOP_MARGIN = 60.0  # seconds beyond the grace: jobs that are asked to stop, settlements on their way, a dead database
_LAST_REQUESTS = 5.0  # seconds that requests have when the jobs have ended, and the grace is over
_IN_A_HURRY = 1.5  # gunicorn kills two seconds after a second Ctrl-C
_OVER = 0  # no signal's number
DID_NOT_END = 70  # exit code: a part of the process hangs


class Ends(Protocol):
    """What is to be ended."""

    def stop(self) -> bool: ...

    def hurry(self) -> None: ...

    def close(self) -> None: ...


class Ending:
    """Waits for a first note, and ends the service; a second Ctrl-C, or SIGQUIT, hurries it.

    Whoever started it waits for `over` and leaves. Should he be held up, by a client that reads slowly for example,
    the process is ended for him.
    """

    def __init__(self, service: Ends, *, grace: float, leave: Callable[[int], None] = os._exit) -> None:
        self.over = threading.Event()
        self.clean = True  # False: a pipeline does not stop; the process must be left without waiting for its thread
        self._service, self._grace, self._leave = service, grace, leave
        self._notes: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._code = 0

    def start(self) -> None:
        threading.Thread(target=self._wait, name="ending", daemon=True).start()

    def note(self, number: int) -> None:
        """Say that a signal came. May be called by its handler: it neither waits nor takes a lock."""
        self._notes.put(number)

    def leave_now(self, code: int = 0) -> None:
        """Leave without waiting for any thread, nor for the interpreter to take itself apart beneath those that run."""
        self._service.close()
        log.tear_down()
        self._leave(code)

    def _wait(self) -> None:
        number = self._notes.get()
        began = time.monotonic()
        latest = began + self._grace + STOP_MARGIN - _LAST_REQUESTS
        code = DID_NOT_END
        _log.info("service.ending", signal=signal.Signals(number).name)
        threading.Thread(target=self._stop, name="stopper", daemon=True).start()
        hurried = number == signal.SIGQUIT
        while True:
            now = time.monotonic()
            if number == _OVER:
                code = 0
                latest = min(latest, max(now, began + self._grace) + _LAST_REQUESTS)
            if hurried:
                self._service.hurry()
                latest = min(latest, now + _IN_A_HURRY)
            try:
                number = self._notes.get(timeout=max(0.0, latest - now))
            except queue.Empty:
                break
            hurried = number in (signal.SIGINT, signal.SIGQUIT)
        _log.error("service.left", detail="what still ran was not waited for", over=self.over.is_set())
        self._leave(code)

    def _stop(self) -> None:
        try:
            self.clean = self._service.stop()
        except Exception:
            _log.exception("service.stop.failed")
            self.clean = False
        self.over.set()
        self._notes.put(_OVER)
