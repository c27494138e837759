"""Runs bulk operations, one batch at a time."""

from __future__ import annotations

from dataloader.app.features.bulk.rows import BulkOperations
from dataloader.workers.duties import HOURLY_SEC, Duty, DutyContext

_INTERVAL_SEC = 2.0


def create_duties(context: DutyContext) -> list[Duty]:
    bulk = BulkOperations(context.executor)
    return [
        Duty("bulk", _INTERVAL_SEC, lambda: 0.0 if bulk.run_batch() else bulk.next_step_in_sec()),
        Duty("bulk-prune", HOURLY_SEC, bulk.prune),
    ]
