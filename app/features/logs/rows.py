"""Search of lines over the logs of all jobs, within bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, from_row, validate_text
from dataloader.app.db.statements import Executor
from dataloader.app.queue.job_records import JobLogLine

TIME_BUDGET_SEC = 0.04  # of a page; the next one continues where it ends
WINDOW_LINES = 5_000  # that one statement reads
_MAX_ID = 2**63 - 1
_MAX_DELAY = timedelta(
    minutes=10
)  # between a line and its row: the lines of a moment are not in the order of their ids


@dataclass(frozen=True, kw_only=True)
class LineFilter:
    """Which lines to search for; None matches any."""

    since: datetime
    until: datetime | None = None
    text: str | None = None  # within the line, ignoring case
    levels: tuple[str, ...] | None = None
    task: str | None = None

    def to_parameters(self) -> dict[str, Any]:
        return {
            "since": self.since,
            "until": self.until,
            "text": None if self.text is None else validate_text("text", self.text),
            "levels": None if self.levels is None else array(self.levels),
            "task": None if self.task is None else validate_text("task", self.task),
        }


@dataclass(frozen=True)
class FoundLine(JobLogLine):
    """A line of any job's log. `task` and `queue` are null if the job has been deleted."""

    job_id: UUID
    task: str | None
    queue: str | None


@dataclass(frozen=True)
class LinePage:
    """Lines, newest first. Without `next` the search has reached its end; with it there may be more, even if the page
    is not full."""

    lines: list[FoundLine]
    next: int | None
    scanned: int
    scanned_to: datetime | None  # the time of the last line that was read; None: all were


class LogSearch:
    """Reads the newest lines first, and no more than the time allows."""

    def __init__(self, executor: Executor, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._execute: Callable[..., list[tuple[Any, ...]]] = executor.execute
        self._clock = clock

    def page(
        self,
        line_filter: LineFilter,
        *,
        before: int | None = None,
        limit: int = 100,
        time_budget_sec: float = TIME_BUDGET_SEC,
    ) -> LinePage:
        """The newest matching lines, of those older than the id `before`."""
        started_at, parameters = self._clock(), line_filter.to_parameters()
        end_id = self._first_id(line_filter) if before is None else before
        lines: list[FoundLine] = []
        scanned = 0
        while True:
            wanted = {"before": end_id, "window": WINDOW_LINES, "limit": limit - len(lines)}
            rows = self._execute("log_window", parameters | wanted)
            count, last_id, oldest_at, newest_at = rows[0][:4]
            lines += [from_row(FoundLine, row[4:]) for row in rows if row[4] is not None]
            scanned += count
            if len(lines) >= limit:
                return LinePage(lines, lines[-1].log_id, scanned, lines[-1].ts)
            if count < WINDOW_LINES or newest_at < line_filter.since - _MAX_DELAY:
                return LinePage(lines, None, scanned, None)
            end_id = last_id
            if self._clock() - started_at >= time_budget_sec:
                return LinePage(lines, end_id, scanned, oldest_at)

    def _first_id(self, line_filter: LineFilter) -> int:
        """The id before which the search begins."""
        if line_filter.until is None:
            return _MAX_ID
        (row,) = self._execute("log_id_at", {"at": line_filter.until + _MAX_DELAY})
        return int(row[0])
