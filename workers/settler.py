"""Writes the outcomes of attempts: one transaction for all that ended while the previous one was being committed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from logging import DEBUG
from typing import Any, NamedTuple

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable, InvalidJob, WaitRefused
from dataloader.app.queue.job import SUCCEEDED, Released, ReleaseReason, Settlement, SettleResult, Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt
from dataloader.workers.key_locks import KeyLocks
from dataloader.workers.metrics import PoolCounters
from dataloader.workers.outcome import LeaseLost, Outcome, SettledByTask
from dataloader.workers.reports.attempt_log import log_abandoned, log_settled
from dataloader.workers.running_attempts import RunningAttempts
from dataloader.workers.threads import BackgroundThread

_log = log.get(__name__)
_MAX_BATCH = 500  # outcomes a transaction
_IDLE_SEC = 3600.0  # with nothing to write, the thread waits to be woken


class PendingOutcome(NamedTuple):
    attempt: Attempt
    outcome: Outcome


BatchWriter = Callable[[Sequence[PendingOutcome]], list[SettleResult]]
_VALUE_ERRORS = (TypeError, ValueError, AttributeError, ArithmeticError)  # of encoding what a pipeline reported
_NOT_WRITTEN = (SettledByTask, LeaseLost)


class Settler:
    """One thread a process. Attempts stay held, and are renewed, until their outcome is written or given up.

    A settlement is retried through an outage while the attempt's lease is trusted, then given up with a log line.
    """

    def __init__(
        self,
        queue: JobQueue,
        running: RunningAttempts,
        key_locks: KeyLocks,
        *,
        on_crash: Callable[[str], None],
        counters: PoolCounters,
    ) -> None:
        self._queue, self._running, self._key_locks, self._counters = queue, running, key_locks, counters
        self.on_ready: Callable[[Sequence[str]], object] | None = None  # with ids of jobs that waited for runs
        self._lock = threading.Lock()
        self._pending: deque[PendingOutcome] = deque()  # appended by any thread without the lock; taken under it
        self._is_writing = False  # under the lock: a batch is being written
        self._drained = threading.Condition(self._lock)
        self.thread = BackgroundThread("settler", self.run_once, on_crash=on_crash, outage_retry_sec=0.2)

    def submit(self, attempt: Attempt, outcome: Outcome) -> None:
        """Queue an outcome to be written. Returns at once; at most all attempts of the process are queued."""
        self._pending.append(PendingOutcome._make((attempt, outcome)))
        self.thread.wake()

    def drain(self, timeout: float) -> bool:
        """Wait until every outcome is written or given up; return False on timeout."""
        with self._drained:
            return self._drained.wait_for(lambda: not self._pending and not self._is_writing, timeout)

    def abandon_rest(self) -> None:
        """Log the outcomes that could not be written before the process ends. The reaper finds their jobs."""
        while batch := self._take_batch():
            for pending in batch:
                self._log_lost(pending)

    def run_once(self) -> float:
        batch = self._take_batch()
        if not batch:
            return _IDLE_SEC
        unwritten = [batch]
        try:
            unwritten = [settleable := self._drop_unsettleable(batch)]
            # Unlock before settling: that unblocks the next job of the key, whose claim would find the key locked.
            self._key_locks.unlock([pending.attempt for pending in settleable])
            releases = [pending for pending in settleable if isinstance(pending.outcome, Released)]
            settlements = [p for p in settleable if not isinstance(p.outcome, Released)] if releases else settleable
            others = [pending for pending in releases if not _waits(pending.outcome)]
            # Waits each in a transaction of its own, because it locks the rows of other jobs.
            waits = [[pending] for pending in releases if _waits(pending.outcome)]
            unwritten = [settlements, others, *waits]
            for part in filter(None, unwritten):
                self._write(part, self._settle if part is settlements else self._release)
            self._unblock(self._key_locks.without_holder([p.attempt for p in releases if _is_blocked(p.outcome)]))
        finally:
            self._requeue([pending for part in unwritten for pending in part])
        return 0.0

    def _take_batch(self) -> list[PendingOutcome]:
        with self._lock:
            batch = [self._pending.popleft() for _ in range(min(_MAX_BATCH, len(self._pending)))]
            self._is_writing = bool(batch)
            if not batch:
                self._drained.notify_all()
            return batch

    def _requeue(self, unwritten: Sequence[PendingOutcome]) -> None:
        with self._lock:
            self._pending.extendleft(reversed(unwritten))
            self._is_writing = False
            self._drained.notify_all()

    def _drop_unsettleable(self, batch: list[PendingOutcome]) -> list[PendingOutcome]:
        """Return the outcomes to write: not those of attempts whose lease is lost, or whose pipeline settled them."""
        now = clock()
        settleable: list[PendingOutcome] = []
        dropped: list[Attempt] = []
        given_up: list[Attempt] = []
        for pending in batch:
            attempt, outcome = pending
            if (outcome is SUCCEEDED or not isinstance(outcome, _NOT_WRITTEN)) and attempt.lease.is_trusted(now):
                settleable.append(pending)
                continue
            if isinstance(outcome, SettledByTask):
                self._record([(attempt, Status.SUCCEEDED)])
                self._record_checks(attempt)
            else:
                self._log_lost(pending)
                given_up.append(attempt)
            dropped.append(attempt)
        if dropped:
            self._running.remove(dropped)
            self._running.give_up(given_up)
            self._key_locks.unlock(dropped)
            self._unblock(dropped)
        return settleable

    def _unblock(self, attempts: Sequence[Attempt]) -> None:
        """Make the next jobs of these keys ready, of which this process holds none."""
        if attempts:
            with suppress(DatabaseUnavailable):  # the maintenance leader repairs it
                self._queue.unblock_keys([attempt.job for attempt in attempts])

    def _write(self, batch: list[PendingOutcome], write: BatchWriter) -> None:
        """Write all in one transaction; where PostgreSQL refuses a value, each in its own. Empty the list meanwhile."""
        written = batch
        try:
            results = write(batch)
        except (InvalidJob, *_VALUE_ERRORS) as error:
            if len(batch) > 1:
                while batch:
                    self._write(batch[:1], write)
                    del batch[0]
                return
            is_refused = isinstance(error, WaitRefused)
            message = str(error) if is_refused else f"the attempt's outcome could not be written: {error}"
            settlement = Settlement(Status.FAILED, error=message, error_fingerprint=type(error).__name__)
            written = [batch[0]._replace(outcome=settlement)]
            results = self._settle(written)
        self._running.remove(pending.attempt for pending in written)
        self._process_results(written, results)
        batch.clear()

    def _settle(self, batch: Sequence[PendingOutcome]) -> list[SettleResult]:
        settlements = [(pending.attempt.job, pending.outcome) for pending in batch]
        return self._queue.settle(settlements, on_ready=self.on_ready)  # type: ignore[arg-type]  # only settlements

    def _release(self, batch: Sequence[PendingOutcome]) -> list[SettleResult]:
        releases = [(attempt.job, outcome) for attempt, outcome in batch if isinstance(outcome, Released)]
        return self._queue.release(releases)

    def _log_lost(self, pending: PendingOutcome) -> None:
        log_abandoned(pending.attempt, "lease_lost" if isinstance(pending.outcome, LeaseLost) else "database_away")

    def _process_results(self, batch: Sequence[PendingOutcome], results: Sequence[SettleResult]) -> None:
        settled = []
        for (attempt, outcome), result in zip(batch, results, strict=True):
            if result.status is not None:
                settled.append((attempt, result.status))
                if outcome is not SUCCEEDED:  # that one has reported nothing
                    log_settled(attempt, outcome, result.status)
                    self._record_checks(attempt)
                continue
            self._counters.fenced_writes.inc()
            log_abandoned(attempt, "not_ours")
        self._record(settled)

    def _record(self, settled: Sequence[tuple[Attempt, Status]]) -> None:
        groups: dict[tuple[str, str, Status], list[Attempt]] = {}
        for attempt, status in settled:
            job = attempt.job
            groups.setdefault((job.queue, job.task, status), []).append(attempt)
        for (queue, task, status), attempts in groups.items():
            waits = [max(0.0, attempt.job.waited_sec) for attempt in attempts]
            runs = [_duration(attempt) for attempt in attempts]
            self._counters.record(queue, task, status, run_durations=runs, wait_durations=waits)
        logs_successes = log.file_logging_enabled() or _log.is_enabled(DEBUG)
        for attempt, status in settled:
            if logs_successes or status is not Status.SUCCEEDED:
                self._log_end(attempt, status)

    def _record_checks(self, attempt: Attempt) -> None:
        if reports := attempt.reports:
            self._counters.record_checks(attempt.job.task, reports.checks)

    def _log_end(self, attempt: Attempt, status: Status) -> None:
        job = attempt.job
        fields: dict[str, Any] = {
            "job": job.id_text, "queue": job.queue, "task": job.task, "attempt": job.attempt,
            "status": status, "ran_sec": round(_duration(attempt), 3),
        }  # fmt: skip
        log.metric("job.ended", **fields)
        log.audit("job.ended", **fields)
        write = _log.debug if status is Status.SUCCEEDED else _log.info
        write("job.ended", **fields)


def _waits(outcome: Outcome) -> bool:
    return isinstance(outcome, Released) and outcome.reason is ReleaseReason.WAITS


def _is_blocked(outcome: Outcome) -> bool:
    """Whether the release leaves the job blocked; it is unblocked at once if its key is free by then."""
    return isinstance(outcome, Released) and outcome.reason is ReleaseReason.LOCK_BUSY


def _duration(attempt: Attempt) -> float:
    if attempt.started_at is None or attempt.ended_at is None:
        return 0.0
    return attempt.ended_at - attempt.started_at
