"""Jobs ended per half hour as the bars of a picture, with the figures as text."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime

from dataloader.app.state.statistics import Chart

BAR_SEC = 1800
TOP, BASE = 20, 120  # of the bars, in units of the picture's height
_BARS_PER_TICK, _MAX_TICKS = 12, 4
_GAP_SHARE = 0.28  # of a bar's width is left free


@dataclass(frozen=True)
class Bar:
    """One half hour; the failed part lies on the succeeded part. `x` and `width` are in percent."""

    at: datetime
    succeeded: int
    failed: int
    x: float
    width: float
    y: float
    height: float
    failed_y: float
    failed_height: float


@dataclass(frozen=True)
class Throughput:
    """The bars of a chart. `top` is the number at the upper line."""

    bars: list[Bar]
    top: int
    succeeded: int
    failed: int
    ticks: list[Bar]  # the bars that have their time below them

    @property
    def has_ended(self) -> bool:
        return bool(self.succeeded or self.failed)

    @property
    def largest(self) -> int:
        return max((bar.succeeded + bar.failed for bar in self.bars), default=0)

    @property
    def worst(self) -> Bar | None:
        """The half hour with the largest number of failures, if there are any."""
        failing = [bar for bar in self.bars if bar.failed]
        return max(failing, key=lambda bar: bar.failed) if failing else None

    @classmethod
    def from_chart(cls, chart: Chart) -> Throughput:
        counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for point in chart.points:
            bar = counts[_bar_of(point.at)]
            bar[0] += point.statistics.succeeded
            bar[1] += point.statistics.failed + point.statistics.lost
        numbers = range(_bar_of(chart.since), _bar_of(chart.until) + 1)
        top = _round_up(max((sum(counts[number]) for number in numbers), default=0))
        width = 100 / len(numbers)
        bars = [
            _bar(number, *counts[number], x=index * width, width=width * (1 - _GAP_SHARE), top=top)
            for index, number in enumerate(numbers)
        ]
        succeeded, failed = sum(bar.succeeded for bar in bars), sum(bar.failed for bar in bars)
        return cls(bars, top, succeeded, failed, bars[::_BARS_PER_TICK][:_MAX_TICKS])


def _bar_of(at: datetime) -> int:
    return int(at.timestamp() // BAR_SEC)


def _bar(number: int, succeeded: int, failed: int, *, x: float, width: float, top: int) -> Bar:
    height = (BASE - TOP) * succeeded / top
    # A single failure among thousands of jobs stays visible.
    failed_height = max(2.0, (BASE - TOP) * failed / top) if failed else 0.0
    return Bar(
        at=datetime.fromtimestamp(number * BAR_SEC, UTC),
        succeeded=succeeded,
        failed=failed,
        x=round(x, 2),
        width=round(width, 2),
        y=round(BASE - height, 1),
        height=round(height, 1),
        failed_y=round(BASE - height - failed_height, 1),
        failed_height=round(failed_height, 1),
    )


def _round_up(largest: int) -> int:
    """The next number of the form 1, 2 or 5 times a power of ten, at least 2."""
    if largest <= 2:  # noqa: PLR2004 - the half of it is a whole number
        return 2
    magnitude: int = 10 ** int(math.log10(largest))
    return next(step * magnitude for step in (1, 2, 5, 10) if step * magnitude >= largest)
