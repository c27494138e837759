"""What a worker process registers about itself and about its tasks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from app import log
from app.admin.breakers import Breakers
from app.admin.schedules import Schedules
from app.db.statements import Executor
from app.queue.labels import split_tasks
from app.queue.workers import WorkerInfo
from pipelines.contract import Pipelines
from workers.pool_options import PoolOptions

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


def write_declarations(pipelines: Pipelines, executor: Executor, worker_id: UUID) -> None:
    """Write the breakers and schedules of the tasks to the database."""
    Breakers(executor).declare(pipelines.declared_breakers())
    for name in Schedules(executor).declare(declared_schedules(pipelines), worker_id):
        _log.error("schedule.name_taken", schedule=name)


def declared_schedules(pipelines: Pipelines) -> list[dict[str, Any]]:
    """Return the schedules that the tasks declare; none if two have one name, which is logged."""
    try:
        return pipelines.declared_schedules()
    except ValueError as error:
        _log.error("schedules.not_declared", error=str(error))
        return []
