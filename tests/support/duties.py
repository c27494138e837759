"""Duties of maintenance, run by hand."""

from __future__ import annotations

from typing import Any

from dataloader.app.db.statements import Executor
from dataloader.pipelines.contract import Pipelines
from dataloader.workers.duties import Duty, DutyContext, MaintenanceOptions
from dataloader.workers.maintenance import duties
from tests.support.queue_fixture import QueueFixture


def duty(queue_db: QueueFixture, name: str) -> Duty:
    return next(entry for entry in duties(duty_context(queue_db.session)) if entry.name == name)


def duty_context(executor: Executor, **options: Any) -> DutyContext:
    return DutyContext(executor=executor, options=MaintenanceOptions(**options), tasks=Pipelines())
