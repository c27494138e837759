"""The number of problems for the header of each page, and the counts of its navigation, from one cached read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dataloader.app.acts.service_problems import Problem
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.features.alerts.rows import read_firing_alerts, read_rules
from dataloader.app.features.overview.problems import ProblemReader, count_open
from dataloader.app.features.queues.rows import read_queue_statuses, read_worker_statuses
from dataloader.app.features.schedules.rows import read_not_firing
from dataloader.app.features.statistics.rows import read_last_hour
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
    def of(cls, problems: Iterable[Problem], reads: SharedReads) -> ServiceCounts:
        open_count, queues, alerts = count_open(problems), reads.get(read_queue_statuses), reads.get(read_firing_alerts)
        last_hour, muted = reads.get(read_last_hour), {rule.rule_id for rule in reads.get(read_rules) if rule.is_muted}
        counts = {
            "/": (open_count, "problem"),
            "/jobs": (sum(status.running for status in queues), "running job"),
            "/failures": (sum(counts.failed + counts.lost for counts in last_hour.values()), "new failure"),
            "/schedules": (len(reads.get(read_not_firing)), "stopped schedule"),
            "/queues": (sum(status.state is not QueueState.OPEN for status in queues), "paused queue"),
            "/workers": (sum(worker.alive for worker in reads.get(read_worker_statuses)), "live worker"),
            "/limits": (sum(status.limited for status in queues), "limited job"),
            "/alerts": (
                sum(alert.acknowledged_at is None and alert.rule_id not in muted for alert in alerts),
                "firing alert",
            ),
        }
        return cls(open_count, counts)


class ProblemCounter:
    """The number of problems and the counts of the navigation, which all pages of this process share. They are read in
    the background: a page waits for them only when no page has been shown for a while."""

    def __init__(self, site: Site) -> None:
        reader = ProblemReader(site.features)

        def count() -> ServiceCounts:
            reads = SharedReads(site.executor)
            with allowing_standby():
                return ServiceCounts.of(reader.read(reads), reads)

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
    counter = ProblemCounter(site)
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
