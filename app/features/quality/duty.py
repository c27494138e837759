"""Deletes old results of data checks."""

from __future__ import annotations

from dataloader.app.features.quality.rows import DataQuality
from dataloader.workers.duties import HOURLY_SEC, PRUNE_BATCH, Duty, DutyContext

_KEEP_CHECKS_SEC = 90 * 86_400.0  # and dataset events


def create_duties(context: DutyContext) -> list[Duty]:
    quality = DataQuality(context.executor)
    return [Duty("checks-prune", HOURLY_SEC, lambda: _prune_checks(quality))]


def _prune_checks(quality: DataQuality) -> float | None:
    return 1.0 if quality.prune(keep_sec=_KEEP_CHECKS_SEC, limit=PRUNE_BATCH) >= PRUNE_BATCH else None
