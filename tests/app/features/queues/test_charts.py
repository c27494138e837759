from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dataloader.app.features.queues.charts import QueueChart
from dataloader.app.state.statistics import Chart, ChartPoint, PeriodStatistics, QueueDepth

UNTIL = datetime(2030, 1, 31, 12, tzinfo=UTC)
SINCE = UNTIL - timedelta(hours=24)


def depth(minutes: int, *, ready: int, running: int) -> QueueDepth:
    return QueueDepth(SINCE + timedelta(minutes=minutes), ready, 0, 0, running, 0, 0, None)


def made(*depths: QueueDepth, points: tuple[ChartPoint, ...] = ()) -> QueueChart:
    return QueueChart.from_chart(Chart(900, SINCE, UNTIL, list(points), list(depths)), "24h")


def test_slot_has_the_largest_depth_and_all_ends():
    points = tuple(
        ChartPoint(SINCE + timedelta(minutes=at), PeriodStatistics(succeeded=3, failed=1)) for at in (-10, 0, 15)
    )

    chart = made(depth(1, ready=4, running=2), depth(20, ready=9, running=1), points=points)

    first = chart.slots[0]
    assert (len(chart.slots), chart.slot_sec) == (48, 1800)
    assert (first.ready, first.running, first.ended, first.failed) == (9, 2, 12, 3)
    assert chart.busy_slots == [first]
    assert (chart.peak("ready"), chart.total("failed")) == (9, 3)


def test_bars_fill_their_row_by_the_peak():
    chart = made(depth(0, ready=10, running=0), depth(24 * 60, ready=5, running=0))

    tall, short = chart.bars("ready", base=70, height=50)

    assert (tall.x, tall.y, tall.height) == (0, 20, 50)
    assert (short.x, short.height) == (97.92, 25)
    assert list(chart.bars("running", base=70, height=50)) == []


def test_bars_share_the_scale_of_another_row():
    chart = made(points=(ChartPoint(SINCE, PeriodStatistics(succeeded=3, failed=1)),))

    (failed,) = chart.bars("failed", base=100, height=40, scale="ended")

    assert failed.height == 10
