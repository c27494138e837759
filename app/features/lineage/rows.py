"""The jobs and datasets that lineage events are made of, and how far the event stream has been sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import from_row, unquoted_array
from dataloader.app.db.statements import Executor


@dataclass(frozen=True)
class LineageJob:
    """A job as lineage events describe it. `datasets`: dataset, kind, rows and schema of each."""

    job_id: UUID
    task: str
    interval_start: datetime | None
    interval_end: datetime | None
    was_started: bool
    datasets: Any


class Lineage:
    """Reads what the maintenance leader sends, and keeps its cursor."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def cursor(self) -> str | None:
        """The cursor of the event stream; None: nothing has been sent yet."""
        cursor: str | None = self._execute("lineage_cursor")[0][0]
        return cursor

    def save_cursor(self, cursor: str) -> None:
        self._execute("save_lineage_cursor", {"cursor": cursor})

    def jobs(self, job_ids: Iterable[UUID]) -> dict[UUID, LineageJob]:
        """These jobs by their ids, without those that have been deleted."""
        rows = self._execute("lineage_jobs", {"job_ids": unquoted_array(set(job_ids))})
        jobs = [from_row(LineageJob, row) for row in rows]
        return {job.job_id: job for job in jobs}
