"""Retention: deletes old finished jobs by status and task, and old events, logs and progress by partition."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dataloader.app.db.encoding import array
from dataloader.app.db.statements import Executor
from dataloader.app.queue.job import Status
from dataloader.app.queue.retention_periods import DAY_SEC, RetentionPeriods

EVENTS_TABLE, LOGS_TABLE, PROGRESS_TABLE = "dl_job_events", "dl_job_logs", "dl_progress"
_PARTITIONS_PER_PERIOD = 5
MAX_PARTITION_SEC = 7 * DAY_SEC  # dl_lowest_id_since relies on it


@dataclass(frozen=True)
class PrunedBatch:
    """The jobs that one batch deleted, or would delete in a dry run."""

    jobs: Mapping[tuple[str, str], int]  # (status, task) → number of jobs
    has_more: bool  # there may be more jobs to delete


class _Position(NamedTuple):
    """A job in the order of deletion: the next batch begins behind it. The first one is before all finished jobs."""

    job_id: str = "00000000-0000-0000-0000-000000000000"
    status: str = Status.QUEUED.value
    task: str = ""
    finished_at: str = "-infinity"


class Retention:
    """Deletes what is older than its retention period. Several processes may do so at once.

    A batch begins behind the one before it, until none is left: jobs that may not go yet, such as those of an open
    graph, would otherwise fill each batch.
    """

    def __init__(self, executor: Executor, periods: RetentionPeriods) -> None:
        self._execute, self._periods = executor.execute, periods
        self._position = _Position()
        self._partitioned_tables = (
            (EVENTS_TABLE, periods.events),
            (LOGS_TABLE, periods.logs),
            (PROGRESS_TABLE, periods.progress),
        )

    @property
    def is_paused(self) -> bool:
        """Whether the schema was upgraded from version 0, which never deleted jobs."""
        return bool(self._execute("is_retention_paused", {})[0][0])

    def prune(self, *, limit: int = 500, dry_run: bool = False) -> PrunedBatch:
        """Delete the next batch of jobs with their events; with `dry_run` only count them."""
        start = _Position() if dry_run else self._position
        parameters = {
            "by_status": json.dumps({s.value: getattr(self._periods, s.value) for s in Status if s.final}),
            "by_task": json.dumps({task: dict(periods) for task, periods in self._periods.tasks.items()}),
            "limit": limit,
            **{f"after_{field}": value for field, value in start._asdict().items()},
        }
        due = [_Position(*row) for row in self._execute("finished_jobs_due", parameters)]
        has_more = len(due) >= limit
        if dry_run:
            return PrunedBatch(Counter((job.status, job.task) for job in due), has_more)
        self._position = due[-1] if has_more else _Position()
        deleted = self._execute("delete_finished", {"job_ids": array(job.job_id for job in due)}) if due else []
        return PrunedBatch(Counter((status, task) for _, status, task in deleted), has_more)

    def prune_audit(self, *, limit: int = 5_000) -> int:
        """Delete old audit entries, but none of the last day; return their number."""
        return int(self._execute("prune_audit", {"keep_sec": self._periods.audit, "limit": limit})[0][0])

    def create_partitions(self) -> list[str]:
        """Create future partitions, and switch to the current one; return the created partitions."""
        created: list[str] = []
        for parent, keep_sec in self._partitioned_tables:
            span = partition_span(keep_sec)
            rows = self._execute("create_partitions", {"parent": parent, "span_sec": span, "ahead_sec": span})
            created += [row[0] for row in rows]
            self._execute("advance_sequence", {"parent": parent})
        return created

    def drop_partitions(self, *, dry_run: bool = False) -> list[str]:
        """Drop an old partition of events, one of logs and one of progress; with `dry_run` only return their names."""
        dropped: list[str] = []
        for parent, keep_sec in self._partitioned_tables:
            rows = self._execute("drop_partitions", {"parent": parent, "keep_sec": keep_sec, "dry_run": dry_run})
            dropped += [row[0] for row in rows]
        return dropped


def partition_span(period_sec: float) -> float:
    """The time span of a partition: a fifth of the retention period, in whole days if it is longer than a day."""
    span = min(MAX_PARTITION_SEC, period_sec / _PARTITIONS_PER_PERIOD)
    return span // DAY_SEC * DAY_SEC if span >= DAY_SEC else max(1.0, span // 1)
