"""The journal as a stream, from any event on, with each event once, also one that is committed late.

Events get their numbers before they are committed, so a smaller number may appear after a larger one. A reader keeps
the numbers it has not seen as ranges, and gives one up only when nobody is left who could still write it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from app.db.encoding import array
from app.db.rows import from_row
from app.queue.job import JobEvent
from app.queue.jobs import Executor

MAX_EVENTS_PER_POLL = 500  # that one look brings
_MAX_EVENT_ID = 2**63 - 1
_MAX_ID_DIGITS = 18
_LOOKBACK_EVENTS = 500  # numbers before the newest, among which somebody may have one that is not committed yet
_MAX_GAPS = 100  # beyond them the oldest are read again by whoever resumes
IdRange = tuple[int, int]  # [low, high)


class EventReader:
    """One listener's place in the journal. Not for two threads at once."""

    def __init__(self, executor: Executor, *, after: str | None = None) -> None:
        """`after`: the place that another reader was told; None: only what happens from now on. Raises ValueError."""
        self._execute: Callable[..., list[tuple[Any, ...]]] = executor.execute
        self._schema = executor.schema
        self._unread: list[IdRange] = [] if after is None else _parse_cursor(after)
        self._is_new = after is None
        self._candidate = 0  # nothing up to this number will appear any more once all of these have ended
        self._open_writers: frozenset[str] = frozenset()

    def poll(self) -> list[JobEvent]:
        """What has happened since the last look, up to a bound."""
        top, writers = self._head()
        safe = self._safe_position(top, writers)
        if self._is_new:
            self._start_at_end(top, safe)
            return []
        events = self._read_events()
        if len(events) == MAX_EVENTS_PER_POLL:
            safe = min(safe, events[-1].event_id)
        self._unread = subtract(self._unread, [event.event_id for event in events], safe)
        return events

    def _start_at_end(self, head: int, safe_id: int) -> None:
        """What is there already is past; what is under way at this moment belongs to the future."""
        self._is_new = False
        self._unread = [(max(0, head - _LOOKBACK_EVENTS) + 1, head + 1)]
        there = [event.event_id for event in self._read_events()]
        self._unread = [*subtract(self._unread, there, safe_id), (head + 1, _MAX_EVENT_ID)]

    def _read_events(self) -> list[JobEvent]:
        rows = self._execute(
            "read_events",
            {
                "lows": array(low for low, _ in self._unread),
                "highs": array(high for _, high in self._unread),
                "most": MAX_EVENTS_PER_POLL,
            },
        )
        return [from_row(JobEvent, row) for row in rows]

    @property
    def cursor(self) -> str:
        """Where another reader goes on: the last event's number, and behind a ~ those before it that may yet come."""
        last = self._unread[-1][0] - 1 if self._unread else 0
        gaps = self._unread[:-1]
        if len(gaps) > _MAX_GAPS:
            return str(gaps[0][0] - 1)
        told = ",".join(str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in gaps)
        return f"{last}~{told}" if told else str(last)

    def _head(self) -> tuple[int, frozenset[str]]:
        ((top, writers),) = self._execute("event_head", {"schema": self._schema})
        return top, frozenset(writers)

    def _safe_position(self, head: int, writers: frozenset[str]) -> int:
        """Up to which number nothing will appear any more that a look after this one would not show."""
        if not writers:
            self._candidate, self._open_writers = head, writers
            return head
        left = self._open_writers & writers
        if left:
            self._open_writers = left
            return 0
        safe = self._candidate
        self._candidate, self._open_writers = head, writers
        return safe


def subtract(ranges: Sequence[IdRange], ids: Sequence[int], safe_id: int) -> list[IdRange]:
    """The ranges less these numbers, and less everything up to `safe`."""
    left: list[IdRange] = []
    wanted = iter(ids)
    gone = next(wanted, None)
    for low, high in ranges:
        begin = max(low, safe_id + 1)
        while gone is not None and gone < high:
            if gone >= begin:
                if gone > begin:
                    left.append((begin, gone))
                begin = gone + 1
            gone = next(wanted, None)
        if begin < high:
            left.append((begin, high))
    return left


def _parse_cursor(cursor: str) -> list[IdRange]:
    last, _, gaps = cursor.partition("~")
    ranges = []
    for gap in gaps.split(",") if gaps else []:
        low, _, high = gap.partition("-")
        ranges.append((_parse_id(low), _parse_id(high or low) + 1))
    ranges.append((_parse_id(last) + 1, _MAX_EVENT_ID))
    if len(ranges) > _MAX_GAPS + 1 or any(a[1] > b[0] for a, b in pairwise(ranges)):
        raise ValueError(f"{cursor[:40]!r} is no place in the stream")
    return ranges


def _parse_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_ID_DIGITS):
        raise ValueError(f"{text[:40]!r} is no number of an event")
    return int(text)
