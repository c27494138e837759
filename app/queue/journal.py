"""The journal as a stream, from any event on, with each event once, also one that is committed late.

Events get their numbers before they are committed, so a smaller number may appear after a larger one. A reader keeps
the numbers it has not seen as ranges, and gives one up only when nobody is left who could still write it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from app.queue.job import Event
from app.queue.jobqueue import Source, _decoded, as_uuid
from app.queue.values import array

MOST_EVENTS = 500  # that one look brings
_END = 2**63 - 1
_MOST_DIGITS = 18
_LOOK_BACK = 500  # numbers before the newest, among which somebody may have one that is not committed yet
_MOST_GAPS = 100  # beyond them the oldest are read again by whoever resumes
Range = tuple[int, int]  # [low, high)


class Reader:
    """One listener's place in the journal. Not for two threads at once."""

    def __init__(self, source: Source, *, after: str | None = None) -> None:
        """`after`: the place that another reader was told; None: only what happens from now on. Raises ValueError."""
        self._ask: Callable[..., list[tuple[Any, ...]]] = source.ask
        self._schema = source.schema
        self._unread: list[Range] = [] if after is None else _read_place(after)
        self._fresh = after is None
        self._probe = 0  # nothing up to this number will appear any more once all of these have ended
        self._writers: frozenset[str] = frozenset()

    def look(self) -> list[Event]:
        """What has happened since the last look, up to a bound."""
        top, writers = self._top()
        safe = self._judge(top, writers)
        if self._fresh:
            self._begin(top, safe)
            return []
        events = self._read()
        if len(events) == MOST_EVENTS:
            safe = min(safe, events[-1].id)
        self._unread = without(self._unread, [event.id for event in events], safe)
        return events

    def _begin(self, top: int, safe: int) -> None:
        """What is there already is past; what is under way at this moment belongs to the future."""
        self._fresh = False
        self._unread = [(max(0, top - _LOOK_BACK) + 1, top + 1)]
        there = [event.id for event in self._read()]
        self._unread = [*without(self._unread, there, safe), (top + 1, _END)]

    def _read(self) -> list[Event]:
        rows = self._ask(
            "journal_read",
            {
                "lows": array(low for low, _ in self._unread),
                "highs": array(high for _, high in self._unread),
                "most": MOST_EVENTS,
            },
        )
        return [Event(row[0], as_uuid(row[1]), row[2], row[3], row[4], _decoded(row[5])) for row in rows]

    @property
    def place(self) -> str:
        """Where another reader goes on: the last event's number, and behind a ~ those before it that may yet come."""
        last = self._unread[-1][0] - 1 if self._unread else 0
        gaps = self._unread[:-1]
        if len(gaps) > _MOST_GAPS:
            return str(gaps[0][0] - 1)
        told = ",".join(str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in gaps)
        return f"{last}~{told}" if told else str(last)

    def _top(self) -> tuple[int, frozenset[str]]:
        ((top, writers),) = self._ask("journal_top", {"schema": self._schema})
        return top, frozenset(writers)

    def _judge(self, top: int, writers: frozenset[str]) -> int:
        """Up to which number nothing will appear any more that a look after this one would not show."""
        if not writers:
            self._probe, self._writers = top, writers
            return top
        left = self._writers & writers
        if left:
            self._writers = left
            return 0
        safe = self._probe
        self._probe, self._writers = top, writers
        return safe


def without(ranges: Sequence[Range], ids: Sequence[int], safe: int) -> list[Range]:
    """The ranges less these numbers, and less everything up to `safe`."""
    left: list[Range] = []
    wanted = iter(ids)
    gone = next(wanted, None)
    for low, high in ranges:
        begin = max(low, safe + 1)
        while gone is not None and gone < high:
            if gone >= begin:
                if gone > begin:
                    left.append((begin, gone))
                begin = gone + 1
            gone = next(wanted, None)
        if begin < high:
            left.append((begin, high))
    return left


def _read_place(told: str) -> list[Range]:
    last, _, gaps = told.partition("~")
    ranges = []
    for gap in gaps.split(",") if gaps else []:
        low, _, high = gap.partition("-")
        ranges.append((_number(low), _number(high or low) + 1))
    ranges.append((_number(last) + 1, _END))
    if len(ranges) > _MOST_GAPS + 1 or any(a[1] > b[0] for a, b in pairwise(ranges)):
        raise ValueError(f"{told[:40]!r} is no place in the stream")
    return ranges


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise ValueError(f"{text[:40]!r} is no number of an event")
    return int(text)
