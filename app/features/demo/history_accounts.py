"""For what the time of the company's attempts went, as a worker would have written it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from dataloader.app.features.demo.company import STATEMENTS, Load

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
    insert, analyze = (statement.format(table) for statement in STATEMENTS)
    statements_sec = (1 - network - python) * worked_sec
    entries = [
        _entry("sql_lock", locked_sec, f"{place}:73", table, insert, _HOLDER),
        _entry("sql", 0.7 * statements_sec, f"{place}:73", "IO: DataFileRead", insert),
        _entry("network", network * worked_sec, f"{place}:41"),
        _entry("python", python * worked_sec, f"{place}:57", f"loads in {'csv' if load.by_day else 'json'}"),
        _entry("sql", 0.3 * statements_sec, f"{place}:78", None, analyze),
    ]
    account = _make_account(sorted((entry for entry in entries if entry["sec"] > 0), key=lambda entry: -entry["sec"]))
    cpu_sec = 1.1 * python * worked_sec
    return {
        "run_id": run_id, "job_id": job_id, "task": load.name, "attempt": attempt, "ended_at": ended,
        "wall_sec": wall_sec, "cpu_sec": cpu_sec, "rows": rows, "bytes": rows * _BYTES_PER_ROW,
        "cost": (_CPU_HOUR * cpu_sec + _RUN_HOUR * wall_sec) / _SEC_PER_HOUR,
        "account": json.dumps(account) if is_kept else None,
    }  # fmt: skip


def _entry(
    kind: str,
    sec: float,
    place: str,
    detail: str | None = None,
    statement: str | None = None,
    holder: str | None = None,
) -> dict[str, Any]:
    return {
        "kind": kind, "sec": round(sec, 2), "place": place, "detail": detail, "statement": statement, "holder": holder
    }  # fmt: skip


def _make_account(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kinds: dict[str, float] = {}
    for entry in entries:
        kinds[entry["kind"]] = kinds.get(entry["kind"], 0.0) + entry["sec"]
    watched_sec = sum(kinds.values())
    return {
        "watched_sec": watched_sec, "looks": int(watched_sec), "kinds": kinds, "entries": entries, "problems": {}
    }  # fmt: skip
