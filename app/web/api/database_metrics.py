"""Metrics of the database and of the API's connections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app import log
from app.admin.alerts import Alerts, RuleKind
from app.admin.database_health import DatabaseMetrics, read_database_metrics
from app.admin.webhooks import DeliveryBacklog, Webhooks
from app.db.pool import Pool
from app.errors import DataloaderError
from app.web.refreshing import RefreshingValue, RefreshTimeout

LOG = log.get("app.web.metrics")
_Snapshot = tuple[DatabaseMetrics, DeliveryBacklog, dict[str, int]]
_ALERT_KINDS = (*RuleKind, "webhook_disabled")


class DatabaseCollector(Collector):
    """Looks when a scrape comes, and not more often than every `fresh_sec`: it is bounded, and not free."""

    def __init__(self, pool: Pool, *, max_age_sec: float = 15.0, timeout_sec: float = 1.5) -> None:
        self._pool = pool
        self._pool, self._webhooks, self._alerts = pool, Webhooks(pool), Alerts(pool)
        self._snapshot = RefreshingValue(
            self._read, name="refresh-database-metrics", timeout_sec=timeout_sec, max_age_sec=max_age_sec
        )

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._pool_metrics()
        try:
            numbers, backlog, firing = self._snapshot.get()
        except (DataloaderError, RefreshTimeout) as error:
            LOG.warning("metrics.database_unavailable", error=str(error))
            return
        except Exception:  # a bug here must not cost the scrape its other numbers
            LOG.exception("metrics.failed")
            return
        yield from _database_metrics(numbers)
        yield from _webhook_metrics(backlog, firing)

    def _read(self) -> _Snapshot:
        return read_database_metrics(self._pool), self._webhooks.backlog(), self._alerts.counts()

    def _pool_metrics(self) -> Iterator[Metric]:
        stats = self._pool.stats()
        state = GaugeMetricFamily(
            "dataloader_pool_connections",
            "The API's connections: in use, idle, and the most there may be.",
            labels=("state",),
        )
        for name, value in (("in_use", stats.in_use), ("idle", stats.idle), ("most", stats.size)):
            state.add_metric((name,), value)
        yield state
        yield GaugeMetricFamily("dataloader_pool_waiting", "Requests that wait for a connection.", stats.waiting)
        yield CounterMetricFamily(
            "dataloader_pool_exhausted", "Requests that got no connection in time.", stats.exhausted
        )


def _database_metrics(numbers: DatabaseMetrics) -> Iterator[Metric]:
    for name, meaning, rows in (
        ("dataloader_dead_rows", "Dead rows that vacuum has not taken away yet.", numbers.dead_rows),
        ("dataloader_live_rows", "Live rows, as the server estimates them.", numbers.live_rows),
    ):
        family = GaugeMetricFamily(name, meaning, labels=("table",))
        for table, value in rows.items():
            family.add_metric((table,), value)
        yield family
    for name, meaning, number in (
        (
            "dataloader_oldest_transaction_seconds",
            "Age of the oldest transaction in the database that this role may see.",
            numbers.oldest_transaction_sec,
        ),
        (
            "dataloader_oldest_snapshot_transactions",
            "The age, in transactions, of the oldest snapshot that delays vacuum.",
            float(numbers.oldest_snapshot_xids),
        ),
        (
            "dataloader_notification_queue_usage",
            "The used share of the server's notification queue, from 0 to 1.",
            numbers.notification_queue_usage,
        ),
        ("dataloader_workers_alive", "Worker processes with a recent heartbeat.", float(numbers.live_workers)),
    ):
        yield GaugeMetricFamily(name, meaning, number)


def _webhook_metrics(backlog: DeliveryBacklog, firing: dict[str, int]) -> Iterator[Metric]:
    waiting = GaugeMetricFamily(
        "dataloader_webhook_backlog",
        "Webhooks that wait to be sent: new ones, and such that failed.",
        labels=("state",),
    )
    waiting.add_metric(("new",), backlog.pending - backlog.failing)
    waiting.add_metric(("failing",), backlog.failing)
    yield waiting
    yield GaugeMetricFamily(
        "dataloader_webhook_oldest_seconds", "Age of the oldest webhook that was not delivered.", backlog.oldest_sec
    )
    yield GaugeMetricFamily(
        "dataloader_webhooks_disabled", "Webhooks that are switched off.", backlog.disabled_webhooks
    )
    alerts = GaugeMetricFamily(
        "dataloader_alerts_firing", "Alerts that fire, by the kind of their rule.", labels=("kind",)
    )
    for kind in _ALERT_KINDS:
        alerts.add_metric((str(kind),), firing.get(kind, 0))
    yield alerts
