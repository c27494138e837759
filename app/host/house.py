"""`dataloader prune`: what the workers delete by themselves, deleted now; and the ages that both go by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.config import Settings
from app.host.database import Database
from app.queue.pool import Pool
from app.queue.retention import Ages, Retention

_DAY = 86_400.0
_BATCH = 500
_COUNTED = 100_000  # jobs that a dry run counts at most, of each batch


@dataclass(frozen=True)
class Swept:
    """What was deleted, or would be."""

    jobs: dict[tuple[str, str], int]  # (status, task) → how many
    parts: list[str]
    keys: int  # retired ones that were forgotten
    more: bool = False  # there are more jobs than a dry run counts


def ages_of(settings: Settings) -> Ages:
    """How long things are kept, in seconds."""
    return Ages(
        succeeded=settings.keep_succeeded_days * _DAY,
        canceled=settings.keep_canceled_days * _DAY,
        failed=settings.keep_failed_days * _DAY,
        lost=settings.keep_lost_days * _DAY,
        tasks={
            task: {status: days * _DAY for status, days in ages.items()} for task, ages in settings.keep_tasks.items()
        },
        journal=settings.keep_journal_days * _DAY,
        logs=settings.job_log_keep_days * _DAY,
        keys=settings.keep_keys_days * _DAY or None,
        audit=settings.audit_keep_days * _DAY,
    )


def preview_held(settings: Settings) -> Swept | None:
    """What workers would delete if they were not held since the upgrade from version 0; None: they are not held."""
    if not settings.retention or settings.is_retention_requested:
        return None
    with _retention(settings) as retention:
        return _swept(retention, dry=True, told=lambda _: None) if retention.is_held else None


def prune(settings: Settings, *, dry: bool, told: Callable[[int], None]) -> Swept:
    """Delete all that is older than its age, batch by batch; `told` hears after each how many jobs that were."""
    with _retention(settings) as retention:
        return _swept(retention, dry=dry, told=told)


@contextmanager
def _retention(settings: Settings) -> Iterator[Retention]:
    database = Database(settings)
    try:
        pool = Pool(database.dsn(), size=1, overflow=0, schema=settings.schema, application_name="dataloader-prune")
        try:
            yield Retention(pool, ages_of(settings))
        finally:
            pool.close()
    finally:
        database.close()


def _swept(retention: Retention, *, dry: bool, told: Callable[[int], None]) -> Swept:
    if dry:
        would = retention.prune(most=_COUNTED, dry=True)
        return Swept(dict(would.jobs), retention.drop_parts(dry=True), 0, would.full)
    jobs: Counter[tuple[str, str]] = Counter()
    full = True
    while full:
        pruned = retention.prune(most=_BATCH)
        jobs.update(pruned.jobs)
        full = pruned.full
        told(sum(pruned.jobs.values()))
    parts: list[str] = []
    while dropped := retention.drop_parts():
        parts += dropped
    retention.forget_acts()
    return Swept(dict(jobs), parts, retention.forget_keys())
