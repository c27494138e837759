"""Where the claims of a queue start, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dataloader.app.queue.claims import FRONT, NO_JOB, ClaimHint, ClaimStart, earlier
from dataloader.workers.pace import Pace

_SCAN_GROWTH = 4
_MAX_SCAN = 500  # ready jobs that one claim scans
_FRONT_INTERVAL_SEC = 0.05  # a claim starts at the front at least so often
_MAX_FRONT_INTERVAL_SEC = 5.0
_FRONT_TIME_RATIO = 10  # unless such claims would take more than one part in ten of the time
_NEXT_SEC = 0.000001  # the smallest step of a creation time
_SLOW_TRANSACTION_SEC = 1.0


@dataclass
class ClaimCursor:
    """Where a claim starts in the index of ready jobs, and how many rows it scans. The claiming thread uses it.

    The front is the beginning of that index. While claims come back full, the next one starts behind the last claimed
    job, and only now and then at the front.

    A long transaction elsewhere keeps the entries of claimed jobs in the index, and each claim from the front walks
    over these dead entries. Where such claims take long, none starts there. Instead the heartbeat's thread scans for
    the first ready job from the front (`FrontScans`), and one claim starts where a scan has found it. The others start
    where the last claim ended. A job that has waited for the key or a limit of a run of this process is claimed by its
    id.
    """

    position: ClaimStart | None = None  # of the last claimed job
    continues: bool = False  # the last claim came back full
    scan_limit: int = 0  # how many ready jobs a claim scans, if more than it claims
    next_front_at: float = 0.0  # when to start, or to scan, at the front again: urgent jobs may have come
    front_pace: Pace = field(default_factory=lambda: Pace(_MAX_FRONT_INTERVAL_SEC))
    found: deque[ClaimStart] = field(default_factory=lambda: deque(maxlen=1))  # by the last scan; of any thread
    offered: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_SCAN))  # ids of ready jobs; of any thread

    @property
    def is_front_slow(self) -> bool:
        """Whether claims from the front take long; read by any thread."""
        return self.front_pace.is_slow

    def start(self, now: float, *, promoted: bool) -> ClaimStart | None:
        """Return where to start. None: nothing is known but the slow front, so no claim starts until a scan has ended.

        `promoted`: the claim makes due jobs ready, which may be in front; behind a position it finds them by itself.
        """
        if self.is_front_slow:
            return self.found.pop() if self.found else self._behind_last_claim()
        is_behind = self.continues and not promoted and now < self.next_front_at
        return self.position if is_behind else FRONT

    def _behind_last_claim(self) -> ClaimStart | None:
        """Once no more came, a second earlier: jobs of slower transactions may have come since."""
        if self.position is None or self.continues:
            return self.position
        return earlier(self.position, _SLOW_TRANSACTION_SEC)

    def start_soon(self) -> None:
        """Start at the front with the next claim, unless that takes long: jobs were enqueued."""
        if not self.is_front_slow:
            self.next_front_at = 0.0

    def advance(self, hint: ClaimHint, *, is_full: bool, from_front: bool, began: float, now: float) -> None:
        """Record a claim's answer. Where jobs of busy keys are in front, the next claim scans further."""
        if from_front and hint.delay_sec is not None:
            self.front_pace.record(hint.delay_sec)
        if hint.next_start and hint.next_start[2] != NO_JOB:  # else it claimed only what it promoted, before its start
            self.position = hint.next_start
        self.continues = is_full
        if hint.skipped and (from_front or self.is_front_slow) and not is_full:
            self.scan_limit = min(_MAX_SCAN, max(self.scan_limit, _SCAN_GROWTH) * _SCAN_GROWTH)
        else:
            self.scan_limit = 0
        if from_front:
            interval_sec = max(_FRONT_INTERVAL_SEC, (now - began) * _FRONT_TIME_RATIO, self.front_pace.interval_sec)
            self.next_front_at = now + interval_sec

    # ── called by the thread that scans ─────────────────────────────────────────────────────────────────────────

    def is_scan_due(self, now: float) -> bool:
        return self.is_front_slow and now >= self.next_front_at

    def record_scan(self, first_ready: ClaimStart | None, took_sec: float, now: float) -> None:
        """Have the next claim start at this position. If no job is there, none is ready before it either."""
        self.front_pace.record(took_sec)
        self.next_front_at = now + self.front_pace.interval_sec
        if first_ready is not None and self.is_front_slow:
            if first_ready[2] == NO_JOB:
                self.position = first_ready
            self.found.append(earlier(first_ready, _NEXT_SEC))

    def record_failed_scan(self, now: float) -> None:
        """Have a claim start at the front where no position is known: its session may have more time than the scan."""
        self.next_front_at = now + _MAX_FRONT_INTERVAL_SEC
        if self.position is None:
            self.found.append(FRONT)

    # ── called by the thread that writes ends of runs ───────────────────────────────────────────────────────────

    def offer(self, job_ids: Sequence[str]) -> bool:
        """Have these ready jobs claimed next, if claims would not find them soon. Return whether they will be."""
        if self.is_front_slow:
            self.offered.extend(job_ids)
        return self.is_front_slow

    def take_offered(self, count: int) -> Sequence[str]:
        """Return the ids of so many of the offered jobs, for a claim of these."""
        return [self.offered.popleft() for _ in range(min(count, len(self.offered)))]
