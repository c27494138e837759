"""Deliveries arrive whatever the receiver does, and delay no others."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.webhooks.receivers import Format
from dataloader.app.features.webhooks.rows import DeliveryState, LeasedDelivery, Webhooks
from dataloader.app.features.webhooks.sender import (
    RETRY_DELAYS_SEC,
    PostResult,
    WebhookOptions,
    WebhookSender,
    next_delivery_state,
)
from dataloader.app.net import AllowedHosts
from dataloader.app.queue.job import Status
from dataloader.app.queue.webhook_events import WebhookEvent
from dataloader.app.queue.workers import HeartbeatResult
from dataloader.workers.duties import MaintenanceOptions
from dataloader.workers.metrics import PoolCounters
from tests.support.waiting import eventually
from tests.support.webhook_receiver import LOOPBACK, OK, WebhookReceiver, drop_connection, hang, respond_with
from tests.support.worker_pool_fixture import WorkerPoolFixture

DOCS = Path(__file__).parents[2] / "docs" / "webhooks.md"


def webhook_options(options: WebhookOptions) -> MaintenanceOptions:
    return MaintenanceOptions(features={"webhooks": options})


def options(**more: Any) -> WebhookOptions:
    return WebhookOptions(**{"allowed_hosts": LOOPBACK, "timeout_sec": 2.0, "retry_delays_sec": (0.01,) * 11, **more})


@pytest.fixture
def hooks(worker_pools: WorkerPoolFixture) -> Webhooks:
    return Webhooks(worker_pools.queue_fixture.new_session())


@pytest.fixture(scope="module")
def verify() -> Callable[..., bool]:
    """The lines that the docs give to receivers."""
    (snippet,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)  # noqa: S102 - our own page
    found: Callable[..., bool] = names["is_from_dataloader"]
    return found


def until(hooks: Webhooks, state: DeliveryState, count: int = 1) -> None:
    eventually(lambda: len(hooks.deliveries(state=state)) >= count, 20, lambda: str(hooks.deliveries()))


def delivered_count(pool) -> float:
    samples = [sample for metric in pool.counters.collect() for sample in metric.samples]
    return float(next(s.value for s in samples if s.labels == {"outcome": "delivered"}))


@pytest.mark.parametrize(("is_notified", "pause_sec"), [(True, 30.0), (False, 5.0)])
def test_sender_without_deliveries_polls_less_if_notified(hooks, is_notified, pause_sec):
    sender = WebhookSender(
        hooks, options(), on_crash=pytest.fail, counters=PoolCounters(), is_notified=lambda: is_notified
    )

    assert sender.run_once() == pause_sec


def test_heartbeat_without_due_deliveries_replaces_a_poll(hooks, monkeypatch):
    polls: list[str] = []

    def lease(*_: object, **__: object) -> tuple[list[LeasedDelivery], None]:
        polls.append("poll")
        return [], None

    monkeypatch.setattr(hooks, "lease", lease)
    sender = WebhookSender(hooks, options(), on_crash=pytest.fail, counters=PoolCounters(), is_notified=lambda: True)
    sender.run_once()

    sender.on_heartbeat(HeartbeatResult())
    assert 15.0 < sender.run_once() <= 30.0
    assert len(polls) == 1

    sender.wake()
    sender.run_once()
    assert len(polls) == 2


def test_request_during_an_outage_is_served_after_it(hooks, monkeypatch):
    sender = WebhookSender(hooks, options(), on_crash=pytest.fail, counters=PoolCounters(), is_notified=lambda: True)
    sender.run_once()
    sender.on_heartbeat(HeartbeatResult())
    polls: list[str] = []

    def lease(*_: object, **__: object) -> tuple[list[LeasedDelivery], None]:
        polls.append("poll")
        if len(polls) == 1:
            raise DatabaseUnavailable("an outage")
        return [], None

    monkeypatch.setattr(hooks, "lease", lease)
    sender.wake()
    with pytest.raises(DatabaseUnavailable):
        sender.run_once()
    sender.run_once()

    assert len(polls) == 2


def test_sender_returns_when_a_pause_of_a_receiver_ends(worker_pools, hooks):
    hooks.add("https://198.51.100.1/hook")
    worker_pools.queue_fixture.settle(worker_pools.queue_fixture.enqueue_and_claim())
    worker_pools.queue_fixture.sql("UPDATE dl_webhooks SET paused_until = now() + interval '20 s'")
    sender = WebhookSender(hooks, options(), on_crash=pytest.fail, counters=PoolCounters(), is_notified=lambda: True)

    assert 5.0 < sender.run_once() <= 20.0
    sender.on_heartbeat(HeartbeatResult())
    assert 5.0 < sender.run_once() <= 20.0


def test_finished_job_is_delivered_signed(worker_pools, hooks, verify):
    worker_pools.listening_pool(maintenance=webhook_options(options()))
    with WebhookReceiver() as receiver:
        _, secret = hooks.add(receiver.url)
        job = worker_pools.add_job()
        (result,) = receiver.wait_for(1)
        until(hooks, DeliveryState.DELIVERED)

    assert result.json["data"]["job_id"] == str(job)
    assert result.json["type"] == WebhookEvent.SUCCEEDED
    assert verify(secret, result.headers, result.body)
    assert not verify(secret, result.headers, result.body + b" ")
    assert not verify("whsec_MDEyMw==", result.headers, result.body)
    assert not verify(secret, result.headers | {"webhook-timestamp": "1"}, result.body)
    (delivery,) = [hooks.delivery(d.delivery_id) for d in hooks.deliveries()]
    assert (delivery.attempt_log[0].status, delivery.attempt_log[0].response, delivery.attempts) == (200, "thanks", 1)


def test_delivery_is_retried_with_the_same_id(worker_pools, hooks):
    with WebhookReceiver(
        respond_with(500, body="not yet"), drop_connection, respond_with(302, "Location: /"), OK
    ) as receiver:
        hook, _ = hooks.add(receiver.url)
        worker_pools.pool(maintenance=webhook_options(options()))
        worker_pools.add_job()

        def hurried() -> bool:
            worker_pools.queue_fixture.sql("UPDATE dl_webhooks SET paused_until = NULL")
            return len(hooks.deliveries(state=DeliveryState.DELIVERED)) == 1

        eventually(hurried, 30, lambda: str(hooks.deliveries()))

    assert len({result.id for result in receiver.received}) == 1
    assert len({result.body for result in receiver.received}) == 1
    (delivery,) = hooks.deliveries()
    assert [one.status for one in hooks.delivery(delivery.delivery_id).attempt_log] == [500, None, 302, 200]
    assert hooks.get(hook.webhook_id).failures == 0


def test_hanging_receiver_delays_no_other(worker_pools, hooks):
    with WebhookReceiver(hang) as slow, WebhookReceiver() as quick:
        hooks.add(slow.url)
        hooks.add(quick.url)
        worker_pools.listening_pool(maintenance=webhook_options(options(timeout_sec=60)))
        worker_pools.wait_for_all([worker_pools.add_job() for _ in range(6)])

        quick.wait_for(6)
        assert len(slow.received) == 2
        eventually(lambda: delivered_count(worker_pools.pools[0]) >= 5)  # counted when the response has been read


def test_private_address_is_refused_and_logged(worker_pools, hooks):
    with WebhookReceiver() as receiver:
        hooks.add(receiver.url)
        worker_pools.pool(maintenance=webhook_options(options(allowed_hosts=AllowedHosts(), retry_delays_sec=())))
        worker_pools.add_job()
        until(hooks, DeliveryState.FAILED)

        assert receiver.received == []
    (delivery,) = hooks.deliveries()
    assert "not public; DL_WEBHOOK_ALLOWED_HOSTS" in (delivery.error or "")


def test_webhook_of_a_job_is_signed_with_the_service_secret(worker_pools, hooks, verify):
    secret = "whsec_c2VjcmV0LW9mLXRoZS1zZXJ2aWNl"
    with WebhookReceiver() as receiver:
        worker_pools.pool(maintenance=webhook_options(options(secret=secret)))
        worker_pools.add_job(webhook={"url": receiver.url})
        (result,) = receiver.wait_for(1)

    assert verify(secret, result.headers, result.body)


def test_webhook_of_a_job_waits_without_a_service_secret(worker_pools, hooks):
    with WebhookReceiver() as receiver:
        worker_pools.pool(maintenance=webhook_options(options(retry_delays_sec=RETRY_DELAYS_SEC)))
        worker_pools.add_job(webhook={"url": receiver.url})
        eventually(lambda: hooks.deliveries() and hooks.deliveries()[0].error, message="a try")

        assert receiver.received == []
    assert "DL_WEBHOOK_SECRET is not set" in (hooks.deliveries()[0].error or "")


def test_webhook_answering_410_is_disabled(worker_pools, hooks, logged):
    with WebhookReceiver(respond_with(410)) as receiver:
        hook, _ = hooks.add(receiver.url)
        worker_pools.pool(maintenance=webhook_options(options()))
        worker_pools.add_job()
        eventually(lambda: hooks.get(hook.webhook_id).disabled_at is not None, message="switched off")

    assert hooks.get(hook.webhook_id).disabled_reason == "it answered 410 Gone"
    eventually(lambda: logged("webhook.disabled"), message="and logged it")


def test_request_in_flight_at_shutdown_is_saved(worker_pools, hooks):
    with WebhookReceiver(hang) as receiver:
        hooks.add(receiver.url)
        pool = worker_pools.listening_pool(maintenance=webhook_options(options(timeout_sec=30)))
        worker_pools.wait_for_status(worker_pools.add_job(), Status.SUCCEEDED)
        receiver.wait_for(1)
        receiver.is_closed.set()  # it lets go, without an answer

        assert pool.stop(grace=5)
    (delivery,) = hooks.deliveries()
    assert [one.number for one in hooks.delivery(delivery.delivery_id).attempt_log] == [1]


# ── what a try means ────────────────────────────────────────────────────────────────────────────────────────────────


def due(tries: int, first_try: int = 0) -> LeasedDelivery:
    return LeasedDelivery(
        id=uuid4(), webhook_id=uuid4(), url="", target="", job_id=None, event="", body="", attempts=tries,
        earlier_attempts=first_try, format=Format.JSON, secrets=(), now=0,
    )  # fmt: skip


def test_retries_end_after_about_a_day():
    waits = [
        next_delivery_state(due(n), PostResult(500), 1.0, RETRY_DELAYS_SEC, 0.0)
        for n in range(1, len(RETRY_DELAYS_SEC) + 1)
    ]

    assert [how.retry_in_sec for how in waits] == list(RETRY_DELAYS_SEC)
    assert 23 * 3600 < sum(RETRY_DELAYS_SEC) < 25 * 3600
    assert {how.state for how in waits} == {DeliveryState.PENDING}
    assert (
        next_delivery_state(due(len(RETRY_DELAYS_SEC) + 1), PostResult(500), 1.0, RETRY_DELAYS_SEC, 0.0).state
        is DeliveryState.FAILED
    )
    assert (
        next_delivery_state(
            due(len(RETRY_DELAYS_SEC) + 1, first_try=5), PostResult(500), 1.0, RETRY_DELAYS_SEC, 0.0
        ).state
        is DeliveryState.PENDING
    )


def test_retry_delay_has_jitter_and_respects_retry_after():
    assert [next_delivery_state(due(3), PostResult(500), 1.0, RETRY_DELAYS_SEC, j).retry_in_sec for j in (-1, 1)] == [
        96,
        144,
    ]
    assert (
        next_delivery_state(due(1), PostResult(429, retry_after_sec=90), 1.0, RETRY_DELAYS_SEC, 0.0).retry_in_sec == 90
    )
    assert (
        next_delivery_state(due(1), PostResult(429, retry_after_sec=999_999), 1.0, RETRY_DELAYS_SEC, 0.0).retry_in_sec
        == RETRY_DELAYS_SEC[-1]
    )
    assert next_delivery_state(due(1), PostResult(410), 1.0, RETRY_DELAYS_SEC, 0.0).state is DeliveryState.FAILED
    assert not next_delivery_state(due(1), PostResult(400), 1.0, RETRY_DELAYS_SEC, 0.0).receiver_down
