"""Search in a job's log: a page of matching lines, forwards or backwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from app.db.encoding import array, validate_text
from app.db.statements import Executor
from app.queue.job import JobLogLine

TIME_BUDGET_SEC = 0.04  # for one page; the next page continues where it ends
WINDOW_ROWS = 10_000  # lines that one statement scans
_MAX_LOG_ID = 2**63 - 1


@dataclass(frozen=True)
class LogSearchPage:
    lines: list[JobLogLine]  # oldest first
    previous: int | None  # `before` of the page before this one; None: the log begins here
    next: int | None  # `after` of the next page; None: the log ends here
    scanned_count: int


class JobLogSearch:
    """Scans no more lines than the time budget allows."""

    def __init__(self, executor: Executor, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._execute: Callable[..., list[tuple[Any, ...]]] = executor.execute
        self._clock = clock

    def page(
        self,
        job_id: UUID,
        *,
        text: str | None = None,
        levels: Iterable[str] | None = None,
        after: int | None = None,
        before: int | None = None,
        limit: int = 500,
        time_budget_sec: float = TIME_BUDGET_SEC,
    ) -> LogSearchPage:
        """The first lines after `after`, or the last ones before `before`, or the last ones of all."""
        back = after is None
        start = (_MAX_LOG_ID if before is None else before) if after is None else after
        parameters = {
            "job_id": str(job_id),
            "text": None if text is None else validate_text("text", text),
            "levels": None if levels is None else array(levels),
        }
        lines, window_end, scanned_count = self._scan(parameters, back, start, limit, time_budget_sec)
        if back:
            return LogSearchPage(lines[::-1], window_end, None if before is None else before - 1, scanned_count)
        return LogSearchPage(lines, after + 1 if after else None, window_end, scanned_count)

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
