"""Backfills and the slices of tasks over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated
from uuid import UUID

from pydantic import Field, model_validator

from dataloader.app.features.backfills.changes import (
    BackfillEditor,
    Concurrency,
    CreatedBackfill,
    NewBackfill,
    visible_backfill,
)
from dataloader.app.features.backfills.rows import Backfill, BackfillState, SliceState
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import BodyModel, QueryModel, Timestamp, require_change
from dataloader.app.http.site import Site
from dataloader.app.queue.job import Status

MAX_SLICES_RUN = 5_000


class BackfillChange(BodyModel):
    """What to change; null, or a field left out, stays as it is."""

    concurrency: Concurrency | None = Field(None, description="How many of its jobs run at a time.")
    note: Annotated[str, Field(max_length=500)] | None = None

    _require_change = model_validator(mode="after")(require_change)


class BackfillQuery(QueryModel):
    task: Annotated[str | None, Field(description="Only backfills of this task.")] = None
    limit: Annotated[int, Field(ge=1, le=200, description="The maximum number of entries.")] = 50


class CancelQuery(QueryModel):
    running: Annotated[bool, Field(description="Cancel its running jobs too.")] = False


class SlicesQuery(QueryModel):
    state: Annotated[Status | None, Field(description="Only slices whose last job is in this state.")] = None
    after: Annotated[str | None, Field(description="The last key of the page before.")] = None
    limit: Annotated[int, Field(ge=1, le=5000, description="The maximum number of entries.")] = 100


class TaskSlicesQuery(SlicesQuery):
    begin: Annotated[Timestamp, Field(alias="from", description="Only slices that begin then or later.")] = None
    end: Annotated[Timestamp, Field(alias="to", description="Only slices that begin before.")] = None


class SlicesToRun(BodyModel):
    """Slices to load again, or for the first time."""

    keys: Annotated[list[str], Field(min_length=1, max_length=MAX_SLICES_RUN)] = Field(description="Keys of slices.")
    concurrency: Concurrency = Field(2, description="How many run at a time.")
    note: Annotated[str, Field(max_length=500)] | None = None


@dataclass(frozen=True)
class BackfillList:
    backfills: list[Backfill]


@dataclass(frozen=True)
class SliceList:
    slices: list[SliceState]


def create_backfills_blueprint(site: Site) -> ApiBlueprint:
    editor = BackfillEditor(site.queue, site.pipelines, site.options)
    blueprint = ApiBlueprint("backfills", "/api/v1", problems=DATABASE_PROBLEMS)
    unknown = (ProblemCode.BACKFILL_NOT_FOUND,)
    ended = (ProblemCode.BACKFILL_NOT_FOUND, ProblemCode.BACKFILL_ENDED)
    outside = (ProblemCode.OUTSIDE_KEY_LIMITS,)

    @blueprint.get("/backfills", query=BackfillQuery, response=BackfillList, scope=Scope.READ, standby=True)
    def list_backfills(query: BackfillQuery) -> BackfillList:
        """List backfills, newest first, with the number of their slices by state."""
        return BackfillList([visible_backfill(found) for found in editor.newest(task=query.task, limit=query.limit)])

    @blueprint.post(
        "/backfills",
        body=NewBackfill,
        response=CreatedBackfill,
        problems=(*outside, ProblemCode.IDEMPOTENCY_CONFLICT),
        scope=Scope.OPERATE,
    )
    def create_backfill(body: NewBackfill) -> CreatedBackfill:
        """Load slices of a task for the first time or again, a few at a time.

        A slice that another job loads already is counted and not made twice. With `dry_run` nothing is created.
        """
        created = editor.create(body)
        return replace(created, backfill=created.backfill and visible_backfill(created.backfill))

    @blueprint.get("/backfills/<uuid:backfill_id>", response=Backfill, problems=unknown, scope=Scope.READ)
    def get_backfill(backfill_id: UUID) -> Backfill:
        """Get a backfill and its progress."""
        return visible_backfill(editor.get(backfill_id))

    @blueprint.patch(
        "/backfills/<uuid:backfill_id>", body=BackfillChange, response=Backfill, problems=ended, scope=Scope.OPERATE
    )
    def change_backfill(body: BackfillChange, backfill_id: UUID) -> Backfill:
        """Change the concurrency or the note of a backfill that has not ended. The concurrency holds at once."""
        return visible_backfill(editor.change(backfill_id, concurrency=body.concurrency, note=body.note))

    @blueprint.post("/backfills/<uuid:backfill_id>/pause", response=Backfill, problems=ended, scope=Scope.OPERATE)
    def pause_backfill(backfill_id: UUID) -> Backfill:
        """Pause a backfill: none of its jobs starts. Running ones continue."""
        return visible_backfill(editor.set_state(backfill_id, BackfillState.PAUSED))

    @blueprint.post("/backfills/<uuid:backfill_id>/resume", response=Backfill, problems=ended, scope=Scope.OPERATE)
    def resume_backfill(backfill_id: UUID) -> Backfill:
        """Resume a paused backfill: its jobs start again."""
        return visible_backfill(editor.set_state(backfill_id, BackfillState.OPEN))

    @blueprint.post(
        "/backfills/<uuid:backfill_id>/cancel",
        query=CancelQuery,
        response=Backfill,
        problems=ended,
        scope=Scope.OPERATE,
    )
    def cancel_backfill(query: CancelQuery, backfill_id: UUID) -> Backfill:
        """End a backfill: no further job is made, and its queued ones are canceled."""
        return visible_backfill(editor.cancel(backfill_id, running=query.running))

    @blueprint.post("/backfills/<uuid:backfill_id>/retry", response=Backfill, problems=unknown, scope=Scope.OPERATE)
    def retry_backfill(backfill_id: UUID) -> Backfill:
        """Load again the slices of a backfill whose last job ended badly."""
        return visible_backfill(editor.retry(backfill_id))

    @blueprint.get(
        "/backfills/<uuid:backfill_id>/slices",
        query=SlicesQuery,
        response=SliceList,
        problems=unknown,
        scope=Scope.READ,
        standby=True,
    )
    def list_backfill_slices(query: SlicesQuery, backfill_id: UUID) -> SliceList:
        """List the slices of a backfill that have a job, by key."""
        editor.get(backfill_id)
        return SliceList(
            editor.backfills.slices(backfill_id=backfill_id, state=query.state, after=query.after, limit=query.limit)
        )

    @blueprint.get(
        "/tasks/<path:task>/slices", query=TaskSlicesQuery, response=SliceList, scope=Scope.READ, standby=True
    )
    def list_task_slices(query: TaskSlicesQuery, task: str) -> SliceList:
        """List the slices of a task that have had a job, by key: the state of the last one, and the last success."""
        if not current_actor().can_see_task(task):
            return SliceList([])
        return SliceList(
            editor.backfills.slices(
                task=task, state=query.state, first=query.begin, last=query.end, after=query.after, limit=query.limit
            )
        )

    @blueprint.post(
        "/tasks/<path:task>/slices/run", body=SlicesToRun, response=Backfill, problems=outside, scope=Scope.OPERATE
    )
    def run_task_slices(body: SlicesToRun, task: str) -> Backfill:
        """Load slices again, or for the first time, by a backfill of their own."""
        return visible_backfill(editor.run_slices(task, body.keys, concurrency=body.concurrency, note=body.note))

    return blueprint
