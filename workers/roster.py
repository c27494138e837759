"""The attempts that a process holds, from the claim to the settlement, and the session locks of their keys."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from uuid import UUID

from app import log
from app.errors import DatabaseUnavailable
from app.queue.jobqueue import JobQueue
from app.queue.session import Session
from pipelines.contract import StopReason
from workers.attempt import Attempt

_log = log.get(__name__)


class Roster:
    """Who is held. Asked by the heartbeat, the listener and the settler; changed by claimers and the settler."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: dict[UUID, Attempt] = {}

    def add(self, attempts: Iterable[Attempt]) -> None:
        with self._lock:
            self._attempts.update((attempt.job.run_id, attempt) for attempt in attempts)

    def drop(self, attempts: Iterable[Attempt]) -> None:
        with self._lock:
            for attempt in attempts:
                self._attempts.pop(attempt.job.run_id, None)

    def find(self, run_id: UUID) -> Attempt | None:
        return self._attempts.get(run_id)

    def all(self) -> list[Attempt]:
        with self._lock:
            return list(self._attempts.values())

    def __len__(self) -> int:
        return len(self._attempts)


class Keys:
    """The session locks of the keys of all held attempts, on one long-lived connection.

    Session locks are re-entrant, so a key that a run of this very process still holds is refused here: its thread may
    be a zombie that goes on although its lease is gone.
    """

    def __init__(self, session: Session, queue: JobQueue) -> None:
        self._session, self._queue = session, queue
        self._lock = threading.RLock()  # held over the question: keys are taken and given back one batch at a time
        self._held: dict[int, Attempt] = {}
        self._generation = -1

    def take(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Lock the keys; returns the attempts that may start. Raises DatabaseUnavailable, and then holds none."""
        with self._lock:
            self.restore()
            # One a hash: two keys may share one, and the session would be given its lock twice.
            free = list({a.job.key_hash: a for a in attempts if a.job.key_hash not in self._held}.values())
            answers = self._queue.guard([attempt.job.run for attempt in free]) if free else []
            self.restore()  # the question itself may have been asked on a new connection
            self._generation = self._session.generation
            may_start = []
            for attempt, (locked, owned) in zip(free, answers, strict=True):
                if locked and owned:
                    self._held[attempt.job.key_hash] = attempt
                    may_start.append(attempt)
                elif locked:
                    self._queue.unguard([attempt.job.key_hash])
            return may_start

    def restore(self) -> None:
        """After the connection was lost: take all keys again. A run whose key somebody else has by now is stopped."""
        with self._lock:
            if not self._held:
                return
            if self._session.connected:
                with suppress(DatabaseUnavailable):
                    self._session.notifications()  # there are none, but it notices when the server has hung up
            if self._session.connected and self._session.generation == self._generation:
                return
            held = list(self._held.values())
            answers = self._queue.guard([attempt.job.run for attempt in held])
            self._generation = self._session.generation
            for attempt, (locked, _) in zip(held, answers, strict=True):
                if not locked:
                    _log.warning("key.lost", job=str(attempt.job.id), lock_key=attempt.job.lock_key)
                    attempt.stop(StopReason.KEY_LOST)

    def of(self, attempts: Iterable[Attempt]) -> list[int]:
        """The hashes that these attempts hold on the present connection: to be given back with their settlement."""
        with self._lock:
            if not self._session.connected or self._session.generation != self._generation:
                return []
            return [a.job.key_hash for a in attempts if self._held.get(a.job.key_hash) is a]

    def forget(self, attempts: Iterable[Attempt]) -> None:
        """They were given back."""
        with self._lock:
            for attempt in attempts:
                if self._held.get(attempt.job.key_hash) is attempt:
                    del self._held[attempt.job.key_hash]

    def give_back(self, attempts: Sequence[Attempt]) -> None:
        """Of runs that have ended without a settlement."""
        with self._lock:
            hashes = self.of(attempts)
            try:
                if hashes:
                    self._queue.unguard(hashes)
            except DatabaseUnavailable:
                pass  # the locks went with the connection
            self.forget(attempts)

    @property
    def lock(self) -> threading.RLock:
        return self._lock
