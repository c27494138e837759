"""Lets worker processes save the progress of a running attempt at once, while its progress is looked at."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from uuid import UUID

from dataloader.app import log
from dataloader.app.db.statements import Executor
from dataloader.app.http.site import Site
from dataloader.app.queue.job import Status

_INTERVAL_SEC = 10.0  # a worker process follows for thirty seconds after each notification
_MAX_KNOWN_RUNS = 1_000
_log = log.get(__name__)


class RunFollower:
    """Notifies the worker processes of a run, once in a while however many look at it. Used by any thread."""

    def __init__(self, executor: Executor, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._execute, self._clock = executor.execute, clock
        self._lock = threading.Lock()
        self._notified_at: dict[UUID, float] = {}  # by run; under the lock

    def follow(self, status: Status, run_id: UUID | None) -> None:
        """Let the process of a run save its progress whenever that changes, for a while. A failure is ignored: the
        progress is a few seconds older."""
        if status is not Status.RUNNING or run_id is None or not self._is_due(run_id):
            return
        try:
            self._execute("follow_run", {"run_id": str(run_id)})
        except Exception as error:  # an outage, or a server that takes no notifications
            _log.debug("run.not_followed", run_id=str(run_id), error=str(error))

    def _is_due(self, run_id: UUID) -> bool:
        now = self._clock()
        with self._lock:
            if now - self._notified_at.get(run_id, -_INTERVAL_SEC) < _INTERVAL_SEC:
                return False
            if len(self._notified_at) >= _MAX_KNOWN_RUNS:
                self._notified_at = {run: at for run, at in self._notified_at.items() if now - at < _INTERVAL_SEC}
            self._notified_at[run_id] = now
            return True


def make_run_follower(site: Site) -> RunFollower:
    """For `Site.shared`: one for all routes and pages."""
    return RunFollower(site.executor)
