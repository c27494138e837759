"""What people do with backfills and slices, those of visible tasks and queues."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, model_validator

from dataloader.app.acts.act import Call, act
from dataloader.app.features.backfills.plan import BackfillPlan, Concurrency, NewBackfill, plan_backfill
from dataloader.app.features.backfills.reader import BackfillReader, visible_backfill
from dataloader.app.features.backfills.rows import Backfill, BackfillOptions, Backfills, BackfillState
from dataloader.app.features.backfills.template import stored_template
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.schemas import BodyModel, QueryModel, require_change
from dataloader.app.queue.job import Status
from dataloader.app.queue.jobs import JobQueue

MAX_SLICES_RUN = 5_000
_MAX_CANCELED = 10_000
_NOT_FOUND = (ProblemCode.BACKFILL_NOT_FOUND,)
_OUTSIDE = ProblemCode.OUTSIDE_KEY_LIMITS
_ENDED = (ProblemCode.BACKFILL_NOT_FOUND, ProblemCode.BACKFILL_ENDED)

SliceKeys = Annotated[list[str], Field(min_length=1, max_length=MAX_SLICES_RUN)]


class BackfillChange(BodyModel):
    """What to change; null, or a field left out, stays as it is."""

    concurrency: Concurrency | None = Field(None, description="How many of its jobs run at a time.")
    note: Annotated[str, Field(max_length=500)] | None = None

    _require_change = model_validator(mode="after")(require_change)


class CancelQuery(QueryModel):
    running: Annotated[bool, Field(description="Cancel its running jobs too.")] = False


class SlicesToRun(BodyModel):
    """Slices to load again, or for the first time."""

    keys: SliceKeys = Field(description="Keys of slices.")
    concurrency: Concurrency = Field(2, description="How many run at a time.")
    note: Annotated[str, Field(max_length=500)] | None = None


class SlicesToCancel(BodyModel):
    keys: SliceKeys = Field(description="Keys of slices.")


@dataclass(frozen=True)
class CreatedBackfill:
    """The backfill, or with `dry_run` the plan alone. `created` is false if the idempotency key found it."""

    plan: BackfillPlan
    backfill: Backfill | None
    created: bool


@dataclass(frozen=True)
class CanceledSlices:
    """How many jobs were canceled."""

    slices: int


# The line of each has what the act says.
_act = partial(
    act,
    unaudited={
        name
        for model in (NewBackfill, BackfillChange, CancelQuery, SlicesToRun, SlicesToCancel)
        for name in model.model_fields
    },
)


# ── backfills ───────────────────────────────────────────────────────────────────────────────────────────────────────


@_act("backfill.created", "POST", "/backfills", problems=(_OUTSIDE, ProblemCode.IDEMPOTENCY_CONFLICT))
def create_backfill(call: Call, body: NewBackfill) -> CreatedBackfill:
    """Load slices of a task for the first time or again, a few at a time.

    A slice that another job loads already is counted and not made twice. With `dry_run` nothing is created.
    """
    planned = plan_backfill(call, body)
    if body.dry_run:
        call.event = None
        return CreatedBackfill(planned.plan, None, created=False)
    backfill, is_new = Backfills(call.executor).create(
        body.task,
        queue=planned.queue,
        slices=planned.partitions.to_json(),
        total=planned.plan.total,
        template=stored_template(planned.definition),
        options=BackfillOptions(**{field.name: getattr(body, field.name) for field in fields(BackfillOptions)}),
        created_by=call.actor,
        idempotency_key=body.idempotency_key,
    )
    if not is_new:
        call.event = None
    call.audit(backfill_id=backfill.backfill_id, task=body.task, slices=planned.plan.total)
    return CreatedBackfill(planned.plan, visible_backfill(backfill), created=is_new)


@_act("backfill.changed", "PATCH", "/backfills/<uuid:backfill_id>", problems=_ENDED)
def change_backfill(call: Call, backfill_id: UUID, body: BackfillChange) -> Backfill:
    """Change the concurrency or the note of a backfill that has not ended. The concurrency holds at once."""
    changes = {name: value for name, value in vars(body).items() if value is not None}
    call.audit(fields=sorted(changes))
    return _change(call, backfill_id, **changes)


@_act("backfill.paused", "POST", "/backfills/<uuid:backfill_id>/pause", problems=_ENDED)
def pause_backfill(call: Call, backfill_id: UUID) -> Backfill:
    """Pause a backfill: none of its jobs starts. Running ones continue."""
    return _change(call, backfill_id, state=BackfillState.PAUSED)


@_act("backfill.resumed", "POST", "/backfills/<uuid:backfill_id>/resume", problems=_ENDED)
def resume_backfill(call: Call, backfill_id: UUID) -> Backfill:
    """Resume a paused backfill: its jobs start again."""
    return _change(call, backfill_id, state=BackfillState.OPEN)


@_act("backfill.canceled", "POST", "/backfills/<uuid:backfill_id>/cancel", problems=_ENDED)
def cancel_backfill(call: Call, backfill_id: UUID, query: CancelQuery) -> Backfill:
    """End a backfill: no further job is made, and its queued ones are canceled."""
    _change(call, backfill_id, state=BackfillState.CANCELED)
    backfills = Backfills(call.executor)
    states = [Status.QUEUED, Status.RUNNING] if query.running else [Status.QUEUED]
    JobQueue(call.executor).cancel_all(backfills.jobs(backfill_id, states, limit=_MAX_CANCELED))
    return visible_backfill(backfills.get(backfill_id))


@_act("backfill.retried", "POST", "/backfills/<uuid:backfill_id>/retry", problems=_NOT_FOUND)
def retry_backfill(call: Call, backfill_id: UUID) -> Backfill:
    """Load again the slices of a backfill whose last job did not succeed."""
    _require_visible(call, backfill_id)
    return visible_backfill(Backfills(call.executor).retry(backfill_id, changed_by=call.actor))


def _change(call: Call, backfill_id: UUID, **changes: Any) -> Backfill:
    """Raises BackfillNotFound and BackfillEnded."""
    _require_visible(call, backfill_id)
    return visible_backfill(Backfills(call.executor).change(backfill_id, **changes, changed_by=call.actor))


def _require_visible(call: Call, backfill_id: UUID) -> None:
    BackfillReader(call.executor, call.pipelines, call.options).get(backfill_id)


# ── slices ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@_act("backfill.created", "POST", "/tasks/<path:task>/slices/run", problems=(_OUTSIDE,))
def run_task_slices(call: Call, task: str, body: SlicesToRun) -> Backfill:
    """Load slices again, or for the first time, by a backfill of their own."""
    values = {"task": task, "slices": {"list": body.keys}, "mode": "all", **body.model_dump(exclude={"keys"})}
    created = create_backfill.perform(call, body=NewBackfill.model_validate(values)).backfill
    assert isinstance(created, Backfill)  # noqa: S101 - it is no dry run
    return created


@_act("slices.canceled")  # by a form alone
def cancel_slices(call: Call, task: str, body: SlicesToCancel) -> CanceledSlices:
    """Cancel the jobs of these slices that have not started."""
    found = Backfills(call.executor).slices(task=task, keys=body.keys, state=Status.QUEUED, limit=len(body.keys))
    canceled = JobQueue(call.executor).cancel_all([part.job_id for part in found])
    call.audit(slices=canceled)
    return CanceledSlices(canceled)
