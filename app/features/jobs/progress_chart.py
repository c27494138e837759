"""The picture of an attempt's progress: how much was done, and the rate, over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from dataloader.app.features.jobs.job_timeline import time_axis
from dataloader.app.features.jobs.progress_history import ProgressPoint

MIN_POINTS = 4  # fewer are no picture
RATE_HEIGHT = 40  # of the highest bar, in units of the picture's height
_MAX_BARS = 60
_MIN_BAR_SEC = 2.0
_GAP = 0.2  # of a bar's width is left free
_MIN_BAR_HEIGHT = 1.0
_MIN_COVERED_SHARE = 0.3  # of a bar's time; of less the rate would be a peak by chance


@dataclass(frozen=True)
class RateBar:
    """The mean rate in a part of the time: `x` and `width` in percent, `height` in units of the picture's height."""

    at: datetime
    rate: float
    x: float
    width: float
    height: float


@dataclass(frozen=True)
class ProgressChart:
    """`line` has the points of a polyline in a square of 100 by 100; its upper edge is `top`."""

    line: str
    top: float
    last: ProgressPoint
    bars: list[RateBar]
    max_rate: float
    mean_rate: float | None
    ticks: list[tuple[float, str]]
    end_label: str


def build_chart(
    points: Sequence[ProgressPoint],
    *,
    started_at: datetime,
    finished_at: datetime | None,
    now: datetime,
    format_time: Callable[[datetime, str], str],
) -> ProgressChart | None:
    """The picture from the start of the attempt to its end, or to now. None: there are too few points."""
    if len(points) < MIN_POINTS or points[-1].at <= points[0].at:
        return None
    start, end = min(started_at, points[0].at), max(finished_at or now, points[-1].at)
    last, top = points[-1], max(points[-1].total or 0.0, *(point.done for point in points)) or 1.0
    span = end - start
    done = sum(max(0.0, after.done - before.done) for before, after in pairwise(points))
    rates = _rates(points, start, end)
    max_rate = max((rate for _, rate in rates), default=0.0)
    width = 100 / max(1, len(rates))
    bars = [
        RateBar(at, rate, round(n * width, 2), round(width * (1 - _GAP), 2), _bar_height(rate, max_rate))
        for n, (at, rate) in enumerate(rates)
        if rate > 0
    ]
    ticks, end_label = time_axis(start, end, format_time, has_ended=finished_at is not None)
    return ProgressChart(
        " ".join(f"{100 * ((p.at - start) / span):.2f},{100 - 100 * p.done / top:.2f}" for p in points),
        top,
        last,
        bars,
        max_rate,
        done / (last.at - points[0].at).total_seconds() if done else None,
        ticks,
        end_label,
    )


def _rates(points: Sequence[ProgressPoint], start: datetime, end: datetime) -> list[tuple[datetime, float]]:
    """The mean rate in each part of the time, or in so much of it as lies between the first point and the last. What
    was done between two points is spread evenly over their time; a count that began again adds nothing."""
    span_sec = (end - start).total_seconds()
    count = max(1, min(_MAX_BARS, int(span_sec / _MIN_BAR_SEC)))
    length_sec = span_sec / count
    amounts, covered_sec = [0.0] * count, [0.0] * count
    for before, after in pairwise(points):
        amount, pause_sec = after.done - before.done, (after.at - before.at).total_seconds()
        first_sec, last_sec = ((point.at - start).total_seconds() for point in (before, after))
        first, last = (min(count - 1, int(sec / length_sec)) for sec in (first_sec, last_sec))
        for n in range(first, last + 1):
            overlap_sec = min(last_sec, (n + 1) * length_sec) - max(first_sec, n * length_sec)
            covered_sec[n] += max(0.0, overlap_sec)
            amounts[n] += max(0.0, amount) * (max(0.0, overlap_sec) / pause_sec if pause_sec > 0 else n == last)
    min_sec = _MIN_COVERED_SHARE * length_sec
    return [
        (start + timedelta(seconds=n * length_sec), amount / max(covered_sec[n], min_sec))
        for n, amount in enumerate(amounts)
    ]


def _bar_height(rate: float, max_rate: float) -> float:
    return round(max(_MIN_BAR_HEIGHT, RATE_HEIGHT * rate / max_rate), 1)
