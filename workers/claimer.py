"""Sends claims for a process, and decides which of the claimed jobs may start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from app import log
from app.errors import DatabaseUnavailable
from app.queue.job import ClaimedJob, ClaimHint, ReleaseReason, new_run_ids
from app.queue.jobs import JobQueue
from app.queue.workers import NotifyStateTable, WorkerInfo
from workers.attempt import Attempt, AttemptSettings, RunningAttempts
from workers.key_locks import KeyLocks
from workers.logs.attempts import BackoffLog
from workers.outcome import Released
from workers.threads import clock

_log = log.get(__name__)
_FULL_CLAIMS_BEFORE_SUPPRESSION = 3  # full claims in a row, until suppressing saves more than it costs
_FIRST_RECHECK_SEC, _MAX_RECHECK_SEC = 0.005, 0.25


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
        self._backoff_log = BackoffLog()
        # Queue, run ids and time of a claim whose answer was lost: it may have been committed.
        self._unconfirmed: tuple[str, Sequence[str], float] | None = None

    def claim(
        self, queue: str, count: int, *, scan: int, cursor: Sequence[str] | None, promote_due: bool
    ) -> tuple[list[Attempt], int, ClaimHint]:
        """Claim jobs; return the attempts that may start, how many jobs were claimed, and the hint for the next claim.

        `scan` is how many ready rows to look at, if more than `count`. `promote_due` first makes ready what has fallen
        due. Raises DatabaseUnavailable, after which `recover` finds what was claimed nevertheless.
        """
        sent_at, run_ids = clock(), new_run_ids(count)
        try:
            claimed, hint = self._key_locks.claim(
                queue,
                self._info.tasks,
                run_ids=run_ids,
                worker=self._info.name,
                worker_id=self._info.id,
                scan=scan,
                promote_due=promote_due,
                after=cursor,
            )
        except DatabaseUnavailable:
            self._unconfirmed = queue, run_ids, sent_at
            raise
        attempts = self._to_attempts(claimed, sent_at)
        startable = self._startable(queue, attempts, self._key_locks.adopt)
        self._backoff_log.report(queue, hint.blocked_keys or ())
        return startable, len(attempts), hint

    def recover(self) -> tuple[str, list[Attempt]] | None:
        """Find the jobs of a claim whose answer was lost; return its queue and the attempts that may start."""
        if self._unconfirmed is None:
            return None
        queue, run_ids, sent_at = self._unconfirmed
        claimed = self._queue.recover_claim(run_ids)
        self._unconfirmed = None
        return queue, self._startable(queue, self._to_attempts(claimed, sent_at), self._key_locks.lock)

    def defer_unknown_tasks(self, queue: str) -> None:
        """Defer ready jobs whose task no live worker knows, so that they do not stand in front of others."""
        for task, jobs in self._queue.defer_unknown_tasks(queue, self._info.tasks).items():
            _log.warning("task.unknown", queue=queue, task=task, jobs=jobs)

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
            for attempt in attempts:
                self._release(attempt, Released(ReleaseReason.NOT_STARTED))
            raise
        if len(startable) < len(attempts):
            started = set(map(id, startable))
            refused = [attempt for attempt in attempts if id(attempt) not in started]
            self._backoff_log.report(queue, {attempt.job.lock_key for attempt in refused})
            for attempt in refused:
                self._release(attempt, Released(ReleaseReason.LOCK_BUSY))
        return startable


class _StoredState(Enum):
    """Whether inserts into a queue notify this process, as the database has it."""

    UNKNOWN = auto()  # inserts notify
    SUPPRESSED = auto()
    REQUESTED = auto()  # a transaction may not have seen the request
    NEEDED = auto()


@dataclass
class _QueueState:
    stored: _StoredState = _StoredState.UNKNOWN
    full_claims: int = 0
    recheck_sec: float = _FIRST_RECHECK_SEC


class NotifyState:
    """Suppresses notifications while a worker process is busy. Used by the claiming thread alone.

    A process with more jobs than threads claims again by itself and needs no notification. Before it waits for one it
    requests notifications, makes sure that no transaction that has not seen the request is about to commit, and claims
    once more. Decision 15 has the proof.
    """

    def __init__(self, store: NotifyStateTable) -> None:
        self._store = store
        self._queues: dict[str, _QueueState] = {}

    def update_after_claim(self, queue_name: str, *, is_full: bool) -> float | None:
        """Return the seconds until the next claim without a notification, or None to wait for one."""
        queue = self._queues.setdefault(queue_name, _QueueState())
        queue.full_claims = queue.full_claims + 1 if is_full else 0
        try:
            if not is_full:
                return self._request_notifications(queue_name, queue)
            if queue.full_claims >= _FULL_CLAIMS_BEFORE_SUPPRESSION and queue.stored is not _StoredState.SUPPRESSED:
                queue.stored = _StoredState.UNKNOWN  # if the next statement fails
                self._store.set_needs_notification([queue_name], needs_notification=False)
                queue.stored = _StoredState.SUPPRESSED
        except DatabaseUnavailable:
            queue.stored = _StoredState.UNKNOWN
        return None

    def _request_notifications(self, queue_name: str, queue: _QueueState) -> float | None:
        if queue.stored is _StoredState.NEEDED:
            return None
        if queue.stored is not _StoredState.REQUESTED:
            self._store.set_needs_notification([queue_name], needs_notification=True)
            queue.stored, queue.recheck_sec = _StoredState.REQUESTED, _FIRST_RECHECK_SEC
        if self._store.has_no_silent_insert(queue_name):
            queue.stored = _StoredState.NEEDED
            return 0.0
        queue.recheck_sec = min(_MAX_RECHECK_SEC, 2 * queue.recheck_sec)
        return queue.recheck_sec

    def clear(self) -> None:
        """Forget all states after a connection was lost: the database may have lost them."""
        self._queues.clear()
