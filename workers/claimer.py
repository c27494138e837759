"""Sends claims for a process, holds the key locks of running jobs, and decides which of the claimed jobs may start.

Key locks are the session advisory locks of the lock keys of running jobs. The connection that claims holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from dataloader.app import log
from dataloader.app.db.connection import Session
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.log import Alert
from dataloader.app.queue.job import ClaimedJob, ClaimHint, ClaimMode, ReleaseReason, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.workers import NotifyStateTable, WorkerInfo
from dataloader.pipelines.contract import StopReason
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt, AttemptSettings, RunningAttempts
from dataloader.workers.outcome import Released

_log = log.get(__name__)
_FULL_CLAIMS_BEFORE_SUPPRESSION = 3  # full claims in a row, until suppressing saves more than it costs
_FIRST_RECHECK_SEC, _MAX_RECHECK_SEC = 0.005, 0.25
_UNWANTED_INTERVAL_SEC = 60.0
_BACKOFF_INTERVAL_SEC = 60.0  # between two lines about one key
_MAX_REMEMBERED_KEYS = 10_000


class KeyLocks:
    """Locks the keys of claimed jobs until they are settled. All state is under the lock of the session.

    A key lock keeps the next attempt waiting while an attempt that lost its lease may still act. An attempt that has
    ended acts no more, so its key is unlocked before its settlement, which is written on another connection: until
    then the unique index on running keys keeps the next job of the key out. Session locks are re-entrant: a key that
    another attempt of this process still holds is refused here, because that attempt's thread may have outlived its
    lease.
    """

    def __init__(self, session: Session, queue: JobQueue) -> None:
        self._session, self._queue = session, queue
        self._holders: dict[int, Attempt] = {}  # by the hash of the key
        self._lost: set[int] = set()  # hashes that the present connection could not lock again
        self._generation = -1  # the connection that holds the locks
        self._claim_generation = -1  # the connection of the last claim

    def claim(self, queue: str, tasks: Iterable[str], **options: Any) -> tuple[list[ClaimedJob], ClaimHint]:
        """Claim jobs and lock their keys in one statement; `adopt` returns those that may start."""
        with self._session.lock:
            try:
                claimed, hint = self._queue.claim(queue, tasks, lock_keys=True, **options)
            except BaseException:
                self._session.close()  # it may have locked the keys of a claim that was not committed
                with suppress(DatabaseUnavailable):
                    self.relock_all()
                raise
            self._claim_generation = self._session.generation
            self.relock_all()  # the claim may have been sent on a new connection
            return claimed, hint

    def adopt(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Hold the keys of the last claim; return the attempts that may start.

        Raises DatabaseUnavailable, and then holds none of them.
        """
        with self._session.lock:
            if self._session.generation != self._claim_generation:
                return self.lock(attempts)  # the connection that locked the keys is gone
            self._generation = self._claim_generation
            startable = [a for a in attempts if self._holders.setdefault(a.job.key_hash, a) is a]
            if len(startable) < len(attempts) and self._session.connected:
                refused = [a.job.key_hash for a in attempts if self._holders[a.job.key_hash] is not a]
                self._queue.unlock_keys(refused)  # the session was given these locks twice
            return startable

    def lock(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Lock the keys of these attempts; return those that may start.

        Raises DatabaseUnavailable, and then holds none of them.
        """
        with self._session.lock:
            self.relock_all()
            # One attempt a hash: two keys may share one, and the session would be given its lock twice.
            candidates = list({a.job.key_hash: a for a in attempts if a.job.key_hash not in self._holders}.values())
            answers = self._queue.lock_keys([attempt.job for attempt in candidates]) if candidates else []
            self.relock_all()  # the statement may have been sent on a new connection
            self._generation = self._session.generation
            startable = []
            for attempt, (locked, owned) in zip(candidates, answers, strict=True):
                if locked and owned:
                    self._holders[attempt.job.key_hash] = attempt
                    startable.append(attempt)
                elif locked:
                    self._queue.unlock_keys([attempt.job.key_hash])
            return startable

    def relock_all(self) -> None:
        """Lock all held keys again after the connection was lost; stop attempts whose key another session has."""
        with self._session.lock:
            if not self._holders:
                return
            if self._session.connected:
                with suppress(DatabaseUnavailable):
                    self._session.read_notifications()  # there are none; it detects that the server has hung up
            if self._session.connected and self._session.generation == self._generation:
                return
            attempts = list(self._holders.values())
            # After a timeout or a network failure the server may hold the former session, and its locks, for minutes.
            self._queue.end_former_sessions()
            answers = self._queue.lock_keys([attempt.job for attempt in attempts])
            self._generation = self._session.generation
            lost = [attempt for attempt, (locked, _) in zip(attempts, answers, strict=True) if not locked]
            self._lost = {attempt.job.key_hash for attempt in lost}
            for attempt in lost:
                _log.info("key_lock.lost", job=str(attempt.job.id), lock_key=attempt.job.lock_key)
                attempt.stop(StopReason.KEY_LOST)

    def discard(self, attempts: Iterable[Attempt]) -> None:
        """Forget the keys of these attempts without unlocking them."""
        with self._session.lock:
            for attempt in attempts:
                if self._holders.get(attempt.job.key_hash) is attempt:
                    del self._holders[attempt.job.key_hash]
                    self._lost.discard(attempt.job.key_hash)

    def hashes_of(self, attempts: Iterable[Attempt]) -> list[int]:
        """Return the hashes that these attempts hold on the present connection."""
        with self._session.lock:
            if not self._session.connected or self._session.generation != self._generation:
                return []
            hashes = [a.job.key_hash for a in attempts if self._holders.get(a.job.key_hash) is a]
            return [key_hash for key_hash in hashes if key_hash not in self._lost]

    def without_holder(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Return the attempts whose key no attempt of this process holds."""
        with self._session.lock:
            return [attempt for attempt in attempts if attempt.job.key_hash not in self._holders]

    def unlock(self, attempts: Sequence[Attempt]) -> None:
        """Unlock the keys of attempts that have ended.

        Under the lock of the session, so that no other thread replaces the connection meanwhile: the new one holds no
        lock, and the server would log a warning for each.
        """
        with self._session.lock:
            if hashes := self.hashes_of(attempts):
                with suppress(DatabaseUnavailable):  # the locks went with the connection
                    self._queue.unlock_keys(hashes)
            self.discard(attempts)


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
        self,
        queue: str,
        count: int,
        *,
        scan: int = 0,
        cursor: Sequence[str] | None,
        promote_due: bool,
        mode: ClaimMode,
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
                mode=mode,
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


class UnwantedNotifications:
    """Keeps inserts from notifying a process that polls. The table is unlogged: it is written again now and then."""

    def __init__(self, store: NotifyStateTable) -> None:
        self._store = store
        self._next_write_at: dict[str, float] = {}  # by queue

    def update_after_claim(self, queue_name: str, *, is_full: bool) -> float | None:
        if clock() >= self._next_write_at.get(queue_name, 0.0):
            with suppress(DatabaseUnavailable):
                self._store.set_needs_notification([queue_name], needs_notification=False)
                self._next_write_at[queue_name] = clock() + _UNWANTED_INTERVAL_SEC
        return None

    def clear(self) -> None:
        self._next_write_at.clear()


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


class BackoffLog:
    """Logs keys that block jobs, each once a minute. Used by the dispatcher's leader alone."""

    def __init__(self) -> None:
        self._reported_at: dict[str, float] = {}

    def report(self, queue: str, lock_keys: Iterable[str]) -> None:
        now = clock()
        for key in lock_keys:
            if now - self._reported_at.get(key, -_BACKOFF_INTERVAL_SEC) < _BACKOFF_INTERVAL_SEC:
                continue
            if len(self._reported_at) >= _MAX_REMEMBERED_KEYS:
                self._reported_at = {k: at for k, at in self._reported_at.items() if now - at < _BACKOFF_INTERVAL_SEC}
            if len(self._reported_at) < _MAX_REMEMBERED_KEYS:
                self._reported_at[key] = now
                _log.info(Alert.CLAIM_BACKOFF, queue=queue, lock_key=key, reason="key_busy")
