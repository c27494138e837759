"""Tasks and their statistics over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.problems import DATABASE_PROBLEMS
from dataloader.app.http.routing import ANY_KEY, ApiBlueprint
from dataloader.app.http.schemas import QueryModel
from dataloader.app.http.site import Site
from dataloader.app.state.statistics import Period, PeriodStatistics, RecentRun, Statistics
from dataloader.pipelines.contract import Task, TaskKind, show_policy


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """How a task's jobs run unless the trigger says otherwise. Null: not set."""

    queue: str | None
    lock_key: str | None
    limits: dict[str, int]
    unique_by: list[str]
    on_failed: str | None
    retry: dict[str, Any]
    rules: dict[str, str | float]
    time_limit_sec: float | None
    isolation: Literal["thread", "process"]
    interrupt: bool
    memory_mb: int | None
    cpu_sec: int | None
    connection_check: bool
    argv: list[str] | None
    python: str | None
    requires: dict[str, bool | str]
    target: str | None

    @classmethod
    def from_task(cls, task: Task) -> TaskOptions:
        options = task.options
        values = vars(options) | {
            "retry": show_policy(options.retry),
            "rules": {_exception_name(exception): rule for exception, rule in options.rules.entries},
            "time_limit_sec": options.time_limit,
            "argv": None if options.argv is None else list(options.argv),
            "requires": dict(options.requires),
            "unique_by": list(options.unique_by),
        }
        return cls(**{field.name: values[field.name] for field in fields(cls)})


def _exception_name(exception: type[BaseException] | str) -> str:
    return exception if isinstance(exception, str) else f"{exception.__module__}.{exception.__qualname__}"


@dataclass(frozen=True)
class TaskInfo:
    """A task that this process knows."""

    name: str
    kind: TaskKind
    description: str
    options: TaskOptions
    args_schema: dict[str, Any] | None

    @classmethod
    def from_task(cls, task: Task) -> TaskInfo:
        description = (getattr(task.call, "__doc__", None) or "").strip().partition("\n")[0]
        return cls(task.name, task.kind, description, TaskOptions.from_task(task), task.args_schema())


class TasksQuery(QueryModel):
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


def create_task_stats_blueprint(site: Site) -> ApiBlueprint:
    executor, pipelines = site.executor, site.pipelines
    blueprint = ApiBlueprint("tasks", "/api/v1", problems=DATABASE_PROBLEMS)
    statistics = Statistics(executor)

    @blueprint.get("/tasks", query=TasksQuery, response=TaskList, scope=ANY_KEY, standby=True)
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
