"""What a process counts while it works, for whoever asks. Cheap enough to be counted for each of many tiny jobs."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
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

    def add(self, seconds: Iterable[float]) -> None:
        counts, total = self.counts, self.total
        for one in seconds:
            counts[bisect_left(BOUNDS, one)] += 1
            total += one
        self.total = total


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

    def ended(self, queue: str, task: str, status: str, *, ran: Collection[float], waited: Collection[float]) -> None:
        """So many tries are over: how long each ran, and how long it waited from when it could have begun."""
        which = (queue, task)
        with self._lock:
            self._ended[queue, task, status] += len(ran)
            for spreads, seconds in ((self._ran, ran), (self._waited, waited)):
                spread = spreads.get(which)
                if spread is None:
                    spread = spreads[which] = Spread()
                spread.add(seconds)

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
