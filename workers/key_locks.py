"""Key locks: the session advisory locks of the lock keys of running jobs. The connection that claims holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from dataloader.app import log
from dataloader.app.db.connection import Session
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.claims import ClaimHint, ClaimRequest
from dataloader.app.queue.job import ClaimedJob
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.workers import WorkerInfo
from dataloader.pipelines.contract import StopReason
from dataloader.workers.attempt import Attempt

_log = log.get(__name__)


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

    @property
    def are_held(self) -> bool:
        """Read without the lock."""
        return bool(self._holders)

    @property
    def round_trip_sec(self) -> float:
        return self._session.quickest_sec

    def claim(
        self, queue: str, info: WorkerInfo, run_ids: Sequence[str], request: ClaimRequest
    ) -> tuple[list[ClaimedJob], ClaimHint]:
        """Claim jobs and lock their keys in one statement; `adopt` returns those that may start."""
        with self._session.lock:
            try:
                claimed, hint = self._queue.claim(
                    queue, info.tasks, run_ids, info.name, request, lock_keys=True, worker_id=info.id
                )
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
