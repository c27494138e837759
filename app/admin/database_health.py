"""Metrics of the database itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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


class DatabaseHealth:
    """Reads the metrics of the database."""

    def __init__(self, executor: Executor) -> None:
        self._schema = executor.schema
        self._execute: Callable[..., list[tuple[Any, ...]]] = executor.execute

    def metrics(self) -> DatabaseMetrics:
        row = json.loads(self._execute("database_metrics", {"schema": self._schema})[0][0])
        return DatabaseMetrics(
            {name: dead for name, dead, _ in row["tables"]},
            {name: live for name, _, live in row["tables"]},
            float(row["oldest_transaction_sec"]),
            int(row["oldest_snapshot_xids"]),
            float(row["notification_queue_usage"]),
            int(row["workers"]),
        )
