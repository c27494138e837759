"""One queue as its worker threads see it: attempts that no thread has started yet, and what its next claim asks for."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dataloader.app.queue.claims import FIRST_TURN, ClaimHint, ClaimMode, ClaimRequest, ClaimStart, start_at_jobs
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt
from dataloader.workers.claim_cursor import ClaimCursor
from dataloader.workers.claim_timers import PollTimer

PREFETCH_BELOW_SEC = 0.020  # a queue whose recent jobs ran longer is not prefetched
_PREFETCH_PER_THREAD = 40
_MAX_PREFETCH = 400  # beyond that a claim gets no cheaper per job
_LONGEST_RUN_DECAY = 0.9  # with each run: after one of a second, 38 short ones are not prefetched


@dataclass(frozen=True)
class BufferSettings:
    """What operators have set for a queue, as far as it concerns this process."""

    paused: bool = False  # nothing is claimed
    max_in_process: int | None = None  # running jobs of this process
    is_fair: bool = False  # its tenants are served in turn
    has_concurrency: bool = False  # running jobs of all processes are limited: a claim may return less than is ready


@dataclass
class QueueBuffer:
    """The worker threads of one queue. Fields are under the dispatcher's lock, but for those that say otherwise."""

    queue: str
    threads: int
    available: threading.Condition
    poll: PollTimer
    idle_count: int = 0  # threads without an attempt: those that wait, listen or claim
    last_busy_at: float = field(default_factory=clock)  # when one last became busy; read by any thread
    waiting_count: int = 0  # idle threads that wait for `available`
    # Claimed and not started, each with its time. Added under the lock; a thread takes one without it.
    attempts: deque[tuple[Attempt, float]] = field(default_factory=deque)
    was_full: bool = False  # the last claim brought as many jobs as it asked for: more may be ready
    may_have_work: bool = True  # there may be ready jobs that are not claimed; read by any thread
    retry_at: float | None = None
    stuck_since: float | None = None  # since when claims see only jobs whose keys other transactions have locked
    next_unknown_task_check_at: float = 0.0
    cursor: ClaimCursor = field(default_factory=ClaimCursor)
    turn: ClaimStart = FIRST_TURN  # of a fair queue: where its next claim starts
    longest_run_sec: float = 0.1  # of the recent runs; an update that is lost between threads does no harm
    settings: BufferSettings = field(default_factory=BufferSettings)

    @property
    def prefetch(self) -> int:
        """How many jobs to claim beyond the idle threads: a crash delays them, and no other process can start them."""
        if not self.was_full:
            return 0
        is_limited = self.settings.has_concurrency or self.settings.max_in_process is not None
        if is_limited or self.settings.is_fair or self.longest_run_sec >= PREFETCH_BELOW_SEC:
            return 0
        return min(_MAX_PREFETCH, _PREFETCH_PER_THREAD * self.threads)

    @property
    def claim_size(self) -> int:
        """How many jobs to claim now."""
        buffered = len(self.attempts)
        if self.settings.paused:
            return 0
        if self.settings.max_in_process is not None:
            busy_count = self.threads - self.idle_count
            return min(self.idle_count, self.settings.max_in_process - busy_count) - buffered
        return self.idle_count + self.prefetch - buffered

    def claim_request(self, count: int, now: float, *, promote_due: bool) -> ClaimRequest | None:
        """Return what a claim of so many jobs asks for. None: it has to wait until a scan from the front has ended."""
        if self.settings.is_fair:
            return ClaimRequest(ClaimMode.IN_TURN, self.turn, promote_due=promote_due)
        if job_ids := self.cursor.take_offered(count):
            return ClaimRequest(ClaimMode.LISTED, start_at_jobs(job_ids), promote_due=False)
        if (start := self.cursor.start(now, promoted=promote_due)) is None:
            return None
        mode = ClaimMode.PREFETCH if self.prefetch else ClaimMode.PLAIN
        return ClaimRequest(mode, start, self.cursor.scan_limit, promote_due)

    def record_claim(self, request: ClaimRequest, hint: ClaimHint, *, is_full: bool, began: float, now: float) -> bool:
        """Record a claim's answer; return whether more jobs may be ready, so that the next claim follows at once.

        They may if it came back full, or if ready jobs may be in front of where it started and no scan finds them.
        """
        sees_all = request.mode is not ClaimMode.LISTED and (request.is_from_front or self.cursor.is_front_slow)
        if request.mode is ClaimMode.IN_TURN:
            self.turn = hint.next_start or self.turn
        elif request.mode is not ClaimMode.LISTED:
            from_front = request.is_from_front
            self.cursor.advance(hint, is_full=is_full, from_front=from_front, began=began, now=now)
        has_changed = hint.next_start is not None or hint.blocked_keys  # a job was claimed or blocked
        is_stuck = not has_changed and 0 < hint.skipped < request.scan_limit
        self.stuck_since = (self.stuck_since or now) if is_stuck else None
        return is_full or not sees_all

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
        """Whether a thread waits for a job and none is known. Not of a queue with a slow front: that is scanned."""
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
