"""The tasks that this process knows, and how their jobs did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.queue.rollups import Happened, LastRun, Period, Rollups
from app.web.auth import current_actor
from app.web.operations import ANY_KEY, Subject
from app.web.options import WebOptions
from app.web.problems import Code
from app.web.queues import HappenedTold
from app.web.tasks import TaskLine
from pipelines.contract import Pipelines


class TasksQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    numbers: Annotated[
        bool, Field(description="Whether to tell how their jobs did; without, no database is asked.")
    ] = True
    period: Annotated[Period, Field(description="How far back the numbers go.")] = "24h"


@dataclass(frozen=True)
class TaskRun:
    """How a try of one of its jobs ended: `retried` is one that failed and was not the last."""

    job_id: UUID
    queue: str
    ended_at: datetime
    outcome: str
    attempt: int | None
    ran_sec: float | None

    @classmethod
    def of(cls, run: LastRun) -> TaskRun:
        return cls(**vars(run))


@dataclass(frozen=True)
class TaskNumbers:
    """How a task's jobs did in the period, and its last ends, the newest first."""

    name: str
    happened: HappenedTold
    last_runs: list[TaskRun]


@dataclass(frozen=True)
class TaskList:
    """`numbers` are of all tasks that had jobs, also of those that only other processes know."""

    tasks: list[TaskLine]
    numbers: list[TaskNumbers]


def tasklist(source: Source, pipelines: Pipelines, options: WebOptions) -> Subject:
    subject = Subject("tasks", "/api/v1", options.max_json_depth)
    rollups = Rollups(source)

    @subject.get(
        "/tasks",
        query=TasksQuery,
        answer=TaskList,
        problems=(Code.DATABASE_UNAVAILABLE, Code.SCHEMA_MISMATCH),
        scope=ANY_KEY,
    )
    def task_list(wanted: TasksQuery) -> TaskList:
        """List the tasks this process knows, with their options and what their args must be, and how their jobs did.

        A key that may only trigger is told of the tasks and jobs that it might have triggered; one that is limited to
        queues of no numbers, which are of all queues.
        """
        caller = current_actor()
        lines = [TaskLine.of(task) for task in pipelines if caller.may_know(task.name)]
        return TaskList(lines, _numbers(wanted.period) if wanted.numbers else [])

    def _numbers(period: Period) -> list[TaskNumbers]:
        happened, runs = rollups.by_task(period), rollups.last_runs()
        caller = current_actor()
        counted = Scope.READ in caller.scopes or caller.queues is None
        return [
            TaskNumbers(
                name,
                HappenedTold.of(happened.get(name, Happened()) if counted else Happened()),
                [TaskRun.of(run) for run in runs.get(name, []) if caller.may_see(name, run.queue)],
            )
            for name in sorted(happened.keys() | runs.keys())
            if caller.may_know(name)
        ]

    return subject
