"""The attempts that a process holds, from the claim to the settlement, and the connections that hold their keys."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from uuid import UUID

from app import log
from app.errors import DatabaseUnavailable
from app.queue.job import Claimed, Outlook
from app.queue.jobqueue import JobQueue
from app.queue.session import Session
from pipelines.contract import StopReason
from workers.attempt import Attempt

_log = log.get(__name__)
_MANY = 50  # jobs that a claim has brought: it is no small table any more


class Roster:
    """Who is held. Asked by the heartbeat, the listener and the settler; changed by claimers and the settler."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: dict[str, Attempt] = {}  # by the run, as the database writes it

    def add(self, attempts: Iterable[Attempt]) -> None:
        with self._lock:
            self._attempts.update([(attempt.job.run_text, attempt) for attempt in attempts])

    def drop(self, attempts: Iterable[Attempt]) -> None:
        with self._lock:
            for attempt in attempts:
                self._attempts.pop(attempt.job.run_text, None)

    def find(self, run_id: UUID | str) -> Attempt | None:
        return self._attempts.get(str(run_id))

    def all(self) -> list[Attempt]:
        with self._lock:
            return list(self._attempts.values())

    def __len__(self) -> int:
        return len(self._attempts)


class Hand:
    """A connection that claims, holds the session locks of the keys of what it claimed, and settles it.

    A lock can only be given back by the session that took it, so a run's end is written where it was claimed. Session
    locks are re-entrant, so a key that a run of this very process still holds is refused here: its thread may be a
    zombie that goes on although its lease is gone.
    """

    def __init__(self, session: Session, queue: JobQueue, worker_id: UUID | None = None) -> None:
        self.queue, self._worker_id = queue, worker_id
        self.lock = threading.RLock()  # held over each question: keys are taken and given back one batch at a time
        self._session = session
        self._held: dict[int, Attempt] = {}
        self._unlocked: set[int] = set()  # of these: those that the present connection could not lock again
        self._generation = -1
        self._claimed_by = -1  # the connection of the last claim

    def claim(
        self,
        queue: str,
        tasks: Iterable[str],
        run_ids: Sequence[str],
        worker: str,
        *,
        look: int,
        due: bool,
        after: Sequence[str] | None,
    ) -> tuple[list[Claimed], Outlook]:
        """Claim jobs with their keys locked; `hold` says which of them may start."""
        with self.lock:
            try:
                claimed, outlook = self.queue.claim(
                    queue,
                    tasks,
                    run_ids,
                    worker,
                    look=look,
                    guard=True,
                    due=due,
                    after=after,
                    worker_id=self._worker_id,
                )
            except BaseException:
                self._session.close()  # it may have locked the keys of a claim that has not come to pass
                with suppress(DatabaseUnavailable):
                    self.restore()
                raise
            self._claimed_by = self._session.generation
            self.restore()  # the claim may have been sent on a new connection
            return claimed, outlook

    def hold(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Of the last claim: returns the attempts that may start. Raises DatabaseUnavailable, and then holds none."""
        with self.lock, self._session.lock:  # see held_keys
            for attempt in attempts:
                attempt.hand = self
            if self._session.generation != self._claimed_by:
                return self.take(attempts)  # the connection that locked the keys is gone
            self._generation = self._claimed_by
            may_start, refused = [], []
            for attempt in attempts:
                if attempt.job.key_hash in self._held:  # two keys may share a hash, and the session is given both
                    refused.append(attempt.job.key_hash)
                else:
                    self._held[attempt.job.key_hash] = attempt
                    may_start.append(attempt)
            if refused and self._session.connected:
                self.queue.unguard(refused)
            return may_start

    def take(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Lock the keys; returns the attempts that may start. Raises DatabaseUnavailable, and then holds none."""
        with self.lock:
            for attempt in attempts:
                attempt.hand = self
            self.restore()
            # One a hash: two keys may share one, and the session would be given its lock twice.
            free = list({a.job.key_hash: a for a in attempts if a.job.key_hash not in self._held}.values())
            answers = self.queue.guard([attempt.job.run for attempt in free]) if free else []
            self.restore()  # the question itself may have been asked on a new connection
            self._generation = self._session.generation
            may_start = []
            for attempt, (locked, owned) in zip(free, answers, strict=True):
                if locked and owned:
                    self._held[attempt.job.key_hash] = attempt
                    may_start.append(attempt)
                elif locked:
                    self.queue.unguard([attempt.job.key_hash])
            return may_start

    def restore(self) -> None:
        """After the connection was lost: take all keys again. A run whose key somebody else has by now is stopped."""
        with self.lock:
            if not self._held:
                return
            if self._session.connected:
                with suppress(DatabaseUnavailable):
                    self._session.notifications()  # there are none, but it notices when the server has hung up
            if self._session.connected and self._session.generation == self._generation:
                return
            held = list(self._held.values())
            answers = self.queue.guard([attempt.job.run for attempt in held])
            self._generation = self._session.generation
            self._unlocked = {a.job.key_hash for a, (locked, _) in zip(held, answers, strict=True) if not locked}
            for attempt, (locked, _) in zip(held, answers, strict=True):
                if not locked:
                    _log.info("key.lost", job=str(attempt.job.id), lock_key=attempt.job.lock_key)
                    attempt.stop(StopReason.KEY_LOST)

    def of(self, attempts: Iterable[Attempt]) -> list[int]:
        """The hashes that these attempts hold on the present connection: to be given back with their settlement."""
        with self.lock:
            if not self._session.connected or self._session.generation != self._generation:
                return []
            held, unlocked = self._held, self._unlocked
            return [
                a.job.key_hash for a in attempts if held.get(a.job.key_hash) is a and a.job.key_hash not in unlocked
            ]

    @contextmanager
    def held_keys(self, attempts: Iterable[Attempt]) -> Iterator[list[int]]:
        """The same, for a statement that gives them back. Until then no other thread may replace the connection: the
        new one holds no lock, and the server would log a warning for each."""
        with self.lock, self._session.lock:
            yield self.of(attempts)

    def outgrow(self) -> None:
        self._session.outgrow()

    @property
    def asked(self) -> bool:
        """Somebody asks something over the connection right now, be it one who needs no hand: a keeper."""
        return self._session.busy

    def forget(self, attempts: Iterable[Attempt]) -> None:
        """They were given back."""
        with self.lock:
            held = self._held
            for attempt in attempts:
                if held.get(attempt.job.key_hash) is attempt:
                    del held[attempt.job.key_hash]
                    self._unlocked.discard(attempt.job.key_hash)

    def give_back(self, attempts: Sequence[Attempt]) -> None:
        """Of runs that have ended without a settlement."""
        with self.held_keys(attempts) as hashes:
            try:
                if hashes:
                    self.queue.unguard(hashes)
            except DatabaseUnavailable:
                pass  # the locks went with the connection
            self.forget(attempts)


class Hands:
    """The two hands of a process: while one settles the other claims."""

    def __init__(self, *hands: Hand) -> None:
        self._hands = hands

    @contextmanager
    def free(self) -> Iterator[Hand]:
        """One that nobody uses now, or else the first; held until the end. One over which a keeper asks at this moment
        comes after one that is free, and before one that settles: a keeper is brief."""
        hand = self._taken(lambda hand: not hand.asked) or self._taken(lambda hand: True)
        if hand is None:
            hand = self._hands[0]
            hand.lock.acquire()
        try:
            yield hand
        finally:
            hand.lock.release()

    def _taken(self, such: Callable[[Hand], bool]) -> Hand | None:
        for hand in self._hands:
            if hand.lock.acquire(blocking=False):
                if such(hand):
                    return hand
                hand.lock.release()
        return None

    def brought(self, jobs: int) -> None:
        """A claim has brought so many."""
        if jobs >= _MANY:
            for hand in self._hands:
                hand.outgrow()

    def restore(self) -> None:
        for hand in self._hands:
            hand.restore()
