"""Where idle threads wait. One of them at a time has the lead: it waits for the database, and claims for all.

Leader and followers: the leader blocks in `poll()` on the process's one LISTEN connection. When a queue rings, or a
timed job falls due, or it has been quiet for too long, it claims as many jobs as threads of that queue are idle, hands
them out, passes the lead on, and runs a job of its own. While every thread is busy the heartbeat stands in, so that
cancels are heard and the server never keeps notifications for us.

Where jobs are tiny, more are claimed than threads are idle, as many as are done in a moment. They lie in the backlog of
their queue, from which any thread takes the next without asking anybody; one that finds little left there claims more,
while the others go on. One claim at a time is on its way.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from app import log
from app.errors import DatabaseUnavailable
from app.queue.ids import draw_run_texts
from app.queue.job import Claimed, Outlook, Release
from app.queue.jobqueue import JobQueue
from workers.attempt import Attempt, Tools
from workers.attempt_log import BackoffLog
from workers.doze import Doze
from workers.line import QUICK, Line, Ruling
from workers.listener import Heard, Hearing, Listener
from workers.outcome import HandedBack
from workers.roster import Hand, Hands, Roster
from workers.threads import Bell, clock

_log = log.get(__name__)
_AGAIN = 0.005  # a ready job's key was being changed by somebody: look again after so many seconds
_DEAF_POLL = 1.0  # how often to look while LISTEN is lost
_STRAYS_EVERY = 1.0  # how often to look for jobs whose task nobody knows
_LOOK_FURTHER = 4  # times as far as the last claim, past jobs whose key is busy
_FURTHEST = 500  # ready jobs that one claim looks at, at most
_ROOM_EVERY = 0.25  # seconds between two looks for room in a queue that is limited
_TOO_LONG = 0.5  # seconds that a job may lie here claimed and not begun


class Desk:
    def __init__(  # noqa: PLR0913 - it stands between all the others
        self,
        queues: dict[str, int],
        *,
        queue: JobQueue,
        listener: Listener,
        roster: Roster,
        hands: Hands,
        tasks: Sequence[str],
        worker: str,
        poll_every: float,
        tools: Tools,
        controls: Callable[[str], None],
        give_back: Callable[[Attempt, HandedBack], None],
        doze: Doze,
    ) -> None:
        self._lock = threading.Lock()
        self.lines = {name: Line(name, threads, threading.Condition(self._lock)) for name, threads in queues.items()}
        self._queue, self._listener, self._roster, self._hands = queue, listener, roster, hands
        self._tasks, self._worker, self._poll_every = tasks, worker, poll_every
        self._tools, self._controls, self._give_back = tools, controls, give_back
        self._doze = doze
        self._bell = Bell()
        self._led = False  # under the lock: somebody has the lead
        self._stood_in = False  # under the lock: by one who only listens
        self._claiming = False  # set under the lock, read by anyone: a claim is on its way
        self._stopping = False  # likewise
        self._backing_off = False  # likewise: the database was away a moment ago
        self._sort = True  # something may have fallen due; the claimer's, as the next five
        self._due_at: float | None = None  # of the next timed job
        self._poll_at = 0.0
        self._until_at = 0.0  # how long the leader listens; written by it, read by anyone
        self._overdue = _AGAIN
        self._away = False  # the last claim found no database
        self._backoff_log = BackoffLog()
        self._unsure: tuple[list[str], float, str] | None = None  # runs of a claim whose answer was lost
        self.claimed_at = clock()  # when a claim last came back; read by anyone
        self.rounded_at = clock()  # when a round was last completed: a claim, or a wait for a word that can be heard

    # ── for the workers ─────────────────────────────────────────────────────────────────────────────────────────

    def next(self, line: Line) -> Attempt | None:
        """The next attempt for a thread of this line; None: the service stops."""
        if self._stopping:
            return None
        if line.dirty and len(line.backlog) <= line.low and not self._claiming and not self._backing_off:
            self._fetch_more(line)
        try:
            return line.backlog.popleft()[0]
        except IndexError:
            return self._wait(line)

    def _fetch_more(self, line: Line) -> None:
        """By a thread that has just ended a job, and runs no other until it is back: the others do."""
        with self._lock:
            if self._claiming or self._stopping:
                return
            if not any(other.idle for other in self.lines.values()):
                self.rounded_at = clock()  # nobody had to claim until now
            line.idle += 1
            try:
                self._claim_with(line)
            finally:
                line.idle -= 1

    def _wait(self, line: Line) -> Attempt | None:
        with self._lock:
            if not any(other.idle for other in self.lines.values()):
                self.rounded_at = clock()  # nobody had to claim until now
            line.idle += 1
            if not line.backlog:
                line.ran_dry(clock())
            if line.ruling.limited or line.ruling.here is not None:
                line.dirty = True  # its run has made room
            try:
                while not self._stopping:
                    if line.backlog:
                        with suppress(IndexError):  # taken by another a moment ago
                            return line.backlog.popleft()[0]
                    elif line.needy and not self._claiming and not self._backing_off:
                        self._claim_with(line)
                    elif not self._led:
                        self._led = True
                        self._lead(line)
                    else:
                        if self._stood_in:
                            self._bell.ring()
                        line.waiting += 1
                        try:
                            line.called.wait()
                        finally:
                            line.waiting -= 1
                return None
            finally:
                line.idle -= 1
                self._pass_on()

    def _lead(self, line: Line) -> None:
        """Wait and claim until there is something for a thread of this line, then leave the lead to another."""
        try:
            while not self._stopping and not line.backlog:
                self._without_lock(lambda: self._round(line))
        finally:
            self._led = False

    def _pass_on(self, mine: int = 0, line: Line | None = None) -> None:
        """Wake one who can take what lies here, for it wakes the next; and someone for a claim, or for the lead. The
        caller takes `mine` of what lies in `line`."""
        for other in self.lines.values():
            lie_here = len(other.backlog) > (mine if other is line else 0)
            if other.idle and (lie_here or (other.needy and not self._claiming and not self._backing_off)):
                if other.waiting:
                    other.called.notify()
                elif self._led:
                    self._bell.ring()  # the leader, who may be the only one that is idle
        if not self._led:
            for other in self.lines.values():
                if other.waiting:
                    other.called.notify()
                    return

    def _claim_with(self, line: Line, mine: int = 1) -> None:
        """Called with the lock, and nobody else claiming: claim for this line, and let others claim for theirs."""
        self._claiming = True
        try:
            self._without_lock(lambda: self._claim_for(line, mine))
        finally:
            self._claiming = False
            self._pass_on(mine, line)

    def _without_lock(self, do: Callable[[], object]) -> None:
        self._lock.release()
        try:
            do()
        finally:
            self._lock.acquire()

    # ── the leader's, without the lock ──────────────────────────────────────────────────────────────────────────

    def _round(self, mine: Line) -> None:
        """Claim where there may be something; else wait."""
        now, claimed = clock(), False
        self._mark(now)
        with self._lock:
            for line in self.lines.values():
                if line.needy and not self._claiming and not self._backing_off:
                    self._claim_with(line, mine=1 if line is mine else 0)
                    claimed = True
        if claimed and not self._backing_off:
            return
        self._until_at = self._deadline()
        heard = self._listener.listen(max(0.0, self._until_at - now), self._bell)
        self._until_at = 0.0
        self._hear(heard)
        if self._listener.hearing is Hearing.LISTENING and not self._backing_off:
            self.rounded_at = clock()
        self._backing_off = False

    def _deadline(self) -> float:
        times = [self._poll_at, self._due_at, *(line.again_at for line in self.lines.values())]
        return min(at for at in times if at is not None)

    def _mark(self, now: float) -> None:
        """What the time alone says: a timed job is due, a key was busy a moment ago, it has been quiet for long."""
        with self._lock:
            pause = self._poll_every
            if self._listener.hearing is not Hearing.LISTENING:
                pause = min(_DEAF_POLL, pause)
                self._poll_at = min(self._poll_at, now + pause)
            everywhere = now >= self._poll_at or (self._due_at is not None and now >= self._due_at)
            if everywhere:
                self._due_at, self._poll_at, self._sort = None, now + pause, True
            for line in self.lines.values():
                if everywhere or (line.again_at is not None and now >= line.again_at):
                    line.dirty, line.again_at = True, None

    def _hear(self, heard: Heard) -> None:
        if heard.fresh:
            self._doze.forget()
        with self._lock:
            self._sort = self._sort or heard.fresh  # what is due when it comes stands among the ready ones
            for name, line in self.lines.items():
                if heard.fresh or name in heard.queues:
                    line.dirty, line.front_at = True, 0.0
        for control in heard.controls:
            self._controls(control)

    def _claim_for(self, line: Line, mine: int) -> None:
        with self._lock:
            line.reckon(clock())
            most = line.wanted()
            if most <= 0:
                return
            sort, line.dirty, self._sort = self._sort, False, False
        began = clock()
        after = line.passed(began, sort=sort)
        try:
            with self._hands.free() as hand:
                taken, outlook = self._claim(hand, line, most, sort, after, mine)
        except DatabaseUnavailable as error:
            self._back_off(line, error)
            return
        self.claimed_at = self.rounded_at = now = clock()
        if self._away:
            _log.info("database.back", keeper="claim")
            self._away = False
        self._backoff_log.report(line.queue, outlook.busy_keys or ())
        line.went(outlook, taken, most, from_front=after is None, began=began, now=now)
        full = taken >= most
        self._look_ahead(line, outlook, full=full or after is not None, sorted_in=sort)
        if not full and after is not None:
            return  # nothing follows from it but a look from the front
        if not full:
            self._set_strays_aside(line)
        self._settle_down(line, full=full)

    def _settle_down(self, line: Line, *, full: bool) -> None:
        pause = self._doze.after_claim(line.queue, full=full)
        with self._lock:
            if pause == 0:
                line.dirty = True
            elif pause is not None:
                line.again_at = min(line.again_at or math.inf, clock() + pause)
                self._hasten()

    def _claim(
        self, hand: Hand, line: Line, most: int, sort: bool, after: Sequence[str] | None, mine: int
    ) -> tuple[int, Outlook]:
        if self._unsure is not None:
            self._find(hand)
        run_ids, sent = draw_run_texts(most), clock()
        try:
            claimed, outlook = hand.claim(
                line.queue, self._tasks, run_ids, self._worker, look=line.look, due=sort, after=after
            )
        except DatabaseUnavailable:
            self._unsure, self._sort = (run_ids, sent, line.queue), True
            raise
        attempts = self._attempts(claimed, sent)
        self._hand_out(line, attempts, self._holding(hand, attempts), mine)
        self._hands.brought(len(attempts))
        return len(attempts), outlook

    def _find(self, hand: Hand) -> None:
        """Did a claim take effect whose answer was lost?"""
        assert self._unsure is not None  # noqa: S101 - asked just before
        run_ids, sent, name = self._unsure
        found = hand.queue.find_claimed(run_ids)
        self._unsure = None
        attempts = self._attempts(found, sent)
        self._hand_out(self.lines[name], attempts, self._holding(hand, attempts, anew=True), 0)

    def _holding(self, hand: Hand, attempts: list[Attempt], *, anew: bool = False) -> list[Attempt]:
        """Those whose keys we hold; if that cannot be known now, all are given back."""
        try:
            return hand.take(attempts) if anew else hand.hold(attempts)
        except DatabaseUnavailable:
            for attempt in attempts:
                self._give_back(attempt, HandedBack(Release.NOT_STARTED))
            raise

    def _attempts(self, claimed: Iterable[Claimed], sent: float) -> list[Attempt]:
        attempts = [Attempt(job, claimed_at=sent, tools=self._tools) for job in claimed]
        self._roster.add(attempts)
        return attempts

    def _hand_out(
        self, line: Line, attempts: list[Attempt], may_start: list[Attempt], mine: int, why: Release = Release.LOCK_BUSY
    ) -> None:
        """Put what may start where threads find it, and give the rest back."""
        if not attempts:
            return
        now = clock()
        with self._lock:
            if self._stopping:  # the claim was on its way when the stop came
                may_start, why = [], Release.SHUTDOWN
            line.put(may_start, now)
            if len(may_start) > mine:
                line.called.notify()  # and it wakes the next: tiny jobs are done before many threads are awake
        if len(may_start) < len(attempts):
            starting = {id(attempt) for attempt in may_start}
            if why is Release.LOCK_BUSY:
                self._backoff_log.report(line.queue, {a.job.lock_key for a in attempts if id(a) not in starting})
            for attempt in attempts:
                if id(attempt) not in starting:
                    self._give_back(attempt, HandedBack(why))

    def _look_ahead(self, line: Line, outlook: Outlook, *, full: bool, sorted_in: bool) -> None:
        now = clock()
        with self._lock:
            if full:
                line.dirty = True
            if outlook.skipped and not full:
                # A hot key stands in front: look further with each claim, or others wait behind a long row of it.
                line.look = min(_FURTHEST, max(line.look, _LOOK_FURTHER) * _LOOK_FURTHER)
                line.again_at = now + _AGAIN
            else:
                line.look = 0
            if line.ruling.limited and not full:
                line.again_at = now + _ROOM_EVERY  # a run of another process may make room, and rings for nobody
            overdue = outlook.due_in is not None and outlook.due_in <= 0
            if overdue and not sorted_in:
                self._sort = line.dirty = True  # it came while nobody sorted: at once, whoever claims next
            if overdue and full:
                self._sort = True  # there was more than one claim sorts in
                self._due_at = None
            else:
                self._due_at = None if outlook.due_in is None else now + self._until(outlook.due_in, sorted_in)
                if outlook.due_in is None:
                    self._overdue = _AGAIN
            self._backing_off = False
            self._hasten()

    def _hasten(self) -> None:
        """The leader may listen for longer than is right now."""
        if self._led and self._deadline() < self._until_at:
            self._bell.ring()

    def _until(self, due_in: float, sorted_in: bool) -> float:
        """One that is overdue after a sorting is locked by somebody: look again soon, and then less and less soon."""
        if due_in > 0:
            self._overdue = _AGAIN
            return max(due_in, _AGAIN)
        if sorted_in:
            self._overdue = min(_DEAF_POLL, 2 * self._overdue)
        return self._overdue

    def _back_off(self, line: Line, error: DatabaseUnavailable) -> None:
        with self._lock:
            line.dirty = True
            self._backing_off = True
            self._poll_at = min(self._poll_at, clock() + _DEAF_POLL)
        if not self._away:
            _log.warning("database.away", keeper="claim", error=str(error))
        self._away = True

    def _set_strays_aside(self, line: Line) -> None:
        now = clock()
        if now < line.strays_at:
            with self._lock:  # or a job that comes a moment after a look would stay unseen until the next poll
                line.again_at = min(line.again_at or line.strays_at, line.strays_at)
            return
        line.strays_at = now + _STRAYS_EVERY
        try:
            for task, jobs in self._queue.set_aside(line.queue, self._tasks).items():
                _log.warning("task.unknown", queue=line.queue, task=task, jobs=jobs)
        except DatabaseUnavailable:
            pass  # the next claim will say so

    # ── for the keepers ─────────────────────────────────────────────────────────────────────────────────────────

    def stand_in(self, timeout: float) -> bool:
        """Listen in place of a leader, if there is none; False: there is one, or will be: a thread waits for the lead,
        which it would never get from one who takes it again at once."""
        with self._lock:
            if self._led or self._stopping or any(line.waiting for line in self.lines.values()):
                return False
            self._led = self._stood_in = True
        try:
            self._hear(self._listener.listen(timeout, self._bell))
        finally:
            with self._lock:
                self._led = self._stood_in = False
                self._pass_on()
        return True

    @property
    def all_busy(self) -> bool:
        """Every thread has a job: nobody has to claim."""
        with self._lock:
            return not any(line.idle for line in self.lines.values())

    def rule(self, rulings: Mapping[str, Ruling]) -> None:
        """From now on this holds for the queues; one without a ruling is open."""
        with self._lock:
            for name, line in self.lines.items():
                ruling = rulings.get(name, Ruling())
                if ruling != line.ruling:
                    line.ruling, line.dirty = ruling, True
        self._bell.ring()

    def clear_stale(self) -> None:
        """Hand back what was claimed ahead and has found no thread: a slow job must not hold it."""
        now, stale = clock(), []
        with self._lock:
            for line in self.lines.values():
                with suppress(IndexError):  # taken by another a moment ago
                    while line.backlog and now - line.backlog[0][1] > _TOO_LONG:
                        stale.append(line.take_back())  # or the next one, which has found a thread all but so
                        line.mean_run = max(line.mean_run, QUICK)
        for attempt in stale:
            self._give_back(attempt, HandedBack(Release.NOT_STARTED))

    def stop(self) -> None:
        """No more claims; what was not begun is handed back; idle threads go home."""
        with self._lock:
            self._stopping = True
            left = []
            for line in self.lines.values():
                with suppress(IndexError):  # taken by another a moment ago
                    while True:
                        left.append(line.backlog.popleft()[0])
            for line in self.lines.values():
                line.called.notify_all()
        self._bell.ring()
        for attempt in left:
            self._give_back(attempt, HandedBack(Release.SHUTDOWN))

    def ring(self) -> None:
        self._bell.ring()

    def close(self) -> None:
        self._bell.close()
