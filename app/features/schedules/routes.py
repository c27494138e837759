"""Schedules over HTTP: create, change, pause, run now, preview, and what became of each time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, create_model

from dataloader.app.acts.known_names import NameCheck
from dataloader.app.features.schedules.changes import Calendar, PreviewTime, ScheduleDetail, ScheduleEditor, explain
from dataloader.app.features.schedules.rows import Firing, Schedule
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.problems import DATABASE_PROBLEMS, InvalidRequest, ProblemCode
from dataloader.app.http.routing import ApiBlueprint, VersionedResponse, if_match_version
from dataloader.app.http.schemas import BodyModel, Deleted, QueryModel, Timestamp
from dataloader.app.http.site import Site
from dataloader.pipelines.schedule_definition import ScheduleDefinition

_MAX_CALENDAR_DAYS = 92


class WholeSchedule(ScheduleDefinition):
    """All fields of a schedule."""

    zone: str | None = Field(None, description="The IANA time zone of its times; null: the service's.")  # type: ignore[assignment]


class NewSchedule(WholeSchedule):
    """A new schedule."""

    name: Annotated[str, Field(min_length=1, max_length=200, description="Unique among schedules.")]
    is_paused: bool = Field(False, description="It does not fire before a person resumes it.")


_OPTIONAL_FIELDS: dict[str, Any] = {
    name: (field.annotation | None, Field(None, description=field.description))  # type: ignore[operator]
    for name, field in ScheduleDefinition.model_fields.items()
}
# What results of the change is validated as a whole.
ScheduleChange = create_model(
    "ScheduleChange",
    __base__=BodyModel,
    __doc__="What to change; null, or a field left out, stays as it is.",
    **_OPTIONAL_FIELDS,
)


class PauseRequest(BodyModel):
    reason: Annotated[str, Field(max_length=500)] | None = Field(None, description="Why, shown with the schedule.")


class ResetRequest(BodyModel):
    fields: list[str] | None = Field(None, description="The fields to take from the code again; null: all.")


class RunRequest(BodyModel):
    at: Timestamp = Field(None, description="The time that the job is for; null: now.")
    again: bool = Field(False, description="Make another job of a time that has fired.")


class ScheduleQuery(QueryModel):
    task: Annotated[str | None, Field(description="Only schedules of this task.")] = None


class ResumeQuery(QueryModel):
    catch_up: Annotated[
        bool, Field(description="Treat the times of the pause as missed ones; else they are skipped.")
    ] = False


class FiringsQuery(QueryModel):
    before: Annotated[Timestamp, Field(description="Only earlier times.")] = None
    limit: Annotated[int, Field(ge=1, le=500, description="The maximum number of entries.")] = 50


class PreviewQuery(QueryModel):
    n: Annotated[int, Field(ge=1, le=100, description="How many times.")] = 10
    begin: Annotated[Timestamp, Field(alias="from", description="Times after this one; by default now.")] = None


class CalendarQuery(QueryModel):
    begin: Annotated[Timestamp, Field(alias="from", description="Its first moment; by default today.")] = None
    end: Annotated[
        Timestamp, Field(alias="to", description=f"Up to here, at most {_MAX_CALENDAR_DAYS} days; by default a day.")
    ] = None
    schedule: Annotated[str | None, Field(description="Only this schedule.")] = None


@dataclass(frozen=True, kw_only=True)
class ChangedSchedule(ScheduleDetail):
    """A schedule that was created or changed. `warnings`: why its queue or task may be misspelt."""

    warnings: list[str]


@dataclass(frozen=True)
class ScheduleList:
    schedules: list[ScheduleDetail]


@dataclass(frozen=True)
class FiringList:
    firings: list[Firing]


@dataclass(frozen=True)
class Preview:
    """The next times of a schedule."""

    explanation: str | None
    times: list[PreviewTime]


@dataclass(frozen=True)
class ScheduleRun:
    job_id: UUID
    created: bool


def create_schedules_blueprint(site: Site) -> ApiBlueprint:
    executor, pipelines, options = site.executor, site.pipelines, site.options
    blueprint = ApiBlueprint("schedules", "/api/v1", problems=DATABASE_PROBLEMS)
    editor, names = ScheduleEditor(executor, pipelines, options), NameCheck(executor, pipelines)
    unknown = (ProblemCode.SCHEDULE_NOT_FOUND,)
    changed = (ProblemCode.SCHEDULE_NOT_FOUND, ProblemCode.CHANGED)

    def versioned(schedule: Any) -> VersionedResponse:
        return VersionedResponse(editor.detail(schedule), str(schedule.version))

    def changed_schedule(values: Mapping[str, Any], change: Callable[[], Any]) -> VersionedResponse:
        return _with_warnings(editor, names.warnings(queue=values.get("queue"), task=values.get("task")), change())

    @blueprint.get("/schedules", query=ScheduleQuery, response=ScheduleList, scope=Scope.READ, standby=True)
    def list_schedules(query: ScheduleQuery) -> ScheduleList:
        """List schedules by name: what applies, when each fires next, and whether it is paused."""
        return ScheduleList(editor.list_details(task=query.task))

    @blueprint.post(
        "/schedules",
        body=NewSchedule,
        response=ChangedSchedule,
        problems=(ProblemCode.SCHEDULE_EXISTS, ProblemCode.OUTSIDE_KEY_LIMITS),
        scope=Scope.OPERATE,
    )
    def create_schedule(body: NewSchedule) -> VersionedResponse:
        """Create a schedule: a cron expression in a time zone, an interval, or the datasets whose updates make jobs.

        Its args may have placeholders, such as `{interval_start:%Y-%m-%d}`. The args of the next time are checked at
        once; those of a later one that do not fit are recorded as refused, and the following time is fired.
        """
        values = {name: getattr(body, name) for name in body.model_fields_set if name not in ("name", "is_paused")}
        return changed_schedule(values, lambda: editor.create(body.name, values, is_paused=body.is_paused))

    @blueprint.post("/schedules/preview", body=NewSchedule, query=PreviewQuery, response=Preview, scope=Scope.READ)
    def preview_new_schedule(body: NewSchedule, query: PreviewQuery) -> Preview:
        """Show when a schedule would fire, with the effect of daylight saving, and which jobs. Nothing is saved."""
        values = {name: getattr(body, name) for name in body.model_fields_set if name not in ("name", "is_paused")}
        return _preview(body.name, editor.validate(values), query)

    @blueprint.get("/schedules/<name>", response=ScheduleDetail, problems=unknown, scope=Scope.READ)
    def get_schedule(name: str) -> VersionedResponse:
        """Get a schedule: what applies, what the code declares, and what people changed."""
        return versioned(editor.get(name))

    @blueprint.patch(
        "/schedules/<name>",
        body=ScheduleChange,
        response=ChangedSchedule,
        problems=(*changed, ProblemCode.OUTSIDE_KEY_LIMITS),
        scope=Scope.OPERATE,
        if_match=True,
    )
    def change_schedule(body: Any, name: str) -> VersionedResponse:
        """Change fields of a schedule; times after the change follow it.

        Of a schedule in code these override the code, also after a deployment; `reset` undoes it. With `If-Match`
        nothing is changed if the schedule has changed since.
        """
        changes = {field: value for field, value in vars(body).items() if value is not None}
        if not changes:
            raise InvalidRequest([FieldError("", "there is no change; send at least one field")])
        return changed_schedule(changes, lambda: editor.change(name, changes, version=if_match_version()))

    @blueprint.put(
        "/schedules/<name>",
        body=WholeSchedule,
        response=ChangedSchedule,
        problems=(ProblemCode.CHANGED, ProblemCode.OUTSIDE_KEY_LIMITS),
        scope=Scope.OPERATE,
    )
    def put_schedule(body: WholeSchedule, name: str) -> VersionedResponse:
        """Create a schedule, or replace all fields of one that people made. Whether it is paused does not change."""
        values = {field: getattr(body, field) for field in body.model_fields_set}
        return changed_schedule(values, lambda: editor.put(name, values))

    @blueprint.delete("/schedules/<name>", response=Deleted, problems=unknown, scope=Scope.OPERATE)
    def delete_schedule(name: str) -> Deleted:
        """Delete a schedule and its firings; its jobs stay. A worker that starts makes it again if its code has it."""
        editor.delete(name)
        return Deleted()

    @blueprint.post(
        "/schedules/<name>/pause", body=PauseRequest, response=ScheduleDetail, problems=unknown, scope=Scope.OPERATE
    )
    def pause_schedule(body: PauseRequest, name: str) -> VersionedResponse:
        """Pause a schedule: it makes no jobs. Those it has made are not affected."""
        return versioned(editor.pause(name, body.reason))

    @blueprint.post(
        "/schedules/<name>/resume", query=ResumeQuery, response=ScheduleDetail, problems=changed, scope=Scope.OPERATE
    )
    def resume_schedule(query: ResumeQuery, name: str) -> VersionedResponse:
        """Resume a paused schedule from now on; with `catch_up` its rule applies to the times of the pause."""
        return versioned(editor.resume(name, catch_up=query.catch_up))

    @blueprint.post(
        "/schedules/<name>/reset", body=ResetRequest, response=ScheduleDetail, problems=changed, scope=Scope.OPERATE
    )
    def reset_schedule(body: ResetRequest, name: str) -> VersionedResponse:
        """Undo what people changed of a schedule in code."""
        return versioned(editor.reset(name, body.fields))

    @blueprint.post(
        "/schedules/<name>/adopt",
        response=ScheduleDetail,
        problems=(*changed, ProblemCode.NOT_ORPHANED),
        scope=Scope.OPERATE,
    )
    def adopt_schedule(name: str) -> VersionedResponse:
        """Keep a schedule that no code declares any more: it becomes one of people and fires again."""
        return versioned(editor.adopt(name))

    @blueprint.post(
        "/schedules/<name>/run",
        body=RunRequest,
        response=ScheduleRun,
        problems=(*unknown, ProblemCode.TIME_HAS_FIRED, ProblemCode.OUTSIDE_KEY_LIMITS),
        scope=Scope.OPERATE,
    )
    def run_schedule(body: RunRequest, name: str) -> ScheduleRun:
        """Make a job of a schedule now, for the present or for another time. Also while it is paused."""
        return ScheduleRun(*editor.run(name, body.at, again=body.again))

    @blueprint.get(
        "/schedules/<name>/firings",
        query=FiringsQuery,
        response=FiringList,
        problems=unknown,
        scope=Scope.READ,
        standby=True,
    )
    def list_firings(query: FiringsQuery, name: str) -> FiringList:
        """List what became of the times of a schedule, the latest first. Times that were skipped are one entry."""
        return FiringList(editor.schedules.firings(editor.get(name), before=query.before, limit=query.limit))

    @blueprint.get(
        "/schedules/<name>/preview", query=PreviewQuery, response=Preview, problems=unknown, scope=Scope.READ
    )
    def preview_schedule(query: PreviewQuery, name: str) -> Preview:
        """Show the next times of a schedule and their jobs."""
        return _preview(name, editor.definition(editor.get(name)), query)

    @blueprint.get(
        "/calendar", query=CalendarQuery, response=Calendar, problems=unknown, scope=Scope.READ, standby=True
    )
    def get_calendar(query: CalendarQuery) -> Calendar:
        """Get what the schedules made in a range of time, and what they will make; at most 5,000 entries."""
        begin = query.begin or datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        end = query.end or begin + timedelta(days=1)
        if not timedelta() < end - begin <= timedelta(days=_MAX_CALENDAR_DAYS):
            raise InvalidRequest([FieldError("to", f"is 1 to {_MAX_CALENDAR_DAYS} days after from")])
        return editor.calendar(begin, end, name=query.schedule)

    def _preview(name: str, definition: ScheduleDefinition, query: PreviewQuery) -> Preview:
        begin = query.begin or datetime.now(UTC)
        return Preview(explain(definition), editor.preview(name, definition, begin, query.n))

    return blueprint


def _with_warnings(editor: ScheduleEditor, warnings: list[str], schedule: Schedule) -> VersionedResponse:
    return VersionedResponse(ChangedSchedule(**vars(editor.detail(schedule)), warnings=warnings), str(schedule.version))
