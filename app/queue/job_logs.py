"""What a job said, as people look for it: a page of its log, forwards or backwards, with a word in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from app.db.encoding import array, validate_text
from app.queue.job import JobLogLine
from app.queue.jobs import Executor

TIME_BUDGET_SEC = 0.04  # for one page; what is not found by then is looked for by the next question
WINDOW_ROWS = 10_000  # lines that one stretch looks at
_MAX_LOG_ID = 2**63 - 1


@dataclass(frozen=True)
class LogSearchPage:
    """Lines, the oldest first. `earlier` and `later`: where the log goes on, None at its ends."""

    lines: list[JobLogLine]
    previous: int | None
    next: int | None
    looked_at: int  # how many lines were looked at for these


class JobLogSearch:
    """Questions about logs that look at no more lines than there is time for."""

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
        """The first lines behind `after`, or the last ones before `before`, or the last ones of all."""
        back = after is None
        start = (_MAX_LOG_ID if before is None else before) if after is None else after
        asked = {
            "job_id": str(job_id),
            "find": None if text is None else validate_text("find", text),
            "levels": None if levels is None else array(levels),
        }
        lines, edge, looked = self._scan(asked, back, start, limit, time_budget_sec)
        if back:
            return LogSearchPage(lines[::-1], edge, None if before is None else before - 1, looked)
        first = after + 1 if after else None
        return LogSearchPage(lines, first, edge, looked)

    def _scan(
        self, parameters: dict[str, Any], backwards: bool, start_id: int, limit: int, time_budget_sec: float
    ) -> tuple[list[JobLogLine], int | None, int]:
        """What was found, where it goes on, and how much was looked at."""
        began, looked = self._clock(), 0
        lines: list[JobLogLine] = []
        while True:
            window = max(WINDOW_ROWS, limit + 1)
            rows = self._execute(
                "log_lines_before" if backwards else "log_lines_after",
                parameters | {"at": start_id, "window": window, "most": limit - len(lines)},
            )
            edge, seen = rows[0][:2]
            lines += [JobLogLine(*row[2:]) for row in rows if row[2] is not None]
            looked += seen
            if len(lines) >= limit and lines[-1].log_id != edge:
                return lines, lines[-1].log_id, looked
            if seen < window:
                return lines, None, looked
            start_id = edge
            if len(lines) >= limit or self._clock() - began >= time_budget_sec:
                return lines, start_id, looked
