"""The charts page: statistics over time, whose cost does not depend on the number of jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from flask import Response
from pydantic import Field

from app.admin.statistics import Chart, PeriodStatistics, Statistics
from app.queue.jobs import Executor
from app.web.pages.base import FormModel, FormText, PageRenderer
from app.web.routing import ApiBlueprint

_NO_JOBS = PeriodStatistics()


class ChartsPageQuery(FormModel):
    period: Literal["1h", "24h", "7d"] = Field("1h", description="How far back.")
    queue: FormText = Field("", description="Only this queue.")
    task: FormText = Field("", description="Only this task.")


@dataclass(frozen=True)
class LineChart:
    """One chart: its times and a line for each name."""

    title: str
    unit: str
    names: tuple[str, ...]
    timestamps: list[int]  # seconds since 1970
    values: list[list[float | None]]

    @property
    def as_json(self) -> str:
        return json.dumps({"unit": self.unit, "names": self.names, "data": [self.timestamps, *self.values]})

    @property
    def rows(self) -> list[tuple[int, list[float | None]]]:
        """The buckets that hold data as rows of a table, the newest first."""
        rows = zip(self.timestamps, map(list, zip(*self.values, strict=True)), strict=True)
        return [(at, values) for at, values in rows if any(values)][::-1]


def create_charts_page(source: Executor, renderer: PageRenderer) -> ApiBlueprint:
    blueprint = renderer.blueprint("charts_page")
    statistics = Statistics(source)

    @renderer.page(blueprint, "/charts", query=ChartsPageQuery)
    def show_charts(query: ChartsPageQuery) -> Response:
        """Show throughput, failures, times and queue depth of the last hour, day or week."""
        chart = statistics.chart(query.period, queue=query.queue or None, task=query.task or None)
        return renderer.render(
            "charts.html",
            query=query,
            charts=_line_charts(chart),
            bucket=chart.bucket_sec,
            from_timestamp=lambda timestamp: datetime.fromtimestamp(timestamp, UTC),
        )

    return blueprint


def _line_charts(chart: Chart) -> list[LineChart]:
    starts = list(_bucket_starts(chart))
    timestamps = [int(start.timestamp()) for start in starts]
    by_start = {point.at: point.statistics for point in chart.points}
    buckets = [by_start.get(start, _NO_JOBS) for start in starts]
    # The last bucket is not over: a rate over its full length would always seem to fall.
    last_sec = max(60.0, chart.until.timestamp() - timestamps[-1]) if timestamps else 60.0
    minutes = [chart.bucket_sec / 60] * (len(timestamps) - 1) + [min(chart.bucket_sec, last_sec) / 60]

    def line(value: Callable[[PeriodStatistics], float | None]) -> list[float | None]:
        return [value(bucket) for bucket in buckets]

    def per_minute(value: Callable[[PeriodStatistics], int]) -> list[float | None]:
        return [value(bucket) / length for bucket, length in zip(buckets, minutes, strict=True)]

    throughput = [per_minute(lambda bucket: bucket.queued), per_minute(lambda bucket: bucket.succeeded)]
    failures = [
        line(lambda bucket: bucket.failed),
        line(lambda bucket: bucket.lost),
        line(lambda bucket: bucket.retried),
        line(lambda bucket: bucket.canceled),
    ]
    queue_time = [line(lambda bucket: bucket.wait_time.p50), line(lambda bucket: bucket.wait_time.p95)]
    duration = [line(lambda bucket: bucket.run_time.p50), line(lambda bucket: bucket.run_time.p95)]
    percentiles = ("p50", "p95")
    return [
        LineChart("Throughput", "jobs per minute", ("queued", "succeeded"), timestamps, throughput),
        LineChart("Failures", "jobs", ("failed", "lost", "retries", "canceled"), timestamps, failures),
        LineChart("Queue time", "seconds", percentiles, timestamps, queue_time),
        LineChart("Duration", "seconds", percentiles, timestamps, duration),
        *_depth_chart(chart, starts, timestamps),
    ]


def _depth_chart(chart: Chart, starts: list[datetime], timestamps: list[int]) -> list[LineChart]:
    if not chart.depths:
        return []
    depths = {depth.at: depth for depth in chart.depths}
    rows = [depths.get(start) for start in starts]
    values: list[list[float | None]] = [
        [None if depth is None else depth.ready for depth in rows],
        [None if depth is None else depth.scheduled for depth in rows],
        [None if depth is None else depth.blocked for depth in rows],
        [None if depth is None else depth.running for depth in rows],
    ]
    names = ("ready", "scheduled", "blocked by lock", "running")
    return [LineChart("Queue depth", "jobs", names, timestamps, values)]


def _bucket_starts(chart: Chart) -> Iterator[datetime]:
    """Yield the starts of all buckets, also of those without data."""
    size = chart.bucket_sec
    # The statistics hold only the second half of the bucket in which the period starts: it is left out.
    start = datetime.fromtimestamp(-(-chart.since.timestamp() // size) * size, chart.since.tzinfo)
    while start <= chart.until:
        yield start
        start += timedelta(seconds=size)
