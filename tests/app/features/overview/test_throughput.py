"""The bars of the throughput picture."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dataloader.app.features.overview.throughput import BASE, TOP, Throughput
from dataloader.app.state.statistics import Chart, ChartPoint, PeriodStatistics

UNTIL = datetime(2026, 11, 22, 12, 10, tzinfo=UTC)


def throughput(*points: tuple[datetime, int, int]) -> Throughput:
    counted = [ChartPoint(at, PeriodStatistics(succeeded=done, failed=failed)) for at, done, failed in points]
    return Throughput.from_chart(Chart(900, UNTIL - timedelta(hours=24), UNTIL, counted, []))


def test_quarters_of_an_hour_are_summed_by_half_hour():
    half = UNTIL.replace(minute=0)

    found = throughput((half - timedelta(minutes=30), 3, 0), (half - timedelta(minutes=15), 4, 1))

    assert (found.succeeded, found.failed, found.top, found.largest) == (7, 1, 10, 8)
    bar = found.worst
    assert bar is not None
    assert bar.at == half - timedelta(minutes=30)
    assert (bar.y, bar.height) == (BASE - 70, 70)
    assert (bar.failed_y, bar.failed_height) == (BASE - 80, 10)


def test_single_failure_stays_visible_and_bars_fill_the_width():
    found = throughput((UNTIL, 9_000, 1))

    assert found.bars[-1].failed_height == 2
    assert found.bars[-1].y >= TOP
    assert len(found.bars) == 49
    assert 97 < found.bars[-1].x + found.bars[-1].width < 100
    assert [found.bars.index(tick) for tick in found.ticks] == [0, 12, 24, 36]


def test_chart_without_jobs_has_no_bars_of_height():
    found = throughput()

    assert not found.has_ended
    assert found.worst is None
