"""How many jobs there are: exact where they are few, an estimate that says so where they are many.

A table of ten million rows is never counted. A small one is. Of a large one, what waits, runs or ended badly is counted
along partial indexes up to a bound; whatever is beyond it, and the successes, are reckoned from a sample of the pages.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from app.queue.job import Count, Status
from app.queue.jobqueue import Source

SMALL_PAGES = 1_000  # 8 MB: read from end to end in some milliseconds
SAMPLED_PAGES = 250
FEW = 2_000  # entries of an index that are counted one by one

Group = tuple[str, Status]
_BAD = frozenset({Status.FAILED, Status.CANCELED, Status.LOST})


@dataclass(frozen=True)
class Bounds:
    """How much a look may cost; beyond it, what is told is an estimate."""

    small_pages: int = SMALL_PAGES
    sampled_pages: int = SAMPLED_PAGES
    few: int = FEW


class Counts:
    """The numbers of one queue's tables. Each look is asked anew: keep the answer for as long as it may be old."""

    def __init__(self, source: Source, bounds: Bounds | None = None) -> None:
        self._source, self._bounds = source, bounds or Bounds()

    def by_queue(self) -> list[Count]:
        """Jobs of each queue and status; what has none is left out."""
        ((pages,),) = self._source.ask("count_pages", {"schema": self._source.schema})
        if pages <= self._bounds.small_pages:
            return [Count(queue, Status(status), jobs) for queue, status, jobs in self._source.ask("count_all")]
        counted, open_ended, whole_kinds = self._few()
        reckoned = self._sample(pages)
        told = []
        for group in sorted(counted.keys() | reckoned.keys()):
            queue, status = group
            exact = status is not Status.SUCCEEDED and status not in whole_kinds and group not in open_ended
            jobs = counted[group] if exact else max(counted[group], reckoned[group])
            if jobs:
                told.append(Count(queue, status, jobs, exact))
        return told

    def oldest_ready(self) -> dict[str, float]:
        """Seconds that each queue's longest waiting job has been due."""
        return {row[0]: row[1] for row in self._source.ask("oldest_ready")}

    def _few(self) -> tuple[Counter[Group], set[Group], set[Status]]:
        """What was counted, the groups of it that go on, and the statuses of which any group may."""
        counted: Counter[Group] = Counter()
        open_ended: set[Group] = set()
        whole_kinds: set[Status] = set()
        for queue, status, jobs, more in self._source.ask("count_few", {"bound": self._bounds.few}):
            if queue is None:
                whole_kinds |= _BAD if status == "ended badly" else {Status(status)}
                continue
            group = (queue, Status(status))
            counted[group] += jobs
            if more:
                open_ended.add(group)
        return counted, open_ended, whole_kinds

    def _sample(self, pages: int) -> Counter[Group]:
        percent = min(100.0, 100.0 * self._bounds.sampled_pages / pages)
        rows = self._source.ask("count_sample", {"percent": percent})
        return Counter({(queue, Status(status)): round(jobs * 100 / percent) for queue, status, jobs in rows})
