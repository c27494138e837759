"""Stops a process within a time limit: a signal handler records the signal, and a thread does the rest."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable

from dataloader.app import log
from dataloader.app.runtime.service import Service

_log = log.get(__name__)
# Beyond the grace: for jobs that are asked to stop, settlements on their way, a dead database.
STOP_MARGIN_SEC = 60.0
_REQUEST_DRAIN_SEC = 5.0  # that requests have when the jobs have ended, and the grace is over
_FORCED_TIMEOUT_SEC = 1.5  # gunicorn kills two seconds after a second Ctrl-C
_DONE = 0  # no signal's number
EXIT_STOP_TIMEOUT = 70  # exit code: a part of the process hangs


class Shutdown:
    """Stops the service after a first signal; a second Ctrl-C, or SIGQUIT, stops it at once.

    The main thread waits for `stopped` and exits. If it does not in time, because of a slow client for example, this
    class ends the process.
    """

    def __init__(self, service: Service, *, grace_sec: float, exit_process: Callable[[int], None] = os._exit) -> None:
        self.stopped = threading.Event()
        self.clean = True  # False: a pipeline does not stop; the process must be left without waiting for its thread
        self._service, self._grace_sec, self._exit_process = service, grace_sec, exit_process
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def start(self) -> None:
        threading.Thread(target=self._wait_and_stop, name="shutdown", daemon=True).start()

    def request(self, signal_number: int) -> None:
        """Record a signal. Safe in a signal handler: it neither waits nor takes a lock."""
        self._signals.put(signal_number)

    def request_within(self, grace_sec: float) -> None:
        """Stop in so many seconds, whatever the grace is. Safe in a signal handler."""
        self._grace_sec = grace_sec
        self._service.stop_within(grace_sec)
        self._signals.put(signal.SIGTERM)

    def finish(self) -> None:
        """Wait until the service has stopped, and close it."""
        self.stopped.wait()
        if not self.clean:
            self.exit_now()
        self._service.close()

    def exit_now(self, code: int = 0) -> None:
        """Exit without waiting for any thread, and without finalizing the interpreter while threads run."""
        self._service.close()
        log.tear_down()
        self._exit_process(code)

    def _wait_and_stop(self) -> None:
        number = self._signals.get()
        began = time.monotonic()
        latest = began + self._grace_sec + STOP_MARGIN_SEC - _REQUEST_DRAIN_SEC
        code = EXIT_STOP_TIMEOUT
        _log.info("service.stopping", signal=signal.Signals(number).name)
        threading.Thread(target=self._stop_service, name="pool-stop", daemon=True).start()
        is_forced = number == signal.SIGQUIT
        while True:
            now = time.monotonic()
            if number == _DONE:
                code = 0
                latest = min(latest, max(now, began + self._grace_sec) + _REQUEST_DRAIN_SEC)
            if is_forced:
                self._service.stop_now()
                latest = min(latest, now + _FORCED_TIMEOUT_SEC)
            try:
                number = self._signals.get(timeout=max(0.0, latest - now))
            except queue.Empty:
                break
            is_forced = number in (signal.SIGINT, signal.SIGQUIT)
        _log.error("service.stop_timeout", detail="what still ran was not waited for", stopped=self.stopped.is_set())
        self._exit_process(code)

    def _stop_service(self) -> None:
        try:
            self.clean = self._service.stop()
        except Exception:
            _log.exception("service.stop_failed")
            self.clean = False
        self.stopped.set()
        self._signals.put(_DONE)
