"""Bounds the cost of a repeated scan, which reads an index from its front, the first entry.

While a transaction is open for hours, entries of rows that are gone stay at the front, and each scan walks over them.
It is then repeated less often, so that it costs about one part in fifty of the time.
"""

from __future__ import annotations

_TIME_RATIO = 50
_SAMPLES = 3  # of these scans the quickest counts: a machine that stalls once is no reason
_SLOW_SEC = 0.005


class Pace:
    """One thread at a time records, any thread reads. The pause is bounded, since no scan is timed meanwhile."""

    def __init__(self, max_interval_sec: float = 30.0) -> None:
        self._max_interval_sec = max_interval_sec
        self._durations: tuple[float, ...] = ()

    def record(self, duration_sec: float) -> None:
        self._durations = (*self._durations, duration_sec)[-_SAMPLES:]

    @property
    def is_slow(self) -> bool:
        """Whether the last scans took long."""
        return len(self._durations) == _SAMPLES and min(self._durations) > _SLOW_SEC

    @property
    def interval_sec(self) -> float:
        """The pause until the next scan; 0 unless the last ones took long."""
        return min(self._max_interval_sec, _TIME_RATIO * min(self._durations)) if self.is_slow else 0.0
