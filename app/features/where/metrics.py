"""Metrics of what the attempts of each task have used today."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from dataloader.app.acts.metric_families import gauge
from dataloader.app.db.statements import Executor
from dataloader.app.features.where.accounts import Accounts, DayTotals

_MAX_TASKS = 100
_FAMILIES: tuple[tuple[str, str, Callable[[DayTotals], float]], ...] = (
    ("cpu_seconds", "CPU time", lambda totals: totals.cpu_sec),
    ("memory_gigabyte_seconds", "Memory times time, of attempts in processes of their own,", lambda t: t.memory_gb_sec),
    ("rows", "Rows that the toolkit copied", lambda totals: totals.rows),
    ("cost", "Money, by the prices of the settings,", lambda totals: totals.cost),
)


def account_metrics(executor: Executor) -> Iterator[Metric]:
    totals = Accounts(executor).totals_of_today(limit=_MAX_TASKS)
    for name, meaning, figure in _FAMILIES:
        text = f"{meaning} of the attempts of a task that ended today in UTC; of at most {_MAX_TASKS} tasks."
        values = {of_task.task: figure(of_task) for of_task in totals}
        yield gauge(f"dataloader_task_{name}_today", text, values, label="task")
