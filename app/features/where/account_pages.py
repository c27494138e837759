"""The page of a job's account, what the page of its task says of the last run, and charts of totals by day."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from flask import Response

from dataloader.app.features.where.account_reader import AccountTotals, TaskDay
from dataloader.app.features.where.account_routes import make_account_reader
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import parse_job_id
from dataloader.app.http.site import Site
from dataloader.app.ui.base import PageRenderer
from dataloader.app.ui.line_chart import LineChart

_CHART_DAYS, _MIN_CHART_DAYS = 30, 7
_MAX_LINES = 6  # tasks of a chart; the others are one line
# The colour of a kind's part of the bar, as of a status.
_COLOURS = {
    "python": "running", "native": "running", "program": "running", "sql": "succeeded", "sql_short": "succeeded",
    "sql_client": "succeeded", "sql_lock": "failed", "network": "scheduled", "dns": "scheduled", "file": "blocked",
    "memory": "blocked", "interpreter": "failed",
    "queued": "failed",
}  # fmt: skip


def create_account_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("account_page", site.options)
    reader = site.shared(make_account_reader)

    @pages.page("/jobs/<job:job_id>/account", problems=(ProblemCode.JOB_NOT_FOUND,))
    def show_job_account(job_id: str) -> Response:
        """Show for what the time of a job's attempts went."""
        return pages.render("account.html", found=reader.of_job(parse_job_id(job_id)), colours=_COLOURS)

    return pages.blueprint


def make_task_note(site: Site) -> Callable[[str], str | None]:
    """What the page of a task says: how its last run that succeeded compares with those before."""
    reader = site.shared(make_account_reader)

    def note(task: str) -> str | None:
        found = reader.last_of_task(task)
        if found is None or found[1] is None or not found[1].is_slower:
            return None
        return f"The last run was {found[1].sentence}"

    return note


def make_charts(site: Site) -> Callable[[str | None], list[LineChart]]:
    """Totals by day, for the page of charts."""
    reader = site.shared(make_account_reader)
    return lambda task: day_charts(reader.totals(days=_CHART_DAYS, task=task))


def day_charts(totals: AccountTotals) -> list[LineChart]:
    """A chart for each figure with a line for each of the tasks with the largest totals."""
    if not totals.days:
        return []
    last = datetime.fromisoformat(max(day.day for day in totals.days)).replace(tzinfo=UTC)
    first = datetime.fromisoformat(min(day.day for day in totals.days)).replace(tzinfo=UTC)
    shown_days = min(_CHART_DAYS, max(_MIN_CHART_DAYS, (last - first).days + 1))
    dates = [last - timedelta(days=back) for back in range(shown_days - 1, -1, -1)]
    days, timestamps = [date.date().isoformat() for date in dates], [int(date.timestamp()) for date in dates]
    money = f"money{f', {totals.currency}' if totals.currency else ''}"
    figures: list[tuple[str, str, Callable[[TaskDay], float]]] = [
        ("CPU by task and day", "CPU hours", lambda day: day.cpu_hours),
        ("Memory by task and day", "GB hours", lambda day: day.memory_gb_hours),
        ("Rows by task and day", "rows", lambda day: day.rows),
        ("Cost by task and day", money, lambda day: day.cost),
    ]
    charts = []
    for title, unit, figure in figures:
        by_task: dict[str, float] = {}
        for day in totals.days:
            by_task[day.task] = by_task.get(day.task, 0.0) + figure(day)
        shown = sorted((task for task, amount in by_task.items() if amount > 0), key=lambda task: -by_task[task])
        if not shown:
            continue
        names = shown[:_MAX_LINES]
        lines = {name: dict.fromkeys(days, 0.0) for name in (*names, *(["other tasks"] if shown[_MAX_LINES:] else []))}
        for day in totals.days:
            name = day.task if day.task in names else "other tasks"
            if name in lines and day.day in lines[name]:
                lines[name][day.day] += figure(day)
        charts.append(LineChart(title, unit, tuple(lines), timestamps, [[*line.values()] for line in lines.values()]))
    return charts
