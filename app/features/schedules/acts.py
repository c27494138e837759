"""What people change of schedules, those of visible tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, create_model

from dataloader.app.acts.act import Call, Undo, act, undone_by
from dataloader.app.errors import ScheduleNotFound
from dataloader.app.features.schedules.reader import ScheduleDetail, ScheduleReader
from dataloader.app.features.schedules.rows import Schedule, Schedules, ScheduleSource, Times
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.problems import InvalidRequest, ProblemCode, RequestRejected
from dataloader.app.http.schemas import BodyModel, Deleted, QueryModel, Timestamp
from dataloader.app.log.masking import unmask
from dataloader.pipelines.schedule_definition import ScheduleDefinition, changed_field, problem_of_next_job
from dataloader.pipelines.schedule_fields import SCHEDULE_FIELDS
from dataloader.pipelines.schedules import check_schedule_name
from dataloader.pipelines.task import DEFAULT_QUEUE

_NOT_FOUND = (ProblemCode.SCHEDULE_NOT_FOUND,)
_CHANGED = (ProblemCode.SCHEDULE_NOT_FOUND, ProblemCode.CHANGED)
_OUTSIDE = ProblemCode.OUTSIDE_KEY_LIMITS
_RUN_PROBLEMS = (*_NOT_FOUND, ProblemCode.TIME_HAS_FIRED, _OUTSIDE)


class NewSchedule(ScheduleDefinition):
    """A new schedule."""

    name: Annotated[str, Field(min_length=1, max_length=200, description="Unique among schedules.")]
    is_paused: bool = Field(False, description="It does not fire before a person resumes it.")

    @property
    def definition(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set if name not in ("name", "is_paused")}


class WholeSchedule(ScheduleDefinition):
    """All fields of a schedule."""


# What results of the change is validated as a whole.
_CHANGED_FIELDS: Any = {name: changed_field(field) for name, field in SCHEDULE_FIELDS.items()}
ScheduleChange = create_model(
    "ScheduleChange",
    __base__=BodyModel,
    __module__=__name__,
    __doc__="What to change; null, or a field left out, stays as it is.",
    **_CHANGED_FIELDS,
)
# The change of a form, in which null is the default of a field.
FormChange = create_model("FormChange", __base__=ScheduleChange)


class PauseRequest(BodyModel):
    reason: Annotated[str, Field(max_length=500)] | None = Field(None, description="Why, shown with the schedule.")


class ResumeQuery(QueryModel):
    catch_up: Annotated[
        bool, Field(description="Treat the times of the pause as missed ones; else they are skipped.")
    ] = False


class ResetRequest(BodyModel):
    fields: list[str] | None = Field(None, description="The fields to take from the code again; null: all.")


class RunRequest(BodyModel):
    at: Timestamp = Field(None, description="The time that the job is for; null: now.")
    again: bool = Field(False, description="Make another job of a time that has fired.")


@dataclass(frozen=True, kw_only=True)
class ChangedSchedule(ScheduleDetail):
    """A schedule that was created or changed. `warnings`: why its queue or task may be misspelt."""

    warnings: list[str]


@dataclass(frozen=True)
class ScheduleRun:
    job_id: UUID
    created: bool


# The line of each names the schedule; the act says what else it has.
_act = partial(
    act,
    audited_as={"name": "schedule"},
    unaudited={*NewSchedule.model_fields, *PauseRequest.model_fields, *RunRequest.model_fields},
    has_version=True,
)


# ── what a schedule is ──────────────────────────────────────────────────────────────────────────────────────────────


@_act("schedule.created", "POST", "/schedules", problems=(ProblemCode.SCHEDULE_EXISTS, _OUTSIDE))
def create_schedule(call: Call, body: NewSchedule) -> ChangedSchedule:
    """Create a schedule: a cron expression in a time zone, an interval, or the datasets whose updates make jobs.

    Its args may have placeholders, such as `{interval_start:%Y-%m-%d}`. The args of the next time are checked at
    once; those of a later one that do not fit are recorded as refused, and the following time is fired.
    """
    warnings = _warnings(call, body.definition)
    return _changed(call, _create(call, body.name, body.definition, is_paused=body.is_paused), warnings)


@_act("schedule.changed", "PATCH", "/schedules/<name>", problems=(*_CHANGED, _OUTSIDE), if_match=True)
def change_schedule(call: Call, name: str, body: ScheduleChange) -> ChangedSchedule:
    """Change fields of a schedule; times after the change follow it.

    Of a schedule in code these override the code, also after a deployment; `reset` undoes it. With `If-Match`
    nothing is changed if the schedule has changed since.
    """
    changes = body.model_dump(mode="json", exclude_unset=True, exclude_none=not isinstance(body, FormChange))
    if not changes:
        raise InvalidRequest([FieldError("", "there is no change; send at least one field")])
    schedule = _reader(call).get(name)
    if call.if_version is not None and call.if_version != str(schedule.version):
        raise RequestRejected(ProblemCode.CHANGED)
    task = changes.get("task") or schedule.task
    if schedule.source is ScheduleSource.CODE and task != schedule.task:
        raise InvalidRequest([FieldError("task", "is that of the code; create another schedule for another task")])
    warnings = _warnings(call, changes)
    call.audit(fields=sorted(changes))
    stored = {field: value for field, value in with_secrets(changes, schedule).items() if field != "task"}
    return _changed(call, _save(call, schedule, {**schedule.overrides, **stored}, task=task), warnings)


@_act("schedule.replaced", "PUT", "/schedules/<name>", problems=(ProblemCode.CHANGED, _OUTSIDE))
def put_schedule(call: Call, name: str, body: WholeSchedule) -> ChangedSchedule:
    """Create a schedule, or replace all fields of one that people made. Whether it is paused does not change."""
    values = {field: getattr(body, field) for field in body.model_fields_set}
    warnings = _warnings(call, values)
    try:
        schedule = _reader(call).get(name)
    except ScheduleNotFound:
        call.event = create_schedule.name
        return _changed(call, _create(call, name, values), warnings)
    if schedule.source is ScheduleSource.CODE:
        raise InvalidRequest([FieldError("name", "is that of a schedule in code; change its fields instead")])
    definition, task = _stored(_reader(call).validate(with_secrets(values, schedule)))
    call.audit(task=task)
    if (definition, task) == (schedule.overrides, schedule.task):
        call.event = None
    else:
        schedule = _save(call, schedule, definition, task=task)
    return _changed(call, schedule, warnings)


@_act("schedule.reset", "POST", "/schedules/<name>/reset", problems=_CHANGED)
def reset_schedule(call: Call, name: str, body: ResetRequest) -> ScheduleDetail:
    """Undo what people changed of a schedule in code."""
    schedule = _reader(call).get(name)
    if schedule.source is not ScheduleSource.CODE:
        reason = "no code declares this schedule, so there is nothing to go back to"
        raise InvalidRequest([FieldError("fields", reason)])
    dropped = set(schedule.overrides if body.fields is None else body.fields)
    if unknown := sorted(dropped - SCHEDULE_FIELDS.keys()):
        raise InvalidRequest([FieldError("fields", f"{unknown[0]!r} is no field of a schedule, such as expression")])
    call.audit(fields=sorted(dropped))
    kept = {field: value for field, value in schedule.overrides.items() if field not in dropped}
    return _detail(call, _save(call, schedule, kept, task=schedule.task))


@_act("schedule.adopted", "POST", "/schedules/<name>/adopt", problems=(*_CHANGED, ProblemCode.NOT_ORPHANED))
def adopt_schedule(call: Call, name: str) -> ScheduleDetail:
    """Keep a schedule that no code declares any more: it becomes one of people and fires again."""
    schedule = _reader(call).get(name)
    if schedule.orphaned_at is None:
        raise RequestRejected(ProblemCode.NOT_ORPHANED)
    definition, task = _stored(_reader(call).definition(schedule))
    return _detail(call, _save(call, schedule, definition, task=task, source=ScheduleSource.PEOPLE))


@_act("schedule.deleted", "DELETE", "/schedules/<name>", problems=_NOT_FOUND, has_version=False)
def delete_schedule(call: Call, name: str) -> Deleted:
    """Delete a schedule and its firings; its jobs stay. A worker that starts makes it again if its code has it."""
    _reader(call).get(name)
    Schedules(call.executor).delete(name)
    return Deleted()


# ── whether it fires ────────────────────────────────────────────────────────────────────────────────────────────────


class PauseUndo(Undo):
    subject, fields = "schedule", frozenset({"paused_at", "paused_by", "paused_reason"})

    def current(self) -> Schedule:
        return _reader(self.call).get(self.name)

    def restore(self) -> None:
        before = self.before or {}
        if before.get("paused_at") is None:
            resume_schedule.perform(self.call, self.name, ResumeQuery())
        else:
            pause_schedule.perform(self.call, self.name, PauseRequest(reason=before.get("paused_reason")))


@undone_by(PauseUndo)
@_act("schedule.paused", "POST", "/schedules/<name>/pause", problems=_NOT_FOUND)
def pause_schedule(call: Call, name: str, body: PauseRequest) -> ScheduleDetail:
    """Pause a schedule: it makes no jobs. Those it has made are not affected."""
    _reader(call).get(name)
    return _detail(call, Schedules(call.executor).pause(name, reason=body.reason, changed_by=call.actor))


@undone_by(PauseUndo)
@_act("schedule.resumed", "POST", "/schedules/<name>/resume", problems=_CHANGED)
def resume_schedule(call: Call, name: str, query: ResumeQuery) -> ScheduleDetail:
    """Resume a paused schedule from now on; with `catch_up` its rule applies to the times of the pause."""
    reader, schedules = _reader(call), Schedules(call.executor)
    schedule = reader.get(name)
    if schedule.paused_at is None:
        call.event = None
        return reader.detail(schedule)
    call.audit(catch_up=query.catch_up)
    definition, now = reader.definition(schedule), schedules.now()
    last_at, skipped = schedule.last_at or now, None
    if not query.catch_up and definition.timing is not None:
        first = definition.timing.next_after(last_at)
        if first is not None and first.at.astimezone(UTC) <= now:
            skipped = (first.at, definition.timing.previous(now) or first.at)
        last_at = now
    resumed = schedules.resume(
        schedule,
        Times(last_at, _next(definition, last_at)),
        skipped=skipped,
        keep_updates=query.catch_up,
        changed_by=call.actor,
    )
    return reader.detail(resumed)


@_act("schedule.run", "POST", "/schedules/<name>/run", problems=_RUN_PROBLEMS, has_version=False)
def run_schedule(call: Call, name: str, body: RunRequest) -> ScheduleRun:
    """Make a job of a schedule now, for the present or for another time. Also while it is paused."""
    reader, schedules = _reader(call), Schedules(call.executor)
    schedule = reader.get(name)
    definition = reader.definition(schedule)
    fire_at = body.at or schedules.now()
    try:
        job = reader.job(name, schedule.schedule_id, definition, fire_at)
    except (ValueError, TypeError) as error:
        raise InvalidRequest([FieldError("at", str(error))]) from None
    call.jobs.check_caller(definition.task, job["queue"])
    if body.again:
        job.pop("idempotency_key")
    job_id, created = schedules.run(schedule, fire_at, job, again=body.again, detail=f"run by {call.actor}")
    call.audit(job_id=job_id, created=created)
    return ScheduleRun(job_id, created)


# ── what they share ─────────────────────────────────────────────────────────────────────────────────────────────────


def _reader(call: Call) -> ScheduleReader:
    return ScheduleReader(call.executor, call.pipelines, call.options)


def _detail(call: Call, schedule: Schedule) -> ScheduleDetail:
    return _reader(call).detail(schedule)


def _warnings(call: Call, values: Mapping[str, Any]) -> list[str]:
    """Why the queue or task may be misspelt; asked before the schedule makes them known."""
    return call.check_names(queue=values.get("queue"), task=values.get("task"))


def _changed(call: Call, schedule: Schedule, warnings: list[str]) -> ChangedSchedule:
    return ChangedSchedule(**vars(_detail(call, schedule)), warnings=warnings)


def _create(call: Call, name: str, values: Mapping[str, Any], *, is_paused: bool = False) -> Schedule:
    """Raises InvalidRequest and ScheduleExists."""
    try:
        check_schedule_name(name)
    except ValueError as error:
        raise InvalidRequest([FieldError("name", str(error))]) from None
    definition = _reader(call).validate(values)
    _require_job(call, name, definition)
    schedules = Schedules(call.executor)
    now = schedules.now()
    stored, task = _stored(definition)
    times = Times(now, _next(definition, now))
    call.audit(schedule=name, task=task)
    return schedules.create(name, task, stored, times, is_paused=is_paused, changed_by=call.actor)


def _save(
    call: Call,
    schedule: Schedule,
    overrides: Mapping[str, Any],
    *,
    task: str,
    source: ScheduleSource | None = None,
) -> Schedule:
    """Raises InvalidRequest and ScheduleChanged."""
    definition = _reader(call).validate({**schedule.declared, **overrides, "task": task})
    _require_job(call, schedule.name, definition)
    schedules = Schedules(call.executor)
    now, last_at = schedules.now(), schedule.last_at
    # What has come already is fired, by one definition or the other. Later times follow the new one.
    is_due = schedule.next_at is not None and schedule.next_at <= now
    if schedule.paused_at is None and not is_due:
        last_at = now
    times = Times(last_at, _next(definition, last_at or now))
    return schedules.change(schedule, overrides, times, task=task, source=source, changed_by=call.actor)


def _require_job(call: Call, name: str, definition: ScheduleDefinition) -> None:
    """Raises InvalidRequest if the next time makes no job."""
    task, lease_sec = call.pipelines.get(definition.task), call.options.default_lease_ttl_sec
    queue = definition.queue or (None if task is None else task.options.queue) or DEFAULT_QUEUE
    current_actor().require_trigger(definition.task, queue)
    problem = problem_of_next_job(name, definition, task, now=datetime.now(UTC), default_lease_sec=lease_sec)
    if problem is not None:
        field, _, message = problem.partition(": ")
        raise InvalidRequest([FieldError(field if message else "args", message or field)])


def _stored(definition: ScheduleDefinition) -> tuple[dict[str, Any], str]:
    """The definition as a row has it, and its task."""
    values = definition.to_json()
    return values, values.pop("task")


def _next(definition: ScheduleDefinition, moment: datetime) -> datetime | None:
    following = None if definition.timing is None else definition.timing.next_after(moment)
    return following and following.at


def with_secrets(values: Mapping[str, Any], schedule: Schedule) -> Mapping[str, Any]:
    """The values with the secrets of the schedule where their args have the mask, as they were shown."""
    if not values.get("args"):
        return values
    return {**values, "args": unmask(values["args"], schedule.effective_definition.get("args"))}
