"""Search in a job's log: a page of matching lines, forwards or backwards."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, validate_text
from dataloader.app.db.statements import Executor
from dataloader.app.queue.job_records import JobLogLine

TIME_BUDGET_SEC = 0.04  # for one page; the next page continues where it ends
WINDOW_ROWS = 10_000  # lines that one statement scans
MAX_COUNTED_LINES = 20_000
_MAX_LOG_ID = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class LogFilter:
    """Which lines to search for; None matches any."""

    text: str | None = None  # within the line, ignoring case
    levels: tuple[str, ...] | None = None
    attempt: int | None = None
    stream: str | None = None

    def to_parameters(self) -> dict[str, Any]:
        return {
            "text": None if self.text is None else validate_text("text", self.text),
            "levels": None if self.levels is None else array(self.levels),
            "attempt": self.attempt,
            "stream": self.stream,
        }


_ALL_LINES = LogFilter()


@dataclass(frozen=True)
class LogSearchPage:
    lines: list[JobLogLine]  # oldest first
    previous: int | None  # `before` of the page before this one; None: the log begins here
    next: int | None  # `after` of the next page; None: the log ends here
    scanned_count: int


@dataclass(frozen=True)
class LogSummary:
    """How many lines a job's log has, by attempt, and how many were left out. `runs`: the lines of each run of an
    attempt, and the first of them."""

    lines: dict[int, int]
    dropped: dict[int, int]
    is_exact: bool  # False: there are more lines than were counted
    runs: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    @property
    def line_count(self) -> int:
        return sum(self.lines.values())

    @property
    def dropped_count(self) -> int:
        return sum(self.dropped.values())


class JobLogSearch:
    """Scans no more lines than the time budget allows."""

    def __init__(self, executor: Executor, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._execute: Callable[..., list[tuple[Any, ...]]] = executor.execute
        self._clock = clock

    def page(
        self,
        job_id: UUID,
        log_filter: LogFilter = _ALL_LINES,
        *,
        after: int | None = None,
        before: int | None = None,
        limit: int = 500,
        time_budget_sec: float = TIME_BUDGET_SEC,
    ) -> LogSearchPage:
        """The first lines after `after`, or the last ones before `before`, or the last ones of all."""
        back = after is None
        start = (_MAX_LOG_ID if before is None else before) if after is None else after
        parameters = log_filter.to_parameters() | {"job_id": str(job_id)}
        lines, window_end, scanned_count = self._scan(parameters, back, start, limit, time_budget_sec)
        if back:
            return LogSearchPage(lines[::-1], window_end, None if before is None else before - 1, scanned_count)
        return LogSearchPage(lines, after + 1 if after else None, window_end, scanned_count)

    def lines(
        self, job_id: UUID, log_filter: LogFilter = _ALL_LINES, *, page_lines: int = 1000
    ) -> Iterator[JobLogLine]:
        """All matching lines, oldest first, read page by page."""
        after: int | None = 0
        while after is not None:
            page = self.page(job_id, log_filter, after=after, limit=page_lines)
            yield from page.lines
            after = page.next

    def summary(self, job_id: UUID, *, max_lines: int = MAX_COUNTED_LINES) -> LogSummary:
        rows = self._execute("log_summary", {"job_id": str(job_id), "limit": max_lines + 1})
        lines, dropped = Counter[int](), Counter[int]()
        for attempt, _, line_count, dropped_count, _ in rows:
            lines[attempt] += line_count
            dropped[attempt] += dropped_count
        runs = {(attempt, run): (line_count, first_id) for attempt, run, line_count, _, first_id in rows}
        return LogSummary(dict(lines), dict(+dropped), lines.total() <= max_lines, runs)

    def _scan(
        self, parameters: dict[str, Any], backwards: bool, start_id: int, limit: int, time_budget_sec: float
    ) -> tuple[list[JobLogLine], int | None, int]:
        """Return the matching lines, where the log continues, and the number of scanned lines."""
        started_at, scanned_count = self._clock(), 0
        lines: list[JobLogLine] = []
        while True:
            window = max(WINDOW_ROWS, limit + 1)
            rows = self._execute(
                "log_lines_before" if backwards else "log_lines_after",
                parameters | {"at": start_id, "window": window, "limit": limit - len(lines)},
            )
            window_end, window_count = rows[0][:2]
            lines += [JobLogLine(*row[2:]) for row in rows if row[2] is not None]
            scanned_count += window_count
            if len(lines) >= limit and lines[-1].log_id != window_end:
                return lines, lines[-1].log_id, scanned_count
            if window_count < window:
                return lines, None, scanned_count
            start_id = window_end
            if len(lines) >= limit or self._clock() - started_at >= time_budget_sec:
                return lines, start_id, scanned_count
