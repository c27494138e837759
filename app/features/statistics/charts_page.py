"""The charts page: statistics over time, whose cost does not depend on the number of jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Literal

from flask import Response
from pydantic import Field

from dataloader.app.acts.feature import load_all
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.state.statistics import Chart, PeriodStatistics, Statistics
from dataloader.app.ui.base import FormModel, FormText, PageRenderer
from dataloader.app.ui.formatter import Formatter
from dataloader.app.ui.line_chart import LineChart

_NO_JOBS = PeriodStatistics()
_PER_MINUTE = "jobs per minute"
_ROWS_SHOWN, _MIN_WHOLE = 60, 1000
_CHARTS = (  # title, unit, and the attribute of the statistics for each line
    ("Throughput", _PER_MINUTE, {"queued": "queued", "succeeded": "succeeded"}),
    ("Failures", "jobs", {"failed": "failed", "lost": "lost", "retries": "retried", "canceled": "canceled"}),
    ("Queue time", "seconds", {"p50": "wait_time.p50", "p95": "wait_time.p95"}),
    ("Duration", "seconds", {"p50": "run_time.p50", "p95": "run_time.p95"}),
)
_DEPTH_LINES = {
    "ready": "ready",
    "scheduled": "scheduled",
    "blocked": "blocked",
    "limited": "limited",
    "waiting": "waiting",
    "running": "running",
}


class ChartsPageQuery(FormModel):
    period: Literal["1h", "24h", "7d"] = Field("1h", description="How far back.")
    queue: FormText = Field("", description="Only this queue.")
    task: FormText = Field("", description="Only this task.")


def create_charts_page(site: Site) -> ApiBlueprint:
    source, options = site.executor, site.options
    pages = PageRenderer("charts_page", options)
    statistics = Statistics(source)
    more_charts = [make(site) for make in load_all(site.features, "charts")]

    @pages.page("/charts", query=ChartsPageQuery)
    def show_charts(query: ChartsPageQuery) -> Response:
        """Show throughput, failures, times and queue depth of the last hour, day or week."""
        chart = statistics.chart(query.period, queue=query.queue or None, task=query.task or None)
        return pages.render(
            "charts.html",
            query=query,
            charts=[*_line_charts(chart), *(more for make in more_charts for more in make(query.task or None))],
            bucket=chart.bucket_sec,
            figure_text=_figure_text,
            table_rows=_table_rows,
        )

    return pages.blueprint


def _line_charts(chart: Chart) -> list[LineChart]:
    starts = list(_bucket_starts(chart))
    timestamps = [int(start.timestamp()) for start in starts]
    by_start = {point.at: point.statistics for point in chart.points}
    buckets = [by_start.get(start, _NO_JOBS) for start in starts]
    # The last bucket is not over: a rate over its full length would always seem to fall.
    last_sec = max(60.0, chart.until.timestamp() - timestamps[-1]) if timestamps else 60.0
    minutes = [chart.bucket_sec / 60] * (len(timestamps) - 1) + [min(chart.bucket_sec, last_sec) / 60]
    charts = []
    for title, unit, attributes in _CHARTS:
        values = [[attrgetter(attribute)(bucket) for bucket in buckets] for attribute in attributes.values()]
        if unit == _PER_MINUTE:
            values = [[count / length for count, length in zip(line, minutes, strict=True)] for line in values]
        charts.append(LineChart(title, unit, tuple(attributes), timestamps, values))
    if chart.depths:
        depths = {depth.at: depth for depth in chart.depths}
        rows = [depths.get(start) for start in starts]
        values = [[getattr(depth, attribute, None) for depth in rows] for attribute in _DEPTH_LINES.values()]
        charts.append(LineChart("Queue depth", "jobs", tuple(_DEPTH_LINES), timestamps, values))
    return charts


def _table_rows(chart: LineChart, formatter: Formatter) -> Iterator[tuple[str, list[str]]]:
    """The last times of a chart with their figures, formatted here: in a template this was half of the page's time."""
    for at, values in chart.rows[:_ROWS_SHOWN]:
        moment = formatter.time_of_day(datetime.fromtimestamp(at, UTC))
        yield moment, ["" if value is None else _figure_text(value, chart.unit, formatter) for value in values]


def _figure_text(value: float | None, unit: str, formatter: Formatter) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "seconds":
        return formatter.duration(value)
    return formatter.number(round(value)) if unit == "jobs" or value >= _MIN_WHOLE else f"{value:.3g}"


def _bucket_starts(chart: Chart) -> Iterator[datetime]:
    """Yield the starts of all buckets, also of those without data."""
    size = chart.bucket_sec
    # The statistics hold only the second half of the bucket in which the period starts: it is left out.
    start = datetime.fromtimestamp(-(-chart.since.timestamp() // size) * size, chart.since.tzinfo)
    while start <= chart.until:
        yield start
        start += timedelta(seconds=size)
