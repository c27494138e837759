"""Questions about the database itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.queue.jobqueue import Source


@dataclass(frozen=True)
class DatabaseNumbers:
    dead_rows: Mapping[str, int]  # by table
    live_rows: Mapping[str, int]
    oldest_transaction_sec: float
    oldest_snapshot_xids: int
    notification_queue_usage: float  # a share of 1
    workers: int  # that live


class Health:
    def __init__(self, source: Source) -> None:
        self._schema = source.schema
        self._ask: Callable[..., list[tuple[Any, ...]]] = source.ask

    def numbers(self) -> DatabaseNumbers:
        told = json.loads(self._ask("database_numbers", {"schema": self._schema})[0][0])
        return DatabaseNumbers(
            {name: dead for name, dead, _ in told["tables"]},
            {name: live for name, _, live in told["tables"]},
            float(told["oldest_transaction_sec"]),
            int(told["oldest_snapshot_xids"]),
            float(told["notification_queue_usage"]),
            int(told["workers"]),
        )
