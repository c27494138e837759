"""Reads what tasks and schedules did by day: from statistics, firings, and jobs of schedules that have not ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import as_uuid
from dataloader.app.db.statements import Executor

MAX_SKIPPED_FIRINGS, MAX_OPEN_JOBS = 10_000, 10_000


@dataclass(frozen=True)
class EndedJobs:
    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    canceled: int = 0


@dataclass(frozen=True)
class SkippedFiring:
    """Times from `fire_at` to `until` of which no job was made."""

    schedule_id: UUID
    fire_at: datetime
    until: datetime
    outcome: str


class DailyRuns:
    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def ended(self, first: datetime, last: datetime, zone: str) -> dict[tuple[str, date], EndedJobs]:
        rows = self._execute("ended_by_day", {"first": first, "last": last, "zone": zone})
        return {(row[0], row[1]): EndedJobs(*(count or 0 for count in row[2:])) for row in rows}

    def skipped(self, first: datetime, last: datetime) -> list[SkippedFiring]:
        rows = self._execute("skipped_firings", {"first": first, "last": last, "limit": MAX_SKIPPED_FIRINGS})
        return [_skipped_firing(row) for row in rows]

    def open(self, first: datetime, last: datetime, zone: str) -> dict[tuple[str, date], int]:
        parameters = {"first": first, "last": last, "zone": zone, "limit": MAX_OPEN_JOBS}
        return {(row[0], row[1]): row[2] for row in self._execute("open_by_day", parameters)}


def _skipped_firing(row: Sequence[Any]) -> SkippedFiring:
    return SkippedFiring(as_uuid(row[0]), row[1], row[2] or row[1], row[3])
