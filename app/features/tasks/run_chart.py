"""The chart of the durations of a task's last runs, as places in an SVG whose width is not known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dataloader.app.state.statistics import RecentRun

HEIGHT_PX = 170
_TOP_PX, _BOTTOM_PX = 20, 140
_MARGIN_PERCENT = 1.5
_MAX_TICKS = 4
_MAX_LIMIT_SHARE = 2.0  # a time limit far above all durations would press them together: it is left out
_STEPS_SEC = (
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400,
    21_600, 43_200, 86_400,
)  # fmt: skip


@dataclass(frozen=True)
class RunPoint:
    """A run: its place from the left in percent, and from the top in pixels."""

    x: float
    y: float
    run: RecentRun


@dataclass(frozen=True, kw_only=True)
class RunChart:
    """Durations of runs, the oldest at the left. `band` holds the middle half of them: its top and its height."""

    points: list[RunPoint]
    ticks: list[tuple[float, float]]  # from the top, and the seconds there
    band: tuple[float, float]
    limit_y: float | None
    median_sec: float
    p95_sec: float
    longest_sec: float
    first_at: datetime
    middle_at: datetime
    last_at: datetime


def make_run_chart(runs: Sequence[RecentRun], *, time_limit_sec: float | None = None) -> RunChart | None:
    """Place the runs, of which the newest comes first; None: fewer than two have a duration."""
    shown = [run for run in reversed(runs) if run.duration_sec is not None and math.isfinite(run.duration_sec)]
    if len(shown) < 2:  # noqa: PLR2004 - one point is no chart
        return None
    durations = sorted(run.duration_sec or 0.0 for run in shown)
    longest = max(durations[-1], _STEPS_SEC[0])
    has_limit = time_limit_sec is not None and time_limit_sec <= longest * _MAX_LIMIT_SHARE
    top_sec = max(longest, time_limit_sec or 0.0) if has_limit else longest

    def place(seconds: float) -> float:
        return round(_BOTTOM_PX - (_BOTTOM_PX - _TOP_PX) * seconds / top_sec, 1)

    step_sec = next((step for step in _STEPS_SEC if top_sec / step <= _MAX_TICKS), top_sec)
    gap = (100 - 2 * _MARGIN_PERCENT) / (len(shown) - 1)
    upper, lower = place(_quantile(durations, 0.75)), place(_quantile(durations, 0.25))
    return RunChart(
        points=[
            RunPoint(round(_MARGIN_PERCENT + n * gap, 2), place(run.duration_sec or 0.0), run)
            for n, run in enumerate(shown)
        ],
        ticks=[(place(n * step_sec), n * step_sec) for n in range(int(top_sec / step_sec) + 1)],
        band=(upper, max(1.0, round(lower - upper, 1))),
        limit_y=place(time_limit_sec) if has_limit and time_limit_sec is not None else None,
        median_sec=_quantile(durations, 0.5),
        p95_sec=_quantile(durations, 0.95),
        longest_sec=durations[-1],
        first_at=shown[0].finished_at,
        middle_at=shown[len(shown) // 2].finished_at,
        last_at=shown[-1].finished_at,
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]
