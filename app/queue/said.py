"""What a job said, as people look for it: a page of its log, forwards or backwards, with a word in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from app.queue.job import LogLine
from app.queue.jobqueue import Source
from app.queue.values import array, checked_text

PATIENCE_SEC = 0.04  # for one page; what is not found by then is looked for by the next question
WINDOW = 10_000  # lines that one stretch looks at
_LAST = 2**63 - 1


@dataclass(frozen=True)
class SaidPage:
    """Lines, the oldest first. `earlier` and `later`: where the log goes on, None at its ends."""

    lines: list[LogLine]
    earlier: int | None
    later: int | None
    looked_at: int  # how many lines were looked at for these


class Said:
    """Questions about logs that look at no more lines than there is time for."""

    def __init__(self, source: Source, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask: Callable[..., list[tuple[Any, ...]]] = source.ask
        self._clock = clock

    def page(
        self,
        job_id: UUID,
        *,
        find: str | None = None,
        levels: Iterable[str] | None = None,
        after: int | None = None,
        before: int | None = None,
        limit: int = 500,
        patience_sec: float = PATIENCE_SEC,
    ) -> SaidPage:
        """The first lines behind `after`, or the last ones before `before`, or the last ones of all."""
        back = after is None
        start = (_LAST if before is None else before) if after is None else after
        asked = {
            "job_id": str(job_id),
            "find": None if find is None else checked_text("find", find),
            "levels": None if levels is None else array(levels),
        }
        lines, edge, looked = self._walk(asked, back, start, limit, patience_sec)
        if back:
            return SaidPage(lines[::-1], edge, None if before is None else before - 1, looked)
        first = after + 1 if after else None
        return SaidPage(lines, first, edge, looked)

    def _walk(
        self, asked: dict[str, Any], back: bool, at: int, limit: int, patience_sec: float
    ) -> tuple[list[LogLine], int | None, int]:
        """What was found, where it goes on, and how much was looked at."""
        began, looked = self._clock(), 0
        lines: list[LogLine] = []
        while True:
            window = max(WINDOW, limit + 1)
            rows = self._ask(
                "said_before" if back else "said_after",
                asked | {"at": at, "window": window, "most": limit - len(lines)},
            )
            edge, seen = rows[0][:2]
            lines += [LogLine(*row[2:]) for row in rows if row[2] is not None]
            looked += seen
            if len(lines) >= limit and lines[-1].id != edge:
                return lines, lines[-1].id, looked
            if seen < window:
                return lines, None, looked
            at = edge
            if len(lines) >= limit or self._clock() - began >= patience_sec:
                return lines, at, looked
