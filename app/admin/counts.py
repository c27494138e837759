"""Counts of jobs by queue and status: exact for few jobs, marked estimates for many.

A small table is counted. In a large one queued, running and unsuccessful jobs are counted along partial indexes up to a
limit; beyond it, and for succeeded jobs, counts are estimated from a sample of the pages.
"""

from __future__ import annotations

from collections import Counter

from app.db.encoding import from_row
from app.queue.job import Status, StatusCount
from app.queue.jobs import Executor

MAX_FULL_SCAN_PAGES = 1_000  # 8 MB: scanned in a few milliseconds; beyond it counts may be estimates
SAMPLED_PAGES = 250
MAX_EXACT_COUNT = 2_000  # index entries of a group

Group = tuple[str, Status]
UNSUCCESSFUL = frozenset({Status.FAILED, Status.CANCELED, Status.LOST})


class JobCounts:
    """Counts jobs. Every call queries the database; callers cache the result."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def by_queue(self) -> list[StatusCount]:
        """The number of jobs by queue and status, without zeros."""
        ((pages,),) = self._executor.execute("count_pages", {"schema": self._executor.schema})
        if pages <= MAX_FULL_SCAN_PAGES:
            return [from_row(StatusCount, row, exact=True) for row in self._executor.execute("count_all")]
        counted, capped_groups, capped_statuses = self._count_exact()
        percent = min(100.0, 100.0 * SAMPLED_PAGES / pages)
        sample = self._executor.execute("count_sample", {"percent": percent})
        estimated = Counter({(queue, Status(status)): round(jobs * 100 / percent) for queue, status, jobs in sample})
        counts = []
        for group in sorted(counted.keys() | estimated.keys()):
            queue, status = group
            exact = status is not Status.SUCCEEDED and status not in capped_statuses and group not in capped_groups
            jobs = counted[group] if exact else max(counted[group], estimated[group])
            if jobs:
                counts.append(StatusCount(queue, status, jobs, exact))
        return counts

    def oldest_ready(self) -> dict[str, float]:
        """Seconds since the oldest ready job of each queue became due."""
        return {row[0]: row[1] for row in self._executor.execute("oldest_ready")}

    def _count_exact(self) -> tuple[Counter[Group], set[Group], set[Status]]:
        """Return exact counts, the groups that reached the limit, and the statuses whose groups may be incomplete."""
        counted: Counter[Group] = Counter()
        capped_groups: set[Group] = set()
        capped_statuses: set[Status] = set()
        for queue, status, jobs, more in self._executor.execute("count_exact", {"max_exact": MAX_EXACT_COUNT}):
            if queue is None:
                capped_statuses |= UNSUCCESSFUL if status == "unsuccessful" else {Status(status)}
                continue
            group = (queue, Status(status))
            counted[group] += jobs
            if more:
                capped_groups.add(group)
        return counted, capped_groups, capped_statuses
