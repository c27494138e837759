"""The number of problems for the header of each page, and the counts of its navigation, from one cached read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dataloader.app.acts.feature import Feature
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.features.overview.problems import ProblemReader, count_open
from dataloader.app.http.caches import RefreshingValue
from dataloader.app.http.site import Site
from dataloader.app.http.standby_reads import allowing_standby
from dataloader.app.ui.shell import can_read

OVERVIEW = "/"
_COUNT_MAX_AGE_SEC, _COUNT_REFRESH_AFTER_SEC, _COUNT_TIMEOUT_SEC = 15.0, 2.0, 0.5


Count = tuple[int | None, str, bool]  # a number, the noun of one, and whether it is bad


@dataclass(frozen=True)
class ServiceCounts:
    """The number of problems, and those of the side navigation by the path of their page."""

    problems: int
    by_path: dict[str, Count]


class ServiceCounter:
    """Counts problems and what features count."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self._problems = ProblemReader(features)
        self._counts = {
            link.path: (feature.load(link.count.read), link.count)
            for feature in features for link in feature.navigation if link.count is not None
        }  # fmt: skip
        self.paths = (OVERVIEW, *self._counts)

    def count(self, reads: SharedReads) -> ServiceCounts:
        problems = count_open(self._problems.read(reads))
        counts = {path: (read(reads), count.noun, count.is_bad) for path, (read, count) in self._counts.items()}
        return ServiceCounts(problems, {OVERVIEW: (problems, "problem", True), **counts})


class ProblemCounter:
    """The number of problems and the counts of the navigation, which all pages of this process share. They are read in
    the background: a page waits for them only when no page has been shown for a while."""

    def __init__(self, site: Site) -> None:
        counter = ServiceCounter(site.features)
        self.paths = counter.paths

        def count() -> ServiceCounts:
            with allowing_standby():
                return counter.count(SharedReads(site.executor))

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


def _shown_counts(counter: ProblemCounter) -> Mapping[str, Count]:
    """By the path of a page its number in the navigation, None while it is not known."""
    if not can_read():
        return {}
    counts = counter.counts()
    return dict.fromkeys(counter.paths, (None, "", False)) if counts is None else counts.by_path
