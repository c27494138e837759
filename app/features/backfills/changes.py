"""Backfills as people make and change them: what both the API and the dashboard do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from math import ceil
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from dataloader.app.errors import BackfillNotFound, LimitNotFound
from dataloader.app.features.backfills.rows import (
    Backfill,
    BackfillMode,
    BackfillOptions,
    Backfills,
    BackfillState,
    is_selected,
)
from dataloader.app.features.limits.rows import Limits
from dataloader.app.features.queues.rows import Queues
from dataloader.app.features.schedules.rows import Schedules
from dataloader.app.features.statistics.rows import Statistics
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.middleware import audit_action
from dataloader.app.http.options import WebOptions
from dataloader.app.http.problems import InvalidRequest
from dataloader.app.http.schemas import INT4_MAX, BodyModel, field_errors
from dataloader.app.log.masking import mask_secret_fields
from dataloader.app.queue.job import Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.partitions import Listed, Partitions, Slice, partitions_from_json
from dataloader.pipelines.schedule_definition import ScheduleDefinition, definition_from, fill_job, times_of_listed
from dataloader.pipelines.task import DEFAULT_QUEUE

MAX_SLICES = 1_000_000
_SHOWN = 5
_CANCEL_BATCH = 10_000
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
        description="missing: never loaded with success; failed: the last job ended badly; unfinished: both; all.",
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
        None, description="Pause when so many slices in a row ended badly."
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
class CreatedBackfill:
    """The backfill, or with `dry_run` the plan alone. `created` is false if the idempotency key found it."""

    plan: BackfillPlan
    backfill: Backfill | None
    created: bool


def visible_backfill(backfill: Backfill) -> Backfill:
    """A backfill as callers see it: secrets in the args of its jobs are masked."""
    return replace(backfill, template=mask_secret_fields(backfill.template))


class BackfillEditor:
    """Makes and changes backfills for a caller, who sees those of visible tasks and queues."""

    def __init__(self, queue: JobQueue, pipelines: Pipelines, options: WebOptions) -> None:
        self.backfills = Backfills(queue.executor)
        self._queue, self._schedules = queue, Schedules(queue.executor)
        self._limits, self._queues = Limits(queue.executor), Queues(queue.executor)
        self._statistics = Statistics(queue.executor)
        self._pipelines, self._options = pipelines, options

    def newest(self, *, task: str | None = None, is_open: bool = False, limit: int) -> list[Backfill]:
        can_see = current_actor().can_see
        found = self.backfills.newest(task=task, is_open=is_open, limit=limit)
        return [backfill for backfill in found if can_see(backfill.task, backfill.queue)]

    def get(self, backfill_id: UUID) -> Backfill:
        """Raises BackfillNotFound."""
        backfill = self.backfills.get(backfill_id)
        if not current_actor().can_see(backfill.task, backfill.queue):
            raise BackfillNotFound(backfill_id)
        return backfill

    def create(self, body: NewBackfill) -> CreatedBackfill:
        """Raises InvalidRequest and IdempotencyConflict."""
        partitions = _partitions(body, self._pipelines, self._options)
        definition, queue_name = _template(body, self._pipelines, self._schedules, self._options)
        current_actor().require_trigger(body.task, queue_name)
        plan = self._plan(body, partitions, definition, queue_name)
        if body.dry_run:
            return CreatedBackfill(plan, None, created=False)
        backfill, is_new = self.backfills.create(
            body.task,
            queue=queue_name,
            slices=partitions.to_json(),
            total=plan.total,
            template={
                k: v for k, v in definition.to_json().items() if k not in ("task", "queue", "kind", "expression")
            },
            options=BackfillOptions(
                mode=body.mode,
                newest_first=body.newest_first,
                concurrency=body.concurrency,
                stop_after_failures=body.stop_after_failures,
                note=body.note,
            ),
            created_by=current_actor().name,
            idempotency_key=body.idempotency_key,
        )
        if is_new:
            audit_action("backfill.created", backfill_id=backfill.backfill_id, task=body.task, slices=plan.total)
        return CreatedBackfill(plan, backfill, created=is_new)

    def _plan(
        self, body: NewBackfill, partitions: Partitions, definition: ScheduleDefinition, queue_name: str
    ) -> BackfillPlan:
        """Count what would be loaded, and check the args of the first and the last slice. Raises InvalidRequest."""
        total = partitions.count()
        first = list(islice(partitions.slices(), _SHOWN))
        last = list(islice(partitions.slices(newest_first=True), _SHOWN))[::-1]
        job: dict[str, Any] = {}
        for part in (last[-1], first[0]):
            try:
                job = self._job_of(definition, part)
            except (ValueError, TypeError) as error:
                raise InvalidRequest([FieldError("args", f"of the slice {part.key}: {error}")]) from None
        by_state: dict[str, int] = {}
        unselected = 0
        known = 0
        for state, has_succeeded, count in self.backfills.counts(body.task, **_extent(partitions, first, last)):
            by_state[state.value] = by_state.get(state.value, 0) + count
            known += count
            unselected += 0 if is_selected(body.mode, state, has_succeeded) else count
        if not is_selected(body.mode, None, False):
            unselected += total - known
        limits = self._binding_limits(job, body.concurrency, queue_name)
        return BackfillPlan(
            task=body.task,
            total=total,
            selected=total - unselected,
            by_state=by_state,
            first=[part.key for part in first],
            last=[part.key for part in last],
            args=mask_secret_fields(job["args"]),
            estimated_sec=self._estimate(body.task, total - unselected, min((body.concurrency, *limits.values()))),
            limits=limits,
        )

    def binding_limits(self, backfill: Backfill) -> dict[str, int]:
        """The limits that let fewer jobs of a backfill run at a time than its concurrency, with how many."""
        values = {"task": backfill.task, "kind": "interval", "expression": "60", "queue": backfill.queue}
        partitions = self.partitions_of(backfill)
        first = None if partitions is None else next(partitions.slices(), None)
        if first is None:
            return {}
        try:
            definition = definition_from({**backfill.template, **values}, zone=self._options.timezone)
            job = self._job_of(definition, first)
        except (ValidationError, ValueError, TypeError):  # its task has changed since
            return {}
        return self._binding_limits(job, backfill.concurrency, backfill.queue)

    def _job_of(self, definition: ScheduleDefinition, part: Slice) -> dict[str, Any]:
        return fill_job(
            definition,
            times_of_listed(definition, part),
            self._pipelines.get(definition.task),
            default_lease_sec=self._options.default_lease_ttl_sec,
            lock_key=part.key,
        )

    def _binding_limits(self, job: Mapping[str, Any], concurrency: int, queue_name: str) -> dict[str, int]:
        """The limits that let fewer jobs like this one run at a time."""
        weights = {**(job.get("limits") or {}), f"queue:{queue_name}": 1, f"task:{job['task']}": 1}
        binding: dict[str, int] = {}
        for name, weight in weights.items():
            try:
                allowed = self._limits.status(name).concurrency
            except LimitNotFound:
                continue
            if allowed is not None and allowed // weight < concurrency:
                binding[name] = allowed // weight
        (setting,) = self._queues.statuses(queue=queue_name) or (None,)
        if setting is not None and setting.concurrency is not None and setting.concurrency < concurrency:
            binding[f"queue:{queue_name}"] = setting.concurrency
        return binding

    def _estimate(self, task: str, count: int, concurrency: int) -> float | None:
        found = self._statistics.by_task("7d", task=task).get(task)
        median = None if found is None else found.run_time.p50
        if median is None or concurrency < 1:
            return None
        return ceil(count / concurrency) * median

    def run_slices(self, task: str, keys: Sequence[str], **more: Any) -> Backfill:
        """Load these slices again, or for the first time, by a backfill of their own. Raises InvalidRequest."""
        body = NewBackfill.model_validate({"task": task, "slices": {"list": list(keys)}, "mode": "all", **more})
        created = self.create(body).backfill
        assert created is not None  # noqa: S101 - it is no dry run
        return created

    def cancel_slices(self, task: str, keys: Sequence[str]) -> int:
        """Cancel the jobs of these slices that have not started; return how many."""
        found = self.backfills.slices(task=task, keys=keys, state=Status.QUEUED, limit=len(keys))
        for part in found:
            self._queue.cancel(part.job_id)
        audit_action("slices.canceled", task=task, slices=len(found))
        return len(found)

    def change(self, backfill_id: UUID, *, concurrency: int | None, note: str | None) -> Backfill:
        """Raises BackfillNotFound and BackfillEnded."""
        self.get(backfill_id)
        changes = {"concurrency": concurrency, "note": note}
        audit_action(
            "backfill.changed", backfill_id=backfill_id, fields=sorted(k for k, v in changes.items() if v is not None)
        )
        return self.backfills.change(backfill_id, concurrency=concurrency, note=note, changed_by=current_actor().name)

    def set_state(self, backfill_id: UUID, state: BackfillState) -> Backfill:
        """Raises BackfillNotFound and BackfillEnded."""
        self.get(backfill_id)
        changed = self.backfills.change(backfill_id, state=state, changed_by=current_actor().name)
        audit_action(f"backfill.{state.value}", backfill_id=backfill_id)
        return changed

    def cancel(self, backfill_id: UUID, *, running: bool) -> Backfill:
        """Make no further job and cancel its queued ones, or also those that run."""
        self.set_state(backfill_id, BackfillState.CANCELED)
        states = [Status.QUEUED, Status.RUNNING] if running else [Status.QUEUED]
        for job_id in self.backfills.jobs(backfill_id, states, limit=_CANCEL_BATCH):
            self._queue.cancel(job_id)
        return self.get(backfill_id)

    def retry(self, backfill_id: UUID) -> Backfill:
        """Load again what ended badly."""
        self.get(backfill_id)
        audit_action("backfill.retried", backfill_id=backfill_id)
        return self.backfills.retry(backfill_id, changed_by=current_actor().name)

    def partitions_of(self, backfill: Backfill) -> Partitions | None:
        """The slices that it names; None: another program has written something else."""
        with suppress(ValueError):
            return partitions_from_json(backfill.slices)
        return None

    def partitions_of_task(self, task: str) -> Partitions | None:
        """The slices of a task that have ended by now; None: it declares none, or none has ended."""
        known = self._pipelines.get(task)
        declared = None if known is None else known.options.partitions
        if declared is None or isinstance(declared, Listed):
            return declared
        declared = declared.in_zone(self._options.timezone)
        last = declared.last_ended(datetime.now(UTC))
        return None if last is None else declared.between(last=last.key)


def _partitions(body: NewBackfill, pipelines: Pipelines, options: WebOptions) -> Partitions:
    """The slices of the request. Raises InvalidRequest."""
    asked = body.slices
    task = pipelines.get(body.task)
    declared = None if task is None else task.options.partitions
    try:
        if asked.keys is not None:
            listed = Listed(asked.keys)
            for key in asked.keys if declared is not None else ():
                declared.in_zone(options.timezone).slice(key)  # type: ignore[union-attr]
            return listed
        if asked.unit is not None or asked.zone is not None or declared is None:
            if asked.unit is None:
                why = "this service does not know the task" if task is None else "the task declares no partitions"
                raise ValueError(f"unit is required: {why}")
            zone = asked.zone or options.timezone
            found: Partitions = partitions_from_json(
                {"unit": asked.unit, "zone": zone, "start": asked.first, "end": asked.last}
            )
        else:
            found = declared.in_zone(options.timezone).between(asked.first, asked.last)
        total = found.count()
        if not 1 <= total <= MAX_SLICES:
            raise ValueError(f"names {total:,} slices; a backfill has 1 to {MAX_SLICES:,}")
    except (ValueError, TypeError) as error:
        raise InvalidRequest([FieldError("slices", str(error))]) from None
    return found


def _template(
    body: NewBackfill, pipelines: Pipelines, schedules: Schedules, options: WebOptions
) -> tuple[ScheduleDefinition, str]:
    """The template of its jobs, and their queue. Raises InvalidRequest."""
    task = pipelines.get(body.task)
    declared = None if task is None else task.options.partitions
    scheduled: dict[str, Any] = {}
    of_task = schedules.list_by_name(task=body.task, limit=2)
    if len(of_task) == 1:
        scheduled = {
            name: value for name, value in of_task[0].effective_definition.items() if name in ("args", "queue", "zone")
        }
    of_code = None if task is None else task.options.queue
    queue_name: str = body.queue or scheduled.get("queue") or of_code or DEFAULT_QUEUE
    values = {
        "task": body.task, "kind": "interval", "expression": "60", "queue": queue_name, "zone": scheduled.get("zone"),
        "args": body.args if body.args is not None else scheduled.get("args", {}), "lock_key": body.lock_key,
        "priority": body.priority, "max_attempts": body.max_attempts,
    }  # fmt: skip
    if declared is not None and body.slices.keys is not None:  # which say when each begins
        values["partitions"] = declared.in_zone(options.timezone).to_json()
    try:
        return definition_from(values, zone=body.slices.zone or options.timezone), queue_name
    except ValidationError as error:
        raise InvalidRequest(list(field_errors(error))) from None


def _extent(partitions: Partitions, first: list[Slice], last: list[Slice]) -> dict[str, Any]:
    if isinstance(partitions, Listed):
        return {"keys": [part.key for part in partitions.slices()]}
    begin, end = first[0].start, last[-1].end
    return {"first": begin or datetime.min.replace(tzinfo=UTC), "last": end}
