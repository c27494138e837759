"""What a process counts while it works, for whoever asks. Cheap enough to be counted for each of many tiny jobs."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Seconds: from jobs of a few milliseconds to loads of a night.
# fmt: off
BOUNDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 43_200,
)
# fmt: on


@dataclass
class Spread:
    """Durations, by the first bound that each fits under; the last place is for what fits under none."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


@dataclass(frozen=True)
class Counted:
    """All that was counted up to now."""

    ended: Mapping[tuple[str, str, str], int]  # (queue, task, status)
    ran: Mapping[tuple[str, str], Spread]  # (queue, task)
    waited: Mapping[tuple[str, str], Spread]
    leases_lost: int
    fenced: int


class Tally:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: Counter[tuple[str, str, str]] = Counter()  # under the lock, as all the rest
        self._ran: dict[tuple[str, str], Spread] = {}
        self._waited: dict[tuple[str, str], Spread] = {}
        self._leases_lost = 0
        self._fenced = 0

    def ended_many(self, ends: Iterable[tuple[str, str, str, float, float | None]]) -> None:
        """Tries are over: queue, task, status, how long it ran, and how long it waited from when it could have begun;
        None: not its first try."""
        with self._lock:
            for queue, task, status, ran, waited in ends:
                self._ended[queue, task, status] += 1
                which = (queue, task)
                spread = self._ran.get(which)
                if spread is None:
                    spread = self._ran[which] = Spread()
                spread.add(ran)
                if waited is not None:
                    spread = self._waited.get(which)
                    if spread is None:
                        spread = self._waited[which] = Spread()
                    spread.add(waited)

    def lease_lost(self) -> None:
        with self._lock:
            self._leases_lost += 1

    def fenced(self) -> None:
        """A run wanted to write down its end, and its job was another's."""
        with self._lock:
            self._fenced += 1

    def counted(self) -> Counted:
        with self._lock:
            return Counted(
                dict(self._ended),
                {which: Spread([*spread.counts], spread.total) for which, spread in self._ran.items()},
                {which: Spread([*spread.counts], spread.total) for which, spread in self._waited.items()},
                self._leases_lost,
                self._fenced,
            )
