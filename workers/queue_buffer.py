"""One queue as its worker threads see it: prefetched attempts, and how many more to claim, from where on and when."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dataloader.app.queue.job import ClaimHint, ClaimMode
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt
from dataloader.workers.claim_timers import PollTimer
from dataloader.workers.pace import Pace

PREFETCH_BELOW_SEC = 0.020  # a queue whose recent jobs ran longer is not prefetched
_PREFETCH_PER_THREAD = 40
_MAX_PREFETCH = 400  # beyond that a claim gets no cheaper per job
_LONGEST_RUN_DECAY = 0.9  # with each run: after one of a second, 38 short ones are not prefetched
_SCAN_GROWTH = 4
_MAX_SCAN = 500  # ready jobs that one claim looks at
_FRONT_INTERVAL_SEC = 0.05  # a claim starts at the front of the queue at least so often
_MAX_FRONT_INTERVAL_SEC = 5.0
_FRONT_TIME_RATIO = 10  # unless such claims would take more than one part in ten of the time
_NO_ID = "00000000-0000-0000-0000-000000000000"
_NO_POSITION = ("0", "-infinity", _NO_ID)  # of a claim of certain jobs
FRONT = ("-1", "-infinity", _NO_ID)  # before every job


@dataclass(frozen=True)
class QueueLimits:
    """What operators have set for a queue, as far as it concerns this process."""

    paused: bool = False  # nothing is claimed
    max_in_process: int | None = None  # running jobs of this process
    is_fair: bool = False  # its tenants are served in turn
    has_global_limit: bool = False  # on running jobs of all processes: a claim may return less than there is


@dataclass
class ClaimCursor:
    """Where a claim starts in the ready index, and how many rows it scans. The claiming thread uses it.

    While claims come back full, the next one starts behind the last claimed job. A long transaction elsewhere keeps
    dead index entries from being removed, and each claim from the front would walk over all of them. Where such claims
    take long, none starts there. A claim then starts where a look of the heartbeat's thread has found the first ready
    job, else at the last claimed job, or, once no more came, a second before it, for jobs of slower transactions. A job
    that has waited for the key or a limit of a run of this process is claimed by its id.
    """

    position: Sequence[str] | None = None  # priority, creation time and id of the last claimed job
    continues: bool = False  # the last claim came back full
    scan: int = 0  # rows to scan, if more than are claimed
    next_front_at: float = 0.0  # when to start, or to look, at the front again: urgent jobs may have come
    front_pace: Pace = field(default_factory=lambda: Pace(_MAX_FRONT_INTERVAL_SEC))
    found: deque[Sequence[str]] = field(default_factory=lambda: deque(maxlen=1))  # by the last look; of any thread
    offered: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_SCAN))  # ids of ready jobs; of any thread

    @property
    def is_front_slow(self) -> bool:
        """Whether claims from the front take long; read by any thread."""
        return self.front_pace.is_slow

    def offer(self, job_ids: Sequence[str]) -> bool:
        """Have these ready jobs claimed next, if claims would not find them soon. Return whether they will be."""
        if self.is_front_slow:
            self.offered.extend(job_ids)
        return self.is_front_slow

    def take_offered(self, count: int) -> Sequence[str] | None:
        """Return where to start a claim of so many of the offered jobs; None: there is none."""
        job_ids = [self.offered.popleft() for _ in range(min(count, len(self.offered)))]
        return (*_NO_POSITION, *job_ids) if job_ids else None

    def is_look_due(self, now: float) -> bool:
        """Whether to look for the first ready job; by the thread that looks, as the next."""
        return self.is_front_slow and now >= self.next_front_at

    def record_look(self, first_ready: Sequence[str] | None, took_sec: float, now: float) -> None:
        self.front_pace.record(took_sec)
        self.next_front_at = now + self.front_pace.interval_sec
        if not self.is_front_slow:
            self.found.clear()
        elif first_ready is not None:
            self.found.append(first_ready)

    def record_failed_look(self, now: float) -> None:
        """Have a claim start at the front where no position is known: its session may have more time than the look."""
        self.next_front_at = now + _MAX_FRONT_INTERVAL_SEC
        if self.position is None:
            self.found.append(FRONT)

    def start(self, now: float, *, promoted: bool) -> Sequence[str] | None:
        """Return the position behind which to claim, None: the front. What a claim has promoted it finds by itself."""
        if self.is_front_slow:
            if self.found:
                found = self.found.pop()
                if found[2] == _NO_ID and found != FRONT:  # no job, and none is ready before it
                    self.position = found
                return _just_before(found)
            if self.position is None or self.continues:
                return self.position
            return _just_before(self.position, by_sec=1.0)
        return self.position if self.continues and not promoted and now < self.next_front_at else None

    @property
    def must_wait(self) -> bool:
        """Whether nothing is known but the front, from where claims take long: until a look has found a job."""
        return self.is_front_slow and self.position is None and not self.found

    def start_soon(self) -> None:
        """Start at the front with the next claim, unless that takes long: jobs were enqueued."""
        if not self.is_front_slow:
            self.next_front_at = 0.0

    def advance(self, hint: ClaimHint, *, is_full: bool, from_front: bool, began: float, now: float) -> None:
        """Record a claim's answer. Where jobs of busy keys stand in front, the next claim scans further."""
        if from_front and hint.delay_sec is not None:
            self.front_pace.record(hint.delay_sec)
        if hint.cursor and hint.cursor[2] != _NO_ID:  # else it claimed only what it promoted, before its start
            self.position = hint.cursor
        self.continues = is_full
        if hint.skipped and (from_front or self.is_front_slow) and not is_full:
            self.scan = min(_MAX_SCAN, max(self.scan, _SCAN_GROWTH) * _SCAN_GROWTH)
        else:
            self.scan = 0
        if from_front:
            interval_sec = max(_FRONT_INTERVAL_SEC, (now - began) * _FRONT_TIME_RATIO, self.front_pace.interval_sec)
            self.next_front_at = now + interval_sec


def _just_before(position: Sequence[str], by_sec: float = 0.000001) -> Sequence[str]:
    priority, created_at, _ = position
    try:
        before = datetime.fromisoformat(created_at) - timedelta(seconds=by_sec)
    except (ValueError, OverflowError):  # other services write timestamps too, and these may be infinite
        return position
    return priority, before.isoformat(), _NO_ID


@dataclass
class QueueBuffer:
    """The worker threads of one queue. Fields are under the dispatcher's lock, but for those that say otherwise."""

    queue: str
    threads: int
    available: threading.Condition
    poll: PollTimer
    idle_count: int = 0  # threads without an attempt: those that wait, lead or claim
    last_busy_at: float = field(default_factory=clock)  # when one last became busy; read by any thread
    waiting_count: int = 0  # of these, those that wait for `available`
    # Claimed and not started, each with its time. Added under the lock; a thread takes one without it.
    attempts: deque[tuple[Attempt, float]] = field(default_factory=deque)
    was_full: bool = False  # the last claim brought as many jobs as it asked for: more may be ready
    may_have_work: bool = True  # there may be ready jobs that are not claimed; read by any thread
    retry_at: float | None = None
    next_unknown_task_check_at: float = 0.0
    cursor: ClaimCursor = field(default_factory=ClaimCursor)
    turn: Sequence[str] | None = None  # of a fair queue: where the next claim begins, a tenant and its jobs so far
    longest_run_sec: float = 0.1  # of the recent runs; an update that is lost between threads does no harm
    limits: QueueLimits = field(default_factory=QueueLimits)

    @property
    def prefetch(self) -> int:
        """How many jobs to claim beyond the idle threads: a crash delays them, and no other process can start them."""
        if not self.was_full:
            return 0
        is_limited = self.limits.has_global_limit or self.limits.max_in_process is not None
        if is_limited or self.limits.is_fair or self.longest_run_sec >= PREFETCH_BELOW_SEC:
            return 0
        return min(_MAX_PREFETCH, _PREFETCH_PER_THREAD * self.threads)

    @property
    def claim_mode(self) -> ClaimMode:
        if self.limits.is_fair:
            return ClaimMode.IN_TURN
        return ClaimMode.PREFETCH if self.prefetch else ClaimMode.PLAIN

    @property
    def claim_size(self) -> int:
        """How many jobs to claim now."""
        buffered = len(self.attempts)
        if self.limits.paused:
            return 0
        if self.limits.max_in_process is not None:
            busy_count = self.threads - self.idle_count
            return min(self.idle_count, self.limits.max_in_process - busy_count) - buffered
        return self.idle_count + self.prefetch - buffered

    @property
    def is_low(self) -> bool:
        """Whether less than half of the prefetched attempts are left; read by any thread."""
        return len(self.attempts) <= self.prefetch // 2

    @property
    def needs_claim(self) -> bool:
        has_demand = self.idle_count > len(self.attempts) or self.is_low
        return self.may_have_work and has_demand and self.claim_size > 0

    @property
    def awaits_jobs(self) -> bool:
        """Whether a thread waits for a job and none is known. Not of a queue with a slow front: that is looked at."""
        is_waiting = self.idle_count > 0 and self.claim_size > 0 and not self.may_have_work
        return is_waiting and not self.cursor.is_front_slow

    def become_busy(self) -> None:
        """Record that a thread has waited or claimed, and runs a job next."""
        self.idle_count -= 1
        self.last_busy_at = clock()

    def add(self, attempts: Sequence[Attempt], now: float) -> None:
        self.attempts.extend([(attempt, now) for attempt in attempts])
        self.poll.reset(now)

    def pop_unstarted(self, before: float = math.inf) -> list[Attempt]:
        """Take out the attempts that were claimed before this time and have found no thread."""
        attempts = []
        with suppress(IndexError):  # a thread took the last one a moment ago
            while self.attempts[0][1] < before:
                attempts.append(self.attempts.popleft()[0])
        return attempts

    def record_run(self, duration_sec: float) -> None:
        self.longest_run_sec = max(duration_sec, self.longest_run_sec * _LONGEST_RUN_DECAY)
