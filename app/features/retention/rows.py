"""Retention: deletes old finished jobs by status and task, and old events, logs and progress by partition."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

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


class Retention:
    """Deletes what is older than its retention period. Several processes may do so at once."""

    def __init__(self, executor: Executor, periods: RetentionPeriods) -> None:
        self._execute, self._periods = executor.execute, periods
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
        parameters = {
            "by_status": json.dumps({s.value: getattr(self._periods, s.value) for s in Status if s.final}),
            "by_task": json.dumps({task: dict(periods) for task, periods in self._periods.tasks.items()}),
            "limit": limit,
        }
        due = self._execute("finished_jobs_due", parameters)
        if not due or dry_run:
            return PrunedBatch(Counter((row[1], row[2]) for row in due), len(due) >= limit)
        deleted = self._execute("delete_finished", {"job_ids": array(row[0] for row in due)})
        has_more = len(deleted) >= limit // 2 and len(due) >= limit
        return PrunedBatch(Counter((row[1], row[2]) for row in deleted), has_more)

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
