"""What happened over time, from the rollups: the cost of a page does not depend on how many jobs there are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from flask import Response
from pydantic import Field

from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.queue.rollups import Chart, Happened, Rollups
from app.web.operations import HTML, Subject
from app.web.pages.frame import FormModel, Frame, Unreadable

_Text = Annotated[str, Field(max_length=1000)]
_NOTHING = Happened()


class ChartsQuery(FormModel):
    period: Literal["1h", "24h", "7d"] = Field("1h", description="How far back.")
    queue: _Text = Field("", description="Of this queue alone.")
    task: _Text = Field("", description="Of this task alone.")


@dataclass(frozen=True)
class Lines:
    """One chart: when, and a line a number."""

    title: str
    unit: str
    names: tuple[str, ...]
    at: list[int]  # seconds since 1970
    values: list[list[float | None]]

    @property
    def told(self) -> str:
        return json.dumps({"unit": self.unit, "names": self.names, "data": [self.at, *self.values]})

    @property
    def rows(self) -> list[tuple[int, list[float | None]]]:
        """For those who read numbers: the spans in which there was something, the newest first."""
        found = zip(self.at, map(list, zip(*self.values, strict=True)), strict=True)
        return [(at, values) for at, values in found if any(values)][::-1]


def charts(source: Source, frame: Frame) -> Subject:
    subject = Subject("chart_pages", "", frame.options.max_json_depth)
    rollups = Rollups(source)

    @subject.get("/charts", query=ChartsQuery, answer=str, media_type=HTML, scope=Scope.READ)
    def charts_page(wanted: ChartsQuery) -> Response:
        """See what happened over the last hour, day or week."""
        try:
            chart = rollups.chart(wanted.period, queue=wanted.queue or None, task=wanted.task or None)
        except Unreadable as error:
            return frame.away("The numbers", error)
        return frame.show("charts.html", wanted=wanted, charts=_lines(chart), span=chart.span_sec, moment=_moment)

    def _moment(at: int) -> datetime:
        return datetime.fromtimestamp(at, UTC)

    return subject


def _lines(chart: Chart) -> list[Lines]:
    at = list(_spans(chart))
    seconds = [int(moment.timestamp()) for moment in at]
    found = {point.at: point.happened for point in chart.points}
    spans = [found.get(moment, _NOTHING) for moment in at]
    # The last span goes on: a rate over all of it would always seem to fall.
    gone = max(60.0, chart.until.timestamp() - seconds[-1]) if seconds else 60.0
    minutes = [chart.span_sec / 60] * (len(seconds) - 1) + [min(chart.span_sec, gone) / 60]

    def line(pick: Any) -> list[float | None]:
        return [pick(happened) for happened in spans]

    def rate(pick: Any) -> list[float | None]:
        return [pick(happened) / length for happened, length in zip(spans, minutes, strict=True)]

    told = [
        Lines(
            "Throughput",
            "jobs a minute",
            ("queued", "succeeded"),
            seconds,
            [rate(lambda it: it.queued), rate(lambda it: it.succeeded)],
        ),
        Lines(
            "Failures",
            "jobs",
            ("failed", "lost", "tries again", "canceled"),
            seconds,
            [
                line(lambda it: it.failed),
                line(lambda it: it.lost),
                line(lambda it: it.retried),
                line(lambda it: it.canceled),
            ],
        ),
        Lines(
            "Waiting time",
            "seconds",
            ("p50", "p95"),
            seconds,
            [line(lambda it: it.waited.percentile(0.5)), line(lambda it: it.waited.percentile(0.95))],
        ),
        Lines(
            "Run time",
            "seconds",
            ("p50", "p95"),
            seconds,
            [line(lambda it: it.ran.percentile(0.5)), line(lambda it: it.ran.percentile(0.95))],
        ),
    ]
    return [*told, *_depth(chart, at, seconds)]


def _depth(chart: Chart, at: list[datetime], seconds: list[int]) -> list[Lines]:
    if not chart.depths:
        return []
    found = {depth.at: depth for depth in chart.depths}
    names = ("ready", "timed", "parked", "running")
    values: list[list[float | None]] = [
        [float(getattr(found[moment], name)) if moment in found else None for moment in at] for name in names
    ]
    return [Lines("Depth", "jobs", ("ready", "not due", "key busy", "running"), seconds, values)]


def _spans(chart: Chart) -> Any:
    """The beginnings of all spans, also of those in which nothing happened."""
    size = chart.span_sec
    # The one in which the period begins was asked for only from its middle on: it is left out.
    moment = datetime.fromtimestamp(-(-chart.since.timestamp() // size) * size, chart.since.tzinfo)
    while moment <= chart.until:
        yield moment
        moment += timedelta(seconds=size)
