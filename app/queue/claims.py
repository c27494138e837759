"""What a claim asks for, and what it answers in addition to the jobs. `JobQueue.claim` calls `dl_claim` in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

# Where a claim starts; the argument `after` of dl_claim. By the mode of the claim:
#   PLAIN, PREFETCH  a position in the order of claims, (priority, creation time, job id): behind it
#   IN_TURN          (tenant, jobs): behind this tenant, of which so many jobs have had their turn
#   LISTED           the ids of jobs, after a position that does not count: at these jobs alone
ClaimStart = Sequence[str]

NO_JOB = "00000000-0000-0000-0000-000000000000"  # in a position between jobs
FRONT: ClaimStart = ("-1", "-infinity", NO_JOB)  # before every job: the beginning of the index of ready jobs
_NO_POSITION = ("0", "-infinity", NO_JOB)
# Behind the tenant '', as if that one had started more jobs than any share allows.
FIRST_TURN: ClaimStart = ("", "1000000")


class ClaimMode(StrEnum):
    PLAIN = "plain"  # the oldest, for idle threads
    PREFETCH = "prefetch"  # the oldest, more than idle threads need; takes a permit of the queue
    IN_TURN = "in_turn"  # of a fair queue: its tenants are served in turn
    LISTED = "listed"  # certain jobs


@dataclass(frozen=True)
class ClaimRequest:
    """Which jobs to claim. How many: as many as there are run ids."""

    mode: ClaimMode = ClaimMode.PLAIN
    start: ClaimStart = FRONT
    scan_limit: int = 0  # how many ready jobs to scan, if more than are claimed: many may have busy keys
    promote_due: bool = True  # scheduled jobs that are due become ready first

    @property
    def is_from_front(self) -> bool:
        """Whether no ready job is in front of where it starts. A claim in turn looks at all tenants that wait."""
        return self.mode is ClaimMode.IN_TURN or self.start == FRONT


@dataclass(frozen=True)
class ClaimHint:
    """When and where to claim again."""

    skipped: int  # ready jobs scanned in vain, since their key is busy: more may be ready behind them
    next_due_sec: float | None  # until the next scheduled job; None: there is none
    next_start: ClaimStart | None = None  # behind the last claimed job; None: none was claimed, or the claim was LISTED
    blocked_keys: Sequence[str] | None = None  # keys whose jobs this claim blocked
    # How much longer the claim took than a few round trips; None: it claimed many jobs.
    delay_sec: float | None = None


def start_at_jobs(job_ids: Sequence[str]) -> ClaimStart:
    return (*_NO_POSITION, *job_ids)


def earlier(position: ClaimStart, by_sec: float) -> ClaimStart:
    """Return the position so much before this one, among jobs of the same priority."""
    priority, created_at, _ = position
    try:
        before = datetime.fromisoformat(created_at) - timedelta(seconds=by_sec)
    except (ValueError, OverflowError):  # other services write timestamps too, and these may be infinite
        return position
    return priority, before.isoformat(), NO_JOB
