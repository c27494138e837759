"""The part of doctor: alerts that fire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dataloader.app.acts.findings import Finding, warning
from dataloader.app.db.statements import Executor
from dataloader.app.features.alerts.rows import Alerts
from dataloader.app.wording import format_count


def check_alerts(executor: Executor, _options: Any = None) -> Iterator[Finding]:
    if firing := sum(Alerts(executor).counts().values()):
        yield warning(
            "alerts",
            f"firing: {format_count(firing, 'alert')}",
            "dataloader alerts list lists them; an alert ends with its cause",
        )
