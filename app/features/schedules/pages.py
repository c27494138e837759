"""The pages of schedules, with the forms that change them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from flask import Response, g
from markupsafe import Markup
from pydantic import Field

from dataloader.app.acts.matches import MAX_NAMES, Match, match_names
from dataloader.app.acts.task_parts import TaskPart
from dataloader.app.acts.web import ActForms, Choice, refusing_form
from dataloader.app.features.schedules import acts
from dataloader.app.features.schedules.clock_changes import AffectedSchedule, affected_schedules
from dataloader.app.features.schedules.form import ADVANCED_FIELDS, MAIN_FIELDS, ScheduleFields, input_of, texts_of
from dataloader.app.features.schedules.reader import Preview, ScheduleDetail, ScheduleReader
from dataloader.app.features.schedules.rows import Firing, FiringOutcome, Schedule, Schedules
from dataloader.app.http.links import quote_name
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import FormText, InvalidForm, PageRenderer, parse_time, redirect_to
from dataloader.app.ui.cells import StateCell, state_cells
from dataloader.app.ui.formatter import Formatter
from dataloader.app.ui.forms import validate_form
from dataloader.pipelines.schedule_definition import ScheduleDefinition

T = TypeVar("T")
_PREVIEW_COUNT, _FIRINGS_SHOWN, _LAST_FIRINGS = 10, 50, 10
_SCHEDULES_SHOWN, _OF_TASK_SHOWN = 100, 5
_LATE_AFTER = timedelta(minutes=1)  # as on the overview
_PAGE_URL = "/schedules/{name}"
# How a firing is shown: as its job where there is one.
_SHOWN_AS = {
    FiringOutcome.LATE_SKIPPED: "skipped",
    FiringOutcome.OVERLAP_SKIPPED: "skipped",
    FiringOutcome.PAUSED_SKIPPED: "skipped",
    FiringOutcome.REFUSED: "failed",
}


class SchedulesQuery(ScheduleFields):
    q: FormText = Field("", description="Only schedules with this text in their name or task.")
    after_name: FormText = Field("", description="Only schedules after this name.")


_CHOICES = {
    "pause": Choice(act=acts.pause_schedule),
    "resume": Choice(act=acts.resume_schedule, preset={"catch_up": False}),
    "catch_up": Choice(act=acts.resume_schedule, preset={"catch_up": True}),
    "run": Choice(act=acts.run_schedule, respond=lambda run: redirect_to(f"/jobs/{run.job_id}")),
    "reset": Choice(act=acts.reset_schedule),
    "adopt": Choice(act=acts.adopt_schedule),
    "delete": Choice(
        act=acts.delete_schedule,
        respond=lambda _: redirect_to("/schedules"),
        confirm="tick the box to delete the schedule with its firings",
    ),
}


def schedules_of_task(site: Site, task: str) -> Iterator[TaskPart]:
    reader = ScheduleReader(site.executor, site.pipelines, site.options)
    found = [
        (reader.detail(schedule), next(iter(reader.schedules.firings(schedule, limit=1)), None))
        for schedule in reader.list_visible(task=task)[:_OF_TASK_SHOWN]
    ]
    yield TaskPart(template="task_schedules.html", data={"schedules": found, "shown_as": shown_as})


def find_schedules(site: Site, text: str) -> Iterator[Match]:
    return match_names(
        "schedule",
        "/schedules/",
        (schedule.name for schedule in Schedules(site.executor).list_by_name(limit=MAX_NAMES)),
        text,
    )


def create_schedules_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("schedules_page", site.options)
    reader, runner = ScheduleReader(site.executor, site.pipelines, site.options), site.runner
    of_form: Any = {"input_of": input_of, "main_fields": MAIN_FIELDS, "advanced_fields": ADVANCED_FIELDS}

    @pages.page("/schedules", query=SchedulesQuery)
    def show_schedules(query: SchedulesQuery) -> Response:
        """Show the schedules with their next time and their last ones, and a form that makes one."""
        return render_schedules(query)

    def render_schedules(query: SchedulesQuery) -> Response:
        preview, problem = None, None
        if (query.expression or query.after) and g.get("refused_form") is None:
            preview, problem = _attempt(lambda: _preview_new(reader, query, pages.formatter.zone))
        everything = reader.list_visible()
        text = query.q.strip().casefold()
        found = [each for each in everything if text in each.name.casefold() or text in each.task.casefold()]
        rest = found[next((n for n, each in enumerate(found, 1) if each.name == query.after_name), 0) :]
        details = [reader.detail(schedule) for schedule in rest[:_SCHEDULES_SHOWN]]
        return pages.render(
            "schedules.html",
            schedules=details,
            total=len(everything),
            more=len(rest) - len(details),
            states=Counter(_state(schedule) for schedule in found),
            state_of=_state,
            firings=reader.schedules.last_firings_of([each.schedule_id for each in details], limit=_LAST_FIRINGS),
            affected=_affected_by_clock_changes(reader, details),
            firing_cells=firing_cells,
            query=query,
            preview=preview,
            problem=problem,
            task_names=site.pipelines.names,
            has_advanced=any(getattr(query, field.name) for field in ADVANCED_FIELDS),
            **of_form,
        )

    @pages.action(
        "/schedules",
        form=ScheduleFields,
        page_url="/schedules",
        page=lambda: render_schedules(SchedulesQuery()),
        problems=(ProblemCode.OUTSIDE_KEY_LIMITS,),
    )
    def create_schedule_from_form(form: ScheduleFields) -> Response:
        """Create a schedule."""
        values = {
            **form.to_values(pages.formatter.zone),
            "name": form.name.strip(),
            "is_paused": form.is_paused == "yes",
        }
        body = validate_form(acts.NewSchedule, values)
        with refusing_form():
            runner.perform(acts.create_schedule, {}, body)
        return redirect_to(f"/schedules/{quote_name(body.name)}")

    @pages.page("/schedules/<name>", query=ScheduleFields, problems=(ProblemCode.SCHEDULE_NOT_FOUND,))
    def show_schedule(query: ScheduleFields, name: str) -> Response:
        """Show a schedule: what applies, its next times, and what became of the last ones."""
        return render_schedule(name, query)

    def render_schedule(name: str, query: ScheduleFields | None = None) -> Response:
        schedule, zone = reader.get(name), pages.formatter.zone
        query = query or ScheduleFields()
        current, problem = _attempt(lambda: reader.definition(schedule))
        times = None
        if current is not None:
            begin, _ = _attempt(lambda: parse_time("preview_from", query.preview_from, zone))
            times = reader.preview(name, current, begin, _PREVIEW_COUNT).times
        preview, preview_problem = None, None
        sent: Any = texts_of(current, zone) if current else {}
        if query.model_fields_set - {"preview_from"} and g.get("refused_form") is None:
            sent = query
            preview, preview_problem = _attempt(lambda: _preview_change(reader, schedule, query, zone))
        detail = reader.detail(schedule)
        return pages.render(
            "schedule.html",
            schedule=detail,
            times=times,
            problem=problem,
            query=query,
            preview=preview,
            preview_problem=preview_problem,
            firings=reader.schedules.firings(schedule, limit=_FIRINGS_SHOWN),
            affected=_affected_by_clock_changes(reader, [detail]),
            firing_cells=firing_cells,
            differences=_differences(detail),
            sent=sent,
            path=f"/schedules/{quote_name(name)}",
            **of_form,
        )

    problems = (ProblemCode.SCHEDULE_NOT_FOUND, ProblemCode.OUTSIDE_KEY_LIMITS)
    forms = ActForms(pages=pages, runner=runner, page=render_schedule, page_url=_PAGE_URL, problems=problems)
    summary = "Pause, resume, run, reset, adopt or delete a schedule."
    forms.add("/schedules/<name>/act", "act_on_schedule", _CHOICES, summary=summary)

    @pages.action(
        "/schedules/<name>/change", form=ScheduleFields, page_url=_PAGE_URL, page=render_schedule, problems=problems
    )
    def change_schedule_from_form(form: ScheduleFields, name: str) -> None:
        """Change fields of a schedule."""
        with refusing_form():
            changes = form.changes(reader.definition(reader.get(name)), pages.formatter.zone)
            if not changes:
                raise InvalidForm("there is no change")
            runner.perform(acts.change_schedule, {"name": name}, acts.FormChange.model_validate(changes))

    return pages.blueprint


def _attempt(read: Callable[[], T]) -> tuple[T | None, InvalidForm | None]:
    """The value, or why there is none."""
    try:
        with refusing_form():
            return read(), None
    except InvalidForm as error:
        return None, error


def _preview_new(reader: ScheduleReader, query: ScheduleFields, zone: str) -> Preview:
    return _preview(reader, query.name, reader.validate(query.to_values(zone)), query, zone)


def _preview_change(reader: ScheduleReader, schedule: Schedule, query: ScheduleFields, zone: str) -> Preview:
    changes = acts.with_secrets(query.changes(reader.definition(schedule), zone), schedule)
    changed = reader.validate({**schedule.effective_definition, "task": schedule.task, **changes})
    return _preview(reader, schedule.name, changed, query, zone)


def _preview(
    reader: ScheduleReader, name: str, definition: ScheduleDefinition, query: ScheduleFields, zone: str
) -> Preview:
    return reader.preview(name, definition, parse_time("preview_from", query.preview_from, zone), _PREVIEW_COUNT)


def _state(schedule: Schedule | ScheduleDetail) -> str:
    if schedule.paused_at is not None:
        return "paused"
    if schedule.orphaned_at is not None:
        return "orphaned"
    if schedule.error:
        return "stopped"
    is_late = schedule.next_at is not None and schedule.next_at < datetime.now(UTC) - _LATE_AFTER
    return "late" if is_late else "active"


def shown_as(firing: Firing) -> str:
    """The status whose symbol and colour a firing has: that of its job, if it has one."""
    if firing.outcome in _SHOWN_AS:
        return _SHOWN_AS[firing.outcome]
    return {None: "canceled", "queued": "ready"}.get(firing.job_status, firing.job_status or "")


def firing_cells(firings: Sequence[Firing], formatter: Formatter) -> Markup:
    """The firings are the newest first."""
    return state_cells("Last firings, oldest first", (_cell(firing, formatter) for firing in reversed(firings)))


def _cell(firing: Firing, formatter: Formatter) -> StateCell:
    status = f", {firing.job_status}" if firing.job_status else ""
    text = f"{firing.outcome.value.replace('_', ' ')}{status}, {formatter.time(firing.fire_at)}"
    return StateCell(shown_as(firing), text, firing.job_id)


def _differences(schedule: ScheduleDetail) -> list[tuple[str, Any, Any]]:
    return [(name, schedule.declared.get(name), schedule.definition.get(name)) for name in schedule.differs_from_code]


def _affected_by_clock_changes(reader: ScheduleReader, schedules: Iterable[ScheduleDetail]) -> list[AffectedSchedule]:
    """List those of the schedules that fire by a clock and that a near clock change moves or repeats."""
    definitions = ((schedule.name, reader.definition(schedule)) for schedule in schedules if schedule.explanation)
    timings = (
        (name, definition.timing)
        for name, definition in definitions
        if definition.timing is not None and definition.kind == "cron"
    )
    return affected_schedules(timings, datetime.now(UTC))
