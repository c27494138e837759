"""Where the runs of a task stand in the chart of their durations."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from dataloader.app.features.tasks.run_chart import make_run_chart
from dataloader.app.state.statistics import RecentRun

BEGIN = datetime(2026, 11, 22, tzinfo=UTC)


def runs(*durations):
    """The newest first, as they are stored."""
    made = [
        RecentRun(uuid4(), "q", BEGIN + timedelta(minutes=n), "succeeded", 1, seconds)
        for n, seconds in enumerate(durations)
    ]
    return made[::-1]


def test_runs_stand_from_left_to_right_by_their_age():
    chart = make_run_chart(runs(1, 2, 3, 4))

    assert chart is not None
    assert [point.run.duration_sec for point in chart.points] == [1, 2, 3, 4]
    assert (chart.points[0].x, chart.points[-1].x) == (1.5, 98.5)
    assert [point.y for point in chart.points] == [110.0, 80.0, 50.0, 20.0]
    assert (chart.first_at, chart.last_at) == (BEGIN, BEGIN + timedelta(minutes=3))


def test_figures_and_band_are_of_the_shown_runs():
    chart = make_run_chart(runs(10, 20, 30, 40, 100))

    assert chart is not None
    assert (chart.median_sec, chart.p95_sec, chart.longest_sec) == (30, 100, 100)
    assert chart.band == (92.0, 24.0)
    assert [seconds for _, seconds in chart.ticks] == [0, 30, 60, 90]


def test_time_limit_is_shown_only_near_the_durations():
    near, far = make_run_chart(runs(50, 60), time_limit_sec=90), make_run_chart(runs(1, 2), time_limit_sec=3_600)

    assert near is not None
    assert far is not None
    assert near.limit_y == 20.0
    assert far.limit_y is None


def test_runs_without_a_duration_are_left_out():
    assert make_run_chart(runs(1)) is None
    assert make_run_chart(runs(1, None)) is None
    chart = make_run_chart(runs(1, None, 0))
    assert chart is not None
    assert len(chart.points) == 2


def test_run_of_no_measured_time_is_left_out():
    chart = make_run_chart(runs(1, math.nan, 3))

    assert chart is not None
    assert (len(chart.points), chart.longest_sec) == (2, 3)
