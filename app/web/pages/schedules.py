"""The pages of schedules and the calendar, with the forms that change them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from flask import Response
from pydantic import Field

from app.admin.schedules import Firing, FiringOutcome
from app.db.statements import Executor
from app.errors import ScheduleNotFound
from app.web.options import WebOptions
from app.web.pages.base import (
    FormModel,
    FormText,
    InvalidForm,
    PageRenderer,
    parse_json_object,
    parse_time,
    redirect_to,
)
from app.web.problems import InvalidRequest, ProblemCode, RequestRejected
from app.web.routing import ApiBlueprint
from app.web.schedule_changes import Calendar, PreviewTime, ScheduleDetail, ScheduleEditor, explain
from pipelines.contract import Pipelines
from pipelines.schedule_definition import ScheduleDefinition

_PREVIEW_COUNT, _FIRINGS_SHOWN = 10, 50
_MAX_JSON_DEPTH = 64
_DAYS_OF_WEEK = 7
# How a firing is shown: as its job where there is one.
_SHOWN_AS = {
    FiringOutcome.LATE_SKIPPED: "canceled",
    FiringOutcome.OVERLAP_SKIPPED: "canceled",
    FiringOutcome.PAUSED_SKIPPED: "canceled",
    FiringOutcome.REFUSED: "failed",
}


class ScheduleFields(FormModel):
    """A schedule, as a form has it; also the address of a preview that is not saved."""

    name: FormText = Field("", description="Its name.")
    task: FormText = Field("", description="The task of its jobs.")
    expression: FormText = Field("", description="Five cron fields, such as 0 6 * * *, or @daily.")
    zone: FormText = Field("", description="The IANA time zone; empty: the service's.")
    queue: FormText = Field("", description="The queue; empty: the task's.")
    args: str = Field("", description="The args as a JSON object; texts may have placeholders.")
    catch_up: FormText = Field("last", description="Of missed times: last, all or skip.")
    overlap: FormText = Field("queue", description="While an earlier job has not ended: queue, skip, cancel or allow.")


class ActionForm(FormModel):
    """An action on a schedule."""

    action: FormText = Field(description="pause, resume, catch_up, run, reset, adopt, change or delete.")
    reason: FormText = Field("", description="Why it is paused.")
    at: FormText = Field("", description="run: for this time; empty: for now.")
    again: FormText = Field("", description="run: yes to make another job of a time that has fired.")
    field: FormText = Field("", description="reset: the field; empty: all.")
    expression: FormText = Field("", description="change: the new expression.")
    args: str = Field("", description="change: the new args.")
    confirmed: FormText = Field("", description="delete: yes.")


class CalendarFields(FormModel):
    """What the calendar shows."""

    month: FormText = Field("", description="A month such as 2026-01; empty: this one.")
    day: FormText = Field("", description="A day such as 2026-01-31: its list.")
    schedule: FormText = Field("", description="Only this schedule.")


def create_schedules_page(source: Executor, pipelines: Pipelines, options: WebOptions) -> ApiBlueprint:
    pages = PageRenderer("schedules_page", options)
    editor = ScheduleEditor(source, pipelines, options)

    @pages.page("/schedules", query=ScheduleFields)
    def show_schedules(query: ScheduleFields) -> Response:
        """Show the schedules with their next time and their last one, and a form that makes one."""
        preview, problem = None, None
        if query.expression:
            try:
                with _shown_errors():
                    preview = _preview(editor, query.name or "new", editor.validate(_values(query)))
            except InvalidForm as error:
                problem = str(error)
        return pages.render(
            "schedules.html",
            schedules=editor.list_details(),
            last=editor.schedules.last_firings(),
            shown_as=shown_as,
            query=query,
            preview=preview,
            problem=problem,
            task_names=pipelines.names,
        )

    @pages.action("/schedules", form=ScheduleFields, page_url="/schedules")
    def create_schedule_from_form(form: ScheduleFields) -> Response:
        """Create a schedule."""
        with _shown_errors():
            schedule = editor.create(form.name.strip(), _values(form), is_paused=False)
        return redirect_to(f"/schedules/{quote(schedule.name, safe='')}")

    @pages.page("/schedules/<name>", problems=(ProblemCode.SCHEDULE_NOT_FOUND,))
    def show_schedule(name: str) -> Response:
        """Show a schedule: what applies, its next times, and what became of the last ones."""
        schedule = editor.get(name)
        times: list[PreviewTime] = []
        problem = None
        try:
            with _shown_errors():
                times = _preview(editor, name, editor.definition(schedule))[1]
        except InvalidForm as error:
            problem = str(error)
        detail = editor.detail(schedule)
        return pages.render(
            "schedule.html",
            schedule=detail,
            times=times,
            problem=problem,
            firings=editor.schedules.firings(schedule, limit=_FIRINGS_SHOWN),
            shown_as=shown_as,
            differences=_differences(detail),
            path=f"/schedules/{quote(name, safe='')}",
        )

    @pages.action("/schedules/<name>/act", form=ActionForm, page_url="/schedules/{name}")
    def act_on_schedule(form: ActionForm, name: str) -> Response | None:
        """Pause, resume, run, change, reset, adopt or delete a schedule."""
        with _shown_errors():
            match form.action:
                case "pause":
                    editor.pause(name, form.reason or None)
                case "resume" | "catch_up":
                    editor.resume(name, catch_up=form.action == "catch_up")
                case "run":
                    job_id, _ = editor.run(
                        name, parse_time("at", form.at, pages.formatter.zone), again=form.again == "yes"
                    )
                    return redirect_to(f"/jobs/{job_id}")
                case "reset":
                    editor.reset(name, [form.field] if form.field else None)
                case "adopt":
                    editor.adopt(name)
                case "change":
                    editor.change(name, _changes(form))
                case "delete" if form.confirmed == "yes":
                    editor.delete(name)
                    return redirect_to("/schedules")
                case "delete":
                    raise InvalidForm("tick the box to delete the schedule with its firings")
                case _:
                    raise InvalidForm(f"{form.action!r} is no action")
        return None

    _add_calendar(pages, editor)
    return pages.blueprint


def _add_calendar(pages: PageRenderer, editor: ScheduleEditor) -> None:
    @pages.page("/calendar", query=CalendarFields)
    def show_calendar(query: CalendarFields) -> Response:
        """Show what schedules made and will make: a month as a grid, or a day as a list."""
        zone = ZoneInfo(pages.formatter.zone)
        today = datetime.now(zone).date()
        day = _parse_day(query.day, today) if query.day else None
        month = day.replace(day=1) if day else _parse_day(query.month and f"{query.month}-01", today.replace(day=1))
        first, last = (day, day + timedelta(days=1)) if day else (month, _next_month(month))
        error = None
        calendar = Calendar([], [], complete=True)
        try:
            calendar = editor.calendar(_midnight(first, zone), _midnight(last, zone), name=query.schedule or None)
        except ScheduleNotFound as missing:
            error = str(missing)
        return pages.render(
            "calendar.html",
            query=query,
            problem=error,
            calendar=calendar,
            day=day,
            month=month,
            previous=(first - timedelta(days=1)).isoformat()[: 10 if day else 7],
            following=last.isoformat()[: 10 if day else 7],
            weeks=_weeks(month),
            today=today,
            counts=_counts_by_day(calendar, zone),
            shown_as=shown_as,
            schedules=editor.list_details(),
        )


@contextmanager
def _shown_errors() -> Iterator[None]:
    try:
        yield
    except InvalidRequest as error:
        raise InvalidForm.from_errors(error.errors) from None
    except RequestRejected as error:
        raise InvalidForm(str(error)) from None


def _values(form: ScheduleFields) -> dict[str, Any]:
    args, errors = parse_json_object("args", form.args or "{}", _MAX_JSON_DEPTH)
    if errors:
        raise InvalidForm.from_errors(errors)
    values = {"task": form.task, "expression": form.expression, "catch_up": form.catch_up, "overlap": form.overlap}
    values |= {name: value for name in ("zone", "queue") if (value := getattr(form, name).strip())}
    return {**values, "args": args}


def _changes(form: ActionForm) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if form.expression.strip():
        changes["expression"] = form.expression.strip()
    if form.args.strip():
        changes["args"], errors = parse_json_object("args", form.args, _MAX_JSON_DEPTH)
        if errors:
            raise InvalidForm.from_errors(errors)
    if not changes:
        raise InvalidForm("there is no change")
    return changes


def _preview(editor: ScheduleEditor, name: str, definition: ScheduleDefinition) -> tuple[str, list[PreviewTime]]:
    return explain(definition), editor.preview(name, definition, datetime.now(UTC), _PREVIEW_COUNT)


def shown_as(firing: Firing) -> str:
    """The status whose symbol and colour a firing has: that of its job, if it has one."""
    if firing.outcome in _SHOWN_AS:
        return _SHOWN_AS[firing.outcome]
    return {None: "canceled", "queued": "ready"}.get(firing.job_status, firing.job_status or "")


def _differences(schedule: ScheduleDetail) -> list[tuple[str, Any, Any]]:
    return [(name, schedule.declared.get(name), schedule.definition.get(name)) for name in schedule.differs_from_code]


def _parse_day(raw: str, default: date) -> date:
    try:
        return date.fromisoformat(raw) if raw else default
    except ValueError:
        return default


def _next_month(month: date) -> date:
    return (month.replace(day=28) + timedelta(days=4)).replace(day=1)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


def _weeks(month: date) -> list[list[date]]:
    """The weeks of a month, with the days before and after it."""
    begin = month - timedelta(days=month.weekday())
    weeks = []
    while begin < _next_month(month):
        weeks.append([begin + timedelta(days=n) for n in range(_DAYS_OF_WEEK)])
        begin += timedelta(days=_DAYS_OF_WEEK)
    return weeks


def _counts_by_day(calendar: Calendar, zone: ZoneInfo) -> dict[date, Counter[str]]:
    counts: dict[date, Counter[str]] = {}
    for firing in calendar.past:
        counts.setdefault(firing.fire_at.astimezone(zone).date(), Counter())[shown_as(firing)] += 1
    for future in calendar.future:
        counts.setdefault(future.fire_at.astimezone(zone).date(), Counter())["planned"] += 1
    return counts
