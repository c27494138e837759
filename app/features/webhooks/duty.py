"""Deletes old deliveries."""

from __future__ import annotations

from dataloader.app.features.webhooks.rows import Webhooks
from dataloader.workers.duties import PRUNE_BATCH, PRUNE_INTERVAL_SEC, Duty, DutyContext


def create_duties(context: DutyContext) -> list[Duty]:
    webhooks, keep_sec = Webhooks(context.executor), context.options.keep_deliveries_sec
    return [Duty("deliveries-prune", PRUNE_INTERVAL_SEC, lambda: _prune_deliveries(webhooks, keep_sec))]


def _prune_deliveries(webhooks: Webhooks, keep_sec: float) -> float | None:
    return 1.0 if webhooks.prune(keep_sec=keep_sec, limit=PRUNE_BATCH) >= PRUNE_BATCH else None
