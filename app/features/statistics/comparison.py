"""Two spans of time side by side: the last day, week or four weeks, and the same length before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Literal

from dataloader.app.db.statements import Executor
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.http.caches import RefreshingValues
from dataloader.app.http.standby_reads import allowing_standby, record_data_age
from dataloader.app.state.statistics import PeriodStatistics, group_by_first, statistics_from_rows

Span = Literal["1d", "7d", "28d"]
SPANS: dict[Span, timedelta] = {"1d": timedelta(days=1), "7d": timedelta(days=7), "28d": timedelta(days=28)}
_NONE = PeriodStatistics()
_MAX_KEPT = 16  # each is of a span, an hour and perhaps a task
_TIMEOUT_SEC = 5.0
_AGES = {"refresh_after_sec": 10.0, "max_age_sec": 300.0}


@dataclass(frozen=True)
class TaskComparison:
    """What a task did in a span, and in the one before. `task`: empty for all tasks together. Rows are those that it
    produced, as far as its jobs have reported them."""

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
    """Two spans of whole hours, one from `start` to `middle`, one from there to `end`, and what happened in them. First
    the tasks with the largest growth of failures. `counted_at`: when it was read."""

    start: datetime
    middle: datetime
    end: datetime
    total: TaskComparison
    tasks: list[TaskComparison]
    counted_at: datetime


class SpanComparisons:
    """Keeps the comparisons that were read last; each is read in the background, once for all requests."""

    def __init__(self, executor: Executor) -> None:
        self._statistics = SpanStatistics(executor)
        self._kept = RefreshingValues(
            self._make_read, name="compare-spans", timeout_sec=_TIMEOUT_SEC, max_count=_MAX_KEPT
        )

    def get(self, span: Span, until: datetime | None, *, task: str | None = None) -> ComparedSpans:
        """Compare the span that ends with the hour of `until`, or now, with the one before it. Raises
        DatabaseUnavailable."""
        return self._with_age(self._kept.get_recent(_key(span, until, task), **_AGES))

    def find(
        self, span: Span, until: datetime | None, *, task: str | None = None, wait_sec: float
    ) -> ComparedSpans | None:
        """The same; None if it is not read within `wait_sec`: then it is still being read. Raises
        DatabaseUnavailable."""
        key = _key(span, until, task)
        kept = self._kept.get_recent(key, wait_sec=wait_sec, **_AGES)
        if kept is None and self._kept.is_fetching(key):
            return None
        return self._with_age(kept or self._kept.get_recent(key, wait_sec=0, **_AGES))

    @staticmethod
    def _with_age(kept: tuple[ComparedSpans, float | None] | None) -> ComparedSpans:
        """Record how old the data is that a standby has answered."""
        if kept is None:
            raise DatabaseUnavailable("the statistics cannot be read in time")
        spans, standby_age_sec = kept
        if standby_age_sec is not None:
            record_data_age(standby_age_sec + (datetime.now(UTC) - spans.counted_at).total_seconds())
        return spans

    def _make_read(self, key: tuple[Span, datetime, str | None]) -> Callable[[], tuple[ComparedSpans, float | None]]:
        return partial(self._read, *key)

    def _read(self, span: Span, end: datetime, task: str | None) -> tuple[ComparedSpans, float | None]:
        """The comparison, and how old its data was if a standby has answered."""
        with allowing_standby() as reads:
            return self._statistics.compare(span, end, task=task), reads.age_sec


def _key(span: Span, until: datetime | None, task: str | None) -> tuple[Span, datetime, str | None]:
    now = _next_hour(datetime.now(UTC))
    return span, now if until is None else min(_next_hour(until.astimezone(UTC)), now), task


def _next_hour(moment: datetime) -> datetime:
    """The end of the hour, for statistics have whole ones."""
    start = moment.replace(minute=0, second=0, microsecond=0)
    return start if start == moment else start + timedelta(hours=1)


class SpanStatistics:
    """Reads the statistics of hours."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def compare(self, span: Span, end: datetime, *, task: str | None = None) -> ComparedSpans:
        """Compare the span that ends then with the one before it."""
        middle, start = end - SPANS[span], end - 2 * SPANS[span]
        counted_at = datetime.now(UTC)
        sides = [self._totals(start, middle, task), self._totals(middle, end, task)]
        rows = [self._rows(start, middle, task), self._rows(middle, end, task)]
        names = set[str]().union(*sides, *rows) - {""}

        def compared(name: str) -> TaskComparison:
            counts = [side.get(name) if name else sum(side.values()) if side else None for side in rows]
            before, now = (side.get(name, _NONE) for side in sides)
            return TaskComparison(name, now, before, counts[1], counts[0])

        tasks = sorted((compared(name) for name in names), key=lambda found: found.weight, reverse=True)
        total = tasks[0] if task and tasks else compared("")
        return ComparedSpans(start, middle, end, total, tasks, counted_at)

    def _totals(self, since: datetime, until: datetime, task: str | None) -> dict[str, PeriodStatistics]:
        rows = self._execute("span_totals", {"since": since, "until": until, "task": task})
        return {name: statistics_from_rows(found) for name, found in group_by_first(rows).items()}

    def _rows(self, since: datetime, until: datetime, task: str | None) -> dict[str, int]:
        rows = self._execute("span_rows", {"since": since, "until": until, "task": task})
        return {name: int(count) for name, count in rows}
