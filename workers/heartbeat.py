"""Proves that the process lives, which renews the leases of all its attempts, and receives cancels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.job import RunRef
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.pipelines.contract import StopReason
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt
from dataloader.workers.memory import rss_bytes
from dataloader.workers.metrics import PoolCounters
from dataloader.workers.run_records import RunRecords
from dataloader.workers.running_attempts import RunningAttempts
from dataloader.workers.threads import BackgroundThread

_log = log.get(__name__)
_FROZEN_SEC = 3.0  # between two steps, of which there is one a second: the process was suspended
_CHECK_INTERVAL_SEC = 1.0  # how old saved progress is, and how late a lost lease is detected
_LATE_INTERVALS = 3  # so many intervals without a heartbeat are recorded


class Heartbeat:
    """One thread a process. While all worker threads are busy it also listens for notifications."""

    def __init__(
        self,
        queue: JobQueue,
        running: RunningAttempts,
        *,
        interval_sec: float,
        info: WorkerInfo,
        register: Callable[[], object],
        declare: Callable[[], object],
        scan_fronts: Callable[[], object],
        listen: Callable[[float], bool],
        on_crash: Callable[[str], None],
        counters: PoolCounters,
    ) -> None:
        self._queue, self._running, self._counters = queue, running, counters
        self.records = RunRecords(queue)
        self._interval_sec, self._info, self._register, self._listen = interval_sec, info, register, listen
        self._declare, self._scan_fronts = declare, scan_fronts
        self._is_requested = threading.Event()
        self._last_step_at = clock()
        self._next_check_at = self._next_heartbeat_at = 0.0
        self._is_registered = False  # the worker has its row
        self._disowned: set[str] = set()  # runs of lost attempts that still occupy a thread
        self._given_up: list[Attempt] = []  # whose leases have to end
        self.last_beat_at = clock()  # when the last successful heartbeat was sent; read by any thread
        self.thread = BackgroundThread(
            "heartbeat", self.run_once, on_crash=on_crash, outage_retry_sec=min(0.5, interval_sec / 2)
        )

    def send_now(self) -> None:
        """Send a heartbeat at once: another process checks whether this one lives. May be called by any thread."""
        self._is_requested.set()
        self.thread.wake()

    def run_once(self) -> float:
        now = clock()
        # After a suspension of the process its jobs may have been claimed by others.
        if self._is_requested.is_set() or now - self._last_step_at > _FROZEN_SEC:
            self._is_requested.clear()
            self._next_check_at = self._next_heartbeat_at = 0.0
        self._last_step_at = now
        if now >= self._next_check_at:  # else another thread only took over listening, as often with short jobs
            try:
                self._check(now)
            finally:
                self._stop_expired()
            self._next_check_at = now + min(_CHECK_INTERVAL_SEC, self._interval_sec)
        remaining_sec = max(0.0, self._next_check_at - clock())
        return 0.0 if self._listen(remaining_sec) else remaining_sec

    def _check(self, now: float) -> None:
        self._given_up += self._running.take_given_up()  # first: those that are given up meanwhile are seen next time
        # An attempt settled by its task's last transaction has no lease, and has not lost one.
        with_lease = [a for a in self._running.all() if not a.is_settled_by_task]
        held = [a for a in with_lease if a.stop_reason is not StopReason.LEASE_LOST]
        self._disown([a for a in with_lease if a.stop_reason is StopReason.LEASE_LOST])
        is_due = now >= self._next_heartbeat_at
        if is_due or any(a.lease.trusted_until - now < 2 * self._interval_sec for a in held):
            self._beat(held)  # before anything else: no lease may wait
        lost = self.records.write(held, now)
        if is_due:
            self._register()
            if not self._is_registered:
                self._declare()
                self._queue.restore_unknown_tasks(self._info.queues, self._info.tasks)
                self._is_registered = True
            self._next_heartbeat_at = now + self._interval_sec
        for attempt in lost:
            self._confirm_lost(attempt)
        self._scan_fronts()  # last: it may take long

    def _disown(self, lost: Sequence[Attempt]) -> None:
        """End the leases of attempts that are lost here: their threads may go on for long, and the heartbeats that
        follow would keep their jobs. One whose row is locked is tried again with the next check."""
        new = [a for a in lost if a.job.run_text not in self._disowned]
        locked = set[str]()
        if attempts := [*new, *self._given_up]:
            runs = [RunRef(a.job.id_text, a.job.run_text) for a in attempts]
            locked = {str(run_id) for run_id in self._queue.disown(runs)}
        self._given_up = [a for a in self._given_up if a.job.run_text in locked]
        self._disowned = {a.job.run_text for a in lost} - locked

    def _beat(self, attempts: Sequence[Attempt]) -> None:
        by_run = {attempt.job.run_text: attempt for attempt in attempts}
        runs = [RunRef(attempt.job.id_text, run) for run, attempt in by_run.items()]
        sent_at = clock()
        for answer in self._queue.beat(self._info.id, runs, rss_bytes=rss_bytes()):
            if not answer.is_owned:
                attempt = by_run.pop(str(answer.run_id))
                if self._is_unsettled(attempt):
                    self._confirm_lost(attempt)
                continue
            if answer.cancel_requested:
                by_run[str(answer.run_id)].stop(StopReason.CANCEL)
            if answer.is_lease_short:
                self.records.renew_soon(answer.run_id)
        for attempt in by_run.values():
            attempt.lease.renewed_at = sent_at
        silence_sec, self.last_beat_at = sent_at - self.last_beat_at, sent_at
        late_sec = _LATE_INTERVALS * self._interval_sec
        if silence_sec > late_sec and by_run:
            self._queue.record_late_heartbeat(runs, silence_sec=silence_sec, late_sec=late_sec)

    def _confirm_lost(self, attempt: Attempt) -> None:
        """Ask once more: a run that is missing may have just been settled. If not, it has lost its job."""
        job = attempt.job
        answers = self._queue.beat(self._info.id, [RunRef(job.id_text, job.run_text)], rss_bytes=rss_bytes())
        if any(not answer.is_owned for answer in answers) and self._is_unsettled(attempt):
            _log.info("lease.lost", job=str(job.id), run=str(job.run_id), reason="no longer the owner")
            self._counters.leases_lost.inc()
            attempt.stop(StopReason.LEASE_LOST)

    def _is_unsettled(self, attempt: Attempt) -> bool:
        """Return whether the attempt still runs: a settlement may be written and its answer not yet read."""
        return (
            attempt.ended_at is None
            and not attempt.is_settled_by_task
            and self._running.get(attempt.job.run_id) is not None
        )

    def _stop_expired(self) -> None:
        now = clock()
        for attempt in self._running.all():
            has_no_lease = attempt.is_settled_by_task or attempt.stop_reason is StopReason.LEASE_LOST
            if not has_no_lease and not attempt.lease.is_trusted(now):
                _log.info(
                    "lease.lost", job=str(attempt.job.id), run=str(attempt.job.run_id), reason="not renewed in time"
                )
                self._counters.leases_lost.inc()
                attempt.stop(StopReason.LEASE_LOST)

    def deregister(self) -> None:
        with suppress(DatabaseUnavailable):  # its row expires
            WorkerLiveness(self._queue.executor).deregister(self._info.id)
