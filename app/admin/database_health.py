"""Metrics of the database itself."""

from __future__ import annotations

from dataclasses import dataclass

from app.db.encoding import from_row
from app.queue.jobs import Executor


@dataclass(frozen=True)
class DatabaseMetrics:
    """Dead and live rows by table, and what holds up vacuum and notifications."""

    dead_rows: dict[str, int]  # by table
    live_rows: dict[str, int]
    oldest_transaction_sec: float
    oldest_snapshot_xids: int
    notification_queue_usage: float  # from 0 to 1
    live_workers: int


def read_database_metrics(executor: Executor) -> DatabaseMetrics:
    return from_row(DatabaseMetrics, executor.execute("database_metrics", {"schema": executor.schema})[0])
