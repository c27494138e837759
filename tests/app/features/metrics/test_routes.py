"""The numbers of the database and of the API's connections."""

from __future__ import annotations

from prometheus_client.core import Metric
from prometheus_client.registry import CollectorRegistry

from dataloader.app.db.pool import Pool
from dataloader.app.errors import PoolExhausted
from dataloader.app.features.limits.breakers import Breakers, BreakerState
from dataloader.app.features.limits.rows import Limits
from dataloader.app.features.metrics.routes import DatabaseCollector
from dataloader.app.features.registry import FEATURES


def collected(pool: Pool, **how: float) -> dict[str, Metric]:
    registry = CollectorRegistry()
    registry.register(DatabaseCollector(pool, FEATURES, **how))
    return {family.name: family for family in registry.collect()}


def value(family: Metric, **labels: str) -> float:
    (found,) = [sample.value for sample in family.samples if sample.labels == labels]
    return found


def test_database_metrics_have_rows_transactions_and_backlog(pool):
    pool.execute("ping")
    found = collected(pool, timeout_sec=20)

    assert value(found["dataloader_dead_rows"], table="dl_jobs") >= 0
    assert value(found["dataloader_oldest_transaction_seconds"]) >= 0
    assert 0 <= value(found["dataloader_notification_queue_usage"]) < 0.5  # of the server, which other tests notify too
    assert value(found["dataloader_workers_alive"]) == 0
    assert value(found["dataloader_webhook_backlog"], state="new") >= 0
    assert value(found["dataloader_alerts_firing"], kind="webhook_disabled") >= 0
    assert value(found["dataloader_pool_connections"], state="most") == 4
    assert {"dataloader_pool_waiting", "dataloader_pool_exhausted", "dataloader_webhooks_disabled"} <= set(found)


def test_limits_and_breakers_have_metrics(pool):
    Limits(pool).set("tenant:*", concurrency=2)
    Breakers(pool).set("load.sales", state=BreakerState.OPEN)
    try:
        found = collected(pool, timeout_sec=20)
    finally:
        Limits(pool).delete("tenant:*")
        Breakers(pool).delete("load.sales")

    assert value(found["dataloader_limit_used"], limit="tenant:*") == 0
    assert value(found["dataloader_limit_waiting"], limit="tenant:*") == 0
    assert value(found["dataloader_breaker_open"], task="load.sales") == 1


def test_without_a_database_there_are_the_numbers_of_the_pool():
    found = collected(Pool("host=127.0.0.1 port=1"), timeout_sec=20)

    assert set(found) == {"dataloader_pool_connections", "dataloader_pool_waiting", "dataloader_pool_exhausted"}


def test_a_bug_costs_no_other_number(pool, monkeypatch, caplog):
    monkeypatch.setattr(pool, "execute", lambda *result: [])

    assert "dataloader_pool_waiting" in collected(pool, timeout_sec=20)
    assert "metrics.failed" in caplog.text


def test_a_pool_that_is_exhausted_says_so(pool, monkeypatch):
    def refuse(*result: object) -> None:
        raise PoolExhausted("x")

    monkeypatch.setattr(pool, "execute", refuse)

    assert "dataloader_workers_alive" not in collected(pool, timeout_sec=20)
