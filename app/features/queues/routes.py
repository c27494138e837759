"""Queues, worker processes and charts over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from dataloader.app.acts.web import add_routes
from dataloader.app.features.queues.acts import (
    change_queue_settings,
    drain_host,
    drain_worker,
    undrain_host,
    undrain_worker,
)
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.problems import DATABASE_PROBLEMS
from dataloader.app.http.routing import ANY_KEY, ApiBlueprint
from dataloader.app.http.schemas import QueryModel
from dataloader.app.http.site import Site
from dataloader.app.state.queues import Queues, QueueStatus, WorkerStatus
from dataloader.app.state.statistics import Chart, Period, Statistics


class QueuesQuery(QueryModel):
    queue: Annotated[str | None, Field(min_length=1, description="Only this queue.")] = None


class ChartsQuery(QueryModel):
    period: Annotated[Period, Field(description="The period; its buckets are a minute, 15 minutes or an hour.")] = "1h"
    queue: Annotated[str | None, Field(description="Only jobs of this queue.")] = None
    task: Annotated[str | None, Field(description="Only jobs of this task.")] = None


@dataclass(frozen=True)
class QueueList:
    queues: list[QueueStatus]


@dataclass(frozen=True)
class WorkerList:
    workers: list[WorkerStatus]


def create_queues_blueprint(site: Site) -> ApiBlueprint:
    executor = site.executor
    blueprint = ApiBlueprint("queues", "/api/v1", problems=DATABASE_PROBLEMS)
    queues, statistics = Queues(executor), Statistics(executor)

    @blueprint.get("/queues", query=QueuesQuery, response=QueueList, scope=ANY_KEY)
    def list_queues(query: QueuesQuery) -> QueueList:
        """List queues with their settings, the number of their jobs, and the statistics of the last hour.

        A key limited to certain queues sees only these.
        """
        caller = current_actor()
        statuses = queues.statuses(queue=query.queue)
        return QueueList([status for status in statuses if caller.can_see_queue(status.queue)])

    @blueprint.get("/workers", response=WorkerList, scope=Scope.READ)
    def list_workers() -> WorkerList:
        """List worker processes and their running jobs, live processes first."""
        return WorkerList(queues.workers())

    @blueprint.get("/charts", query=ChartsQuery, response=Chart, scope=Scope.READ, standby=True)
    def get_charts(query: ChartsQuery) -> Chart:
        """Get statistics of an hour, a day or a week: job counts, wait times, run times, failures and queue depths."""
        return statistics.chart(query.period, queue=query.queue, task=query.task)

    acts = (change_queue_settings, drain_worker, undrain_worker, drain_host, undrain_host)
    add_routes(blueprint, acts, site.runner)
    return blueprint
