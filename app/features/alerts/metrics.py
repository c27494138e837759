"""Metrics of alerts that fire."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from dataloader.app.acts.metric_families import gauge
from dataloader.app.db.statements import Executor
from dataloader.app.features.alerts.rows import Alerts, RuleKind

_ALERT_KINDS = (*RuleKind, "webhook_disabled")


def alert_metrics(executor: Executor) -> Iterator[Metric]:
    firing = Alerts(executor).counts()
    alerts = {str(kind): firing.get(kind, 0) for kind in _ALERT_KINDS}
    yield gauge("dataloader_alerts_firing", "Alerts that fire, by the kind of their rule.", alerts, label="kind")
