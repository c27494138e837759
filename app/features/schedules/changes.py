"""Schedules as people see and change them: what both the API and the dashboard do."""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from heapq import merge
from itertools import groupby, islice
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from dataloader.app.db.statements import Executor
from dataloader.app.errors import ScheduleNotFound
from dataloader.app.features.schedules.rows import CalendarFiring, Schedule, Schedules, ScheduleSource, Times
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.middleware import audit_action
from dataloader.app.http.options import WebOptions
from dataloader.app.http.problems import InvalidRequest, ProblemCode, RequestRejected
from dataloader.app.http.schemas import field_errors
from dataloader.app.log.masking import mask_secret_fields, unmask
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.schedule_definition import (
    ScheduleDefinition,
    definition_from,
    problem_of_next_job,
    scheduled_job,
)
from dataloader.pipelines.schedule_times import EPOCH, Timing
from dataloader.pipelines.schedules import check_schedule_name
from dataloader.pipelines.task import DEFAULT_QUEUE

MAX_CALENDAR_ENTRIES = 5_000
_MAX_CACHED_DEFINITIONS = 2_000
_CALENDAR_STEP = timedelta(minutes=1)  # requests within it use the same planned times
_MAX_COMPUTED_TIMES = 20_000  # for one calendar

Range = tuple[datetime, datetime]  # without its end


@dataclass(frozen=True, kw_only=True)
class ScheduleDetail(Schedule):
    """A schedule with what applies, in words too, and the fields in which it differs from the code. Secrets in its args
    are masked."""

    definition: dict[str, Any]
    explanation: str | None
    differs_from_code: list[str]


@dataclass(frozen=True, kw_only=True)
class PreviewTime:
    """A nominal time. `note`: moved out of a gap that a clock change makes, or within what it repeats. `args` are those
    of the job; null, with the `problem`, if none can be made."""

    at: datetime
    local_time: str
    note: str | None
    starts_at: datetime
    interval_start: datetime | None
    interval_end: datetime | None
    partition: str | None
    args: dict[str, Any] | None
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class FutureFiring:
    schedule: str
    fire_at: datetime
    note: str | None


@dataclass(frozen=True)
class Calendar:
    """`complete` is false if there are more entries than are listed."""

    past: list[CalendarFiring]
    future: list[FutureFiring]
    complete: bool


class ScheduleEditor:
    """Reads and changes schedules for a caller, who sees and changes those of visible tasks."""

    def __init__(self, executor: Executor, pipelines: Pipelines, options: WebOptions) -> None:
        self.schedules = Schedules(executor)
        self._pipelines, self._options = pipelines, options

    def list_details(self, *, task: str | None = None) -> list[ScheduleDetail]:
        return [self.detail(schedule) for schedule in self.list_visible(task=task)]

    def list_visible(self, *, task: str | None = None) -> list[Schedule]:
        can_see_task = current_actor().can_see_task
        return [schedule for schedule in self.schedules.list_by_name(task=task) if can_see_task(schedule.task)]

    def get(self, name: str) -> Schedule:
        """Raises ScheduleNotFound."""
        schedule = self.schedules.get(name)
        if not current_actor().can_see_task(schedule.task):
            raise ScheduleNotFound(name)
        return schedule

    def detail(self, schedule: Schedule) -> ScheduleDetail:
        definition = schedule.effective_definition
        try:
            effective = self.definition(schedule)
        except InvalidRequest:
            explanation = None
        else:
            explanation = explain(effective)
        changed = schedule.overrides if schedule.source is ScheduleSource.CODE else {}
        differs = sorted(name for name, value in changed.items() if schedule.declared.get(name) != value)
        fields = vars(schedule) | {"definition": definition}
        fields |= {name: mask_secret_fields(fields[name]) for name in ("declared", "overrides", "definition")}
        return ScheduleDetail(**fields, explanation=explanation, differs_from_code=differs)

    def definition(self, schedule: Schedule) -> ScheduleDefinition:
        """What applies. Raises InvalidRequest if it does not hold any more."""
        values = self._with_slices({**schedule.effective_definition, "task": schedule.task})
        try:
            return _parse_stored(json.dumps(values), self._options.timezone)
        except ValidationError as error:
            raise InvalidRequest(list(field_errors(error))) from None

    def validate(self, values: Mapping[str, Any]) -> ScheduleDefinition:
        """The definition, with the slices that its task declares. Raises InvalidRequest."""
        try:
            return definition_from(self._with_slices(values), zone=self._options.timezone)
        except ValidationError as error:
            raise InvalidRequest(list(field_errors(error))) from None

    def _with_slices(self, values: Mapping[str, Any]) -> dict[str, Any]:
        task = self._pipelines.get(str(values.get("task")))
        if task is None or task.options.partitions is None or values.get("partitions") is not None:
            return dict(values)
        return {**values, "partitions": task.options.partitions.to_json()}

    def create(self, name: str, values: Mapping[str, Any], *, is_paused: bool) -> Schedule:
        """Raises InvalidRequest and ScheduleExists."""
        try:
            check_schedule_name(name)
        except ValueError as error:
            raise InvalidRequest([FieldError("name", str(error))]) from None
        definition = self.validate(values)
        self._require_job(name, definition)
        now = self.schedules.now()
        stored = definition.to_json()
        stored.pop("task")
        schedule = self.schedules.create(
            name,
            definition.task,
            stored,
            Times(now, _next(definition, now)),
            is_paused=is_paused,
            changed_by=current_actor().name,
        )
        audit_action("schedule.created", schedule=name, task=definition.task)
        return schedule

    def change(self, name: str, changes: Mapping[str, Any], *, version: str | None = None) -> Schedule:
        """Override fields. Raises InvalidRequest and ScheduleChanged."""
        schedule = self._get_version(name, version)
        is_code = schedule.source is ScheduleSource.CODE
        if is_code and changes.get("task") not in (None, schedule.task):
            raise InvalidRequest([FieldError("task", "is that of the code; create another schedule for another task")])
        changes = with_secrets(changes, schedule)
        overrides = {**schedule.overrides, **{k: v for k, v in changes.items() if k != "task"}}
        task = changes.get("task") or schedule.task
        saved = self._save(schedule, overrides, task=task)
        audit_action("schedule.changed", schedule=name, fields=sorted(changes))
        return saved

    def put(self, name: str, values: Mapping[str, Any]) -> Schedule:
        """Create a schedule, or replace all fields of one that people made. Raises InvalidRequest."""
        try:
            schedule = self.get(name)
        except ScheduleNotFound:
            return self.create(name, values, is_paused=False)
        if schedule.source is ScheduleSource.CODE:
            raise InvalidRequest([FieldError("name", "is that of a schedule in code; change its fields instead")])
        definition = self.validate(with_secrets(values, schedule)).to_json()
        task = definition.pop("task")
        if (definition, task) == (schedule.overrides, schedule.task):
            return schedule
        saved = self._save(schedule, definition, task=task)
        audit_action("schedule.replaced", schedule=name, task=task)
        return saved

    def reset(self, name: str, fields: Iterable[str] | None) -> Schedule:
        """Undo what people changed of a schedule in code: these fields, or all."""
        schedule = self.get(name)
        if schedule.source is not ScheduleSource.CODE:
            raise InvalidRequest(
                [FieldError("fields", "no code declares this schedule, so there is nothing to go back to")]
            )
        dropped = set(schedule.overrides if fields is None else fields)
        saved = self._save(
            schedule, {k: v for k, v in schedule.overrides.items() if k not in dropped}, task=schedule.task
        )
        audit_action("schedule.reset", schedule=name, fields=sorted(dropped))
        return saved

    def adopt(self, name: str) -> Schedule:
        """Make an orphaned schedule one of people: it fires again."""
        schedule = self.get(name)
        if schedule.orphaned_at is None:
            raise RequestRejected(ProblemCode.NOT_ORPHANED)
        definition = self.definition(schedule).to_json()
        definition.pop("task")
        saved = self._save(schedule, definition, task=schedule.task, source=ScheduleSource.PEOPLE)
        audit_action("schedule.adopted", schedule=name)
        return saved

    def _save(
        self, schedule: Schedule, overrides: dict[str, Any], *, task: str, source: ScheduleSource | None = None
    ) -> Schedule:
        definition = self.validate({**schedule.declared, **overrides, "task": task})
        self._require_job(schedule.name, definition)
        now = self.schedules.now()
        last_at = schedule.last_at
        # What has come already is fired, by one definition or the other. Later times follow the new one.
        is_due = schedule.next_at is not None and schedule.next_at <= now
        if schedule.paused_at is None and not is_due:
            last_at = now
        times = Times(last_at, _next(definition, last_at or now))
        return self.schedules.change(
            schedule, overrides, times, task=task, source=source, changed_by=current_actor().name
        )

    def _get_version(self, name: str, version: str | None) -> Schedule:
        schedule = self.get(name)
        if version is not None and version != str(schedule.version):
            raise RequestRejected(ProblemCode.CHANGED)
        return schedule

    def _require_job(self, name: str, definition: ScheduleDefinition) -> None:
        """Raises InvalidRequest if the next time makes no job."""
        current_actor().require_trigger(definition.task, definition.queue or self._queue_of(definition.task))
        problem = problem_of_next_job(
            name,
            definition,
            self._pipelines.get(definition.task),
            now=datetime.now(UTC),
            default_lease_sec=self._options.default_lease_ttl_sec,
        )
        if problem is not None:
            field, _, message = problem.partition(": ")
            raise InvalidRequest([FieldError(field if message else "args", message or field)])

    def _queue_of(self, task: str) -> str:
        known = self._pipelines.get(task)
        return (None if known is None else known.options.queue) or DEFAULT_QUEUE

    def job(self, name: str, schedule_id: UUID, definition: ScheduleDefinition, fire_at: datetime) -> dict[str, Any]:
        """The request of the job of a nominal time. Raises ValueError."""
        return scheduled_job(
            name,
            str(schedule_id),
            definition,
            fire_at,
            self._pipelines.get(definition.task),
            default_lease_sec=self._options.default_lease_ttl_sec,
        )

    def pause(self, name: str, reason: str | None) -> Schedule:
        self.get(name)
        schedule = self.schedules.pause(name, reason=reason, changed_by=current_actor().name)
        audit_action("schedule.paused", schedule=name)
        return schedule

    def resume(self, name: str, *, catch_up: bool) -> Schedule:
        """Fire again: from now on, or with what its `catch_up` says of the times of the pause."""
        schedule = self.get(name)
        if schedule.paused_at is None:
            return schedule
        definition = self.definition(schedule)
        now = self.schedules.now()
        last_at, skipped = schedule.last_at or now, None
        if not catch_up and definition.timing is not None:
            first = definition.timing.next_after(last_at)
            if first is not None and first.at.astimezone(UTC) <= now:
                skipped = (first.at, definition.timing.previous(now) or first.at)
            last_at = now
        times = Times(last_at, _next(definition, last_at))
        resumed = self.schedules.resume(
            schedule, times, skipped=skipped, keep_updates=catch_up, changed_by=current_actor().name
        )
        audit_action("schedule.resumed", schedule=name, catch_up=catch_up)
        return resumed

    def delete(self, name: str) -> None:
        self.get(name)
        self.schedules.delete(name)
        audit_action("schedule.deleted", schedule=name)

    def run(self, name: str, at: datetime | None, *, again: bool) -> tuple[UUID, bool]:
        """Make the job of a time now; return it, and whether it is new. Raises TimeHasFired and InvalidRequest."""
        schedule = self.get(name)
        definition = self.definition(schedule)
        fire_at = at or self.schedules.now()
        try:
            job = self.job(name, schedule.schedule_id, definition, fire_at)
        except (ValueError, TypeError) as error:
            raise InvalidRequest([FieldError("at", str(error))]) from None
        current_actor().require_trigger(definition.task, job["queue"])
        if again:
            job.pop("idempotency_key")
        detail = f"run by {current_actor().name}"
        job_id, created = self.schedules.run(schedule, fire_at, job, again=again, detail=detail)
        audit_action("schedule.run", schedule=name, job_id=job_id, created=created)
        return job_id, created

    def preview(self, name: str, definition: ScheduleDefinition, begin: datetime, count: int) -> list[PreviewTime]:
        """The next times after `begin`, and their jobs."""
        if definition.timing is None:
            return []
        return [
            self._preview_time(name, definition, time.at, time.note)
            for time in islice(definition.timing.after(begin), count)
        ]

    def _preview_time(self, name: str, definition: ScheduleDefinition, at: datetime, note: str | None) -> PreviewTime:
        job: dict[str, Any] = {}
        problem = None
        try:
            job = self.job(name, UUID(int=0), definition, at)
        except (ValueError, TypeError) as error:
            problem = str(error)
        start, end = job.get("interval_start"), job.get("interval_end")
        return PreviewTime(
            at=at.astimezone(UTC),
            local_time=at.isoformat(),
            note=note,
            starts_at=(at + definition.jitter(name, at)).astimezone(UTC),
            interval_start=start and datetime.fromisoformat(start).astimezone(UTC),
            interval_end=end and datetime.fromisoformat(end).astimezone(UTC),
            partition=job.get("partition_key"),
            args=mask_secret_fields(job.get("args")),
            problem=problem,
        )

    def calendar(self, first: datetime, last: datetime, *, name: str | None = None) -> Calendar:
        """What fired in a range of time, and what will."""
        schedules = [self.get(name)] if name else self.list_visible()
        found = self.calendar_of(schedules, [(first, last)], limit=MAX_CALENDAR_ENTRIES)
        shown = found.future[: MAX_CALENDAR_ENTRIES - len(found.past)]
        return Calendar(found.past, shown, found.complete and len(shown) == len(found.future))

    def is_frequent(self, schedule: Schedule) -> bool:
        """Whether it fires hourly or more often."""
        try:
            timing = self.definition(schedule).timing
        except InvalidRequest:
            return False
        return timing is not None and timing.is_frequent

    def calendar_of(
        self, schedules: Sequence[Schedule], ranges: Sequence[Range], *, limit: int, is_filtered: bool = False
    ) -> Calendar:
        """What these schedules fired in ranges of time that follow one another, and what they will: the first `limit`
        of each range. `is_filtered`: other firings do not count; it costs a search for each schedule and range."""
        names = {schedule.name for schedule in schedules}
        ids = [schedule.schedule_id for schedule in schedules] if is_filtered or len(schedules) == 1 else None
        rows = self.schedules.firings_between(ranges, ids=ids, limit=limit + 1)
        firsts = [first for first, _ in ranges]
        by_range = [list(group) for _, group in groupby(rows, lambda firing: bisect(firsts, firing.fire_at))]
        past = [firing for group in by_range for firing in group[:limit] if firing.schedule in names]
        timings = tuple(
            (schedule.name, timing)
            for schedule in schedules
            if schedule.next_at is not None and schedule.paused_at is None and schedule.orphaned_at is None
            if (timing := self.definition(schedule).timing) is not None
        )
        now = self.schedules.now()
        minute = now - (now - EPOCH) % _CALENDAR_STEP
        begun = [(max(first, minute), last) for first, last in ranges if first <= now < last]
        later = [(first, last) for first, last in ranges if first > now]
        planned = [_planned_times(timings, tuple(some), limit) for some in (begun, later)]
        future = [time for times, _ in planned for time in times if time.fire_at > now]
        is_complete = all(len(group) <= limit for group in by_range) and all(complete for _, complete in planned)
        return Calendar(past, future, is_complete)


@lru_cache(maxsize=16)
def _planned_times(
    timings: tuple[tuple[str, Timing], ...], ranges: tuple[Range, ...], limit: int
) -> tuple[tuple[FutureFiring, ...], bool]:
    """The first times of schedules in each range, and whether these are all. To compute one takes 6 µs."""
    found: list[FutureFiring] = []
    computed, is_complete = 0, True
    for first, last in ranges:
        shown = 0
        for fire_at, name, note in merge(*(_times_in(timing, name, first, last) for name, timing in timings)):
            if shown == limit:
                is_complete = False
                break
            found.append(FutureFiring(schedule=name, fire_at=fire_at, note=note or None))
            shown += 1
        computed += shown + len(timings)
        if computed > _MAX_COMPUTED_TIMES:
            return tuple(found), is_complete and (first, last) == ranges[-1]
    return tuple(found), is_complete


def _times_in(timing: Timing, name: str, first: datetime, last: datetime) -> Iterator[tuple[datetime, str, str]]:
    for time in timing.after(first - timedelta(microseconds=1)):  # the first moment belongs to the range
        if (at := time.at.astimezone(UTC)) >= last:
            return
        yield at, name, time.note or ""


@lru_cache(maxsize=_MAX_CACHED_DEFINITIONS)
def _parse_stored(raw: str, zone: str) -> ScheduleDefinition:
    """The definition of a schedule. Pages read all of them, and to check one takes 0.1 ms."""
    return definition_from(json.loads(raw), zone=zone)


def with_secrets(values: Mapping[str, Any], schedule: Schedule) -> Mapping[str, Any]:
    """The values with the secrets of the schedule where their args have the mask, as they were shown."""
    if not values.get("args"):
        return values
    return {**values, "args": unmask(values["args"], schedule.effective_definition.get("args"))}


def explain(definition: ScheduleDefinition) -> str:
    """When it fires, as a sentence."""
    if definition.timing is not None:
        return definition.timing.explain()
    quantity = "all of" if definition.need == "all" else "one of"
    return f"When {quantity} {', '.join(definition.after)} {'are' if len(definition.after) > 1 else 'is'} updated"


def _next(definition: ScheduleDefinition, moment: datetime) -> datetime | None:
    following = None if definition.timing is None else definition.timing.next_after(moment)
    return following and following.at
