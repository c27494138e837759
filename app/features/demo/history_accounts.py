"""For what the time of the company's attempts went, as a worker would have written it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from dataloader.app.features.demo.company import Load
from dataloader.app.features.where.account import Account, Cause

_CPU_HOUR, _RUN_HOUR = 0.05, 0.10
PRICES = {"cpu_hour": _CPU_HOUR, "run_hour": _RUN_HOUR, "currency": "EUR"}
_AFTER_SEC = 10.0  # the age of an attempt that is looked at
_BYTES_PER_ROW = 180
_SEC_PER_HOUR = 3600
# Shares of the time: of reading from the source over the network, and of computing. The rest are statements.
_SHARES = {"support": (0.85, 0.10), "bank": (0.70, 0.15), "advertising": (0.80, 0.10), "site": (0.45, 0.30)}
_ORDINARY_SHARES = (0.25, 0.20)
_HOLDER = "psql (user ann)"


def make_account(
    load: Load, job_id: UUID, run_id: UUID, attempt: int, started: datetime, ended: datetime, *, rows: int,
    locked_sec: float = 0.0, is_kept: bool,
) -> Mapping[str, Any] | None:  # fmt: skip
    """The account of an attempt that waited so long for a lock; None: it was too short. Of one that is not kept, the
    totals alone."""
    wall_sec = (ended - started).total_seconds()
    if wall_sec < _AFTER_SEC:
        return None
    table, name = load.dataset or f"{load.source}.{load.name.partition('.')[2]}", load.name.partition(".")[2]
    place = f"load_{name} in acme/{load.name.partition('.')[0]}.py"
    network, python = _SHARES.get(load.source, _ORDINARY_SHARES)
    worked_sec = wall_sec - _AFTER_SEC - locked_sec
    insert = f"INSERT INTO {table} SELECT * FROM staging"  # noqa: S608 - it is shown
    account = Account(looks=int(wall_sec - _AFTER_SEC))
    for cause, sec in (
        (Cause("network", f"{place}:41"), network * worked_sec),
        (Cause("python", f"{place}:57", f"loads in {'csv' if load.by_day else 'json'}"), python * worked_sec),
        (Cause("sql", f"{place}:73", "IO: DataFileRead", insert), 0.7 * (1 - network - python) * worked_sec),
        (Cause("sql", f"{place}:78", None, f"ANALYZE {table}"), 0.3 * (1 - network - python) * worked_sec),
        (Cause("sql_lock", f"{place}:73", table, insert, _HOLDER), locked_sec),
    ):
        if sec > 0:
            account.add(cause, sec)
    cpu_sec = 1.1 * python * worked_sec
    return {
        "run_id": run_id, "job_id": job_id, "task": load.name, "attempt": attempt, "ended_at": ended,
        "wall_sec": wall_sec, "cpu_sec": cpu_sec, "rows": rows, "bytes": rows * _BYTES_PER_ROW,
        "cost": (_CPU_HOUR * cpu_sec + _RUN_HOUR * wall_sec) / _SEC_PER_HOUR,
        "account": account.encode(str) if is_kept else None,
    }  # fmt: skip
