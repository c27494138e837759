"""Writes down how attempts ended: one transaction for all that ended while the last one was on its way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app import log
from app.errors import InvalidJob
from app.log import Alert
from app.queue.job import Fate, Handback, Settlement, Status
from app.queue.jobqueue import JobQueue
from workers.attempt import Attempt
from workers.outcome import Abandoned, Ending, Finished, HandedBack
from workers.roster import Keys, Roster
from workers.tally import Tally
from workers.threads import Loop, clock

_log = log.get(__name__)
_MOST = 200  # settlements a transaction
_REST = 3600.0  # nothing to write: until somebody rings


@dataclass(frozen=True)
class Ended:
    attempt: Attempt
    how: Ending


class Settler:
    """One thread a process; attempts are held, and renewed, until their end is written or given up."""

    def __init__(
        self,
        queue: JobQueue,
        roster: Roster,
        keys: Keys,
        *,
        died: Callable[[str], None],
        tally: Tally | None = None,
    ) -> None:
        self._queue, self._roster, self._keys = queue, roster, keys
        self._tally = tally or Tally()
        self._lock = threading.Lock()
        self._waiting: list[Ended] = []  # under the lock
        self._busy = False  # under the lock: some are on their way
        self._quiet = threading.Condition(self._lock)
        self.loop = Loop("settler", self.turn, died=died, away=0.2)
        self.written = 0  # by the settler alone

    def write(self, attempt: Attempt, how: Ending) -> None:
        """Take note of an end. Returns at once; what waits is bounded by how many attempts a process holds."""
        with self._lock:
            self._waiting.append(Ended(attempt, how))
        self.loop.ring()

    def drain(self, timeout: float) -> bool:
        """Wait until everything is written or given up."""
        with self._quiet:
            return self._quiet.wait_for(lambda: not self._waiting and not self._busy, timeout)

    def give_up_the_rest(self) -> None:
        """At the very end: say what could not be written down. The reaper will find those jobs."""
        with self._lock:
            rest, self._waiting = self._waiting, []
        for ended in rest:
            self._give_up(ended)

    def turn(self) -> float:
        batch = self._next()
        if not batch:
            return _REST
        rest = batch
        try:
            rest = self._without_the_hopeless(batch)
            self._write(rest)
            rest = []
        finally:
            self._put_back(rest)
        return 0.0

    def _next(self) -> list[Ended]:
        with self._lock:
            batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            self._busy = bool(batch)
            if not batch:
                self._quiet.notify_all()
            return batch

    def _put_back(self, rest: list[Ended]) -> None:
        with self._lock:
            self._waiting = rest + self._waiting
            self._busy = False
            self._quiet.notify_all()

    def _without_the_hopeless(self, batch: list[Ended]) -> list[Ended]:
        """Nothing is written for a run that lost its job, nor once its lease cannot be trusted any more; nor for one
        whose pipeline has done it itself."""
        now = clock()
        rest: list[Ended] = []
        over: list[Attempt] = []
        for ended in batch:
            if isinstance(ended.how, Finished):
                self._tell(ended, Status.SUCCEEDED)
            elif isinstance(ended.how, Abandoned) or not ended.attempt.lease.trusted(now):
                self._give_up(ended)
            else:
                rest.append(ended)
                continue
            over.append(ended.attempt)
        if over:
            self._let_go(over)
        return rest

    def _write(self, batch: Sequence[Ended]) -> None:
        settled = [ended for ended in batch if isinstance(ended.how, Settlement)]
        handed = [ended for ended in batch if isinstance(ended.how, HandedBack)]
        if settled:
            self._together(settled, self._settle)
        if handed:
            self._together(handed, self._release)

    def _together(self, batch: Sequence[Ended], write: Callable[[Sequence[Ended]], list[Fate]]) -> None:
        """All in one transaction; where PostgreSQL refuses one of them, each in its own."""
        try:
            fates = write(batch)
        except InvalidJob as error:
            if len(batch) > 1:
                for ended in batch:
                    self._together([ended], write)
                return
            bare = Settlement(Status.FAILED, error=f"the attempt's end could not be written down: {error}")
            fates = self._settle([replace(batch[0], how=bare)])
        for ended, fate in zip(batch, fates, strict=True):
            self._report(ended, fate)
        self._roster.drop(ended.attempt for ended in batch)
        self.written += len(batch)

    def _settle(self, batch: Sequence[Ended]) -> list[Fate]:
        ends = [(e.attempt.job, e.how) for e in batch if isinstance(e.how, Settlement)]
        attempts = [ended.attempt for ended in batch]
        with self._keys.lock:
            fates = self._queue.settle(ends, guards=self._keys.of(attempts))
            self._keys.forget(attempts)
        return fates

    def _release(self, batch: Sequence[Ended]) -> list[Fate]:
        runs = [
            Handback(e.attempt.job, e.how.why, e.how.left.progress, e.how.left.checkpoint, e.how.left.notes)
            for e in batch
            if isinstance(e.how, HandedBack)
        ]
        attempts = [ended.attempt for ended in batch]
        with self._keys.lock:
            fates = self._queue.release(runs, guards=self._keys.of(attempts))
            self._keys.forget(attempts)
        return fates

    def _let_go(self, attempts: Sequence[Attempt]) -> None:
        self._roster.drop(attempts)
        self._keys.give_back(attempts)

    def _give_up(self, ended: Ended) -> None:
        job = ended.attempt.job
        how = "lease_lost" if isinstance(ended.how, Abandoned) else "database_away"
        _log.error(Alert.COMPLETE_FAILED, job=str(job.id), run=str(job.run_id), attempt=job.attempt, reason=how)

    def _report(self, ended: Ended, fate: Fate) -> None:
        job = ended.attempt.job
        if fate.answer == "not ours":
            self._tally.fenced()
            _log.error(
                Alert.COMPLETE_FAILED, job=str(job.id), run=str(job.run_id), attempt=job.attempt, reason="not_ours"
            )
            return
        self._tell(ended, fate.status)

    def _tell(self, ended: Ended, status: Status | None) -> None:
        job = ended.attempt.job
        facts: dict[str, Any] = {
            "job": str(job.id), "queue": job.queue, "task": job.task, "attempt": job.attempt,
            "status": status, "ran_sec": _ran(ended.attempt),
        }  # fmt: skip
        if status is not None:
            self._tally.ended(job.queue, job.task, status.value, ran=facts["ran_sec"], waited=max(0.0, job.waited_sec))
        log.metric("job.ended", **facts)
        log.audit("job.ended", **facts)
        say = _log.debug if status is Status.SUCCEEDED else _log.info
        say("job.ended", **facts)


def _ran(attempt: Attempt) -> float:
    if attempt.began is None or attempt.ended is None:
        return 0.0
    return round(attempt.ended - attempt.began, 3)
