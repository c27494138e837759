"""Runs bulk operations, one batch at a time."""

from __future__ import annotations

from dataloader.app.features.bulk.rows import BulkOperations
from dataloader.workers.duties import HOURLY_SEC, Duty, DutyContext

_INTERVAL_SEC = 2.0


def create_duties(context: DutyContext) -> list[Duty]:
    bulk = BulkOperations(context.executor)
    return [
        Duty("bulk", _INTERVAL_SEC, lambda: _run_batch(bulk), has_work="has_bulk_operations"),
        Duty("bulk-prune", HOURLY_SEC, bulk.prune),
    ]


def _run_batch(bulk: BulkOperations) -> float | None:
    return 0.0 if bulk.run_batch() else bulk.next_step_in_sec()
