"""Duties of maintenance, run by hand."""

from __future__ import annotations

from dataloader.pipelines.contract import Pipelines
from dataloader.workers.maintenance import Duty, MaintenanceOptions, duties
from tests.support.queue_fixture import QueueFixture


def duty(queue_db: QueueFixture, name: str) -> Duty:
    return next(entry for entry in duties(queue_db.session, MaintenanceOptions(), Pipelines()) if entry.name == name)
