"""The numbers of the database and of the API's own connections, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app import log
from app.errors import DataloaderError
from app.queue.alerts import Alerts, RuleKind
from app.queue.health import DatabaseNumbers, Health
from app.queue.pool import Pool
from app.queue.webhooks import Backlog, Webhooks
from app.web.bounded import Bounded, NoAnswer

LOG = log.get("app.web.metrics")
Look = tuple[DatabaseNumbers, Backlog, dict[str, int]]
_KINDS = (*RuleKind, "webhook_disabled")


class DatabaseCollector(Collector):
    """Looks when a scrape comes, and not more often than every `fresh_sec`: it is bounded, and not free."""

    def __init__(self, pool: Pool, *, fresh_sec: float = 15.0, patience_sec: float = 1.5) -> None:
        self._pool = pool
        self._health, self._webhooks, self._alerts = Health(pool), Webhooks(pool), Alerts(pool)
        self._numbers = Bounded(self._look, patience_sec=patience_sec, fresh_sec=fresh_sec)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._of_pool()
        try:
            numbers, backlog, firing = self._numbers.get()
        except (DataloaderError, NoAnswer) as error:
            LOG.warning("metrics.database.away", error=str(error))
            return
        except Exception:  # a bug here must not cost the scrape its other numbers
            LOG.exception("metrics.failed")
            return
        yield from _of_database(numbers)
        yield from _of_telling(backlog, firing)

    def _look(self) -> Look:
        return self._health.numbers(), self._webhooks.backlog(), self._alerts.counts()

    def _of_pool(self) -> Iterator[Metric]:
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


def _of_database(numbers: DatabaseNumbers) -> Iterator[Metric]:
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
            "How many transactions ago the oldest snapshot was taken that holds up vacuum.",
            float(numbers.oldest_snapshot_xids),
        ),
        (
            "dataloader_notification_queue_usage",
            "How full the server's queue of notifications is, from 0 to 1.",
            numbers.notification_queue_usage,
        ),
        ("dataloader_workers_alive", "Worker processes that have been heard of lately.", float(numbers.workers)),
    ):
        yield GaugeMetricFamily(name, meaning, number)


def _of_telling(backlog: Backlog, firing: dict[str, int]) -> Iterator[Metric]:
    waiting = GaugeMetricFamily(
        "dataloader_webhook_backlog",
        "Webhooks that wait to be sent: new ones, and such that failed.",
        labels=("state",),
    )
    waiting.add_metric(("new",), backlog.waiting - backlog.failing)
    waiting.add_metric(("failing",), backlog.failing)
    yield waiting
    yield GaugeMetricFamily(
        "dataloader_webhook_oldest_seconds", "Age of the oldest webhook that was not delivered.", backlog.oldest_sec
    )
    yield GaugeMetricFamily("dataloader_webhooks_disabled", "Webhooks that are switched off.", backlog.disabled)
    alerts = GaugeMetricFamily(
        "dataloader_alerts_firing", "Alerts that fire, by the kind of their rule.", labels=("kind",)
    )
    for kind in _KINDS:
        alerts.add_metric((str(kind),), firing.get(kind, 0))
    yield alerts
