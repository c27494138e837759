"""Two weeks of what the company's schedules have made: jobs with events, logs, checks and datasets."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from cronsim import CronSim

from dataloader.app.db.statements import Executor
from dataloader.app.features.demo.company import BROKEN_PRICES, LOADS, PARTNER_DOWN, Load
from dataloader.app.features.demo.history_accounts import make_account

DAYS = 14
_LOGGED = timedelta(days=2)  # the lines and accounts of older jobs are left out
_LONG_SEC = 300  # accounts of longer runs are kept
_LOCKED_TASK = "load.orders"  # one run of it takes twice as long as usual
_LOCKED_SINCE, _LOCKED_UNTIL = timedelta(hours=26.5), timedelta(hours=2.5)  # ago
_CHUNK = 1_500  # jobs
_LATE_SHARE, _GIVEN_UP_SHARE, _WEEKEND_SHARE = 0.08, 0.4, 0.7
_MANY_ROWS = 1_000  # fewer do not grow with the company
_SATURDAY = 5
_WORKERS = ("etl-1:2107", "etl-1:2131", "etl-2:1888", "etl-2:1902")
_RETRIES = {
    "load.web_events": ("ConnectionError", "the connection to the event store was reset"),
    "load.payments": ("TimeoutError", "the bank did not answer within 20 s"),
    "load.tickets": ("HTTPError", "429 Too Many Requests"),
    "export.partner_feed": ("TimeoutError", PARTNER_DOWN),
}


# number, start, end, and its error: class and message; None: it has succeeded
_Attempt = tuple[int, datetime, datetime, tuple[str, str] | None]


@dataclass
class History:
    """Rows of tables, as JSON."""

    jobs: list[Mapping[str, Any]] = field(default_factory=list)
    events: list[Mapping[str, Any]] = field(default_factory=list)
    logs: list[Mapping[str, Any]] = field(default_factory=list)
    checks: list[Mapping[str, Any]] = field(default_factory=list)
    datasets: list[Mapping[str, Any]] = field(default_factory=list)
    accounts: list[Mapping[str, Any]] = field(default_factory=list)


def write_history(executor: Executor, now: datetime) -> int:
    """Write it into the empty tables of a queue; return the number of jobs."""
    chunks = list(make_history(now))
    for chunk in chunks:
        executor.execute("demo_jobs", {name: json.dumps(rows, default=str) for name, rows in vars(chunk).items()})
    executor.execute("demo_depths")
    return sum(len(chunk.jobs) for chunk in chunks)


def make_history(now: datetime, seed: int = 7) -> Iterator[History]:
    """In chunks, oldest first."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    runs = sorted(
        ((at, load) for load in LOADS for at in _fire_times(load, now)), key=lambda run: (run[0], run[1].name)
    )
    chunk, broken_on = History(), (now - timedelta(hours=24)).date()
    for at, load in runs:
        _add_run(chunk, load, at, now, broken_on, chance)
        if len(chunk.jobs) == _CHUNK:
            yield chunk
            chunk = History()
    yield chunk


def _fire_times(load: Load, now: datetime) -> Iterator[datetime]:
    for at in CronSim(load.cron, now - timedelta(days=DAYS)):
        if at >= now:
            return
        yield at


def _add_run(history: History, load: Load, at: datetime, now: datetime, broken_on: date, chance: random.Random) -> None:
    """A job and its attempts. None, if it would not have ended by now."""
    growth = 1 + 0.12 * ((at - (now - timedelta(days=DAYS))) / timedelta(days=DAYS))  # as the company grows
    share = chance.lognormvariate(0, 0.12) * growth * (_WEEKEND_SHARE if at.weekday() >= _SATURDAY else 1)
    rows = max(1, int(load.rows * chance.uniform(0.92, 1.08) * (share if load.rows > _MANY_ROWS else 1)))
    started = at + timedelta(
        seconds=0.02 + chance.expovariate(2) + (chance.random() < _LATE_SHARE) * chance.uniform(5, 90)
    )
    kind, message = _RETRIES.get(load.name, ("RuntimeError", "the server closed the connection"))
    failures = [(kind, message)] if chance.random() < load.retried_share else []
    is_failed = False
    if load.name == "load.supplier_prices" and at.date() >= broken_on:
        failures, is_failed = [("ValueError", BROKEN_PRICES)] * 3, True
    elif load.name == "export.partner_feed" and failures and chance.random() < _GIVEN_UP_SHARE:
        failures, is_failed = failures * 3, True

    job_id = _new_id(at, chance)
    attempts: list[_Attempt] = []
    for n, error in enumerate(failures, 1):
        ended = started + timedelta(seconds=min(60, load.typical_sec * chance.uniform(0.1, 0.6)))
        attempts.append((n, started, ended, error))
        started = ended + timedelta(seconds=30 * n)
    is_locked = load.name == _LOCKED_TASK and now - _LOCKED_SINCE < at <= now - _LOCKED_UNTIL
    locked_sec = load.typical_sec if is_locked else 0.0
    if not is_failed:
        ended = started + timedelta(seconds=load.typical_sec * share + locked_sec)
        attempts.append((len(attempts) + 1, started, ended, None))
    number, _, ended, last_error = attempts[-1]
    if ended > now - timedelta(seconds=30):
        return

    day = (at - timedelta(days=1)).replace(hour=0, minute=0, second=0)
    key = f"{day:%Y-%m-%d}" if load.by_day else ""
    worker, run_ids = chance.choice(_WORKERS), [_new_id(at, chance) for _ in attempts]
    is_short = load.name == "load.stock" and now - timedelta(minutes=90) < at  # the last loads: half of the stock
    rows = rows // 2 if is_short else rows
    history.jobs.append({
        "job_id": job_id, "queue": load.queue, "task": load.name, "args": {"day": key} if key else {},
        "lock_key": f"{load.name}:{key}" if key else load.name, "partition_key": key,
        "status": "failed" if is_failed else "succeeded", "attempt": number,
        "error": last_error and f"{last_error[0]}: {last_error[1]}",
        "fingerprint": last_error and last_error[0],
        "created_at": at, "started_at": attempts[0][1], "finished_at": ended, "run_id": run_ids[-1], "worker": worker,
        "result": None if is_failed else {load.unit: rows},
        "progress": {} if is_failed else {"processed": rows, "total": rows, "unit": load.unit},
        "warnings": int(is_short) or None, "logical_at": at,
        "interval_start": day if key else None, "interval_end": day + timedelta(days=1) if key else None,
    })  # fmt: skip
    _add_events(history, job_id, load, at, attempts, run_ids, worker)
    kept_days = timedelta(days=DAYS) if load.typical_sec > _LONG_SEC else _LOGGED
    for (n, began, end, problem), run_id in zip(attempts, run_ids, strict=True):
        account = make_account(
            load, job_id, run_id, n, began, end, rows=0 if problem else rows,
            locked_sec=0.0 if problem else locked_sec, is_kept=now - end < kept_days,
        )  # fmt: skip
        history.accounts += [account] if account is not None else []
    if now - ended < _LOGGED:
        _add_logs(history, job_id, load, attempts, rows)
    if load.name == "load.stock":
        history.checks.append({
            "task": load.name, "name": "rows", "at": ended, "job_id": job_id, "attempt": number, "partition_key": "",
            "value": rows, "low": load.rows * 0.7, "high": load.rows * 1.3, "median": load.rows,
            "outcome": "warned" if is_short else "passed",
            "detail": f"{rows:,} is less than 0.7 × the median of {load.rows:,}" if is_short else None,
        })  # fmt: skip
    if load.dataset is not None and not is_failed:
        of_job = {"task": load.name, "at": ended, "job_id": job_id, "partition_key": key}
        source = f"{load.source}://{load.name.partition('.')[2]}"
        history.datasets.append({"dataset": load.dataset, "kind": "produced", "rows": rows, **of_job})
        history.datasets.append({"dataset": source, "kind": "consumed", "rows": None, **of_job})


def _add_events(
    history: History, job_id: UUID, load: Load, at: datetime, attempts: list[_Attempt], run_ids: list[UUID], worker: str
) -> None:
    def add(ts: datetime, kind: str, **payload: Any) -> None:
        history.events.append({"job_id": job_id, "ts": ts, "kind": kind, "payload": payload})

    add(at, "queued", status="queued", attempt=0, producer="schedule")
    for (number, started, ended, error), run_id in zip(attempts, run_ids, strict=True):
        add(started, "picked", status="running", attempt=number, run_id=run_id, worker=worker)
        of_run = {"attempt": number, "run_id": run_id}
        if error is None:
            add(ended, "done", status="succeeded", **of_run)
            continue
        name, message = error
        of_run |= {"error": f"{name}: {message}", "error_fingerprint": name}
        of_run["traceback"] = f'Traceback (most recent call last):\n  File "company.py", in task\n{name}: {message}\n'
        if number == len(attempts):
            add(ended, "failed", status="failed", **of_run)
        else:
            add(ended, "requeue", status="queued", reason="error", pause_sec=30 * number, **of_run)


def _add_logs(history: History, job_id: UUID, load: Load, attempts: list[_Attempt], rows: int) -> None:
    for number, started, ended, error in attempts:
        lines = [(started, "INFO", f"reading source={load.source} rows={rows}")]
        lines += [(ended, "INFO", f"written dataset={load.dataset or 'nothing'} rows={rows}")] if error is None else []
        lines += [(ended, "ERROR", f"{error[0]}: {error[1]}")] if error is not None else []
        history.logs += [
            {"job_id": job_id, "attempt": number, "ts": ts, "level": level, "stream": "log", "line": line}
            for ts, level, line in lines
        ]


def _new_id(at: datetime, chance: random.Random) -> UUID:
    """As dl_new_id() makes them at this time."""
    head = f"{int(at.astimezone(UTC).timestamp() * 4_096_000):015x}"
    return UUID(f"{head[:12]}7{head[12:]}{chance.choice('89ab')}{chance.getrandbits(60):015x}")
