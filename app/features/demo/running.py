"""What the company's service does when the demo begins: jobs that run, wait, are blocked, slow, or fail."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from dataloader import Client
from dataloader.app.db.statements import Executor
from dataloader.app.features.demo.company import BY_NAME, SUPPORT_API

_BACKFILLED_DAYS = 60
_WAIT_SEC = 20.0
# Loads that have run for so many seconds: one of them for more than twice as long as usual.
_RUNNING_SEC = {"load.orders": 2460, "load.web_events": 840, "load.invoices": 2100}
_SLOW_SEC = {"load.invoices": 2700}  # how long it will take
_GRAPH: list[dict[str, Any]] = [
    {"key": "ledger", "task": "load.ledger", "args": {"sec": 40}, "lock_key": "close:ledger"},
    {"key": "payments", "task": "load.payments", "args": {"sec": 15}, "lock_key": "close:payments"},
    {"key": "margins", "task": "build.margins", "lock_key": "close:margins",
     "after": [{"job": "ledger", "on": "succeeded"}, {"job": "payments", "on": "succeeded"}]},
    {"key": "report", "task": "report.daily_sales", "args": {"day": "the month"}, "lock_key": "close:report",
     "after": [{"job": "margins", "on": "succeeded"}]},
]  # fmt: skip


def begin_work(client: Client, executor: Executor) -> None:
    """Trigger it by the API, as a user does, once the worker process has declared the schedules of its tasks."""
    now = datetime.now(UTC)
    yesterday = f"{now - timedelta(days=1):%Y-%m-%d}"
    _wait_for(lambda: executor.execute("demo_schedules")[0][0] == len(BY_NAME))
    client.request("PUT", f"/api/v1/limits/{SUPPORT_API}", body={"concurrency": 1, "note": "as their contract allows"})

    running = {task: _trigger_running(client, task, yesterday) for task in _RUNNING_SEC}
    client.trigger("load.orders", {"day": yesterday}, live_key="again")  # the same day: blocked by its key
    for n in range(3):
        client.trigger("load.tickets", {"project": n}, lock_key=f"tickets:{n}")  # one at a time by the limit
    client.trigger("export.partner_feed", {"is_down": True}, lock_key="feed:de", max_attempts=4)
    client.trigger("load.supplier_prices", {"supplier": "north"}, lock_key="prices:north", max_attempts=1)
    client.trigger("build.margins", {"articles": 20_000_000}, lock_key="margins:all")  # works in the database
    client.trigger("report.weekly_cohorts", {"weeks": 52}, available_at=now + timedelta(hours=2))
    client.trigger_graph(_GRAPH, name="month close")
    first, last = (now - timedelta(days=days) for days in (_BACKFILLED_DAYS + 30, 31))
    client.backfill(
        "load.ad_costs", f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}", concurrency=2, note="the costs of the old agency"
    )

    for task, job_id in running.items():
        _wait_for(lambda job_id=job_id: bool(client.job(job_id)["progress"]))
        load, sec = BY_NAME[task], _RUNNING_SEC[task]
        parameters = {"job_id": job_id, "sec": sec, "done": _done(task), "rows": load.rows, "unit": load.unit}
        executor.execute("demo_start_earlier", parameters)


def _trigger_running(client: Client, task: str, day: str) -> str:
    load = BY_NAME[task]
    args: Mapping[str, Any] = {"day": day} if load.by_day else {}
    progress = {"rows": load.rows, "done": _done(task), "sec": _SLOW_SEC.get(task, load.typical_sec)}
    job_id: str = client.trigger(task, {**args, **progress}, lock_key=f"{task}:{day}")["job_id"]
    return job_id


def _done(task: str) -> int:
    load = BY_NAME[task]
    return int(load.rows * min(0.95, _RUNNING_SEC[task] / _SLOW_SEC.get(task, load.typical_sec)))


def _wait_for(condition: Any) -> None:
    deadline = time.monotonic() + _WAIT_SEC
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
