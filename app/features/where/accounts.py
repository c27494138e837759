"""Reads and writes accounts of attempts, and their totals by task and day."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import decode_json, from_row
from dataloader.app.db.statements import Executor

MAX_USUAL_RUNS = 20
KEEP_DAYS = 400  # of totals
_MAX_ATTEMPTS = 10  # of a job, whose accounts are shown
_NO_RUN = UUID(int=0)


@dataclass(frozen=True, kw_only=True)
class NewAccount:
    """The account of an attempt, as it is written. `account` is JSON."""

    run_id: str
    job_id: str
    task: str
    attempt: int
    has_ended: bool
    wall_sec: float
    cpu_sec: float | None
    peak_memory_mb: float | None
    memory_gb_sec: float | None
    rows: int
    bytes: int
    cost: float | None
    account: str


@dataclass(frozen=True)
class StoredAccount:
    """The account of an attempt. Without `ended_at` it runs, or its worker process has died."""

    run_id: UUID
    job_id: UUID
    task: str
    attempt: int
    ended_at: datetime | None
    wall_sec: float
    cpu_sec: float | None
    peak_memory_mb: float | None
    memory_gb_sec: float | None
    rows: int
    bytes: int
    cost: float | None
    account: Any


@dataclass(frozen=True)
class DayTotals:
    """What the attempts of a task used on a day in UTC."""

    day: date
    task: str
    attempts: int
    wall_sec: float
    cpu_sec: float
    memory_gb_sec: float
    rows: int
    bytes: int
    cost: float


# What is shown of an account whose text cannot be read: another program wrote it.
_UNREADABLE: dict[str, Any] = {
    "watched_sec": 0.0,
    "kinds": {},
    "entries": [],
    "problems": {"account": "cannot be read"},
}


def _stored(row: Sequence[Any]) -> StoredAccount:
    try:
        account = decode_json(row[-1])
    except ValueError:
        account = None
    is_known = isinstance(account, dict) and account.keys() >= _UNREADABLE.keys()
    return from_row(StoredAccount, row[:-1], account=account if is_known else _UNREADABLE)


class Accounts:
    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def write(self, accounts: Sequence[NewAccount]) -> None:
        self._execute("write_accounts", {"accounts": json.dumps([asdict(account) for account in accounts])})

    def of_job(self, job_id: UUID) -> list[StoredAccount]:
        """Of its attempts, the last one first."""
        rows = self._execute("accounts_of_job", {"job_id": str(job_id), "limit": _MAX_ATTEMPTS})
        return [_stored(row) for row in rows]

    def usual(self, task: str, *, except_job: UUID | None = None) -> list[StoredAccount]:
        """The last ones of attempts that succeeded."""
        job_id = None if except_job is None else str(except_job)
        rows = self._execute("usual_accounts", {"task": task, "job_id": job_id, "limit": MAX_USUAL_RUNS})
        return [_stored(row) for row in rows]

    def lost(self, *, limit: int) -> list[StoredAccount]:
        """Of attempts that have ended with their worker processes. Their times are those until the loss was found."""
        rows = self._execute("lost_accounts", {"limit": limit})
        return [_stored(row) for row in rows]

    def days(self, *, days: int, task: str | None = None, limit: int) -> list[DayTotals]:
        """Totals of the last days, the newest first."""
        rows = self._execute("account_days", {"days": days, "task": task, "limit": limit})
        return [DayTotals(*row) for row in rows]

    def totals_of_today(self, *, limit: int) -> list[DayTotals]:
        today = date.min
        return [DayTotals(today, *row) for row in self._execute("account_totals", {"limit": limit})]

    def prune(self, after: UUID | None, *, limit: int) -> UUID | None:
        """Delete those of the next rows whose jobs do not exist any more; return where to continue."""
        rows = self._execute("prune_accounts", {"after_run": str(after or _NO_RUN), "max_rows": limit})
        return None if rows[0][0] is None else UUID(str(rows[0][0]))

    def prune_days(self) -> None:
        self._execute("prune_account_days", {"days": KEEP_DAYS})
