"""Backfills and the slices of tasks over HTTP: the routes that read. Those that change are in `acts.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from pydantic import Field

from dataloader.app.acts.act import acts_of
from dataloader.app.acts.web import add_routes
from dataloader.app.features.backfills import acts
from dataloader.app.features.backfills.reader import BackfillReader, visible_backfill
from dataloader.app.features.backfills.rows import Backfill, SliceState
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import QueryModel, Timestamp
from dataloader.app.http.site import Site
from dataloader.app.queue.job import Status


class BackfillQuery(QueryModel):
    task: Annotated[str | None, Field(description="Only backfills of this task.")] = None
    limit: Annotated[int, Field(ge=1, le=200, description="The maximum number of entries.")] = 50


class SlicesQuery(QueryModel):
    state: Annotated[Status | None, Field(description="Only slices whose last job is in this state.")] = None
    after: Annotated[str | None, Field(description="The last key of the page before.")] = None
    limit: Annotated[int, Field(ge=1, le=5000, description="The maximum number of entries.")] = 100


class TaskSlicesQuery(SlicesQuery):
    first: Annotated[Timestamp, Field(alias="from", description="Only slices that begin then or later.")] = None
    last: Annotated[Timestamp, Field(alias="to", description="Only slices that begin before.")] = None


@dataclass(frozen=True)
class BackfillList:
    backfills: list[Backfill]


@dataclass(frozen=True)
class SliceList:
    slices: list[SliceState]


def create_backfills_blueprint(site: Site) -> ApiBlueprint:
    reader = BackfillReader(site.executor, site.pipelines, site.options)
    blueprint = ApiBlueprint("backfills", "/api/v1", problems=DATABASE_PROBLEMS)
    unknown = (ProblemCode.BACKFILL_NOT_FOUND,)

    @blueprint.get("/backfills", query=BackfillQuery, response=BackfillList, scope=Scope.READ, standby=True)
    def list_backfills(query: BackfillQuery) -> BackfillList:
        """List backfills, newest first, with the number of their slices by state."""
        return BackfillList([visible_backfill(found) for found in reader.newest(task=query.task, limit=query.limit)])

    @blueprint.get("/backfills/<uuid:backfill_id>", response=Backfill, problems=unknown, scope=Scope.READ)
    def get_backfill(backfill_id: UUID) -> Backfill:
        """Get a backfill and its progress."""
        return visible_backfill(reader.get(backfill_id))

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
        reader.get(backfill_id)
        return SliceList(reader.backfills.slices(backfill_id=backfill_id, **vars(query)))

    @blueprint.get(
        "/tasks/<path:task>/slices", query=TaskSlicesQuery, response=SliceList, scope=Scope.READ, standby=True
    )
    def list_task_slices(query: TaskSlicesQuery, task: str) -> SliceList:
        """List the slices of a task that have had a job, by key: the state of the last one, and the last success."""
        if not current_actor().can_see_task(task):
            return SliceList([])
        return SliceList(reader.backfills.slices(task=task, **vars(query)))

    add_routes(blueprint, acts_of(acts), site.runner)
    return blueprint
