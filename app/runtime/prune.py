"""`dataloader prune` deletes now what the workers delete by themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.admin.retention import Retention, RetentionPeriods
from app.config import Settings
from app.runtime.database import Database

_DAY_SEC = 86_400.0
_BATCH_SIZE = 500
_MAX_COUNTED = 100_000  # jobs that a dry run counts at most, of each batch


@dataclass(frozen=True)
class PruneResult:
    """What was deleted, or what a dry run would delete."""

    jobs: dict[tuple[str, str], int]  # (status, task) → how many
    partitions: list[str]
    is_truncated: bool = False  # there are more jobs than a dry run counts


def retention_periods(settings: Settings) -> RetentionPeriods:
    """Return the retention periods of the settings, in seconds."""
    return RetentionPeriods(
        succeeded=settings.keep_succeeded_days * _DAY_SEC,
        canceled=settings.keep_canceled_days * _DAY_SEC,
        failed=settings.keep_failed_days * _DAY_SEC,
        lost=settings.keep_lost_days * _DAY_SEC,
        tasks={
            task: {status: days * _DAY_SEC for status, days in ages.items()}
            for task, ages in settings.keep_tasks.items()
        },
        events=settings.keep_events_days * _DAY_SEC,
        logs=settings.job_log_keep_days * _DAY_SEC,
        audit=settings.keep_history_days * _DAY_SEC,
    )


def preview_held_retention(settings: Settings) -> PruneResult | None:
    """Return what workers would delete if retention were not paused since the upgrade from version 0; None if it is not."""
    if not settings.retention_enabled or settings.is_retention_requested:
        return None
    with _open_retention(settings) as retention:
        return _preview(retention) if retention.is_paused else None


def prune(settings: Settings, *, dry_run: bool) -> PruneResult:
    """Delete all that is older than its retention period, batch by batch."""
    with _open_retention(settings) as retention:
        return _preview(retention) if dry_run else _prune_all(retention)


@contextmanager
def _open_retention(settings: Settings) -> Iterator[Retention]:
    with Database.opened(settings) as database, database.pool("dataloader-prune") as pool:
        yield Retention(pool, retention_periods(settings))


def _preview(retention: Retention) -> PruneResult:
    due = retention.prune(limit=_MAX_COUNTED, dry_run=True)
    return PruneResult(dict(due.jobs), retention.drop_partitions(dry_run=True), due.has_more)


def _prune_all(retention: Retention) -> PruneResult:
    jobs: Counter[tuple[str, str]] = Counter()
    has_more = True
    while has_more:
        batch = retention.prune(limit=_BATCH_SIZE)
        jobs.update(batch.jobs)
        has_more = batch.has_more
    partitions: list[str] = []
    while dropped := retention.drop_partitions():
        partitions += dropped
    retention.prune_audit()
    return PruneResult(dict(jobs), partitions)
