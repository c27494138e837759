"""The page of runs by day: one look says what of the last days failed, and what is missing."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from flask import Response
from pydantic import Field

from dataloader.app.features.runs.grid import MAX_DAYS, DayRuns, TaskRuns, totals
from dataloader.app.features.runs.routes import day_grids
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.links import quote_name
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import FormModel, FormText, PageRenderer
from dataloader.app.ui.formatter import Formatter

_MAX_TASKS = 100  # on a page
_PERIODS = (7, 14, MAX_DAYS)


class RunsPageQuery(FormModel):
    """Which days and tasks to show."""

    days: FormText = Field("7", description="The number of days: 7, 14 or 31.")
    until: FormText = Field("", description="The last day; empty: today.")
    q: FormText = Field("", description="Only tasks with this text in the name.")
    only: FormText = Field("", description="problems: only tasks of which a job failed or was not made.")
    page: FormText = Field("1", description="The page of the list.")


def create_runs_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("runs_page", site.options)
    grids = day_grids(site)

    @pages.page("/runs", query=RunsPageQuery)
    def show_runs(query: RunsPageQuery) -> Response:
        """Show what each task did on each day, and what it should have done."""
        zone = pages.formatter.zone
        today = datetime.now(ZoneInfo(zone)).date()
        day_count = int(query.days) if query.days in map(str, _PERIODS) else _PERIODS[0]
        last_day = min(_parse_day(query.until, today), today)
        grid = grids.get(zone, last_day, day_count)
        can_see_task = current_actor().can_see_task
        visible = [] if grid is None else [task for task in grid.tasks if can_see_task(task.task)]
        matching = [task for task in visible if query.q.strip().casefold() in task.task.casefold()]
        shown = [task for task in matching if query.only != "problems" or _is_problem(task)]
        page = max(1, int(query.page)) if query.page.isdecimal() and len(query.page) < 5 else 1  # noqa: PLR2004 - digits
        sums = [] if grid is None else totals(matching, grid.days)

        def address(**changes: object) -> str:
            values = {"days": day_count, "until": query.until, "q": query.q, "only": query.only} | changes
            defaults = {"days": _PERIODS[0], "page": 1}
            return "/runs?" + urlencode({n: v for n, v in values.items() if v and defaults.get(n) != v})

        return pages.render(
            "runs.html",
            grid=grid,
            tasks=shown[(page - 1) * _MAX_TASKS : page * _MAX_TASKS],
            total=len(visible),
            shown_count=len(shown),
            problem_task_count=sum(map(_is_problem, matching)),
            totals=sums,
            query=query,
            day_count=day_count,
            periods=_PERIODS,
            today=today,
            earlier=address(until=last_day - timedelta(days=day_count)),
            later=address(until=min(last_day + timedelta(days=day_count), today)) if last_day < today else None,
            next_page=address(page=page + 1) if len(shown) > page * _MAX_TASKS else None,
            address=address,
            day_url=lambda task, day: _day_url(task, day, zone),
            describe=describe_day,
        )

    return pages.blueprint


def _is_problem(task: TaskRuns) -> bool:
    return any(day.state in ("failed", "missed") for day in task.days)


def _day_url(task: TaskRuns, day: DayRuns, zone: str) -> str:
    """The jobs of the day; if there are none, the schedule that should have made them."""
    if day.ended == 0 and day.missed and task.schedules:
        return f"/schedules/{quote_name(task.schedules[0])}"
    if day.ended == 0 and day.open:
        return f"/jobs?{urlencode({'task': task.task, 'status': 'queued,running'})}"
    begin = datetime(day.day.year, day.day.month, day.day.day, tzinfo=ZoneInfo(zone))
    end = (begin + timedelta(days=1)).isoformat()
    status = "failed,lost" if day.failed + day.lost else ""
    fields = {"task": task.task, "status": status, "finished_from": begin.isoformat(), "finished_to": end}
    return f"/jobs?{urlencode({name: value for name, value in fields.items() if value})}"


def describe_day(day: DayRuns) -> str:
    """All counts in words."""
    counts = {
        "succeeded": day.succeeded,
        "failed": day.failed,
        "lost": day.lost,
        "not run": day.missed,
        "not ended": day.open,
        "canceled": day.canceled,
    }
    return (
        ", ".join(f"{Formatter.number(count)} {name}" for name, count in counts.items() if count)
        or "nothing ran, nothing was due"
    )


def _parse_day(raw: str, default: date) -> date:
    try:
        return date.fromisoformat(raw)
    except ValueError:
        return default
