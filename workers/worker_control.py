"""Fetches queue settings and drain requests for a worker process, and reports the process's state."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.queues import QueueControl, QueueSettings, QueueState
from dataloader.app.queue.workers import HeartbeatResult
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt
from dataloader.workers.dispatcher import Dispatcher
from dataloader.workers.listener import ListenState
from dataloader.workers.memory import MemoryMonitor
from dataloader.workers.queue_buffer import QueueLimits
from dataloader.workers.running_attempts import RunningAttempts
from dataloader.workers.threads import BackgroundThread

_log = log.get(__name__)
_SETTINGS_POLL_SEC = 5.0  # while no notifications arrive
_IDLE_HEARTBEATS = 30  # heartbeats between two reports of a process that is notified and runs nothing
_STATM = Path("/proc/self/statm")


class WorkerControl:
    """Applies queue settings to the dispatcher. Its thread also watches for dead processes, and the memory.

    Every claim honours the settings in the database. Here they keep threads from claims that return nothing, and bound
    what this process runs, which a claim cannot know.
    """

    def __init__(
        self,
        queues: QueueControl,
        dispatcher: Dispatcher,
        running: RunningAttempts,
        *,
        worker_id: UUID,
        interval_sec: float,
        listen_state: Callable[[], ListenState],
        add_threads: Callable[[str, int], None],
        watch_deaths: Callable[[], float],
        memory: MemoryMonitor,
        on_crash: Callable[[str], None],
    ) -> None:
        self._queues, self._dispatcher, self._running, self._worker_id = queues, dispatcher, running, worker_id
        self._interval_sec, self._listen_state, self._add_threads = interval_sec, listen_state, add_threads
        self._watch_deaths, self._memory = watch_deaths, memory
        self._last_sync_at, self._next_report_at = -math.inf, 0.0
        self._reported_attempts = 0
        self._settings_version: str | None = None  # of the last heartbeat; the heartbeat's
        self.is_draining = False  # read by any thread
        self._reported_state: tuple[str, bool] | None = None
        self._is_stopping = False  # set by the thread that stops the pool
        self.thread = BackgroundThread("worker-control", self.run_once, on_crash=on_crash)

    def report_stopping(self) -> None:
        """Report at once that this process claims nothing more."""
        self._is_stopping, self._next_report_at = True, 0.0
        self.sync_now()

    def sync_now(self) -> None:
        """Report and fetch at once. May be called by any thread."""
        self._last_sync_at = -math.inf
        self.thread.wake()

    def on_heartbeat(self, heartbeat: HeartbeatResult) -> None:
        """Fetch settings that have changed. Called by the heartbeat's thread."""
        if heartbeat.settings_version != self._settings_version:
            self._settings_version = heartbeat.settings_version
            self.sync_now()

    def run_once(self) -> float:
        now = clock()
        self._memory.check(now)
        if self._is_memory_high != (self._reported_state is not None and self._reported_state[1]):
            self._last_sync_at = -math.inf
        if now >= self._last_sync_at + self._pause_sec:
            self._last_sync_at = now
            try:
                self._sync(now)
            except DatabaseUnavailable:
                self._last_sync_at = -math.inf
                raise
        return min(self._watch_deaths(), max(0.0, self._last_sync_at + self._pause_sec - clock()))

    @property
    def _is_memory_high(self) -> bool:
        return self._memory.state is not None and self._memory.state.high

    @property
    def _pause_sec(self) -> float:
        """How long the last report and settings hold, if nothing happens."""
        if not self._listen_state().is_receiving:
            return min(_SETTINGS_POLL_SEC, self._interval_sec)
        is_idle = not len(self._running) and not self._reported_attempts
        return self._interval_sec * (_IDLE_HEARTBEATS if is_idle else 1)

    def _sync(self, now: float) -> None:
        """Report this process, and apply the queue settings."""
        listen_state, is_memory_high = self._listen_state(), self._is_memory_high
        state, attempts = (listen_state.value, is_memory_high), self._running.all()
        # A new holder of this process's name reads the listener's state.
        is_due = now >= self._next_report_at or state != self._reported_state
        settings, is_draining = self._queues.report_and_fetch(
            self._worker_id,
            {name: buffer.threads for name, buffer in self._dispatcher.queues.items()},
            listener=listen_state.value,
            rss_bytes=rss_bytes(),
            attempts=[_summary_of(a, now, is_memory_high) for a in attempts] if is_due else None,
            is_stopping=self._is_stopping,
        )
        if is_due:
            self._next_report_at, self._reported_state = now + self._interval_sec, state
            self._reported_attempts = len(attempts)
        if is_draining != self.is_draining:
            _log.info("worker.draining" if is_draining else "worker.resumed")
        self.is_draining = is_draining
        for name, queue_settings in settings.items():
            if queue_settings.per_worker is not None:
                self._add_threads(name, queue_settings.per_worker)
        self._dispatcher.apply_limits(
            {name: _limits_of(settings.get(name), is_draining) for name in self._dispatcher.queues}
        )


def _summary_of(attempt: Attempt, now: float, is_memory_high: bool) -> Mapping[str, Any]:
    return {
        "run_id": attempt.job.run_text,
        "queue": attempt.job.queue,
        "progress_age_sec": round(now - attempt.reported.progress_at, 1),
        "stop_reason": None if attempt.stop_reason is None else attempt.stop_reason.value,
        "stop_step": attempt.stop_signal.step,
        "stop_age_sec": None if (at := attempt.stop_signal.requested_at) is None else round(now - at, 1),
        "memory_high": is_memory_high,  # of the process: it matters only while an attempt runs
    }


def _limits_of(settings: QueueSettings | None, is_draining: bool) -> QueueLimits:
    if settings is None:
        return QueueLimits(paused=is_draining)
    return QueueLimits(
        paused=is_draining or settings.state is not QueueState.OPEN,
        is_fair=settings.fair is not None,
        max_in_process=settings.per_worker,
        has_global_limit=settings.concurrency is not None,
    )


def rss_bytes() -> int | None:
    """Return the resident memory of this process, or None if the system does not report it."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
