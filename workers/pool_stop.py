"""Stops the worker threads of a pool: attempts end by themselves, are asked to stop, and are released."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from app import log
from app.queue.attempt_sessions import END_SESSIONS_TIMEOUT_SEC
from app.queue.job import ReleaseReason
from pipelines.contract import StopReason
from workers.attempt import Attempt
from workers.key_locks import KeyLocks
from workers.outcome import Released
from workers.running import RunningAttempts
from workers.settler import Settler
from workers.threads import clock
from workers.worker import Worker

_log = log.get(__name__)
_FORCED_TIMEOUT_SEC = 0.5  # in place of the other timeouts after `stop_now`
_KILL_TIMEOUT_SEC = 6.0  # for killed processes to end, and their sessions on all servers
_JOIN_SLICE_SEC = 0.05  # how often a stop checks whether `stop_now` was called


class WorkerStopper:
    """Ends the attempts of the worker threads at shutdown."""

    def __init__(
        self,
        workers: Sequence[Worker],
        running: RunningAttempts,
        settler: Settler,
        key_locks: KeyLocks,
        *,
        stop_wait_sec: float,
    ) -> None:
        self._workers, self._running, self._settler, self._key_locks = workers, running, settler, key_locks
        self._stop_wait_sec = stop_wait_sec
        self._stop_now_requested = threading.Event()

    @property
    def timeout_sec(self) -> float:
        """How long to wait for attempts that were asked to stop."""
        forced = self._stop_now_requested.is_set()
        return min(_FORCED_TIMEOUT_SEC, self._stop_wait_sec) if forced else self._stop_wait_sec

    def stop_now(self) -> None:
        """Ask all attempts to stop; a `stop` in progress does not wait for the end of the grace period."""
        self._stop_now_requested.set()
        for attempt in self._running.all():
            attempt.stop(StopReason.SHUTDOWN)

    def stop(self, grace_sec: float) -> bool:
        """Wait for all worker threads, or stop their attempts. Return False if some thread still runs.

        Its job is released, but its key stays locked until this process ends.
        """
        if self._join(lambda: 0.0 if self._stop_now_requested.is_set() else grace_sec):
            return True
        for attempt in self._running.all():
            attempt.stop(StopReason.SHUTDOWN)
        if self._join(lambda: self.timeout_sec) or self._kill_processes():
            return True
        stuck = [a for worker in self._workers if worker.is_alive and (a := worker.current_attempt) is not None]
        _end_sessions(stuck)
        for attempt in stuck:
            _log.error("job.stop_timeout", job=str(attempt.job.id), task=attempt.job.task)
            self._key_locks.discard([attempt])  # forgotten, not unlocked: the session keeps it
            self._settler.submit(attempt, Released(ReleaseReason.SHUTDOWN, attempt.remaining_state()))
        return False

    def _join(self, timeout_sec: Callable[[], float]) -> bool:
        """Wait for all worker threads; return False on timeout. The timeout may shrink meanwhile."""
        began = clock()
        while alive := [worker for worker in self._workers if worker.is_alive]:
            if clock() - began >= timeout_sec():
                return False
            alive[0].join(_JOIN_SLICE_SEC)
        return True

    def _kill_processes(self) -> bool:
        """Kill isolated processes, which must not outlive this one. Return whether no worker thread is left."""
        isolated = [
            (worker, a) for worker in self._workers if (a := worker.current_attempt) is not None and not a.in_thread
        ]
        for _, attempt in isolated:
            attempt.stop_signal.kill()
        timeout_sec = _FORCED_TIMEOUT_SEC if self._stop_now_requested.is_set() else _KILL_TIMEOUT_SEC
        deadline = clock() + timeout_sec
        for worker, _ in isolated:
            worker.join(max(0.0, deadline - clock()))
        return not any(worker.is_alive for worker in self._workers)


def _end_sessions(attempts: Sequence[Attempt]) -> None:
    """End the sessions of attempts before they are released: their threads go on, their statements must not."""
    threads = [threading.Thread(target=attempt.end_sessions, daemon=True) for attempt in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * END_SESSIONS_TIMEOUT_SEC + 1)
