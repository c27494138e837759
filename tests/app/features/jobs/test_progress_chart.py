"""The picture of an attempt's progress."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dataloader.app.features.jobs.progress_chart import RATE_HEIGHT, ProgressChart, build_chart
from dataloader.app.features.jobs.progress_history import ProgressPoint

START = datetime(2030, 1, 31, 5, tzinfo=UTC)


def drawn(
    *amounts: tuple[float, float], total: float | None = None, end: float = 120, has_ended: bool = False
) -> ProgressChart | None:
    points = [ProgressPoint(START + timedelta(seconds=second), done, total, None) for second, done in amounts]
    at = START + timedelta(seconds=end)
    return build_chart(
        points, started_at=START, finished_at=at if has_ended else None, now=at, format_time=datetime.strftime
    )


@pytest.mark.parametrize("amounts", [(), ((0, 0), (10, 5), (20, 9)), ((5, 1),) * 4])
def test_too_few_points_are_not_drawn(amounts):
    assert drawn(*amounts) is None


def test_line_reaches_the_upper_edge_at_the_total():
    chart = drawn((0, 0), (60, 50), (90, 100), (120, 200), total=200)

    assert chart is not None
    assert chart.line == "0.00,100.00 50.00,75.00 75.00,50.00 100.00,0.00"
    assert (chart.top, chart.last.done, chart.end_label) == (200, 200, "now")
    assert [x for x, _ in chart.ticks] == [0, 20, 40, 60, 80]


def test_rate_is_spread_over_the_time_between_points():
    chart = drawn((0, 0), (60, 60), (61, 62), (120, 62), has_ended=True)

    assert chart is not None
    assert [bar.rate for bar in chart.bars] == [pytest.approx(1)] * 31  # of two seconds each
    assert [chart.max_rate, chart.mean_rate] == pytest.approx([1, 62 / 120])
    assert chart.end_label == "05:02:00"
    assert all(bar.height == RATE_HEIGHT for bar in chart.bars)
    assert sum(bar.rate * 2 for bar in chart.bars) == pytest.approx(62)


def test_count_that_begins_again_has_no_rate():
    chart = drawn((0, 0), (40, 400), (60, 0), (120, 60), total=100)

    assert chart is not None
    assert [chart.top, chart.max_rate, chart.mean_rate] == pytest.approx([400, 10, 460 / 120])
    assert {round(bar.rate) for bar in chart.bars} == {10, 1}
