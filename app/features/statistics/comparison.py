"""Two spans of time side by side: the last day, week or four weeks, and the same length before it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from dataloader.app.db.statements import Executor
from dataloader.app.features.statistics.rows import PeriodStatistics, group_by_first, statistics_from_rows

Span = Literal["1d", "7d", "28d"]
SPANS: dict[Span, timedelta] = {"1d": timedelta(days=1), "7d": timedelta(days=7), "28d": timedelta(days=28)}
_NONE = PeriodStatistics()


@dataclass(frozen=True)
class Comparison:
    """What a task did in a span, and in the one before. `task`: empty for all tasks together. `rows`: that it produced,
    as far as its jobs have reported them."""

    task: str
    now: PeriodStatistics
    before: PeriodStatistics
    rows_now: int | None
    rows_before: int | None

    @property
    def weight(self) -> tuple[int, int]:
        """The tasks with the most failures first, then those with the most jobs."""
        failures = [side.failed + side.lost for side in (self.now, self.before)]
        return failures[0] - failures[1], self.now.finished + self.before.finished


@dataclass(frozen=True)
class ComparedSpans:
    """The ends of two spans of whole hours, and what happened in them."""

    start: datetime  # of the earlier one
    middle: datetime
    end: datetime
    total: Comparison
    tasks: list[Comparison]


class SpanStatistics:
    """Reads the statistics of hours."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def compare(self, span: Span, end: datetime, *, task: str | None = None) -> ComparedSpans:
        """Compare the span that ends then with the one before it."""
        middle, start = end - SPANS[span], end - 2 * SPANS[span]
        sides = [self._totals(start, middle, task), self._totals(middle, end, task)]
        rows = [self._rows(start, middle, task), self._rows(middle, end, task)]
        names = set[str]().union(*sides, *rows) - {""}

        def compared(name: str) -> Comparison:
            counts = [side.get(name) if name else sum(side.values()) if side else None for side in rows]
            before, now = (side.get(name, _NONE) for side in sides)
            return Comparison(name, now, before, counts[1], counts[0])

        tasks = sorted((compared(name) for name in names), key=lambda found: found.weight, reverse=True)
        total = tasks[0] if task and tasks else compared("")
        return ComparedSpans(start, middle, end, total, tasks)

    def _totals(self, since: datetime, until: datetime, task: str | None) -> dict[str, PeriodStatistics]:
        rows = self._execute("span_totals", {"since": since, "until": until, "task": task})
        return {name: statistics_from_rows(found) for name, found in group_by_first(rows).items()}

    def _rows(self, since: datetime, until: datetime, task: str | None) -> dict[str, int]:
        rows = self._execute("span_rows", {"since": since, "until": until, "task": task})
        return {name: int(count) for name, count in rows}
