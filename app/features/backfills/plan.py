"""A backfill that is to be created: its request, its slices, the template of its jobs, and what it would do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from dataloader.app.acts.act import Call
from dataloader.app.features.backfills.reader import BackfillReader
from dataloader.app.features.backfills.rows import BackfillMode, is_selected
from dataloader.app.features.backfills.template import new_definition
from dataloader.app.features.schedules.rows import Schedules
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.problems import InvalidRequest
from dataloader.app.http.schemas import INT4_MAX, BodyModel, field_errors
from dataloader.app.log.masking import mask_secret_fields
from dataloader.app.state.statistics import Statistics
from dataloader.pipelines.partitions import Listed, Partitions, Slice, partitions_from_json
from dataloader.pipelines.schedule_definition import ScheduleDefinition
from dataloader.pipelines.task import DEFAULT_QUEUE, Task

MAX_SLICES = 1_000_000
_SHOWN = 5
_DEFAULT_PRIORITY = 200  # behind live jobs

Concurrency = Annotated[int, Field(ge=1, le=10_000)]


class SliceRange(BodyModel):
    """Slices: from the first to the last, or a list."""

    first: str | None = Field(None, alias="from", max_length=200, description="The first slice: 2026-01-01, 2026-01 …")
    last: str | None = Field(None, alias="to", max_length=200, description="The last slice, which is loaded too.")
    unit: Literal["hour", "day", "week", "month"] | None = Field(None, description="null: as the task declares.")
    zone: str | None = Field(None, max_length=100, description="null: as the task declares.")
    keys: Annotated[list[str], Field(min_length=1, max_length=100_000)] | None = Field(
        None, alias="list", description="Keys of slices, instead of a range."
    )

    @model_validator(mode="after")
    def _check_one_kind(self) -> SliceRange:
        if (self.keys is None) == (self.first is None or self.last is None):
            raise PydanticCustomError("slices", "takes from and to, or a list")
        return self


class NewBackfill(BodyModel):
    """A backfill to create."""

    task: Annotated[str, Field(min_length=1, max_length=1000)] = Field(description="The task.")
    slices: SliceRange
    mode: Annotated[BackfillMode, Field(strict=False)] = Field(
        BackfillMode.UNFINISHED,
        description="missing: never loaded with success; failed: the last job did not succeed; unfinished: both; all.",
    )
    newest_first: bool = Field(False, description="Begin with the last slice.")
    concurrency: Concurrency = Field(2, description="How many of its jobs run at a time.")
    priority: Annotated[int, Field(ge=0, le=INT4_MAX)] = Field(_DEFAULT_PRIORITY, description="Smaller runs first.")
    queue: Annotated[str, Field(min_length=1, max_length=1000)] | None = Field(
        None, description="null: the task's, else etl.default."
    )
    args: dict[str, Any] | None = Field(
        None, description="With placeholders such as {partition}; null: those of the task's schedule, if it has one."
    )
    lock_key: Annotated[str, Field(min_length=1, max_length=1000)] | None = Field(
        None, description="May have placeholders; null: the task's, or one for each slice."
    )
    max_attempts: Annotated[int, Field(ge=1, le=INT4_MAX)] = 5
    stop_after_failures: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Pause when so many slices in a row did not succeed."
    )
    note: Annotated[str, Field(max_length=500)] | None = None
    idempotency_key: Annotated[str, Field(min_length=1, max_length=1000)] | None = Field(
        None, description="A second request with it and the same values returns the same backfill."
    )
    dry_run: bool = Field(False, description="Count, and create nothing.")


@dataclass(frozen=True, kw_only=True)
class BackfillPlan:
    """What a backfill would do. `selected` of `total` slices; `by_state` counts those that have had a job.
    `estimated_sec` is how long they take by the median run of the last week; null: the task has not run then. `limits`
    are those that let fewer of its jobs run at a time than its concurrency, with how many."""

    task: str
    total: int
    selected: int
    by_state: dict[str, int]
    first: list[str]
    last: list[str]
    args: dict[str, Any]
    estimated_sec: float | None
    limits: dict[str, int]


@dataclass(frozen=True)
class PlannedBackfill:
    """What is needed to create it."""

    partitions: Partitions
    definition: ScheduleDefinition
    queue: str
    plan: BackfillPlan


def plan_backfill(call: Call, body: NewBackfill) -> PlannedBackfill:
    """Count what would be loaded, and check the args of the first and the last slice. Raises InvalidRequest."""
    task, zone = call.pipelines.get(body.task), call.options.timezone
    partitions = _partitions(body, task, zone)
    definition, queue = _template(call, body, task)
    call.jobs.check_caller(body.task, queue)
    reader = BackfillReader(call.executor, call.pipelines, call.options)
    total = partitions.count()
    first = list(islice(partitions.slices(), _SHOWN))
    last = list(islice(partitions.slices(newest_first=True), _SHOWN))[::-1]
    job: dict[str, Any] = {}
    for part in (last[-1], first[0]):
        try:
            job = reader.job(definition, part)
        except (ValueError, TypeError) as error:
            field, _, message = str(error).partition(": ")
            at, reason = (field, message) if message else ("args", field)
            raise InvalidRequest([FieldError(at, f"of the slice {part.key}: {reason}")]) from None
    counts = reader.backfills.counts(body.task, **_extent(partitions, first, last))
    by_state: dict[str, int] = {}
    for state, _, count in counts:
        by_state[state.value] = by_state.get(state.value, 0) + count
    selected = sum(count for state, succeeded, count in counts if is_selected(body.mode, state, succeeded))
    if is_selected(body.mode, None, False):
        selected += total - sum(by_state.values())
    limits = reader.binding_limits(job, body.concurrency, queue)
    plan = BackfillPlan(
        task=body.task,
        total=total,
        selected=selected,
        by_state=by_state,
        first=[part.key for part in first],
        last=[part.key for part in last],
        args=mask_secret_fields(job["args"]),
        estimated_sec=_estimate(call, body.task, selected, min((body.concurrency, *limits.values()))),
        limits=limits,
    )
    return PlannedBackfill(partitions, definition, queue, plan)


def _estimate(call: Call, task: str, count: int, concurrency: int) -> float | None:
    found = Statistics(call.executor).by_task("7d", task=task).get(task)
    median = None if found is None else found.run_time.p50
    if median is None or concurrency < 1:
        return None
    return ceil(count / concurrency) * median


def _partitions(body: NewBackfill, task: Task | None, default_zone: str) -> Partitions:
    """The slices of the request. Raises InvalidRequest."""
    requested = body.slices
    declared = None if task is None else task.options.partitions
    try:
        if requested.keys is not None:
            listed = Listed(requested.keys)
            for key in requested.keys if declared is not None else ():
                declared.in_zone(default_zone).slice(key)  # type: ignore[union-attr]
            return listed
        if requested.unit is not None or requested.zone is not None or declared is None:
            if requested.unit is None:
                why = "the task declares no partitions" if declared is None else "it belongs to the zone"
                raise ValueError(f"unit is required: {'this service does not know the task' if task is None else why}")
            found: Partitions = partitions_from_json(
                {
                    "unit": requested.unit,
                    "zone": requested.zone or default_zone,
                    "start": requested.first,
                    "end": requested.last,
                }
            )
        else:
            found = declared.in_zone(default_zone).between(requested.first, requested.last)
        total = found.count()
        if not 1 <= total <= MAX_SLICES:
            raise ValueError(f"names {total:,} slices; a backfill has 1 to {MAX_SLICES:,}")
    except (ValueError, TypeError) as error:
        raise InvalidRequest([FieldError("slices", str(error))]) from None
    return found


def _template(call: Call, body: NewBackfill, task: Task | None) -> tuple[ScheduleDefinition, str]:
    """The template of its jobs, and their queue; by default as the task's only schedule has them. Raises
    InvalidRequest."""
    schedules = Schedules(call.executor).list_by_name(task=body.task, limit=2)
    scheduled: dict[str, Any] = schedules[0].effective_definition if len(schedules) == 1 else {}
    of_code = None if task is None else task.options.queue
    queue: str = body.queue or scheduled.get("queue") or of_code or DEFAULT_QUEUE
    values = {
        "task": body.task, "queue": queue, "zone": scheduled.get("zone"),
        "args": body.args if body.args is not None else scheduled.get("args", {}), "lock_key": body.lock_key,
        "priority": body.priority, "max_attempts": body.max_attempts,
    }  # fmt: skip
    declared = None if task is None else task.options.partitions
    if declared is not None and body.slices.keys is not None:  # which say when each begins
        values["partitions"] = declared.in_zone(call.options.timezone).to_json()
    try:
        return new_definition(values, zone=body.slices.zone or call.options.timezone), queue
    except ValidationError as error:
        raise InvalidRequest(list(field_errors(error))) from None


def _extent(partitions: Partitions, first: list[Slice], last: list[Slice]) -> dict[str, Any]:
    if isinstance(partitions, Listed):
        return {"keys": [part.key for part in partitions.slices()]}
    begin, end = first[0].start, last[-1].end
    return {"first": begin or datetime.min.replace(tzinfo=UTC), "last": end}
