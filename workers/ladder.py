"""Makes attempts in threads end: each rung after its grace, from a word to the end of their sessions.

A process of its own is brought down by the thread that watches over it (`process.py`), by rungs that cannot fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from app import log
from app.queue.effects import Effects
from app.queue.job import Claimed
from pipelines.contract import StopReason
from workers.attempt import Attempt
from workers.roster import Roster
from workers.threads import Loop, clock

_log = log.get(__name__)
_TICK = 0.25

FLAG, QUERY, INTERRUPT, TERMINATE, PENDING = "flag", "query", "interrupt", "terminate", "pending"
_RUNGS = (FLAG, QUERY, INTERRUPT, TERMINATE, PENDING)


class Ladder:
    def __init__(
        self, roster: Roster, *, note_pending: Callable[[Claimed, str, str], None], died: Callable[[str], None]
    ) -> None:
        self._roster, self._note_pending = roster, note_pending
        self._climbed: dict[str, float] = {}  # run → when its last rung was climbed; ours alone
        self.loop = Loop("ladder", self.turn, died=died)

    def turn(self) -> float:
        now = clock()
        running = [a for a in self._roster.all() if a.began is not None and a.ended is None]
        for attempt in running:
            self._limit(attempt, now)
            if attempt.stopping is StopReason.LEASE_LOST and attempt.in_thread and not attempt.refuses_sessions:
                self._end_sessions(attempt)  # no grace: the job may be given on when the lease has run out
            if attempt.stop_asked_at is not None and attempt.in_thread:
                self._climb(attempt, now)
        if self._climbed:
            runs = {attempt.job.run_text for attempt in running}
            self._climbed = {run: at for run, at in self._climbed.items() if run in runs}
        return _TICK

    def _limit(self, attempt: Attempt, now: float) -> None:
        limit, began = attempt.time_limit, attempt.began
        if limit is not None and began is not None and now - began > limit:
            attempt.stop(StopReason.TIME_LIMIT)

    def _climb(self, attempt: Attempt, now: float) -> None:
        since = self._climbed.setdefault(attempt.job.run_text, attempt.stop_asked_at or now)
        if attempt.rung == PENDING or now - since < attempt.tools.stop_grace_sec:
            return
        at = _RUNGS.index(attempt.rung or FLAG)
        for rung in _RUNGS[at + 1 :]:
            if self._can(attempt, rung):
                attempt.rung = rung
                self._climbed[attempt.job.run_text] = now
                _log.info(
                    "stop.rung", rung=rung, job=str(attempt.job.id), task=attempt.job.task, reason=str(attempt.stopping)
                )
                self._do(attempt, rung)
                return

    def _can(self, attempt: Attempt, rung: str) -> bool:
        if rung in (QUERY, TERMINATE):
            return attempt.effects is not None and attempt.effects.in_use
        return rung != INTERRUPT or attempt.options.interrupt

    def _do(self, attempt: Attempt, rung: str) -> None:
        match rung, attempt.effects:
            case "query", Effects() as effects:
                self._aside(effects.cancel)
            case "interrupt", _:
                attempt.interrupt()
            case "terminate", _:
                self._end_sessions(attempt)
            case _:
                self._end_sessions(attempt)
                self._say_pending(attempt)

    def _end_sessions(self, attempt: Attempt) -> None:
        attempt.refuse_sessions()
        if attempt.effects is not None:
            self._aside(attempt.end_sessions)

    def _say_pending(self, attempt: Attempt) -> None:
        """A thread cannot be ended from outside: say so, rather than claim that it was."""
        reason = str(attempt.stopping)
        _log.error("stop.pending", job=str(attempt.job.id), task=attempt.job.task, reason=reason)
        told = (
            f"stop pending: asked to stop ({reason}), but the pipeline does not react; only the end of its worker will"
        )
        self._aside(lambda: self._note_pending(attempt.job, reason, told))

    def _aside(self, ask: Callable[[], object]) -> None:
        """What waits for a server must not hold up the stops and time limits of all the others."""

        def asked() -> None:
            try:
                ask()
            except Exception as error:
                _log.warning("stop.failed", error=str(error))

        threading.Thread(target=asked, name="ladder-rung", daemon=True).start()
