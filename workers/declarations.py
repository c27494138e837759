"""What a worker process registers about itself and about its tasks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from dataloader.app import log
from dataloader.app.queue.labels import split_tasks
from dataloader.app.queue.workers import WorkerInfo
from dataloader.pipelines.contract import Pipelines
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
        code_release=options.code_release,
    )


def declared_schedules(pipelines: Pipelines) -> list[dict[str, Any]]:
    """Return the schedules that the tasks declare; none if two have one name, which is logged."""
    try:
        return pipelines.declared_schedules()
    except ValueError as error:
        _log.error("schedules.not_declared", error=str(error))
        return []
