"""Writes down how attempts ended: one transaction for all that ended while the last one was on its way."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby
from logging import DEBUG
from typing import Any, NamedTuple

from app import log
from app.errors import InvalidJob
from app.queue.job import SUCCEEDED, Fate, Handback, Settlement, Status
from workers.attempt import Attempt
from workers.attempt_log import log_abandoned, log_settled
from workers.outcome import Abandoned, Ending, Finished, HandedBack
from workers.roster import Hand, Roster
from workers.tally import Tally
from workers.threads import Loop, clock

_log = log.get(__name__)
_MOST = 500  # settlements a transaction
_REST = 3600.0  # nothing to write: until somebody rings


class Ended(NamedTuple):
    attempt: Attempt
    how: Ending


Which = tuple[Hand | None, bool]  # who writes it down, and whether it is handed back
Write = Callable[[Sequence[Ended], Hand], list[Fate]]
_OF_NOBODY: Which = (None, False)
_UNWRITTEN = (Finished, Abandoned)


class Settler:
    """One thread a process; attempts are held, and renewed, until their end is written or given up."""

    def __init__(self, roster: Roster, *, died: Callable[[str], None], tally: Tally | None = None) -> None:
        self._roster = roster
        self._tally = tally or Tally()
        self._lock = threading.Lock()
        self._waiting: deque[Ended] = deque()  # added to by anyone, without the lock; taken from under it
        self._busy = False  # under the lock: some are on their way
        self._quiet = threading.Condition(self._lock)
        self.loop = Loop("settler", self.turn, died=died, away=0.2)
        self.written = 0  # by the settler alone

    def write(self, attempt: Attempt, how: Ending) -> None:
        """Take note of an end. Returns at once; what waits is bounded by how many attempts a process holds."""
        self._waiting.append(Ended._make((attempt, how)))
        self.loop.ring()

    def drain(self, timeout: float) -> bool:
        """Wait until everything is written or given up."""
        with self._quiet:
            return self._quiet.wait_for(lambda: not self._waiting and not self._busy, timeout)

    def give_up_the_rest(self) -> None:
        """At the very end: say what could not be written down. The reaper will find those jobs."""
        while rest := self._next():
            for ended in rest:
                self._give_up(ended)

    def turn(self) -> float:
        batch = self._next()
        if not batch:
            return _REST
        left = {_OF_NOBODY: batch}
        try:
            left = self._by_hand(self._without_the_hopeless(batch))
            self._write(left)
        finally:
            self._put_back(chain.from_iterable(left.values()))
        return 0.0

    def _next(self) -> list[Ended]:
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]
            self._busy = bool(batch)
            if not batch:
                self._quiet.notify_all()
            return batch

    def _put_back(self, rest: Iterable[Ended]) -> None:
        with self._lock:
            self._waiting.extendleft(reversed([*rest]))
            self._busy = False
            self._quiet.notify_all()

    def _without_the_hopeless(self, batch: list[Ended]) -> list[Ended]:
        """Nothing is written for a run that lost its job, nor once its lease cannot be trusted any more; nor for one
        whose pipeline has done it itself."""
        now = clock()
        rest: list[Ended] = []
        over: list[Attempt] = []
        for ended in batch:
            attempt, how = ended
            if (how is SUCCEEDED or not isinstance(how, _UNWRITTEN)) and attempt.lease.trusted(now):
                rest.append(ended)
                continue
            if isinstance(how, Finished):
                self._tell([(attempt, Status.SUCCEEDED)])
            else:
                self._give_up(ended)
            over.append(attempt)
        if over:
            self._let_go(over)
        return rest

    def _by_hand(self, batch: Sequence[Ended]) -> dict[Which, list[Ended]]:
        """Each is written where its key is held; ends and hand-backs have a statement of their own."""
        found: defaultdict[Which, list[Ended]] = defaultdict(list)
        for ended in batch:
            attempt, how = ended
            found[attempt.hand, how is not SUCCEEDED and isinstance(how, HandedBack)].append(ended)
        return found

    def _write(self, left: dict[Which, list[Ended]]) -> None:
        """Those first whose hand is free: the other one is claiming. What was written is taken out."""
        for patient in (False, True):
            for which in [*left]:
                hand, handed_back = which
                assert hand is not None  # noqa: S101 - nothing is claimed without one
                if hand.lock.acquire(blocking=patient):
                    try:
                        self._together(left[which], hand, self._release if handed_back else self._settle)
                        del left[which]
                    finally:
                        hand.lock.release()

    def _together(self, batch: Sequence[Ended], hand: Hand, write: Write) -> None:
        """All in one transaction; where PostgreSQL refuses one of them, each in its own."""
        try:
            fates = write(batch, hand)
        except InvalidJob as error:
            if len(batch) > 1:
                for ended in batch:
                    self._together([ended], hand, write)
                return
            bare = Settlement(Status.FAILED, error=f"the attempt's end could not be written down: {error}")
            batch = [batch[0]._replace(how=bare)]
            fates = self._settle(batch, hand)
        self._roster.drop(ended.attempt for ended in batch)
        self.written += len(batch)
        self._report(batch, fates)

    def _settle(self, batch: Sequence[Ended], hand: Hand) -> list[Fate]:
        attempts = [ended.attempt for ended in batch]
        ends = [(ended.attempt.job, ended.how) for ended in batch]
        with hand.held_keys(attempts) as guards:
            fates = hand.queue.settle(ends, guards=guards)  # type: ignore[arg-type]  # only settlements are here
        hand.forget(attempts)
        return fates

    def _release(self, batch: Sequence[Ended], hand: Hand) -> list[Fate]:
        runs = [
            Handback(e.attempt.job, e.how.why, e.how.left.progress, e.how.left.checkpoint, e.how.left.notes)
            for e in batch
            if isinstance(e.how, HandedBack)
        ]
        attempts = [ended.attempt for ended in batch]
        with hand.held_keys(attempts) as guards:
            fates = hand.queue.release(runs, guards=guards)
        hand.forget(attempts)
        return fates

    def _let_go(self, attempts: Sequence[Attempt]) -> None:
        self._roster.drop(attempts)
        for hand in {attempt.hand for attempt in attempts if attempt.hand is not None}:
            hand.give_back([attempt for attempt in attempts if attempt.hand is hand])

    def _give_up(self, ended: Ended) -> None:
        log_abandoned(ended.attempt, "lease_lost" if isinstance(ended.how, Abandoned) else "database_away")

    def _report(self, batch: Sequence[Ended], fates: Sequence[Fate]) -> None:
        ended = []
        for (attempt, how), fate in zip(batch, fates, strict=True):
            if fate.status is not None:
                ended.append((attempt, fate.status))
                log_settled(attempt, how, fate.status)
                continue
            self._tally.fenced()
            log_abandoned(attempt, "not_ours")
        self._tell(ended)

    def _tell(self, ends: Sequence[tuple[Attempt, Status]]) -> None:
        for (queue, task, status), alike in groupby(ends, _kind):
            attempts = [attempt for attempt, _ in alike]
            waited = [max(0.0, attempt.job.waited_sec) for attempt in attempts]
            self._tally.ended(queue, task, status, ran=[_ran(attempt) for attempt in attempts], waited=waited)
        all_ends = log.lines_are_kept() or _log.is_heard(DEBUG)
        for attempt, status in ends:
            if all_ends or status is not Status.SUCCEEDED:
                self._say(attempt, status)

    def _say(self, attempt: Attempt, status: Status) -> None:
        job = attempt.job
        facts: dict[str, Any] = {
            "job": job.id_text, "queue": job.queue, "task": job.task, "attempt": job.attempt,
            "status": status, "ran_sec": round(_ran(attempt), 3),
        }  # fmt: skip
        log.metric("job.ended", **facts)
        log.audit("job.ended", **facts)
        say = _log.debug if status is Status.SUCCEEDED else _log.info
        say("job.ended", **facts)


def _kind(end: tuple[Attempt, Status]) -> tuple[str, str, Status]:
    attempt, status = end
    job = attempt.job
    return job.queue, job.task, status


def _ran(attempt: Attempt) -> float:
    if attempt.began is None or attempt.ended is None:
        return 0.0
    return attempt.ended - attempt.began
