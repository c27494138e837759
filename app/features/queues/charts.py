"""The picture of one queue over time: ready jobs, threads in use and ended jobs as bars, with their figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dataloader.app.state.statistics import Chart, Period

_SLOTS: Mapping[Period, int] = {"1h": 60, "24h": 48, "7d": 56}
_GAP = 0.2  # of the width of a slot


@dataclass(frozen=True)
class Slot:
    """A part of the period: the most jobs that were ready and that ran at a time, and how many ended and failed."""

    at: datetime
    ready: int = 0
    running: int = 0
    ended: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Bar:
    """A rectangle of the picture: `x` and `width` in percent, `y` and `height` in pixels."""

    x: float
    width: float
    y: float
    height: float


@dataclass(frozen=True)
class QueueChart:
    """The slots of a period, the oldest first."""

    slots: Sequence[Slot]
    slot_sec: float

    @classmethod
    def from_chart(cls, chart: Chart, period: Period) -> QueueChart:
        count = _SLOTS[period]
        length = (chart.until - chart.since) / count

        def position(at: datetime) -> int:
            return min(count - 1, max(0, int((at - chart.since) / length)))

        ready, running, ended, failed = ([0] * count for _ in range(4))
        for depth in chart.depths:
            slot = position(depth.at)
            ready[slot], running[slot] = max(ready[slot], depth.ready), max(running[slot], depth.running)
        for point in chart.points:
            slot = position(point.at)
            ended[slot] += point.statistics.finished
            failed[slot] += point.statistics.failed + point.statistics.lost
        starts = (chart.since + length * number for number in range(count))
        slots = [Slot(*values) for values in zip(starts, ready, running, ended, failed, strict=True)]
        return cls(slots, length.total_seconds())

    def peak(self, name: str) -> int:
        return max((getattr(slot, name) for slot in self.slots), default=0)

    def total(self, name: str) -> int:
        return sum(getattr(slot, name) for slot in self.slots)

    def bars(self, name: str, *, base: float, height: float, scale: str = "") -> Iterable[Bar]:
        """The bars of one row of the picture; `scale` names another row whose peak fills the height."""
        peak, width = self.peak(scale or name), 100 / len(self.slots)
        for number, slot in enumerate(self.slots):
            if value := getattr(slot, name):
                size = max(1.0, height * value / peak)
                yield Bar(round(number * width, 2), round(width * (1 - _GAP), 2), round(base - size, 1), round(size, 1))

    def ticks(self) -> list[tuple[int, datetime]]:
        """Positions in percent with their times, for the axis."""
        first = self.slots[0].at
        whole = timedelta(seconds=self.slot_sec * len(self.slots))
        return [(percent, first + whole * percent / 100) for percent in (0, 25, 50, 75)]

    @property
    def busy_slots(self) -> list[Slot]:
        """The slots in which there was something, the newest first."""
        return [slot for slot in reversed(self.slots) if slot.ready or slot.running or slot.ended]
