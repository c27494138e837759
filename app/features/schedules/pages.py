"""The pages of schedules, with the forms that change them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from flask import Response, g
from pydantic import Field

from dataloader.app.errors import TimeHasFired
from dataloader.app.features.schedules.changes import PreviewTime, ScheduleDetail, ScheduleEditor, explain, with_secrets
from dataloader.app.features.schedules.clock_changes import AffectedSchedule, affected_schedules
from dataloader.app.features.schedules.form import (
    ADVANCED_FIELDS,
    ScheduleFields,
    changed_values,
    shown_errors,
    texts_of,
)
from dataloader.app.features.schedules.rows import Firing, FiringOutcome, Schedule
from dataloader.app.http.links import quote_name
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, PageRenderer, parse_time, redirect_to
from dataloader.pipelines.schedule_definition import ScheduleDefinition

T = TypeVar("T")
_PREVIEW_COUNT, _FIRINGS_SHOWN, _LAST_FIRINGS = 10, 50, 10
_SCHEDULES_SHOWN = 100
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


class ActionForm(FormModel):
    """An action on a schedule."""

    action: FormText = Field(description="pause, resume, catch_up, run, reset, adopt or delete.")
    reason: FormText = Field("", description="Why it is paused.")
    at: FormText = Field("", description="run: for this time; empty: for now.")
    again: FormText = Field("", description="run: yes to make another job of a time that has fired.")
    field: FormText = Field("", description="reset: the field; empty: all.")
    confirmed: FormText = Field("", description="delete: yes.")


@dataclass(frozen=True)
class ShownPreview:
    """The next times of a schedule that is not saved."""

    explanation: str
    times: list[PreviewTime]


def create_schedules_page(site: Site) -> ApiBlueprint:
    source, pipelines, options = site.executor, site.pipelines, site.options
    pages = PageRenderer("schedules_page", options)
    editor = ScheduleEditor(source, pipelines, options)

    @pages.page("/schedules", query=SchedulesQuery)
    def show_schedules(query: SchedulesQuery) -> Response:
        """Show the schedules with their next time and their last ones, and a form that makes one."""
        return render_schedules(query)

    def render_schedules(query: SchedulesQuery) -> Response:
        preview, problem = None, None
        if (query.expression or query.after) and g.get("refused_form") is None:
            preview, problem = _attempt(lambda: _preview_new(editor, query, pages.formatter.zone))
        everything = editor.list_visible()
        text = query.q.strip().casefold()
        found = [each for each in everything if text in each.name.casefold() or text in each.task.casefold()]
        rest = found[next((n for n, each in enumerate(found, 1) if each.name == query.after_name), 0) :]
        details = [editor.detail(schedule) for schedule in rest[:_SCHEDULES_SHOWN]]
        return pages.render(
            "schedules.html",
            schedules=details,
            total=len(everything),
            more=len(rest) - len(details),
            states=Counter(_state(schedule) for schedule in found),
            firings=editor.schedules.last_firings_of([each.schedule_id for each in details], limit=_LAST_FIRINGS),
            affected=_affected_by_clock_changes(editor, details),
            shown_as=shown_as,
            query=query,
            preview=preview,
            problem=problem,
            task_names=pipelines.names,
            has_advanced=any(getattr(query, name) for name in ADVANCED_FIELDS),
            texts=texts_of(ScheduleDefinition.model_construct(task="", zone=options.timezone), options.timezone),
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
        with shown_errors():
            values = form.to_values(pages.formatter.zone)
            schedule = editor.create(form.name.strip(), values, is_paused=form.is_paused == "yes")
        return redirect_to(f"/schedules/{quote_name(schedule.name)}")

    @pages.page("/schedules/<name>", query=ScheduleFields, problems=(ProblemCode.SCHEDULE_NOT_FOUND,))
    def show_schedule(query: ScheduleFields, name: str) -> Response:
        """Show a schedule: what applies, its next times, and what became of the last ones."""
        return render_schedule(name, query)

    def render_schedule(name: str, query: ScheduleFields | None = None) -> Response:
        schedule, zone = editor.get(name), pages.formatter.zone
        times = list[PreviewTime]()
        current, problem = _attempt(lambda: editor.definition(schedule))
        if current is not None:
            begin = _attempt(lambda: parse_time("preview_from", query.preview_from if query else "", zone))[0]
            times = editor.preview(name, current, begin or datetime.now(UTC), _PREVIEW_COUNT)
        preview, preview_problem = None, None
        sent: Any = texts_of(current, zone) if current else {}
        if query is not None and query.model_fields_set - {"preview_from"} and g.get("refused_form") is None:
            sent = query
            preview, preview_problem = _attempt(lambda: _preview_change(editor, schedule, query, zone))
        detail = editor.detail(schedule)
        return pages.render(
            "schedule.html",
            schedule=detail,
            times=times,
            problem=problem,
            query=query or ScheduleFields(),
            preview=preview,
            preview_problem=preview_problem,
            firings=editor.schedules.firings(schedule, limit=_FIRINGS_SHOWN),
            affected=_affected_by_clock_changes(editor, [detail]),
            shown_as=shown_as,
            differences=_differences(detail),
            sent=sent,
            path=f"/schedules/{quote_name(name)}",
        )

    @pages.action(
        "/schedules/<name>/act",
        form=ActionForm,
        page_url=_PAGE_URL,
        page=render_schedule,
        problems=(ProblemCode.SCHEDULE_NOT_FOUND, ProblemCode.OUTSIDE_KEY_LIMITS),
    )
    def act_on_schedule(form: ActionForm, name: str) -> Response | None:
        """Pause, resume, run, reset, adopt or delete a schedule."""
        with shown_errors():
            return _act(editor, form, name, pages.formatter.zone)

    @pages.action(
        "/schedules/<name>/change",
        form=ScheduleFields,
        page_url=_PAGE_URL,
        page=render_schedule,
        problems=(ProblemCode.SCHEDULE_NOT_FOUND, ProblemCode.OUTSIDE_KEY_LIMITS),
    )
    def change_schedule_from_form(form: ScheduleFields, name: str) -> None:
        """Change fields of a schedule."""
        with shown_errors():
            changes = changed_values(form, editor.definition(editor.get(name)), pages.formatter.zone)
            if not changes:
                raise InvalidForm("there is no change")
            editor.change(name, changes)

    return pages.blueprint


def _act(editor: ScheduleEditor, form: ActionForm, name: str, zone: str) -> Response | None:
    match form.action:
        case "pause":
            editor.pause(name, form.reason or None)
        case "resume" | "catch_up":
            editor.resume(name, catch_up=form.action == "catch_up")
        case "run":
            try:
                job_id, _ = editor.run(name, parse_time("at", form.at, zone), again=form.again == "yes")
            except TimeHasFired as error:
                raise InvalidForm.at_field("at", f"{error}; tick the box to run it again") from None
            return redirect_to(f"/jobs/{job_id}")
        case "reset":
            editor.reset(name, [form.field] if form.field else None)
        case "adopt":
            editor.adopt(name)
        case "delete" if form.confirmed == "yes":
            editor.delete(name)
            return redirect_to("/schedules")
        case "delete":
            raise InvalidForm.at_field("confirmed", "tick the box to delete the schedule with its firings")
        case _:
            raise InvalidForm(f"{form.action!r} is no action")
    return None


def _attempt(read: Callable[[], T]) -> tuple[T | None, InvalidForm | None]:
    """The value, or why there is none."""
    try:
        with shown_errors():
            return read(), None
    except InvalidForm as error:
        return None, error


def _preview_new(editor: ScheduleEditor, query: ScheduleFields, zone: str) -> ShownPreview:
    return _preview(editor, query.name or "new", editor.validate(query.to_values(zone)), query, zone)


def _preview_change(editor: ScheduleEditor, schedule: Schedule, query: ScheduleFields, zone: str) -> ShownPreview:
    changes = with_secrets(changed_values(query, editor.definition(schedule), zone), schedule)
    changed = editor.validate({**schedule.effective_definition, "task": schedule.task, **changes})
    return _preview(editor, schedule.name, changed, query, zone)


def _preview(
    editor: ScheduleEditor, name: str, definition: ScheduleDefinition, query: ScheduleFields, zone: str
) -> ShownPreview:
    begin = parse_time("preview_from", query.preview_from, zone) or datetime.now(UTC)
    return ShownPreview(explain(definition), editor.preview(name, definition, begin, _PREVIEW_COUNT))


def _state(schedule: Schedule) -> str:
    if schedule.paused_at is not None:
        return "paused"
    if schedule.orphaned_at is not None:
        return "orphaned"
    return "stopped" if schedule.error else "active"


def shown_as(firing: Firing) -> str:
    """The status whose symbol and colour a firing has: that of its job, if it has one."""
    if firing.outcome in _SHOWN_AS:
        return _SHOWN_AS[firing.outcome]
    return {None: "canceled", "queued": "ready"}.get(firing.job_status, firing.job_status or "")


def _differences(schedule: ScheduleDetail) -> list[tuple[str, Any, Any]]:
    return [(name, schedule.declared.get(name), schedule.definition.get(name)) for name in schedule.differs_from_code]


def _affected_by_clock_changes(editor: ScheduleEditor, schedules: Iterable[ScheduleDetail]) -> list[AffectedSchedule]:
    """List those of the schedules that fire by a clock and that a near clock change moves or repeats."""
    definitions = ((schedule.name, _cron_definition(editor, schedule)) for schedule in schedules)
    timings = (
        (name, timing)
        for name, definition in definitions
        if definition is not None and (timing := definition.timing) is not None
    )
    return affected_schedules(timings, datetime.now(UTC))


def _cron_definition(editor: ScheduleEditor, schedule: ScheduleDetail) -> ScheduleDefinition | None:
    definition: Mapping[str, Any] = schedule.definition
    if schedule.explanation is None or (definition.get("kind") or "cron") != "cron":
        return None
    return editor.definition(schedule)
