"""Deliveries arrive whatever the receiver does, and delay no others."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from app.admin.webhooks import DeliveryState, LeasedDelivery, WebhookEvent, Webhooks
from app.errors import DatabaseUnavailable
from app.net import AllowedHosts
from app.queue.job import Status
from app.queue.workers import BeatResult
from tests.support.waiting import eventually
from tests.support.webhook_receiver import OK, WebhookReceiver, drip, drop_connection, hang, respond_with
from tests.support.worker_pool_fixture import WorkerPoolFixture
from workers.metrics import PoolCounters
from workers.webhook_sender import (
    RETRY_DELAYS_SEC,
    PostResult,
    WebhookOptions,
    WebhookSender,
    next_delivery_state,
    send_post,
    sign_message,
)

HERE = AllowedHosts.parse(["127.0.0.0/8"])
DOCS = Path(__file__).parents[2] / "docs" / "webhooks.md"


def options(**more: Any) -> WebhookOptions:
    return WebhookOptions(**{"allowed_hosts": HERE, "timeout_sec": 2.0, "retry_delays_sec": (0.01,) * 11, **more})


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


def test_beat_without_due_deliveries_replaces_a_poll(hooks, monkeypatch):
    polls: list[str] = []

    def lease(*_: object, **__: object) -> tuple[list[LeasedDelivery], None]:
        polls.append("poll")
        return [], None

    monkeypatch.setattr(hooks, "lease", lease)
    sender = WebhookSender(hooks, options(), on_crash=pytest.fail, counters=PoolCounters(), is_notified=lambda: True)
    sender.run_once()

    sender.on_beat(BeatResult())
    assert 29.0 < sender.run_once() <= 30.0
    assert len(polls) == 1

    sender.send_now()
    sender.run_once()
    assert len(polls) == 2


def test_request_during_an_outage_is_served_after_it(hooks, monkeypatch):
    sender = WebhookSender(hooks, options(), on_crash=pytest.fail, counters=PoolCounters(), is_notified=lambda: True)
    sender.run_once()
    sender.on_beat(BeatResult())
    polls: list[str] = []

    def lease(*_: object, **__: object) -> tuple[list[LeasedDelivery], None]:
        polls.append("poll")
        if len(polls) == 1:
            raise DatabaseUnavailable("an outage")
        return [], None

    monkeypatch.setattr(hooks, "lease", lease)
    sender.send_now()
    with pytest.raises(DatabaseUnavailable):
        sender.run_once()
    sender.run_once()

    assert len(polls) == 2


def test_sender_returns_when_a_pause_of_a_receiver_ends(worker_pools, hooks):
    hooks.add("https://198.51.100.1/hook")
    worker_pools.queue_fixture.settle(worker_pools.queue_fixture.enqueue_and_claim())
    worker_pools.queue_fixture.sql("UPDATE dl_webhooks SET paused_until = now() + interval '7 s'")
    sender = WebhookSender(hooks, options(), on_crash=pytest.fail, counters=PoolCounters(), is_notified=lambda: True)

    assert 5.0 < sender.run_once() <= 7.0
    sender.on_beat(BeatResult())
    assert 5.0 < sender.run_once() <= 7.0


def test_finished_job_is_delivered_signed(worker_pools, hooks, verify):
    worker_pools.listening_pool(webhooks=options())
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
        worker_pools.pool(webhooks=options())
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
        worker_pools.listening_pool(webhooks=options(timeout_sec=60))
        worker_pools.wait_for_all([worker_pools.add_job() for _ in range(6)])

        quick.wait_for(6)
        assert len(slow.received) == 2
        eventually(lambda: delivered_count(worker_pools.pools[0]) >= 5)  # counted when the response has been read


def test_private_address_is_refused_and_logged(worker_pools, hooks):
    with WebhookReceiver() as receiver:
        hooks.add(receiver.url)
        worker_pools.pool(webhooks=options(allowed_hosts=AllowedHosts(), retry_delays_sec=()))
        worker_pools.add_job()
        until(hooks, DeliveryState.FAILED)

        assert receiver.received == []
    (delivery,) = hooks.deliveries()
    assert "not public; DL_WEBHOOK_ALLOWED_HOSTS" in (delivery.error or "")


def test_webhook_of_a_job_is_signed_with_the_service_secret(worker_pools, hooks, verify):
    secret = "whsec_c2VjcmV0LW9mLXRoZS1zZXJ2aWNl"
    with WebhookReceiver() as receiver:
        worker_pools.pool(webhooks=options(secret=secret))
        worker_pools.add_job(webhook={"url": receiver.url})
        (result,) = receiver.wait_for(1)

    assert verify(secret, result.headers, result.body)


def test_webhook_of_a_job_waits_without_a_service_secret(worker_pools, hooks):
    with WebhookReceiver() as receiver:
        worker_pools.pool(webhooks=options(retry_delays_sec=RETRY_DELAYS_SEC))
        worker_pools.add_job(webhook={"url": receiver.url})
        eventually(lambda: hooks.deliveries() and hooks.deliveries()[0].error, message="a try")

        assert receiver.received == []
    assert "DL_WEBHOOK_SECRET is not set" in (hooks.deliveries()[0].error or "")


def test_webhook_answering_410_is_disabled(worker_pools, hooks, logged):
    with WebhookReceiver(respond_with(410)) as receiver:
        hook, _ = hooks.add(receiver.url)
        worker_pools.pool(webhooks=options())
        worker_pools.add_job()
        eventually(lambda: hooks.get(hook.webhook_id).disabled_at is not None, message="switched off")

    assert hooks.get(hook.webhook_id).disabled_reason == "it answered 410 Gone"
    eventually(lambda: logged("webhook.disabled"), message="and said so")


def test_request_in_flight_at_shutdown_is_saved(worker_pools, hooks):
    with WebhookReceiver(hang) as receiver:
        hooks.add(receiver.url)
        pool = worker_pools.listening_pool(webhooks=options(timeout_sec=30))
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
        earlier_attempts=first_try, secrets=(), now=0,
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


# ── the request ─────────────────────────────────────────────────────────────────────────────────────────────────────


def send(url: str, body: str = "{}", headers: dict[str, str] | None = None, **more: Any) -> PostResult:
    return send_post(url, body, headers or {}, WebhookOptions(**{"allowed_hosts": HERE, **more}))


def test_body_arrives_unchanged_and_response_excerpt_is_kept():
    with WebhookReceiver(respond_with(202, body="x" * 5000)) as receiver:
        answer = send(receiver.url, '{"é": 1}', {"webhook-id": "7"})

        (request,) = receiver.received
    assert answer.ok
    assert (answer.status, answer.excerpt) == (202, "x" * 1024)
    assert request.path == "/hook?from=test"
    assert request.json == {"é": 1}
    assert request.headers["webhook-id"] == "7"
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.headers["content-type"] == "application/json"


def test_redirect_is_not_followed():
    with WebhookReceiver() as inner, WebhookReceiver(respond_with(302, f"Location: {inner.url}")) as receiver:
        answer = send(receiver.url)

        assert inner.received == []
    assert not answer.ok
    assert answer.error == "answered 302; redirects are not followed"


@pytest.mark.parametrize("behave", [hang, drip])
def test_one_deadline_covers_the_whole_request(behave):
    with WebhookReceiver(behave) as receiver:
        began = time.monotonic()
        answer = send(receiver.url, timeout_sec=0.5)

    assert answer.error == "no answer within 0.5 s"
    assert answer.receiver_down
    assert time.monotonic() - began < 10


def test_slow_response_body_keeps_the_status():
    def slow_body(receiver: WebhookReceiver, channel) -> None:
        channel.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nso far")
        receiver.is_closed.wait(30)

    with WebhookReceiver(slow_body) as receiver:
        answer = send(receiver.url, timeout_sec=0.5)

    assert answer.ok
    assert answer.excerpt == "so far"


@pytest.mark.parametrize(
    ("behave", "down"),
    [
        (drop_connection, True),
        (respond_with(500), True),
        (respond_with(429, "Retry-After: 7"), True),
        (respond_with(400), False),
    ],
)
def test_error_names_the_fault_of_the_receiver(behave, down):
    with WebhookReceiver(behave) as receiver:
        answer = send(receiver.url)

    assert not answer.ok
    assert answer.error
    assert answer.receiver_down is down


def test_non_http_response_and_closed_port_are_failures():
    with WebhookReceiver(lambda receiver, channel: channel.sendall(b"SSH-2.0-x\r\n")) as receiver:
        assert "SSH" in (send(receiver.url).error or "")
        gone = receiver.url

    assert "refused" in (send(gone).error or "")


def test_retry_after_and_gone_are_parsed():
    with WebhookReceiver(
        respond_with(503, "Retry-After: 120"), respond_with(503, "Retry-After: soon"), respond_with(410)
    ) as receiver:
        answers = [send(receiver.url) for _ in range(3)]

    assert [answer.retry_after_sec for answer in answers] == [120.0, None, None]
    assert [answer.status for answer in answers] == [503, 503, 410]


def test_private_address_gets_no_connection():
    with WebhookReceiver() as receiver:
        by_address = send(receiver.url, allowed_hosts=AllowedHosts())
        by_name = send(
            f"http://hooks.example.com:{receiver.port}/",
            allowed_hosts=AllowedHosts(),
            resolver=lambda host, port: ["127.0.0.1"],
        )

        assert receiver.received == []
    assert "127.0.0.1, which is not public; DL_WEBHOOK_ALLOWED_HOSTS" in (by_address.error or "")
    assert "hooks.example.com is the address 127.0.0.1" in (by_name.error or "")


def test_host_is_resolved_once_and_the_checked_address_used():
    asked = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    with WebhookReceiver() as receiver:
        url = f"http://hooks.example.com:{receiver.port}/"
        only: Any = {"allowed_hosts": AllowedHosts.parse(["127.0.0.1/32"]), "resolver": rebinding}
        answer = send(url, **only)

        assert answer.ok
        assert receiver.received[0].headers["host"] == f"hooks.example.com:{receiver.port}"
        again = send(url, **only)
    assert asked == ["hooks.example.com"] * 2
    assert "127.0.0.2, which is not public" in (again.error or "")


def test_next_address_is_tried_when_the_first_refuses():
    with WebhookReceiver() as receiver:
        addresses = ["127.0.0.9", "127.0.0.1"]

        assert send(f"http://two.example.com:{receiver.port}/", resolver=lambda host, port: addresses).ok
    nowhere = send("http://none.example.com/", resolver=lambda host, port: [])
    assert "has no address" in (nowhere.error or "")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> str:
    if shutil.which("openssl") is None and os.environ.get("CI") != "true":  # the check has it
        pytest.skip("no openssl here to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", folder / "key", "-out", folder / "cert", "-subj", "/CN=hooks.example.com",
         "-addext", "subjectAltName=DNS:hooks.example.com"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return str(folder)


def test_tls_verifies_the_host_name_of_a_resolved_address(certificate):
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(f"{certificate}/cert", f"{certificate}/key")

    def ours() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=f"{certificate}/cert")

    def look_up(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    with WebhookReceiver(OK, tls=theirs) as receiver:
        right = send(f"https://hooks.example.com:{receiver.port}/", tls_context=ours, resolver=look_up)
        other = send(f"https://other.example.com:{receiver.port}/", tls_context=ours, resolver=look_up)
        unknown = send(f"https://hooks.example.com:{receiver.port}/", resolver=look_up)

    assert right.ok, right
    assert (other.error or "").startswith("TLS: ")
    assert (unknown.error or "").startswith("TLS: ")
    assert len(receiver.received) == 1


def test_each_secret_signs_for_itself():
    one, both = (
        sign_message(["whsec_MDEyMw=="], "id", 1, "{}"),
        sign_message(["whsec_MDEyMw==", "made up"], "id", 1, "{}"),
    )

    assert both.split(" ")[0] == one
    assert both.split(" ")[1].startswith("v1,")
    assert sign_message(["whsec_MDEyMw=="], "id", 2, "{}") != one
