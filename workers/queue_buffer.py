"""One queue as its worker threads see it: prefetched attempts, and how many more to claim, from where on and when."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.queue.job import ClaimHint
from workers.attempt import Attempt

PREFETCH_BELOW_SEC = 0.020  # a queue whose recent jobs ran longer is not prefetched
_PREFETCH_PER_THREAD = 40
_MAX_PREFETCH = 400  # beyond that a claim gets no cheaper per job
_LONGEST_RUN_DECAY = 0.98  # with each run: one of a second keeps two hundred short ones from being prefetched
_SCAN_GROWTH = 4
_MAX_SCAN = 500  # ready jobs that one claim looks at
_FRONT_INTERVAL_SEC = 0.05  # a claim starts at the front of the queue at least so often
_FRONT_TIME_RATIO = 10  # unless such claims would take more than one part in ten of the time
CONFLICT_RETRY_SEC = 0.005  # another transaction is changing the key of a ready job, or holds a due one
FALLBACK_POLL_SEC = 1.0  # the poll interval while LISTEN is lost or the database unavailable


@dataclass(frozen=True)
class QueueLimits:
    """What operators have set for a queue, as far as it concerns this process."""

    paused: bool = False  # nothing is claimed
    max_in_process: int | None = None  # running jobs of this process
    is_fair: bool = False  # its tenants are served in turn
    has_global_limit: bool = False  # on running jobs of all processes: a claim may return less than there is


@dataclass
class ClaimCursor:
    """Where a claim starts in the ready index, and how many rows it scans. Used by the claiming thread only.

    While claims come back full, the next one starts behind the last claimed job. A long transaction elsewhere keeps
    dead index entries from being removed, and each claim from the front would walk over all of them.
    """

    position: Sequence[str] | None = None  # priority, creation time and id of the last claimed job
    scan: int = 0  # rows to scan, if more than are claimed
    next_front_at: float = 0.0  # when to start at the front again: urgent jobs may have come

    def start(self, now: float, *, promoted: bool) -> Sequence[str] | None:
        """Return the position behind which to claim, None: the front."""
        return None if promoted or now >= self.next_front_at else self.position

    def advance(self, hint: ClaimHint, *, is_full: bool, from_front: bool, began: float, now: float) -> None:
        """Record a claim's answer. Where jobs of busy keys stand in front, the next claim scans further."""
        self.position = hint.cursor if is_full else None
        if hint.skipped and from_front and not is_full:
            self.scan = min(_MAX_SCAN, max(self.scan, _SCAN_GROWTH) * _SCAN_GROWTH)
        else:
            self.scan = 0
        if from_front:
            self.next_front_at = now + max(_FRONT_INTERVAL_SEC, (now - began) * _FRONT_TIME_RATIO)


@dataclass
class QueueBuffer:
    """The worker threads of one queue. Fields are under the dispatcher's lock, but for those that say otherwise."""

    queue: str
    threads: int
    available: threading.Condition
    idle_count: int = 0  # threads without an attempt: those that wait, lead or claim
    waiting_count: int = 0  # of these, those that wait for `available`
    # Claimed and not started, each with its time. Added under the lock; a thread takes one without it.
    attempts: deque[tuple[Attempt, float]] = field(default_factory=deque)
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
        is_limited = self.limits.has_global_limit or self.limits.max_in_process is not None
        if is_limited or self.limits.is_fair or self.longest_run_sec >= PREFETCH_BELOW_SEC:
            return 0
        return min(_MAX_PREFETCH, _PREFETCH_PER_THREAD * self.threads)

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

    def add(self, attempts: Sequence[Attempt], now: float) -> None:
        self.attempts.extend([(attempt, now) for attempt in attempts])

    def record_run(self, duration_sec: float) -> None:
        self.longest_run_sec = max(duration_sec, self.longest_run_sec * _LONGEST_RUN_DECAY)


@dataclass
class ClaimTimers:
    """When a dispatcher claims without a notification: at the poll, and when the next scheduled job falls due.

    Under the dispatcher's lock.
    """

    poll_interval_sec: float
    jitter: float = 0.0  # the part of the interval that is left out at random, so that processes do not poll together
    promote_due: bool = True  # the next claim makes ready what has fallen due
    next_due_at: float | None = None
    next_poll_at: float = 0.0
    _overdue_delay_sec: float = CONFLICT_RETRY_SEC

    def expire(self, now: float, *, is_listening: bool) -> bool:
        """Return whether it is time to claim for all queues, and restart the poll if so."""
        interval_sec = self.poll_interval_sec
        if not is_listening:
            interval_sec = min(FALLBACK_POLL_SEC, interval_sec)
            self.next_poll_at = min(self.next_poll_at, now + interval_sec)
        if now < self.next_poll_at and (self.next_due_at is None or now < self.next_due_at):
            return False
        interval_sec *= 1 - self.jitter * random.random()  # noqa: S311 - no secret
        self.next_due_at, self.next_poll_at, self.promote_due = None, now + interval_sec, True
        return True

    def poll_soon(self, now: float) -> None:
        self.next_poll_at = min(self.next_poll_at, now + FALLBACK_POLL_SEC)

    def record_claim(self, hint: ClaimHint, now: float, *, is_full: bool, promoted: bool) -> None:
        """Set the timer to the next due job. One that is due now is promoted by the next claim."""
        due_in_sec = hint.next_due_sec
        if due_in_sec is None or due_in_sec > 0:
            self._overdue_delay_sec = CONFLICT_RETRY_SEC
            self.next_due_at = None if due_in_sec is None else now + max(due_in_sec, CONFLICT_RETRY_SEC)
            return
        if not promoted or is_full:  # it fell due since, or there are more than one claim promotes
            self.promote_due = True
        if promoted and not is_full:  # another transaction holds it: look again, less and less often
            self._overdue_delay_sec = min(FALLBACK_POLL_SEC, 2 * self._overdue_delay_sec)
        self.next_due_at = None if is_full else now + self._overdue_delay_sec
