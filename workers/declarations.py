"""What a worker process registers about itself and about its tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from dataloader.app import log
from dataloader.app.db.statements import Executor
from dataloader.app.features.limits.breakers import Breakers
from dataloader.app.features.schedules.rows import Schedule, Schedules, ScheduleSource
from dataloader.app.features.statistics.failures import Failures
from dataloader.app.queue.labels import split_tasks
from dataloader.app.queue.workers import WorkerInfo
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.schedule_definition import definition_from, first_error, problem_of_next_job
from dataloader.workers.maintenance import MaintenanceOptions
from dataloader.workers.pool_options import PoolOptions

_log = log.get(__name__)


def describe_worker(worker_id: UUID, name: str, pipelines: Pipelines, options: PoolOptions) -> WorkerInfo:
    """Return what the process registers. It claims jobs of the tasks that this names."""
    served, unserved = split_tasks(pipelines.names, pipelines.declared_requirements(), options.labels)
    return WorkerInfo(
        worker_id,
        name,
        options.version,
        tuple(options.queues),
        served,
        sum(options.queues.values()),
        queue_threads=dict(options.queues),
        schedules=tuple(declared["name"] for declared in declared_schedules(pipelines)),
        labels=options.labels or {},
        unserved_tasks=unserved,
        reaps=options.reaps,
    )


def write_declarations(pipelines: Pipelines, executor: Executor, worker_id: UUID, options: PoolOptions) -> None:
    """Write the breakers, failure handlers and schedules of the tasks to the database, and what keeps a schedule from
    making jobs."""
    Breakers(executor).declare(pipelines.declared_breakers())
    Failures(executor).declare_handlers(pipelines.names, pipelines.declared_failure_handlers())
    declared, schedules = declared_schedules(pipelines), Schedules(executor)
    for name in schedules.declare(declared, worker_id):
        _log.error("schedule.name_taken", schedule=name)
    names = {schedule["name"] for schedule in declared}
    for schedule in schedules.list_by_name() if names else ():
        if schedule.name in names and schedule.source is ScheduleSource.CODE:
            problem = _problem_of(schedule, pipelines, schedules.now(), options.maintenance)
            if problem is not None:
                _log.error("schedule.makes_no_jobs", schedule=schedule.name, error=problem)
            if problem != schedule.error:
                schedules.record_error(schedule, problem)


def _problem_of(schedule: Schedule, pipelines: Pipelines, now: datetime, options: MaintenanceOptions) -> str | None:
    """Return why the next time of a schedule will make no job."""
    try:
        definition = definition_from({**schedule.effective_definition, "task": schedule.task}, zone=options.zone)
    except ValidationError as error:
        return first_error(error)
    task, lease_sec = pipelines.get(definition.task), options.default_lease_sec
    return problem_of_next_job(schedule.name, definition, task, now=now, default_lease_sec=lease_sec)


def declared_schedules(pipelines: Pipelines) -> list[dict[str, Any]]:
    """Return the schedules that the tasks declare; none if two have one name, which is logged."""
    try:
        return pipelines.declared_schedules()
    except ValueError as error:
        _log.error("schedules.not_declared", error=str(error))
        return []
