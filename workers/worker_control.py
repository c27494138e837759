"""Fetches queue settings and drain requests for a worker process, and reports the process's state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
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
from dataloader.workers.queue_buffer import BufferSettings
from dataloader.workers.running_attempts import RunningAttempts
from dataloader.workers.threads import BackgroundThread

_log = log.get(__name__)
_SETTINGS_POLL_SEC = 5.0  # while no notifications arrive
_IDLE_HEARTBEATS = 30  # heartbeats between two reports of a process that is notified and runs nothing


class _Report(NamedTuple):
    """What a process reports of itself, when it has changed: each report is a version of a row that others read."""

    listener: str
    is_memory_high: bool
    is_stopping: bool
    queue_threads: Mapping[str, int]
    attempts: tuple[tuple[str, object, object], ...]  # run, stop reason, stop step


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
        self._last_sync_at = -math.inf
        self._settings_version: str | None = None  # of the last heartbeat; the heartbeat's
        self.is_draining = False  # read by any thread
        self._reported: _Report | None = None
        self._is_stopping = False  # set by the thread that stops the pool
        self.thread = BackgroundThread("worker-control", self.run_once, on_crash=on_crash)

    def report_stopping(self) -> None:
        """Report at once that this process claims nothing more."""
        self._is_stopping = True
        self.sync_now()

    def sync_now(self) -> None:
        """Report and fetch at once. May be called by any thread."""
        self._last_sync_at = -math.inf
        self.thread.wake()

    def on_heartbeat(self, heartbeat: HeartbeatResult) -> None:
        """Fetch settings that have changed, and report to a new row. Called by the heartbeat's thread."""
        if heartbeat.is_new:
            self._reported = None
        if heartbeat.settings_version != self._settings_version:
            self._settings_version = heartbeat.settings_version
            self.sync_now()

    def run_once(self) -> float:
        now = clock()
        self._memory.check(now)
        if self._is_memory_high != (self._reported is not None and self._reported.is_memory_high):
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
        is_idle = not len(self._running) and not (self._reported and self._reported.attempts)
        return self._interval_sec * (_IDLE_HEARTBEATS if is_idle else 1)

    def _sync(self, now: float) -> None:
        """Report this process if something has changed, and apply the queue settings."""
        is_memory_high = self._is_memory_high
        # An attempt that was asked to stop; of the others readers know as much from the job's row.
        attempts = [a for a in self._running.all() if is_memory_high or a.stop_reason is not None]
        report = _Report(
            self._listen_state().value,
            is_memory_high,
            self._is_stopping,
            {name: buffer.threads for name, buffer in self._dispatcher.queues.items()},
            tuple((a.job.run_text, a.stop_reason, a.stop_signal.step) for a in attempts),
        )
        is_due = report != self._reported
        settings, is_draining = self._queues.report_and_fetch(
            self._worker_id,
            report.queue_threads,
            listener=report.listener,
            attempts=[_summary_of(a, now, is_memory_high) for a in attempts] if is_due else None,
            is_stopping=report.is_stopping,
        )
        if is_due:
            self._reported = report
        if is_draining != self.is_draining:
            _log.info("worker.draining" if is_draining else "worker.resumed")
        self.is_draining = is_draining
        for name, queue_settings in settings.items():
            if queue_settings.per_worker is not None:
                self._add_threads(name, queue_settings.per_worker)
        self._dispatcher.apply_settings(
            {name: _buffer_settings(settings.get(name), is_draining) for name in self._dispatcher.queues}
        )


def _summary_of(attempt: Attempt, now: float, is_memory_high: bool) -> Mapping[str, Any]:
    return {
        "run_id": attempt.job.run_text,
        "queue": attempt.job.queue,
        "stop_reason": None if attempt.stop_reason is None else attempt.stop_reason.value,
        "stop_step": attempt.stop_signal.step,
        "stop_age_sec": None if (at := attempt.stop_signal.requested_at) is None else round(now - at, 1),
        "memory_high": is_memory_high,  # of the process: it matters only while an attempt runs
    }


def _buffer_settings(settings: QueueSettings | None, is_draining: bool) -> BufferSettings:
    if settings is None:
        return BufferSettings(paused=is_draining)
    return BufferSettings(
        paused=is_draining or settings.state is not QueueState.OPEN,
        is_fair=settings.fair is not None,
        max_in_process=settings.per_worker,
        has_concurrency=settings.concurrency is not None,
    )
