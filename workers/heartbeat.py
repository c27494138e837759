"""Keeps the leases of all attempts of the process, brings progress down and cancels up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from app import log
from app.errors import DatabaseUnavailable
from app.queue.job import News, WorkerInfo
from app.queue.jobqueue import JobQueue
from pipelines.contract import StopReason
from workers.attempt import Attempt
from workers.roster import Roster
from workers.tally import Tally
from workers.threads import Loop, clock

_log = log.get(__name__)
_FROZEN_SEC = 3.0  # between two turns, of which there is one a second
_TICK = 1.0  # seconds: how fresh progress is, and how late a lost lease is noticed


class Heartbeat:
    def __init__(
        self,
        queue: JobQueue,
        roster: Roster,
        *,
        every: float,
        info: WorkerInfo,
        register: Callable[[], object],
        listen: Callable[[float], bool],
        died: Callable[[str], None],
        tally: Tally | None = None,
    ) -> None:
        self._tally = tally or Tally()
        self._queue, self._roster, self._every, self._info, self._listen = queue, roster, every, info, listen
        self._register = register
        self._beat_wanted = threading.Event()
        self._turned_at = clock()
        self._next_tick = self._next_beat = 0.0
        self._known = False  # the database knows this worker
        self.beat_at = clock()  # when a beat last came through; read by anyone
        self.loop = Loop("heartbeat", self.turn, died=died, away=min(0.5, every / 2))

    def beat_now(self) -> None:
        """Beat at once: another process asks whether this one lives. May be called by any thread."""
        self._beat_wanted.set()
        self.loop.ring()

    def turn(self) -> float:
        now = clock()
        # After a pause of the whole process its jobs may have been given to others meanwhile.
        if self._beat_wanted.is_set() or now - self._turned_at > _FROZEN_SEC:
            self._beat_wanted.clear()
            self._next_tick = self._next_beat = 0.0
        self._turned_at = now
        if now >= self._next_tick:  # or it was called away from listening, as it is all the time by tiny jobs
            try:
                self._beat(now)
            finally:
                self._stop_the_lost()
            self._next_tick = now + min(_TICK, self._every)
        left = max(0.0, self._next_tick - clock())
        return 0.0 if self._listen(left) else left

    def _beat(self, now: float) -> None:
        # What is given up is not renewed: its thread may go on for long, and its job would stay with it.
        # What its own last transaction has settled has no lease any more, and has not lost one either.
        held = [a for a in self._roster.all() if a.stopping is not StopReason.LEASE_LOST and not a.finished]
        if now >= self._next_beat:
            self._renew(held)  # first: whatever holds up the other, no lease may wait for it
            self._say_alive()
            self._next_beat = now + self._every
            self.beat_at = now
        else:
            # Between beats only what has news, or might run out before the next one.
            self._renew([a for a in held if any(a.news()) or a.lease.until - now < 2 * self._every])

    def _renew(self, attempts: Sequence[Attempt]) -> None:
        if not attempts:
            return
        by_run = {attempt.job.run_id: (attempt, attempt.news()) for attempt in attempts}
        sent = clock()
        answers = self._queue.renew(
            [News(attempt.job.id, run_id, *news) for run_id, (attempt, news) in by_run.items()],
            late_sec=3 * self._every,
        )
        for answer in answers:
            attempt, news = by_run[answer.run_id]
            if answer.renewed:
                attempt.lease.renewed = sent
                attempt.written(news)
            elif not answer.owned and self._lives(attempt):
                self._ask_once_more(attempt)
            if answer.cancel_requested:
                attempt.stop(StopReason.CANCEL)

    def _ask_once_more(self, attempt: Attempt) -> None:
        """A run that is missing may only just have been settled; if it is still held, it has lost its job."""
        job = attempt.job
        (again,) = self._queue.renew([News(job.id, job.run_id)], late_sec=3 * self._every)
        if not again.owned and self._lives(attempt):
            _log.info("lease.lost", job=str(job.id), run=str(job.run_id), reason="not ours any more")
            self._tally.lease_lost()
            attempt.stop(StopReason.LEASE_LOST)

    def _lives(self, attempt: Attempt) -> bool:
        """It has not ended meanwhile: its settlement may be written and not yet reported."""
        return attempt.ended is None and not attempt.finished and self._roster.find(attempt.job.run_id) is not None

    def _stop_the_lost(self) -> None:
        now = clock()
        for attempt in self._roster.all():
            over = attempt.finished or attempt.stopping is StopReason.LEASE_LOST
            if not over and not attempt.lease.trusted(now):
                _log.info(
                    "lease.lost", job=str(attempt.job.id), run=str(attempt.job.run_id), reason="not renewed in time"
                )
                self._tally.lease_lost()
                attempt.stop(StopReason.LEASE_LOST)

    def _say_alive(self) -> None:
        self._register()
        if not self._known:
            self._queue.take_back(self._info.queues, self._info.tasks)
            self._known = True

    def say_goodbye(self) -> None:
        with suppress(DatabaseUnavailable):  # it will be seen to be gone
            self._queue.forget_worker(self._info.id)
