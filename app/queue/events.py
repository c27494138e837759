"""The event stream: each event once, from any cursor on, also events that are committed late.

Events get their ids before they are committed, so a smaller id may appear after a larger one. A reader keeps the ids it
has not seen as ranges, and gives one up only when no transaction is left that could still write it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from dataloader.app.db.encoding import array, from_row
from dataloader.app.db.statements import Executor
from dataloader.app.queue.job_records import JobEvent

MAX_EVENTS_PER_POLL = 500
_MAX_EVENT_ID = 2**63 - 1
_MAX_ID_DIGITS = 18
_LOOKBACK_EVENTS = 500  # ids before the newest that may not be committed yet
_MAX_GAPS = 100  # a cursor has no more; beyond them the reader that resumes reads some events again
IdRange = tuple[int, int]  # [low, high)


class EventReader:
    """One reader's position in the stream. Not thread-safe."""

    def __init__(self, executor: Executor, *, after: str | None = None) -> None:
        """`after`: another reader's cursor; None: only events from now on. Raises ValueError."""
        self._execute: Callable[..., list[tuple[Any, ...]]] = executor.execute
        self._schema = executor.schema
        self._unread: list[IdRange] = [] if after is None else _parse_cursor(after)
        self._is_new = after is None
        self._candidate = 0  # no event up to this id will appear once all open writers have ended
        self._open_writers: frozenset[str] = frozenset()

    def poll(self) -> list[JobEvent]:
        """The events since the last poll, at most MAX_EVENTS_PER_POLL."""
        ((head, writers),) = self._execute("event_head", {"schema": self._schema})
        safe_id = self._safe_position(head, frozenset(writers))
        if self._is_new:
            self._start_at_end(head, safe_id)
            return []
        events = self._read_events()
        if len(events) == MAX_EVENTS_PER_POLL:
            safe_id = min(safe_id, events[-1].event_id)
        self._unread = subtract(self._unread, [event.event_id for event in events], safe_id)
        return events

    def _start_at_end(self, head: int, safe_id: int) -> None:
        """Skip the events that are committed already; those of open transactions are still to come."""
        self._is_new = False
        self._unread = [(max(0, head - _LOOKBACK_EVENTS) + 1, head + 1)]
        committed = [event.event_id for event in self._read_events()]
        self._unread = [*subtract(self._unread, committed, safe_id), (head + 1, _MAX_EVENT_ID)]

    def _read_events(self) -> list[JobEvent]:
        rows = self._execute(
            "read_events",
            {
                "lows": array(low for low, _ in self._unread),
                "highs": array(high for _, high in self._unread),
                "limit": MAX_EVENTS_PER_POLL,
            },
        )
        return [from_row(JobEvent, row) for row in rows]

    @property
    def cursor(self) -> str:
        """Where another reader continues: the last event's id, and after a ~ the earlier ids that may still appear."""
        last = self._unread[-1][0] - 1 if self._unread else 0
        gaps = self._unread[:-1]
        if len(gaps) > _MAX_GAPS:
            return str(gaps[0][0] - 1)
        missing = ",".join(str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in gaps)
        return f"{last}~{missing}" if missing else str(last)

    def _safe_position(self, head: int, writers: frozenset[str]) -> int:
        """The id up to which no event will appear after this poll."""
        if not writers:
            self._candidate, self._open_writers = head, writers
            return head
        if open_writers := self._open_writers & writers:
            self._open_writers = open_writers
            return 0
        safe_id = self._candidate
        self._candidate, self._open_writers = head, writers
        return safe_id


def subtract(ranges: Sequence[IdRange], ids: Sequence[int], safe_id: int) -> list[IdRange]:
    """The ranges without these ids, and without everything up to `safe_id`."""
    left: list[IdRange] = []
    remaining = iter(ids)
    known_id = next(remaining, None)
    for low, high in ranges:
        begin = max(low, safe_id + 1)
        while known_id is not None and known_id < high:
            if known_id >= begin:
                if known_id > begin:
                    left.append((begin, known_id))
                begin = known_id + 1
            known_id = next(remaining, None)
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
        raise ValueError(f"{cursor[:40]!r} is no cursor of the event stream")
    return ranges


def _parse_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_ID_DIGITS):
        raise ValueError(f"{text[:40]!r} is no event id")
    return int(text)
