"""One queue as its threads see it: what was claimed for them, and how much more is wanted, from where on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.queue.job import Outlook
from workers.attempt import Attempt

QUICK = 0.020  # seconds a run, above which nothing is claimed ahead
_HORIZON = 0.050  # seconds of work that are claimed ahead of tiny jobs
_GROWTH = 4  # times as many as a claim has led to may be hoped for, if there were more
_MOST_AHEAD = 400  # jobs; beyond that a claim gets no cheaper
_FRONT_EVERY = 0.05  # seconds of claims that go on where the last one ended, until one looks from the front again
_FRONT_SHARE = 0.1  # of the time is spent on looking from the front, at most


@dataclass(frozen=True)
class Ruling:
    """What people have ruled about a queue, as far as it concerns this process."""

    held: bool = False  # nothing is claimed
    here: int | None = None  # jobs at once in this process
    limited: bool = False  # in all processes together: a claim may bring less than there is


@dataclass
class Line:
    """The threads of one queue. All fields are under the desk's lock, but for those that say otherwise."""

    queue: str
    threads: int
    called: threading.Condition
    idle: int = 0  # threads without a job: those that wait, that lead, that claim
    waiting: int = 0  # of these, those that must be called
    # Claimed, not begun, and since when. Added to under the lock; whoever wants one takes it without.
    backlog: deque[tuple[Attempt, float]] = field(default_factory=deque)
    dirty: bool = True  # there may be ready jobs that we have not claimed; read by anyone
    again_at: float | None = None
    strays_at: float = 0.0
    look: int = 0  # at how many ready jobs a claim looks, if at more than it takes
    mark: Sequence[str] | None = None  # where the last claim ended; the claimer's, as the next
    front_at: float = 0.0  # when to look from the front again
    hoped: int = 0  # how many there may be, by what the last claim brought; the claimer's, as the next
    lay: int = 0  # in the backlog when it was sent
    mean_run: float = 0.1  # seconds, of the last runs; a rough mean: a lost update between threads does no harm
    ahead: int = 0  # how many are to be claimed ahead
    low: int = 0  # with so many left in the backlog more are claimed; read by anyone
    begun: int = 0  # how many had left the backlog at the last claim, and when that was
    begun_at: float = 0.0
    brought: int = 0  # how many were ever put into the backlog
    dry_at: float | None = None  # since when a thread has found nothing there
    dry_sec: float = 0.0  # and for how long before that, since the last claim
    ruling: Ruling = field(default_factory=Ruling)

    def wanted(self) -> int:
        """How many jobs a claim should bring."""
        if self.ruling.held:
            return 0
        if self.ruling.here is not None:
            return min(self.idle, self.ruling.here - (self.threads - self.idle)) - len(self.backlog)
        return self.idle + self.ahead - len(self.backlog)

    @property
    def needy(self) -> bool:
        """It is time to claim: a thread is idle, or the backlog runs low."""
        left = len(self.backlog)
        return self.dirty and (self.idle > left or left <= self.low) and self.wanted() > 0

    def passed(self, now: float, *, sort: bool) -> Sequence[str] | None:
        """Behind which place to claim. In a hurry not from the front: what a transaction of hours keeps from being
        cleaned away there is walked over each time. What comes to stand there is seen soon enough."""
        return None if sort or now >= self.front_at else self.mark

    def went(self, outlook: Outlook, taken: int, most: int, *, from_front: bool, began: float, now: float) -> None:
        """A claim that asked for `most` has brought so many to what lay here. Brought as many, there are more; else, if
        it has looked at all, there were no more than that."""
        self.mark = outlook.mark if taken >= most else None
        if taken + outlook.skipped >= most:
            self.hoped = (taken + self.lay) * _GROWTH
        elif from_front:
            self.hoped = taken + self.lay
        if from_front:
            self.front_at = now + max(_FRONT_EVERY, (now - began) / _FRONT_SHARE)

    def put(self, attempts: Sequence[Attempt], now: float) -> None:
        if self.brought - len(self.backlog) == self.begun:  # nobody could take any but the one who was claiming
            self.dry_sec, self.dry_at = now - self.begun_at, None
        self.backlog.extend([(attempt, now) for attempt in attempts])
        self.brought += len(attempts)
        if attempts and self.dry_at is not None:
            self.dry_sec += now - self.dry_at
            self.dry_at = None

    def take_back(self) -> Attempt:
        """The oldest, as if it had never been brought."""
        attempt, _ = self.backlog.popleft()
        self.brought -= 1
        return attempt

    def ran_dry(self, now: float) -> None:
        if self.dry_at is None:
            self.dry_at = now

    def ran(self, seconds: float) -> None:
        self.mean_run += (seconds - self.mean_run) * 0.2

    def reckon(self, now: float) -> None:
        """How far ahead to claim: what is done in a moment, and nothing ahead of jobs that are no moment's work. So a
        crash costs no more than that, and what another process could begin at once is not held here.

        What the threads could do, by how long jobs take, is not what they do: they wait for each other. So the pace at
        which they take jobs counts as well, while there are any: what they lack while a claim is on its way says
        nothing of them.
        """
        self.lay = len(self.backlog)
        begun = self.brought - self.lay
        if self.mean_run >= QUICK or self.ruling.limited or self.ruling.here is not None:
            self.ahead = 0
        else:
            dry = self.dry_sec + (0.0 if self.dry_at is None else now - self.dry_at)
            pace = (begun - self.begun) / max(now - self.begun_at - dry, 0.001)
            able = self.threads / max(self.mean_run, 1e-6)
            self.ahead = min(_MOST_AHEAD, self.hoped, int(min(pace, able) * _HORIZON))
        self.low = self.ahead * 3 // 8  # what is done while a claim of the rest is on its way
        self.begun, self.begun_at, self.dry_sec = begun, now, 0.0
        self.dry_at = None if self.dry_at is None else now
