"""Deletes old jobs and records."""

from __future__ import annotations

from collections import Counter

from dataloader.app import log
from dataloader.app.db.statements import Executor
from dataloader.app.features.retention.rows import PrunedBatch, Retention
from dataloader.app.queue.workers import prune_heartbeats, prune_notify_state
from dataloader.pipelines.portable import clock
from dataloader.workers.duties import PRUNE_INTERVAL_SEC, Duty, DutyContext, MaintenanceOptions

_log = log.get(__name__)
_INTERVAL_SEC = 60.0
_DELETE_BATCH = 500  # jobs
_MAX_DELETE_PAUSE_SEC = 5.0


def create_duties(context: DutyContext) -> list[Duty]:
    retention = RetentionDuty(context.executor, context.options)
    return [Duty("retention", _INTERVAL_SEC, retention.run, first_delay_sec=_INTERVAL_SEC / 2)]


class RetentionDuty:
    """Deletes old jobs in batches and creates and drops partitions of events and logs."""

    def __init__(self, executor: Executor, options: MaintenanceOptions) -> None:
        self._session, self._options = executor, options
        self._retention = Retention(executor, options.periods)
        self._is_hold_logged = False
        self._next_prune_at = 0.0
        self._unlogged_deletions: Counter[tuple[str, str]] = Counter()  # (status, task) → jobs

    def run(self) -> float | None:
        """Delete one batch of jobs. While batches are full, pause as long as each took."""
        started_at = clock()
        for partition in self._retention.create_partitions():
            _log.info("partition.created", partition=partition)
        if started_at >= self._next_prune_at:
            self._next_prune_at = started_at + PRUNE_INTERVAL_SEC
            prune_heartbeats(self._session)
        if not self._options.deletion_enabled or self._is_on_hold():
            return None
        pruned = self._retention.prune(limit=_DELETE_BATCH)
        self._log_deletions(pruned)
        for partition in self._retention.drop_partitions():
            _log.info("partition.dropped", partition=partition)
        self._retention.prune_audit()
        prune_notify_state(self._session)
        return min(_MAX_DELETE_PAUSE_SEC, max(0.05, clock() - started_at)) if pruned.has_more else None

    def _is_on_hold(self) -> bool:
        if self._options.is_retention_requested or not self._retention.is_paused:
            return False
        if not self._is_hold_logged:
            self._is_hold_logged = True
            _log.warning(
                "retention.on_hold",
                detail="the tables were upgraded from version 0, so nothing is deleted; DL_RETENTION_ENABLED=true "
                "deletes what is older than DL_KEEP_…, DL_RETENTION_ENABLED=false keeps everything; "
                "`dataloader prune --dry-run` lists it",
            )
        return True

    def _log_deletions(self, pruned: PrunedBatch) -> None:
        self._unlogged_deletions.update(pruned.jobs)
        if not pruned.has_more:
            for (status, task), jobs in sorted(self._unlogged_deletions.items()):
                _log.info("jobs.deleted", status=status, task=task, jobs=jobs)
            self._unlogged_deletions.clear()
