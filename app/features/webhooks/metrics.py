"""Metrics of deliveries that wait."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from dataloader.app.acts.metric_families import gauge
from dataloader.app.db.statements import Executor
from dataloader.app.features.webhooks.rows import Webhooks


def webhook_metrics(executor: Executor) -> Iterator[Metric]:
    backlog = Webhooks(executor).backlog()
    deliveries = {"new": backlog.pending - backlog.failing, "failing": backlog.failing}
    about = "Webhooks that wait to be sent: new ones, and such that failed."
    yield gauge("dataloader_webhook_backlog", about, deliveries, label="state")
    about = "Age of the oldest webhook that was not delivered."
    yield gauge("dataloader_webhook_oldest_seconds", about, backlog.oldest_sec)
    yield gauge("dataloader_webhooks_disabled", "Webhooks that are switched off.", backlog.disabled_webhooks)
