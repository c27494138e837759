"""What a schedule is: its times, the template of its jobs, and its rules. One model for code, people and files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dataloader.pipelines.context import Interval
from dataloader.pipelines.job_args import path_of_arg, result_errors
from dataloader.pipelines.limits import check_limits
from dataloader.pipelines.partitions import Partitions, Slice, partitions_from_json
from dataloader.pipelines.retry import policy_from_json
from dataloader.pipelines.schedule_fields import (
    MAX_DATASET_BYTES,
    MAX_DATASETS,
    MAX_EXCLUDED,
    SCHEDULE_FIELDS,
    CatchUp,
    Kind,
    Need,
    Overlap,
    ScheduleField,
    Times,
)
from dataloader.pipelines.schedule_templates import check_template, fill_template
from dataloader.pipelines.schedule_times import EPOCH, Timing, timing_fields
from dataloader.pipelines.schedules import schedules_of
from dataloader.pipelines.task import DEFAULT_QUEUE, Task

_MAX_NAME_BYTES = 1_000
Value = TypeVar("Value")


def _parse_moment(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise PydanticCustomError("moment", "is no RFC 3339 time, such as 2030-01-31T06:00:00+03:00") from None
    if isinstance(value, datetime) and value.tzinfo is None:
        raise PydanticCustomError("zone", "needs a time zone, as in 2030-01-31T06:00:00+03:00")
    return value


def _parse_day(value: Any) -> Any:
    try:
        return date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise PydanticCustomError("day", "is no day of the calendar, such as 2030-01-31") from None


def _check_name(value: str) -> str:
    if not value.strip() or "\0" in value or len(value.encode()) > _MAX_NAME_BYTES:
        raise PydanticCustomError("name", "is a text of 1 to 1,000 bytes that is not blank")
    return value


def _checked(value: Value, check: Callable[[], object]) -> Value:
    try:
        check()
    except (ValueError, TypeError) as error:
        message = str(error).removeprefix("expression: ").removeprefix("zone: ")
        raise PydanticCustomError("schedule", "{reason}", {"reason": message}) from None
    return value


def _check_zone(value: str) -> str:
    return _checked(value, lambda: Timing(kind="interval", expression="60", zone=value))


def _check_expression(value: str, info: ValidationInfo) -> str:
    kind = info.data.get("kind")
    return value if kind in (None, "dataset") else _checked(value, lambda: Timing(kind=kind, expression=value))


def _check_datasets(value: list[str]) -> list[str]:
    are_names = all(name.strip() and len(name.encode()) <= MAX_DATASET_BYTES for name in value)
    if not are_names or len(set(value)) < len(value):
        raise PydanticCustomError("after", "names datasets, each once, with 1 to 500 bytes")
    return value


def _checking(check: Callable[[Any], object]) -> AfterValidator:
    return AfterValidator(lambda value: _checked(value, lambda: check(value)))


Moment = Annotated[
    datetime | None,
    BeforeValidator(_parse_moment),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}),
]
Day = Annotated[date, BeforeValidator(_parse_day), WithJsonSchema({"type": "string", "format": "date"})]


class JobTimes(NamedTuple):
    """What a job is for."""

    logical_at: datetime
    interval: Interval | None
    partition: str | None

    def placeholders(self) -> dict[str, Any]:
        """What the placeholders of a template stand for."""
        return {
            "logical_at": self.logical_at,
            "interval_start": self.interval and self.interval.start,
            "interval_end": self.interval and self.interval.end,
            "partition": self.partition,
        }


class DefinitionRules(BaseModel):
    """What the fields of a schedule mean together. The fields are those of `schedule_fields.py`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    if TYPE_CHECKING:  # the fields that code reads by name
        task: str
        kind: Times
        zone: str  # None in a request: `definition_from` fills it in
        jitter_sec: int
        starts_at: datetime | None
        ends_at: datetime | None
        excluded: list[date]
        after: list[str]
        need: Need
        args: dict[str, Any]
        queue: str | None
        lock_key: str | None
        lease_ttl_sec: int | None
        limits: dict[str, int] | None
        fair_key: str | None
        catch_up: CatchUp
        catch_up_max: int
        catch_up_window_sec: int
        grace_sec: int
        overlap: Overlap
        partitions: dict[str, Any] | None

    @field_validator("ends_at", check_fields=False)
    @classmethod
    def _check_end(cls, value: datetime | None, info: ValidationInfo) -> datetime | None:
        starts_at = info.data.get("starts_at")
        if value is not None and starts_at is not None and value.astimezone(UTC) <= starts_at.astimezone(UTC):
            raise PydanticCustomError("end", "is not later than starts_at")
        return value

    @model_validator(mode="after")
    def _check_kind(self) -> DefinitionRules:
        if (self.kind == "dataset") != bool(self.after):
            raise PydanticCustomError("kind", "after names the datasets of kind dataset, and of no other")
        if self.kind == "dataset" and self.excluded:
            raise PydanticCustomError("excluded", "excluded days are of kinds with times; updates make jobs on any day")
        return self

    @cached_property
    def timing(self) -> Timing | None:
        """None: datasets make its jobs."""
        if self.kind == "dataset":
            return None
        return Timing(**timing_fields(vars(self)))

    def is_within_bounds(self, at: datetime) -> bool:
        at = at.astimezone(UTC)
        return (self.starts_at is None or at >= self.starts_at.astimezone(UTC)) and (
            self.ends_at is None or at <= self.ends_at.astimezone(UTC)
        )

    @cached_property
    def slices(self) -> Partitions | None:
        return None if self.partitions is None else partitions_from_json(self.partitions).in_zone(self.zone)

    def times_of_job(self, fire_at: datetime) -> JobTimes:
        """What the job of a nominal time is for: with slices the one that ended last, else what has passed since the
        time before."""
        fire_at = fire_at.astimezone(ZoneInfo(self.zone))
        if self.slices is not None:
            last = self.slices.last_ended(fire_at)
            if last is None:
                raise ValueError(f"no slice of {self.task} has ended by {fire_at.isoformat()}")
            return times_of_slice(last, fire_at)
        previous = None if self.timing is None else self.timing.previous(fire_at)
        return JobTimes(fire_at, None if previous is None else Interval(previous, fire_at), None)

    def jitter(self, key: str, fire_at: datetime) -> timedelta:
        """How much later the job of a nominal time starts."""
        if not self.jitter_sec:
            return timedelta()
        digest = hashlib.sha256(f"{key} {fire_at.astimezone(UTC).isoformat()}".encode()).digest()
        return timedelta(seconds=int.from_bytes(digest[:8], "big") % (self.jitter_sec * 1000) / 1000)

    def to_json(self) -> dict[str, Any]:
        """The zone, and the fields that differ from their defaults."""
        return {"zone": self.zone, **self.model_dump(mode="json", exclude_defaults=True)}


_TYPES: Mapping[Kind, Any] = {
    Kind.TASK: Annotated[str, AfterValidator(_check_name)],
    Kind.ZONE: Annotated[str, AfterValidator(_check_zone)],
    Kind.EXPRESSION: Annotated[str, AfterValidator(_check_expression)],
    Kind.NAME: Annotated[str, AfterValidator(_check_name)],
    Kind.TEMPLATE: Annotated[str, AfterValidator(_check_name), _checking(check_template)],
    Kind.MOMENT: Moment,
    Kind.DAYS: Annotated[list[Day], Field(max_length=MAX_EXCLUDED)],
    Kind.DATASETS: Annotated[list[str], Field(max_length=MAX_DATASETS), AfterValidator(_check_datasets)],
    Kind.ARGS: Annotated[dict[str, Any], _checking(check_template)],
    Kind.RETRY: Annotated[dict[str, Any], _checking(policy_from_json)],
    Kind.LIMITS: Annotated[dict[str, int], _checking(check_limits)],
    Kind.PARTITIONS: Annotated[dict[str, Any], _checking(partitions_from_json)],
}


def _type_of(field: ScheduleField) -> Any:
    if field.kind is Kind.CHOICE:
        return Literal[tuple(field.choices)]
    if field.kind in (Kind.NUMBER, Kind.SECONDS):
        return Annotated[int, Field(ge=field.minimum, le=field.maximum)]
    return _TYPES[field.kind]


def _field_of(field: ScheduleField) -> tuple[Any, Any]:
    """The type of a field and its default, as `create_model` takes them."""
    if field.kind is Kind.TASK:
        return _type_of(field), Field(description=field.description)
    is_optional = field.default is None and field.kind is not Kind.MOMENT  # whose type allows null
    default: Any = list(field.default) if isinstance(field.default, tuple) else field.default
    return _type_of(field) | None if is_optional else _type_of(field), Field(
        default, validate_default=field.kind is Kind.EXPRESSION, description=field.description
    )


def changed_field(field: ScheduleField) -> tuple[Any, Any]:
    """The same in a request that changes a schedule, where null leaves it as it is."""
    return _type_of(field) | None, Field(None, description=field.description)


if TYPE_CHECKING:
    ScheduleDefinition = DefinitionRules
else:
    ScheduleDefinition = create_model(
        "ScheduleDefinition",
        __base__=DefinitionRules,
        __module__=__name__,
        __doc__="When jobs are made, and which.",
        **{name: _field_of(field) for name, field in SCHEDULE_FIELDS.items()},
    )


def times_by_hand(
    task: Task, args: Mapping[str, Any] | None, *, zone: str, logical_at: datetime | None, part: str | None
) -> tuple[JobTimes, dict[str, Any]]:
    """What a job that a person runs is for, by a slice or by a nominal time, and its args, which may have placeholders.
    None: they are those of the task's only schedule in code, and so is the interval. Raises ValueError."""
    base = _only_schedule(task) or {"kind": "dataset", "after": ["none"]}
    applies = {name: value for name, value in base.items() if name != "off"} | {"task": task.name}
    if task.options.partitions is not None:
        applies["partitions"] = task.options.partitions.to_json()
    definition = definition_from(applies | ({} if args is None else {"args": dict(args)}), zone=zone)
    if part is not None:
        if definition.slices is None:
            raise ValueError(f"the task {task.name!r} declares no partitions, so there is no slice {part!r}")
        times = times_of_slice(definition.slices.slice(part), logical_at)
    else:
        assert logical_at is not None  # noqa: S101 - one of the two is given
        times = definition.times_of_job(logical_at)
    return times, fill_template(definition.args, times.placeholders(), definition.zone)


def slice_of_args(task: Task, args: Mapping[str, Any], *, zone: str) -> JobTimes | None:
    """What a job is for whose args are those of a slice, by the task's only schedule in code; None: of no slice."""
    declared = _only_schedule(task) or {}
    if task.options.partitions is None or not declared.get("args"):
        return None
    zone = declared.get("zone") or zone
    slices = task.options.partitions.in_zone(zone)
    wanted = task.complete_args(args)
    for key in dict.fromkeys(value for value in wanted.values() if isinstance(value, str)):
        with suppress(ValueError):  # no slice of the task is called so, or the template needs another time
            times = times_of_slice(slices.slice(key))
            filled = fill_template(declared["args"], times.placeholders(), zone)
            if task.complete_args(filled) == wanted:
                return times
    return None


def _only_schedule(task: Task) -> dict[str, Any] | None:
    """The task's only schedule in code; None: it has none, or several."""
    declared = schedules_of(task.call)
    return declared[0].to_json() if len(declared) == 1 else None


def times_of_listed(definition: ScheduleDefinition, part: Slice) -> JobTimes:
    """What the job of a slice is for, also if it was named in a list: its task's partitions have its times."""
    if part.start is None and definition.slices is not None:
        part = definition.slices.slice(part.key)
    return times_of_slice(part)


def times_of_slice(part: Slice, logical_at: datetime | None = None) -> JobTimes:
    interval = None if part.start is None or part.end is None else Interval(part.start, part.end)
    return JobTimes(logical_at or part.end or EPOCH, interval, part.key)


def fill_job(
    definition: ScheduleDefinition, times: JobTimes, task: Task | None, *, default_lease_sec: int, lock_key: str
) -> dict[str, Any]:
    """The request of a job of this template. `task` is None where its code is not known: its args are checked when it
    runs. `lock_key` is for tasks that have none. Raises ValueError."""
    interval = times.interval
    values = times.placeholders()
    args = fill_template(definition.args, values, definition.zone)
    queue = definition.queue or (None if task is None else task.options.queue) or DEFAULT_QUEUE
    limits, live_key = definition.limits, None
    errors = [*([] if task is None else task.check_args(args)), *result_errors(args, ())]
    if errors:
        raise ValueError("; ".join(f"{path_of_arg(path)}: {message}" for path, message in errors))
    if task is not None:
        limits = limits if limits is not None else task.fill_limits(args)
        live_key = task.unique_live_key(args)
        if task.options.lock_key is not None:
            lock_key = task.fill_lock_key(args)
    if definition.lock_key is not None:
        lock_key = fill_template(definition.lock_key, values, definition.zone, "lock_key")
    request: dict[str, Any] = {
        "queue": queue,
        "task": definition.task,
        "lock_key": lock_key,
        "args": args,
        **{name: getattr(definition, name) for name, field in SCHEDULE_FIELDS.items() if field.of_job},
        "lease_ttl_sec": definition.lease_ttl_sec or default_lease_sec,
        "limits": limits,
        "live_key": live_key,
        "logical_at": times.logical_at.isoformat(),
        "interval_start": interval and interval.start.isoformat(),
        "interval_end": interval and interval.end.isoformat(),
        "start_within_sec": None if task is None else task.options.start_within,
    }
    if definition.fair_key is not None:
        request["fair_key"] = fill_template(definition.fair_key, values, definition.zone, "fair_key")
    if times.partition is not None:
        request |= {"partition_key": times.partition, "live_key": slice_live_key(definition.task, times.partition)}
    return {name: value for name, value in request.items() if value is not None}


def slice_live_key(task: str, partition: str) -> str:
    """The live key of jobs that load a slice: one at a time has it."""
    return f"slice:{task}:{partition}"


def definition_from(values: Mapping[str, Any], *, zone: str) -> ScheduleDefinition:
    """The definition with the default zone filled in. Slices have their own: backfills of the task load them
    too, so the zone of a schedule does not move them. Raises pydantic's ValidationError."""
    given = {"zone": zone, **{name: value for name, value in values.items() if value is not None}}
    partitions = given.get("partitions")
    if isinstance(partitions, Mapping) and "unit" in partitions and partitions.get("zone") is None:
        given["partitions"] = {**partitions, "zone": zone}
    return ScheduleDefinition.model_validate(given)


def first_error(error: ValidationError) -> str:
    """The first error of a definition, with the name of its field."""
    first = error.errors(include_url=False)[0]
    path = ".".join(map(str, first["loc"]))
    return f"{path}: {first['msg']}" if path else first["msg"]


def problem_of_next_job(
    name: str, definition: ScheduleDefinition, task: Task | None, *, now: datetime, default_lease_sec: int
) -> str | None:
    """Return why the next nominal time makes no job, or None if it makes one or no slice has ended by then."""
    following = None if definition.timing is None else definition.timing.next_after(now)
    fire_at = now if following is None else following.at
    if definition.slices is not None and definition.slices.last_ended(fire_at) is None:
        return None
    try:
        scheduled_job(name, str(UUID(int=0)), definition, fire_at, task, default_lease_sec=default_lease_sec)
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def scheduled_job(
    name: str,
    schedule_id: str,
    definition: ScheduleDefinition,
    fire_at: datetime,
    task: Task | None,
    *,
    default_lease_sec: int,
) -> dict[str, Any]:
    """The request of the job of a nominal time. Raises ValueError."""
    fired = fire_at.astimezone(UTC).isoformat()
    lock_key = f"schedule:{name}:{fired}" if definition.overlap == "allow" else f"schedule:{name}"
    times = definition.times_of_job(fire_at)
    job = fill_job(definition, times, task, default_lease_sec=default_lease_sec, lock_key=lock_key)
    return job | {
        "schedule_id": schedule_id,
        "producer": f"schedule:{name}",
        "idempotency_key": f"schedule:{schedule_id}:{fired}",
    }
