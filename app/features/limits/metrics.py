"""Metrics of limits and circuit breakers."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client.core import Metric

from dataloader.app.acts.metric_families import gauge
from dataloader.app.db.statements import Executor
from dataloader.app.features.limits.breakers import Breakers, BreakerState
from dataloader.app.features.limits.rows import Limits


def limit_metrics(executor: Executor) -> Iterator[Metric]:
    """By setting, so that a default such as `tenant:*` is one series however many names begin so."""
    limits, breakers = Limits(executor).statuses(), Breakers(executor).statuses()
    used: Tally[str] = Tally()
    waiting: Tally[str] = Tally()
    for limit in limits:
        if limit.setting is not None:
            used[limit.setting] += limit.used
            waiting[limit.setting] += limit.waiting
    about = "Weight of the running jobs in a limit, by its setting."
    yield gauge("dataloader_limit_used", about, used, label="limit")
    yield gauge("dataloader_limit_waiting", "Jobs that wait for a limit, by its setting.", waiting, label="limit")
    is_open = {breaker.task: float(breaker.state is not BreakerState.CLOSED) for breaker in breakers}
    about = "1 where the circuit breaker of a task is open or half-open, or the task is paused."
    yield gauge("dataloader_breaker_open", about, is_open, label="task")
