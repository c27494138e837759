"""The schedules that tasks declare, written to the database when a worker process starts."""

from __future__ import annotations

from datetime import datetime

from pydantic import ValidationError

from dataloader.app import log
from dataloader.app.features.schedules.rows import Schedule, Schedules, ScheduleSource
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.schedule_definition import definition_from, first_error, problem_of_next_job
from dataloader.workers.declarations import declared_schedules
from dataloader.workers.duties import Declaration, MaintenanceOptions

_log = log.get(__name__)


def declare(declaration: Declaration) -> None:
    """Write the schedules of the tasks, and what keeps one from making jobs."""
    pipelines = declaration.pipelines
    declared, schedules = declared_schedules(pipelines), Schedules(declaration.executor)
    for name in schedules.declare(declared, declaration.worker_id):
        _log.error("schedule.name_taken", schedule=name)
    names = {schedule["name"] for schedule in declared}
    for schedule in schedules.list_by_name() if names else ():
        if schedule.name in names and schedule.source is ScheduleSource.CODE:
            problem = _problem_of(schedule, pipelines, schedules.now(), declaration.options)
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
