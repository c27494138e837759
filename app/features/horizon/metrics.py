"""Metrics of the horizon."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prometheus_client.core import Metric

from dataloader.app.acts.metric_families import gauge
from dataloader.app.db.statements import Executor
from dataloader.app.features.horizon.rows import HolderKind, Horizon

_KINDS_WITH_START = (HolderKind.TRANSACTION, HolderKind.PREPARED)


def horizon_metrics(executor: Executor) -> Iterator[Metric]:
    """Zero where there is no holder of a kind, NaN where the role may not see its start."""
    holders = {holder.kind: holder for holder in Horizon(executor).holders()}
    ages_sec, transactions = dict[str, float](), dict[str, float]()
    for kind in HolderKind:
        holder = holders.get(kind)
        transactions[kind] = holder.transactions if holder else 0
        if kind in _KINDS_WITH_START:
            age_sec = holder.age_sec if holder else 0.0
            ages_sec[kind] = math.nan if age_sec is None else age_sec
    about = "Age of the oldest transaction that delays vacuum; NaN: this role may not see its start."
    yield gauge("dataloader_horizon_age_seconds", about, ages_sec, label="holder")
    about = "The age, in transactions, of the oldest transaction, slot and standby that delays vacuum."
    yield gauge("dataloader_horizon_age_transactions", about, transactions, label="holder")
