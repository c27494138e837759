"""The duty of the maintenance leader that deletes old offloads."""

from __future__ import annotations

from dataloader.app.features.offload.rows import Offloads
from dataloader.workers.duties import HOURLY_SEC, Duty, DutyContext
from dataloader.workers.offloads.pruning import prune_offloads


def create_duties(context: DutyContext) -> list[Duty]:
    offloads = Offloads(context.executor.execute)
    return [Duty("offloads-prune", HOURLY_SEC, lambda: prune_offloads(offloads, context.engines))]
