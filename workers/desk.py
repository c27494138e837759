"""Where idle threads wait. One of them at a time has the lead: it waits for the database, and claims for all.

Leader and followers: the leader blocks in `poll()` on the process's one LISTEN connection. When a queue rings, or a
timed job falls due, or it has been quiet for too long, it claims as many jobs as threads of that queue are idle, hands
them out, passes the lead on, and runs a job of its own. While every thread is busy the heartbeat stands in, so that
cancels are heard and the server never keeps notifications for us.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from app import log
from app.errors import DatabaseUnavailable
from app.log import Alert
from app.queue.job import Claimed, Outlook, Release
from app.queue.jobqueue import JobQueue, draw_runs
from workers.attempt import Attempt, Tools
from workers.doze import Doze
from workers.listener import Heard, Hearing, Listener
from workers.outcome import HandedBack
from workers.roster import Keys, Roster
from workers.threads import Bell, clock

_log = log.get(__name__)
_AGAIN = 0.005  # a ready job's key was being changed by somebody: look again after so many seconds
_DEAF_POLL = 1.0  # how often to look while LISTEN is lost
_STRAYS_EVERY = 1.0  # how often to look for jobs whose task nobody knows
_QUICK = 0.020  # seconds a run, above which nothing is claimed ahead
_AHEAD = 4  # jobs a thread, claimed ahead of tiny ones
_FURTHEST = 500  # ready jobs that one claim looks at, at most
_ROOM_EVERY = 0.25  # seconds between two looks for room in a queue that is limited
_TOO_LONG = 0.5  # seconds that a job may lie here claimed and not begun


@dataclass(frozen=True)
class Ruling:
    """What people have ruled about a queue, as far as it concerns this process."""

    held: bool = False  # nothing is claimed
    here: int | None = None  # jobs at once in this process
    limited: bool = False  # in all processes together: a claim may bring less than there is


@dataclass
class Line:
    """The threads of one queue. All fields are under the desk's lock."""

    queue: str
    threads: int
    called: threading.Condition
    idle: int = 0  # threads waiting, the leader included
    backlog: deque[tuple[Attempt, float]] = field(default_factory=deque)  # claimed, not begun, and since when
    dirty: bool = True  # there may be ready jobs that we have not claimed
    again_at: float | None = None
    strays_at: float = 0.0
    look: int = 0  # at how many ready jobs a claim looks, if at more than it takes
    mean_run: float = 1.0  # seconds, of the last runs: decides how much is claimed ahead
    ruling: Ruling = field(default_factory=Ruling)

    def wanted(self) -> int:
        """How many jobs a claim should bring."""
        ahead = 0
        if self.ruling.held:
            return 0
        if self.ruling.here is not None:
            return min(self.idle, self.ruling.here - (self.threads - self.idle)) - len(self.backlog)
        if self.mean_run < _QUICK and not self.ruling.limited:
            ahead = round(_AHEAD * self.threads * (1 - self.mean_run / _QUICK))
        return self.idle + ahead - len(self.backlog)


class Desk:
    def __init__(  # noqa: PLR0913 - it stands between all the others
        self,
        queues: dict[str, int],
        *,
        queue: JobQueue,
        listener: Listener,
        roster: Roster,
        keys: Keys,
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
        self._queue, self._listener, self._roster, self._keys = queue, listener, roster, keys
        self._tasks, self._worker, self._poll_every = tasks, worker, poll_every
        self._tools, self._controls, self._give_back = tools, controls, give_back
        self._doze = doze
        self._bell = Bell()
        self._led = False  # under the lock: somebody has the lead
        self._stood_in = False  # under the lock: by one who only listens
        self._stopping = False  # under the lock
        self._due_at: float | None = None  # of the next timed job; the leader's, as the rest
        self._poll_at = 0.0
        self._overdue = _AGAIN
        self._unsure: tuple[list[UUID], float, str] | None = None  # runs of a claim whose answer was lost
        self._backing_off = False
        self.claimed_at = clock()  # when a claim last came back; read by anyone
        self.rounded_at = clock()  # when a round was last completed: a claim, or a wait for a word that can be heard

    # ── for the workers ─────────────────────────────────────────────────────────────────────────────────────────

    def next(self, name: str) -> Attempt | None:
        """The next attempt for a thread of this queue; None: the service stops."""
        line = self.lines[name]
        with self._lock:
            if not any(other.idle for other in self.lines.values()):
                self.rounded_at = clock()  # nobody had to claim until now
            line.idle += 1
            if line.ruling.limited or line.ruling.here is not None:
                line.dirty = True  # its run has made room
            try:
                while not self._ends():
                    attempt = self._from_backlog(line)
                    if attempt is not None and self._ends():  # it came while more was fetched
                        self._give_back(attempt, HandedBack(Release.SHUTDOWN))
                    elif attempt is not None:
                        return attempt
                    elif self._led:
                        if line.dirty or self._stood_in:
                            self._bell.ring()  # the leader may wait for another queue's sake, or not claim at all
                        line.called.wait()
                    else:
                        self._led = True
                        self._lead(line)
                return None
            finally:
                line.idle -= 1
                self._pass_on()

    def ran(self, name: str, seconds: float) -> None:
        line = self.lines[name]
        line.mean_run += (seconds - line.mean_run) * 0.2  # a rough mean: a lost update between threads does no harm

    def _ends(self) -> bool:
        return self._stopping

    def _from_backlog(self, line: Line) -> Attempt | None:
        if not line.backlog:
            return None
        attempt, _ = line.backlog.popleft()
        if line.dirty and not self._led and line.mean_run < _QUICK and len(line.backlog) <= line.threads // 2:
            # Tiny jobs, and few are left here: fetch more while the others run, before we run our own. Not sooner: what
            # is claimed in one go costs the server half of what it does in two.
            self._led = True
            try:
                self._without_lock(lambda: self._claim_for(line))
            finally:
                self._led = False
        return attempt

    def _lead(self, line: Line) -> None:
        """Wait and claim until there is something for a thread of this line, then leave the lead to another."""
        try:
            while not self._stopping and not line.backlog:
                self._without_lock(lambda: self._round(self._deadline()))
        finally:
            self._led = False

    def _pass_on(self) -> None:
        """Wake whoever can take what lies here, and someone for the lead."""
        for line in self.lines.values():
            if line.backlog:
                line.called.notify(len(line.backlog))
        if not self._led:
            for line in self.lines.values():
                if line.idle:
                    line.called.notify()
                    return

    def _without_lock(self, do: Callable[[], object]) -> None:
        self._lock.release()
        try:
            do()
        finally:
            self._lock.acquire()

    # ── the leader's, without the lock ──────────────────────────────────────────────────────────────────────────

    def _round(self, deadline: float) -> None:
        """Claim where there may be something; else wait."""
        now = clock()
        self._mark(now)
        with self._lock:
            lines = [line for line in self.lines.values() if line.dirty and line.wanted() > 0]
        if lines and not self._backing_off:
            for line in lines:
                self._claim_for(line)
            return
        self._backing_off = False
        self._hear(self._listener.listen(max(0.0, deadline - now), self._bell))
        if self._listener.hearing is Hearing.LISTENING and not lines:
            self.rounded_at = clock()

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
                self._due_at, self._poll_at = None, now + pause
            for line in self.lines.values():
                if everywhere or (line.again_at is not None and now >= line.again_at):
                    line.dirty, line.again_at = True, None

    def _hear(self, heard: Heard) -> None:
        if heard.fresh:
            self._doze.forget()
        with self._lock:
            for name, line in self.lines.items():
                if heard.fresh or name in heard.queues:
                    line.dirty = True
        for control in heard.controls:
            self._controls(control)

    def _claim_for(self, line: Line) -> None:
        with self._lock:
            most = line.wanted()
            line.dirty = False
        if most <= 0:
            return
        try:
            attempts, outlook = self._claim(line, most)
        except DatabaseUnavailable as error:
            self._back_off(line, error)
            return
        self.claimed_at = self.rounded_at = clock()
        self._look_ahead(line, outlook, full=len(attempts) >= most)
        self._hand_out(line, attempts)
        if len(attempts) < most:
            self._set_strays_aside(line)
        self._settle_down(line, full=len(attempts) >= most)

    def _settle_down(self, line: Line, *, full: bool) -> None:
        pause = self._doze.after_claim(line.queue, full=full)
        with self._lock:
            if pause == 0:
                line.dirty = True
            elif pause is not None:
                line.again_at = min(line.again_at or math.inf, clock() + pause)

    def _claim(self, line: Line, most: int) -> tuple[list[Attempt], Outlook]:
        if self._unsure is not None:
            run_ids, sent, name = self._unsure
            found = self._queue.find_claimed(run_ids)
            self._unsure = None
            if found:
                self._hand_out(self.lines[name], self._attempts(found, sent))
        run_ids, sent = draw_runs(most), clock()
        try:
            claimed, outlook = self._queue.claim(line.queue, self._tasks, run_ids, self._worker, look=line.look)
        except DatabaseUnavailable:
            self._unsure = (run_ids, sent, line.queue)
            raise
        return self._attempts(claimed, sent), outlook

    def _attempts(self, claimed: Iterable[Claimed], sent: float) -> list[Attempt]:
        attempts = [Attempt(job, claimed_at=sent, tools=self._tools) for job in claimed]
        self._roster.add(attempts)
        return attempts

    def _hand_out(self, line: Line, attempts: list[Attempt]) -> None:
        """Lock the keys; put what may start where threads find it, and give the rest back."""
        if not attempts:
            return
        try:
            may_start = self._keys.take(attempts)
            why = Release.LOCK_BUSY
        except DatabaseUnavailable:
            may_start, why = [], Release.NOT_STARTED
        now = clock()
        with self._lock:
            if self._stopping:  # the claim was on its way when the stop came
                may_start, why = [], Release.SHUTDOWN
            line.backlog.extend((attempt, now) for attempt in may_start)
            line.called.notify(len(may_start))
        starting = {attempt.job.run_id for attempt in may_start}
        for attempt in attempts:
            if attempt.job.run_id not in starting:
                self._give_back(attempt, HandedBack(why))

    def _look_ahead(self, line: Line, outlook: Outlook, *, full: bool) -> None:
        now = clock()
        with self._lock:
            if full:
                line.dirty = True
            if outlook.skipped and not full:
                # A hot key stands in front: look further with each claim, or others wait behind a long row of it.
                line.look = min(_FURTHEST, max(line.look, _AHEAD) * 4)
                line.again_at = now + _AGAIN
            else:
                line.look = 0
            if line.ruling.limited and not full:
                line.again_at = now + _ROOM_EVERY  # a run of another process may make room, and rings for nobody
            self._due_at = None if outlook.due_in is None else now + self._until(outlook.due_in)
        if self._backing_off:
            self._backing_off = False

    def _until(self, due_in: float) -> float:
        """One that is overdue is locked by somebody: look again soon, and then less and less soon."""
        if due_in > 0:
            self._overdue = _AGAIN
            return max(due_in, _AGAIN)
        self._overdue = min(_DEAF_POLL, 2 * self._overdue)
        return self._overdue

    def _back_off(self, line: Line, error: DatabaseUnavailable) -> None:
        with self._lock:
            line.dirty = True
            self._backing_off = True
            self._poll_at = min(self._poll_at, clock() + _DEAF_POLL)
        _log.warning(Alert.CLAIM_BACKOFF, queue=line.queue, error=str(error))

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
        """Listen in place of a leader, if there is none; False: there is one."""
        with self._lock:
            if self._led or self._stopping:
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
                while line.backlog and now - line.backlog[0][1] > _TOO_LONG:
                    stale.append(line.backlog.popleft()[0])
                    line.mean_run = max(line.mean_run, _QUICK)
        for attempt in stale:
            self._give_back(attempt, HandedBack(Release.NOT_STARTED))

    def stop(self) -> None:
        """No more claims; what was not begun is handed back; idle threads go home."""
        with self._lock:
            self._stopping = True
            left = [attempt for line in self.lines.values() for attempt, _ in line.backlog]
            for line in self.lines.values():
                line.backlog.clear()
                line.called.notify_all()
        self._bell.ring()
        for attempt in left:
            self._give_back(attempt, HandedBack(Release.SHUTDOWN))

    def ring(self) -> None:
        self._bell.ring()

    def close(self) -> None:
        self._bell.close()
