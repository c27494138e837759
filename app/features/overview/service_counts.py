"""The number of problems for the header of each page, and the counts of its navigation, from one cached read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dataloader.app.db.statements import Executor
from dataloader.app.features.overview.problems import ProblemReader, Situation, count_open, find_problems
from dataloader.app.http.caches import RefreshingValue
from dataloader.app.http.site import Site
from dataloader.app.http.standby_reads import allowing_standby
from dataloader.app.queue.queues import QueueState
from dataloader.app.ui.shell import can_read

# The pages whose link in the navigation has a number.
COUNTED_PATHS = ("/", "/jobs", "/failures", "/schedules", "/queues", "/workers", "/limits", "/alerts")
_COUNT_MAX_AGE_SEC, _COUNT_REFRESH_AFTER_SEC, _COUNT_TIMEOUT_SEC = 15.0, 2.0, 0.5


@dataclass(frozen=True)
class ServiceCounts:
    """The number of problems, and those of the side navigation: by the path of their page a number with its noun, of
    which the page shows the first word."""

    problems: int
    by_path: dict[str, tuple[int, str]]

    @classmethod
    def of(cls, now: Situation) -> ServiceCounts:
        problems = count_open(find_problems(now))
        muted = {rule.rule_id for rule in now.rules if rule.is_muted}
        counts = {
            "/": (problems, "problem"),
            "/jobs": (sum(status.running for status in now.queues), "running job"),
            "/failures": (sum(counts.failed + counts.lost for counts in now.last_hour.values()), "new failure"),
            "/schedules": (len(now.schedules), "stopped schedule"),
            "/queues": (sum(status.state is not QueueState.OPEN for status in now.queues), "paused queue"),
            "/workers": (sum(worker.alive for worker in now.workers), "live worker"),
            "/limits": (sum(status.limited for status in now.queues), "limited job"),
            "/alerts": (
                sum(alert.acknowledged_at is None and alert.rule_id not in muted for alert in now.alerts),
                "firing alert",
            ),
        }
        return cls(problems, counts)


class ProblemCounter:
    """The number of problems and the counts of the navigation, which all pages of this process share. They are read in
    the background: a page waits for them only when no page has been shown for a while."""

    def __init__(self, source: Executor) -> None:
        reader = ProblemReader(source)

        def count() -> ServiceCounts:
            with allowing_standby():
                return ServiceCounts.of(reader.read())

        self._count = RefreshingValue(count, name="count-problems", timeout_sec=_COUNT_TIMEOUT_SEC, retry_sec=2.0)

    def get(self) -> int | None:
        """Return the number of problems, or None when it cannot be read now."""
        counts = self.counts()
        return None if counts is None else counts.problems

    def counts(self) -> ServiceCounts | None:
        """Return the counts, or None when they cannot be read now."""
        return self._count.get_recent(refresh_after_sec=_COUNT_REFRESH_AFTER_SEC, max_age_sec=_COUNT_MAX_AGE_SEC)


def page_values(site: Site) -> Callable[[], dict[str, Any]]:
    """What the header and the navigation of each page show."""
    counter = ProblemCounter(site.executor)
    paths = frozenset(link.path for link in site.navigation)
    return lambda: {
        "nav_counts": lambda: {path: count for path, count in _shown_counts(counter).items() if path in paths},
        "problem_count": lambda: counter.get() if can_read() else None,
    }


def _shown_counts(counter: ProblemCounter) -> dict[str, tuple[int | None, str]]:
    """By the path of a page its number in the navigation, None while it is not known."""
    if not can_read():
        return {}
    counts = counter.counts()
    return dict.fromkeys(COUNTED_PATHS, (None, "")) if counts is None else {**counts.by_path}
