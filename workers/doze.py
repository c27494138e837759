"""Falling asleep without missing the bell, and saying when the bell is not needed.

A process that has more to do than threads looks for jobs again by itself, so nobody need ring for it. Before it waits
for the bell again it says so, then makes sure that nobody is about to commit who has not seen that, then looks once
more. Decision 15 has the proof.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from app.errors import DatabaseUnavailable

_FULL_IN_A_ROW = 3  # claims that brought all that was asked for, until it is worth a word
_FIRST_NAP, _LONGEST_NAP = 0.005, 0.25


class Marks(Protocol):
    """What is said to the database, and asked: `app.queue.sleep.Sleep`."""

    def mark(self, queues: Iterable[str], *, asleep: bool) -> None: ...

    def is_quiet(self, queue: str) -> bool: ...


class _Known(Enum):
    """What the database knows of this process and a queue."""

    NOTHING = auto()  # so it is rung
    AWAKE = auto()
    DOZING = auto()  # the mark is there; somebody may not have seen it
    ASLEEP = auto()


@dataclass
class _Queue:
    known: _Known = _Known.NOTHING
    full: int = 0
    nap: float = _FIRST_NAP


class Doze:
    """Used by whoever has the lead."""

    def __init__(self, sleep: Marks) -> None:
        self._sleep = sleep
        self._queues: dict[str, _Queue] = {}

    def after_claim(self, name: str, *, full: bool) -> float | None:
        """In how many seconds to look again, although nobody rings; None: it may be slept."""
        queue = self._queues.setdefault(name, _Queue())
        queue.full = queue.full + 1 if full else 0
        try:
            if not full:
                return self._lie_down(name, queue)
            if queue.full >= _FULL_IN_A_ROW and queue.known is not _Known.AWAKE:
                queue.known = _Known.NOTHING  # whatever becomes of the next statement
                self._sleep.mark([name], asleep=False)
                queue.known = _Known.AWAKE
        except DatabaseUnavailable:
            queue.known = _Known.NOTHING
        return None

    def _lie_down(self, name: str, queue: _Queue) -> float | None:
        if queue.known is _Known.ASLEEP:
            return None
        if queue.known is not _Known.DOZING:
            self._sleep.mark([name], asleep=True)
            queue.known, queue.nap = _Known.DOZING, _FIRST_NAP
        if self._sleep.is_quiet(name):
            queue.known = _Known.ASLEEP
            return 0.0
        queue.nap = min(_LONGEST_NAP, 2 * queue.nap)
        return queue.nap

    def forget(self) -> None:
        """A connection was lost: what the database knew may be lost too."""
        self._queues.clear()
