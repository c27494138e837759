"""The accounts of a job's attempts, next to the usual run of its task; totals by task and day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dataloader.app.errors import JobNotFound
from dataloader.app.features.where.account import KINDS, decode_entries
from dataloader.app.features.where.accounts import Accounts, DayTotals, StoredAccount
from dataloader.app.features.where.usual import Comparison, UsualRun, compare, describe_more, usual_run
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.wording import format_duration

_SEC_PER_HOUR = 3600
MAX_TOTALS = 2000  # rows


@dataclass(frozen=True, kw_only=True)
class KindShare:
    """The time of an attempt that went into one kind of work or wait. `share` is of the time that was watched."""

    kind: str
    name: str
    sec: float
    share: float


@dataclass(frozen=True, kw_only=True)
class AccountEntry:
    """One of the heaviest places or statements. `text` says it in words; `detail` is what it waited for, and
    `holder` who held that up."""

    kind: str
    text: str
    place: str | None
    detail: str | None
    statement: str | None
    holder: str | None
    sec: float
    share: float


@dataclass(frozen=True, kw_only=True)
class AttemptAccount:
    """For what the time of an attempt went. Without `ended_at` it runs, or its worker process has died. `watched_sec`
    is the time that was looked at. `peak_memory_mb` and `memory_gb_hours` are of an attempt with processes of its own;
    `rows` and `bytes` those that the toolkit copied. `problems`: why the part of a server is not complete."""

    run_id: UUID
    attempt: int
    ended_at: datetime | None
    wall_sec: float
    watched_sec: float
    cpu_sec: float | None
    peak_memory_mb: float | None
    memory_gb_hours: float | None
    rows: int
    bytes: int
    cost: float | None
    kinds: list[KindShare]
    entries: list[AccountEntry]
    problems: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class JobAccount:
    """The accounts of a job's attempts, the last one first. `comparison` is of that one with the usual run of the task:
    the median of its last runs that succeeded; null without enough of them. `summary` says it in a sentence."""

    job_id: UUID
    task: str
    summary: str
    comparison: Comparison | None
    currency: str | None
    attempts: list[AttemptAccount]


@dataclass(frozen=True, kw_only=True)
class TaskDay:
    """What the attempts of a task used on a day in UTC: those that ran for long enough to have an account."""

    day: str
    task: str
    attempts: int
    run_hours: float
    cpu_hours: float
    memory_gb_hours: float
    rows: int
    bytes: int
    cost: float


@dataclass(frozen=True, kw_only=True)
class AccountTotals:
    """Totals by task and day, the newest first."""

    currency: str | None
    days: list[TaskDay]


class AccountReader:
    """Threads may share it."""

    def __init__(self, queue: JobQueue, currency: str | None) -> None:
        self._queue, self._accounts, self.currency = queue, Accounts(queue.executor), currency

    def of_job(self, job_id: UUID) -> JobAccount:
        """Raises JobNotFound."""
        job = self._queue.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        accounts = self._accounts.of_job(job_id)
        comparison = self.compare(accounts[0]) if accounts else None
        return JobAccount(
            job_id=job_id,
            task=job.task,
            summary=_summary(accounts, comparison),
            comparison=comparison,
            currency=self.currency,
            attempts=[_attempt(account) for account in accounts],
        )

    def compare(self, account: StoredAccount) -> Comparison | None:
        usual = usual_run(self._accounts.usual(account.task, except_job=account.job_id))
        return None if usual is None else compare(account, usual)

    def last_of_task(self, task: str) -> tuple[StoredAccount, Comparison | None] | None:
        """The last run of a task that succeeded, next to those before it."""
        accounts = self._accounts.usual(task)
        if not accounts:
            return None
        before: UsualRun | None = usual_run(accounts[1:])
        return accounts[0], None if before is None else compare(accounts[0], before)

    def totals(self, *, days: int, task: str | None = None) -> AccountTotals:
        found = self._accounts.days(days=days, task=task, limit=MAX_TOTALS)
        return AccountTotals(currency=self.currency, days=[_task_day(totals) for totals in found])


def _summary(accounts: list[StoredAccount], comparison: Comparison | None) -> str:
    if not accounts:
        return "There is no account: no attempt has run for long enough to be looked at."
    account = accounts[0]
    entries = decode_entries(account.account["entries"])
    watched = account.account["watched_sec"]
    text = "Nothing of it was seen." if not entries else ""
    if entries and watched > 0:
        cause, sec = entries[0]
        text = f"{100 * sec / watched:.0f} % of {format_duration(account.wall_sec)}: {cause.text}."
    if comparison is None:
        return text
    is_named = bool(entries) and comparison.is_slower and comparison.cause == describe_more(entries[0][0])
    return comparison.sentence if is_named else f"{comparison.sentence} {text}"


def _attempt(account: StoredAccount) -> AttemptAccount:
    stored: dict[str, Any] = account.account
    watched = stored["watched_sec"]
    memory = account.memory_gb_sec

    def share(sec: float) -> float:
        return round(sec / watched, 4) if watched > 0 else 0.0

    return AttemptAccount(
        run_id=account.run_id,
        attempt=account.attempt,
        ended_at=account.ended_at,
        wall_sec=account.wall_sec,
        watched_sec=watched,
        cpu_sec=account.cpu_sec,
        peak_memory_mb=account.peak_memory_mb,
        memory_gb_hours=None if memory is None else round(memory / _SEC_PER_HOUR, 6),
        rows=account.rows,
        bytes=account.bytes,
        cost=account.cost,
        kinds=[
            KindShare(kind=kind, name=KINDS.get(kind, kind), sec=sec, share=share(sec))
            for kind, sec in stored["kinds"].items()
        ],
        entries=[
            AccountEntry(**vars(cause), text=cause.text, sec=sec, share=share(sec))
            for cause, sec in decode_entries(stored["entries"])
        ],
        problems=stored["problems"],
    )


def _task_day(totals: DayTotals) -> TaskDay:
    return TaskDay(
        day=totals.day.isoformat(),
        task=totals.task,
        attempts=totals.attempts,
        run_hours=round(totals.wall_sec / _SEC_PER_HOUR, 6),
        cpu_hours=round(totals.cpu_sec / _SEC_PER_HOUR, 6),
        memory_gb_hours=round(totals.memory_gb_sec / _SEC_PER_HOUR, 6),
        rows=totals.rows,
        bytes=totals.bytes,
        cost=round(totals.cost, 6),
    )
