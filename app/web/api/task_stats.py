"""Tasks and their statistics over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from app.admin.api_keys import Scope
from app.admin.statistics import Period, PeriodStatistics, RecentRun, Statistics
from app.queue.jobs import Executor
from app.web.auth.guard import current_actor
from app.web.options import WebOptions
from app.web.problems import DATABASE_PROBLEMS
from app.web.routing import ANY_KEY, ApiBlueprint
from app.web.task_defaults import TaskInfo
from pipelines.contract import Pipelines


class TasksQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    statistics: Annotated[
        bool, Field(description="Whether to include statistics; without them the database is not queried.")
    ] = True
    period: Annotated[Period, Field(description="The period of the statistics.")] = "24h"


@dataclass(frozen=True)
class TaskStatistics:
    """The statistics of a task in the period, and its last attempts, newest first."""

    name: str
    recent: PeriodStatistics
    last_runs: list[RecentRun]


@dataclass(frozen=True)
class TaskList:
    """`tasks` are those that this process knows; `statistics` are of all tasks that had jobs."""

    tasks: list[TaskInfo]
    statistics: list[TaskStatistics]


def create_task_stats_blueprint(executor: Executor, pipelines: Pipelines, options: WebOptions) -> ApiBlueprint:
    blueprint = ApiBlueprint("tasks", "/api/v1", options.max_json_depth)
    statistics = Statistics(executor)

    @blueprint.get("/tasks", query=TasksQuery, response=TaskList, problems=DATABASE_PROBLEMS, scope=ANY_KEY)
    def list_tasks(query: TasksQuery) -> TaskList:
        """List the tasks that this process knows, with their options and the schema of their args, and statistics.

        A key limited to certain tasks sees only these; one limited to certain queues sees no counts, which are of all
        queues.
        """
        can_see_task = current_actor().can_see_task
        tasks = [TaskInfo.from_task(task) for task in pipelines if can_see_task(task.name)]
        return TaskList(tasks, _visible_statistics(query.period) if query.statistics else [])

    def _visible_statistics(period: Period) -> list[TaskStatistics]:
        recent, runs = statistics.by_task(period), statistics.recent_runs()
        caller = current_actor()
        if Scope.READ not in caller.scopes and caller.queues is not None:
            recent = dict.fromkeys(recent, PeriodStatistics())
        return [
            TaskStatistics(
                name,
                recent.get(name, PeriodStatistics()),
                [run for run in runs.get(name, []) if caller.can_see(name, run.queue)],
            )
            for name in sorted(recent.keys() | runs.keys())
            if caller.can_see_task(name)
        ]

    return blueprint
