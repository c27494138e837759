"""Data checks of tasks, and datasets: who updates them, and who reads them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import from_row, validate_text
from dataloader.app.db.statements import Executor
from dataloader.app.errors import DatasetNotFound

_MAX_CHECKS_OF_JOB = 1_000
_MAX_DATASETS_OF_JOB = 200
_MAX_CHECKS_OF_TASK = 100  # different names


@dataclass(frozen=True)
class CheckResult:
    """A value that an attempt compared. `low` to `high` pass; `median` is that of the values before it, where it
    counted. `outcome`: passed, warned or failed."""

    name: str
    at: datetime
    job_id: UUID
    attempt: int
    partition_key: str
    value: float
    low: float | None
    high: float | None
    median: float | None
    outcome: str
    detail: str | None


@dataclass(frozen=True)
class CheckHistory:
    """The last results of a check, newest first."""

    name: str
    results: list[CheckResult]


@dataclass(frozen=True)
class TaskChecks:
    """The checks of a task by name: at most a hundred."""

    task: str
    checks: list[CheckHistory]


@dataclass(frozen=True)
class DatasetEvent:
    """An update or a read of a dataset, by a job that succeeded."""

    task: str
    at: datetime
    job_id: UUID
    partition_key: str
    rows: int | None


@dataclass(frozen=True)
class JobDataset:
    """A dataset that a run of a job that succeeded updated (`produced`) or read (`consumed`)."""

    dataset: str
    kind: str
    at: datetime
    partition_key: str
    rows: int | None


@dataclass(frozen=True)
class Dataset:
    """A dataset with its last update (null: it was only read), the number of tasks that update it and read it, and
    whether an alert says that it is stale."""

    dataset: str
    updated_at: datetime | None
    task: str | None
    job_id: UUID | None
    partition_key: str | None
    rows: int | None
    producers: int
    consumers: int
    read_at: datetime | None
    stale: bool


@dataclass(frozen=True)
class DatasetPage:
    """Datasets by name. With `next` there may be more after that name."""

    datasets: list[Dataset]
    next: str | None


@dataclass(frozen=True)
class DatasetDetail:
    """A dataset: the last event of each task that updates it or reads it, newest first, and the last updates. `schema`
    is that of the last update."""

    dataset: str
    updated_at: datetime | None
    stale: bool
    schema: Any
    producers: list[DatasetEvent]
    consumers: list[DatasetEvent]
    updates: list[DatasetEvent]


@dataclass(frozen=True)
class _LastEvent(DatasetEvent):
    kind: str
    schema: Any
    stale: bool


class DataQuality:
    """Reads what runs recorded with their settlement, and deletes what is old."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def checks_of_job(self, job_id: UUID) -> list[CheckResult]:
        """The checks of a job's attempts, in their order."""
        rows = self._execute("job_checks", {"job_id": str(job_id), "limit": _MAX_CHECKS_OF_JOB})
        return [from_row(CheckResult, row) for row in rows]

    def datasets_of_job(self, job_id: UUID) -> list[JobDataset]:
        """The datasets that a job's runs updated and read, in their order."""
        rows = self._execute("job_datasets", {"job_id": str(job_id), "limit": _MAX_DATASETS_OF_JOB})
        return [from_row(JobDataset, row) for row in rows]

    def checks_of_task(self, task: str, *, name: str | None = None, limit: int = 30) -> TaskChecks:
        """The last results of each check of a task, or of one."""
        parameters = {"task": validate_text("task", task), "name": name and validate_text("name", name)}
        rows = self._execute("task_checks", parameters | {"limit": limit, "max_names": _MAX_CHECKS_OF_TASK})
        results = [from_row(CheckResult, row) for row in rows]
        return TaskChecks(task, [CheckHistory(n, list(group)) for n, group in groupby(results, lambda r: r.name)])

    def datasets(self, *, after: str = "", limit: int = 100) -> DatasetPage:
        """Datasets after this name, by name."""
        rows = self._execute("datasets", {"after": validate_text("after", after), "limit": limit})
        datasets = [from_row(Dataset, row) for row in rows]
        return DatasetPage(datasets, datasets[-1].dataset if len(datasets) == limit else None)

    def dataset_names(self, *, limit: int) -> list[str]:
        return [row[0] for row in self._execute("dataset_names", {"limit": limit})]

    def dataset(self, name: str, *, limit: int = 50) -> DatasetDetail:
        """Raises DatasetNotFound."""
        parameters = {"dataset": validate_text("dataset", name), "limit": limit}
        last = [from_row(_LastEvent, row) for row in self._execute("dataset_tasks", parameters)]
        if not last:
            raise DatasetNotFound(name)
        updates = [from_row(DatasetEvent, row) for row in self._execute("dataset_updates", parameters)]
        events = {
            kind: [DatasetEvent(e.task, e.at, e.job_id, e.partition_key, e.rows) for e in last if e.kind == kind]
            for kind in ("produced", "consumed")
        }
        newest = next((event for event in last if event.kind == "produced"), None)
        return DatasetDetail(
            dataset=name,
            updated_at=None if newest is None else newest.at,
            stale=last[0].stale,
            schema=None if newest is None else newest.schema,
            producers=events["produced"],
            consumers=events["consumed"],
            updates=updates,
        )

    def prune(self, *, keep_sec: float, limit: int) -> int:
        """Delete old checks and dataset events, but none that is the last of its dataset, kind and task. Return the
        larger of the two numbers."""
        return int(self._execute("prune_reports", {"keep_sec": keep_sec, "limit": limit})[0][0])
