"""Compares alert rules with statistics and queues."""

from __future__ import annotations

from dataloader.app import log
from dataloader.app.features.alerts.rows import Alerts
from dataloader.workers.duties import HOURLY_SEC, Duty, DutyContext

_log = log.get(__name__)
_KEEP_ALERTS_SEC = 90 * 86_400.0


def create_duties(context: DutyContext) -> list[Duty]:
    alerts, interval_sec = Alerts(context.executor), context.options.alert_interval_sec
    return [
        Duty("alerts", interval_sec, lambda: _check_alerts(alerts, interval_sec)),
        Duty("alerts-prune", HOURLY_SEC, lambda: alerts.prune(keep_sec=_KEEP_ALERTS_SEC)),
    ]


def _check_alerts(alerts: Alerts, interval_sec: float) -> None:
    result = alerts.check(interval_sec=interval_sec)
    if result.fired or result.resolved:
        write = _log.warning if result.fired else _log.info
        write("alerts.changed", started=result.fired, resolved=result.resolved)
