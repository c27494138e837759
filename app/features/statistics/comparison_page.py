"""The page that shows two spans of time side by side: this week against last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flask import Response
from pydantic import Field

from dataloader.app.features.statistics.comparison import Span, SpanComparisons, TaskComparison
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.state.statistics import PeriodStatistics
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, PageRenderer, parse_time
from dataloader.app.ui.formatter import Formatter

_MAX_TASKS = 200  # on a page
_WAIT_SEC, _RELOAD_SEC = 0.1, 1  # for figures that are not read yet, and until the page is loaded again
_NOTABLE = 0.2  # a change by this share is marked
_UNCHANGED, _MANY_TIMES = 0.005, 9


class ComparisonQuery(FormModel):
    span: Span = Field("7d", description="The length of each span: a day, a week or four weeks.")
    task: FormText = Field("", description="Only this task.")
    until: FormText = Field("", description="The end of the later span; empty: now.")


@dataclass(frozen=True)
class Figure:
    """A figure of both spans."""

    name: str
    before: str
    now: str
    change: str
    is_worse: bool


def create_comparison_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("comparison_page", site.options)
    comparisons = SpanComparisons(site.executor)

    @pages.page("/compare", query=ComparisonQuery)
    def compare_spans(query: ComparisonQuery) -> Response:
        """Show failures, durations and rows of a span of time, and those of the span before it."""
        error = until = None
        formatter = pages.formatter
        try:
            until = parse_time("until", query.until, formatter.zone)
        except InvalidForm as refused:
            error = str(refused)
        spans = comparisons.find(query.span, until, task=query.task or None, wait_sec=_WAIT_SEC)
        tasks = [] if spans is None else spans.tasks
        response = pages.render(
            "compare.html",
            query=query,
            error=error,
            spans=spans,
            figures=[] if spans is None else figures(spans.total, formatter),
            tasks=[(found, figures(found, formatter)) for found in tasks[:_MAX_TASKS]],
            hidden=max(0, len(tasks) - _MAX_TASKS),
        )
        if spans is None:
            response.headers["Refresh"] = str(_RELOAD_SEC)
        return response

    return pages.blueprint


def figures(compared: TaskComparison, formatter: Formatter) -> list[Figure]:
    """The figures of a task, with their changes."""

    def counted(name: str, before: float | None, now: float | None, *, more_is_worse: bool = False) -> Figure:
        return _figure(name, before, now, formatter.number, more_is_worse=more_is_worse)

    def timed(name: str, before: float | None, now: float | None) -> Figure:
        return _figure(name, before, now, formatter.duration, more_is_worse=True)

    before, now = compared.before, compared.now
    return [
        counted("Jobs", before.finished, now.finished),
        counted("Failed", before.failed + before.lost, now.failed + now.lost, more_is_worse=True),
        timed("Duration, p50", before.run_time.p50, now.run_time.p50),
        timed("Duration, p95", before.run_time.p95, now.run_time.p95),
        timed("Running, in all", _total_sec(before), _total_sec(now)),
        timed("Queue time, p95", before.wait_time.p95, now.wait_time.p95),
        counted("Rows", compared.rows_before, compared.rows_now),
    ]


def _total_sec(statistics: PeriodStatistics) -> float | None:
    mean = statistics.run_time.mean
    return None if mean is None else mean * statistics.run_time.count


def _figure(
    name: str, before: float | None, now: float | None, write: Callable[[float], str], *, more_is_worse: bool
) -> Figure:
    share = None if not before or now is None else now / before - 1
    is_more = bool(now) and (share is None or share >= _NOTABLE) if before is not None else False
    texts = ["–" if value is None else write(value) for value in (before, now)]
    is_new = before == 0 and bool(now)
    change = "new" if is_new else "" if share is None else _change(share)
    return Figure(name, texts[0], texts[1], change, more_is_worse and is_more)


def _change(share: float) -> str:
    """`+28 %`, `−4 %`, `same`; `× 12` of what is many times as much."""
    if abs(share) < _UNCHANGED:
        return "same"
    return f"× {share + 1:.0f}" if share >= _MANY_TIMES else f"{share * 100:+.0f} %".replace("-", "−")
