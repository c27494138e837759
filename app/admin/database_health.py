"""Metrics of the database itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from app.queue.jobs import Executor


@dataclass(frozen=True)
class DatabaseMetrics:
    """Dead and live rows by table, and what holds up vacuum and notifications."""

    dead_rows: Mapping[str, int]  # by table
    live_rows: Mapping[str, int]
    oldest_transaction_sec: float
    oldest_snapshot_xids: int
    notification_queue_usage: float  # from 0 to 1
    live_workers: int


def read_database_metrics(executor: Executor) -> DatabaseMetrics:
    metrics = json.loads(executor.execute("database_metrics", {"schema": executor.schema})[0][0])
    return DatabaseMetrics(
        {name: dead for name, dead, _ in metrics["tables"]},
        {name: live for name, _, live in metrics["tables"]},
        float(metrics["oldest_transaction_sec"]),
        int(metrics["oldest_snapshot_xids"]),
        float(metrics["notification_queue_usage"]),
        int(metrics["workers"]),
    )
