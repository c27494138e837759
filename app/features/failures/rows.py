"""Failed and lost jobs, grouped by task and fingerprint of the error; and the tasks that handle failures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, from_row, validate_texts
from dataloader.app.db.statements import Executor

MAX_SCANNED = 10_000
HOURS = 24  # of the history of a group


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Failed and lost jobs of a task with one fingerprint; null: from before there were any, or without an attempt.
    `job_id` and `error` are of the job that failed last. `by_hour` counts those of 24 hours of the clock, from
    `hours_from` on."""

    task: str
    fingerprint: str | None
    jobs: int
    first_at: datetime
    last_at: datetime
    job_id: UUID
    error: str | None
    queues: list[str]
    by_hour: list[int]


@dataclass(frozen=True)
class FailureGroups:
    """Groups among the newest ten thousand unsuccessful jobs, largest first. `scanned_to`: older jobs were not read;
    null: all were. `hours_from`: the beginning of the first hour of `by_hour`."""

    failures: list[FailureGroup]
    scanned: int
    scanned_to: datetime | None
    hours_from: datetime


class Failures:
    """Reads groups of failures, and writes the failure handlers of tasks."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def groups(
        self,
        *,
        task: str | None = None,
        queue: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
    ) -> FailureGroups:
        """Group the jobs that ended from `since` on and before `until`, among the newest created before `until`."""
        parameters = validate_texts({"task": task, "queue": queue}) | {
            "since": since,
            "until": until,
            "limit": limit,
            "max_scanned": MAX_SCANNED,
            "hours": HOURS,
        }
        rows = self._execute("failure_groups", parameters)
        scanned, scanned_to, hours_from = rows[0][:3]
        groups = [from_row(FailureGroup, row[3:]) for row in rows if row[3] is not None]
        return FailureGroups(groups, scanned, scanned_to if scanned >= MAX_SCANNED else None, hours_from)

    def declare_handlers(self, tasks: Iterable[str], handlers: Iterable[Mapping[str, Any]]) -> None:
        """Write which tasks handle the failures of these tasks: task, handler, and its queue or None."""
        self._execute("declare_failure_handlers", {"tasks": array(tasks), "handlers": json.dumps(list(handlers))})
