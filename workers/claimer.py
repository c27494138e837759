"""Sends claims for a process, and makes attempts of the claimed jobs whose keys are locked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.claims import ClaimHint, ClaimRequest
from dataloader.app.queue.job import ClaimedJob, Released, ReleaseReason, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.workers import WorkerInfo
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.key_locks import KeyLocks
from dataloader.workers.reports.attempt_log import BlockedKeysLog
from dataloader.workers.running_attempts import RunningAttempts

_log = log.get(__name__)
_FEW_JOBS = 10  # a claim of more takes its time
_ROUND_TRIPS = 5  # a claim that takes less than so many is not slow, however far the database is


class Claimer:
    """Used by one thread at a time: the one that claims."""

    def __init__(
        self,
        info: WorkerInfo,
        settings: AttemptSettings,
        *,
        queue: JobQueue,
        key_locks: KeyLocks,
        running: RunningAttempts,
        release: Callable[[Attempt, Released], None],
    ) -> None:
        self._info, self._settings = info, settings
        self._queue, self._key_locks, self._running, self._release = queue, key_locks, running, release
        self._blocked_keys_log = BlockedKeysLog()
        # Queue, run ids and time of a claim whose answer was lost: it may have been committed.
        self._unconfirmed: tuple[str, Sequence[str], float] | None = None

    def claim(self, queue: str, count: int, request: ClaimRequest) -> tuple[list[Attempt], int, ClaimHint]:
        """Claim jobs; return the attempts that may start, how many jobs were claimed, and the hint for the next claim.

        Raises DatabaseUnavailable, after which `recover` finds what was claimed nevertheless.
        """
        sent_at, run_ids = clock(), new_run_ids(count)
        try:
            claimed, hint = self._key_locks.claim(queue, self._info, run_ids, request)
        except DatabaseUnavailable:
            self._unconfirmed = queue, run_ids, sent_at
            raise
        if len(claimed) <= _FEW_JOBS:
            delay_sec = clock() - sent_at - _ROUND_TRIPS * self._key_locks.round_trip_sec
            hint = replace(hint, delay_sec=delay_sec)
        attempts = self._to_attempts(claimed, sent_at)
        startable = self._startable(queue, attempts, self._key_locks.adopt)
        self._blocked_keys_log.report(queue, hint.blocked_keys or ())
        return startable, len(attempts), hint

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the answer of the last claim was lost, and it was not looked up; read by any thread."""
        return self._unconfirmed is not None

    def recover(self) -> tuple[str, list[Attempt]] | None:
        """Find the jobs of a claim whose answer was lost; return its queue and the attempts that may start."""
        if self._unconfirmed is None:
            return None
        queue, run_ids, sent_at = self._unconfirmed
        # The server may still execute the claim, and commit it after the look-up, or hold its session and its keys.
        self._queue.end_former_sessions()
        claimed = self._queue.recover_claim(run_ids)
        self._unconfirmed = None
        return queue, self._startable(queue, self._to_attempts(claimed, sent_at), self._key_locks.lock)

    def defer_unknown_tasks(self, queue: str) -> None:
        """Defer ready jobs whose task no live worker knows, so that they are not in front of others."""
        report_unknown_tasks(queue, self._queue.defer_unknown_tasks(queue, self._info.tasks))

    def _to_attempts(self, claimed: Iterable[ClaimedJob], sent_at: float) -> list[Attempt]:
        attempts = [Attempt(job, claimed_at=sent_at, settings=self._settings) for job in claimed]
        self._running.add(attempts)
        return attempts

    def _startable(
        self, queue: str, attempts: list[Attempt], lock: Callable[[Sequence[Attempt]], list[Attempt]]
    ) -> list[Attempt]:
        """Return the attempts whose key locks are held here; release the others."""
        try:
            startable = lock(attempts)
        except DatabaseUnavailable:
            self.release(attempts, ReleaseReason.NOT_STARTED)
            raise
        if len(startable) < len(attempts):
            started = set(map(id, startable))
            refused = [attempt for attempt in attempts if id(attempt) not in started]
            self._blocked_keys_log.report(queue, {attempt.job.lock_key for attempt in refused})
            self.release(refused, ReleaseReason.LOCK_BUSY)
        return startable

    def release(self, attempts: Iterable[Attempt], reason: ReleaseReason) -> None:
        """Give back attempts that have not started."""
        for attempt in attempts:
            self._release(attempt, Released(reason))


def report_unknown_tasks(queue: str, deferred: Mapping[str, int]) -> None:
    for task, jobs in deferred.items():
        _log.warning("task.unknown", queue=queue, task=task, jobs=jobs)
