"""Webhooks and probes of real processes: a webhook outlives the worker that was sending it, and probes are right."""

from __future__ import annotations

import signal
from collections.abc import Callable
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from dataloader.app.features.webhooks.rows import DeliveryState, Webhooks
from tests.support import PrivateServer, Process, eventually, free_port
from tests.support.queue_fixture import QueueFixture
from tests.support.real_service import FAST_SETTINGS, ServiceJobs, query_rows
from tests.support.webhook_receiver import WebhookReceiver, hang


def status(url: str) -> int:
    try:
        with urlopen(url, timeout=10) as answer:  # noqa: S310 - an address of our own
            return int(answer.status)
    except HTTPError as refusal:
        with refusal:
            return refusal.code
    except URLError:
        return 0


def test_killed_workers_delivery_is_resent_with_same_id(dsn, start: Callable[..., Process], tmp_path):
    env = FAST_SETTINGS | {"DL_DB_DSN": dsn, "DL_WEBHOOK_ALLOWED_HOSTS": "127.0.0.0/8"}
    queue_db = QueueFixture(dsn)
    hooks = Webhooks(queue_db.session)
    with WebhookReceiver(hang) as receiver:
        hooks.add(receiver.url)
        first = start("worker", env=env)
        (job,) = ServiceJobs(dsn, tmp_path).insert("test.nap")
        (sent,) = receiver.wait_for(1, 60)

        first.signal(signal.SIGKILL)
        first.wait()
        assert [one.state for one in hooks.deliveries()] == [DeliveryState.PENDING]
        receiver.set_behavior(lambda receiver, channel: channel.sendall(b"HTTP/1.1 204 No Content\r\n\r\n"))
        query_rows(dsn, "UPDATE dl_deliveries SET due_at = now()")  # its lease has run out
        start("worker", env=env)
        eventually(lambda: hooks.deliveries(state=DeliveryState.DELIVERED), 60, lambda: str(hooks.deliveries()))

    queue_db.close()
    assert [result.id for result in receiver.received] == [sent.id] * 2
    assert {result.json["data"]["job_id"] for result in receiver.received} == {job}


def test_worker_probes_report_an_outage_and_its_end(server: PrivateServer, start: Callable[..., Process]):
    port = free_port()
    env = FAST_SETTINGS | {"DL_DB_DSN": server.dsn, "DL_PROBE_PORT": str(port), "DL_CLAIM_BACKOFF_SEC": "0.3"}
    url = f"http://127.0.0.1:{port}"
    worker = start("worker", env=env)
    eventually(lambda: status(f"{url}/health/consuming") == 200, 60, lambda: worker.text)
    eventually(lambda: status(f"{url}/health/ready") == 200, 60, lambda: worker.text)
    with urlopen(f"{url}/metrics", timeout=10) as answer:  # noqa: S310 - an address of our own
        numbers = answer.read().decode()
    assert 'dataloader_listener{state="listening"} 1.0' in numbers
    assert 'dataloader_worker_threads{queue="q"} 4.0' in numbers

    server.stop()
    eventually(lambda: status(f"{url}/health/consuming") == 503, 60, lambda: worker.text)
    eventually(lambda: status(f"{url}/health/ready") == 503, 60, lambda: worker.text)
    assert status(f"{url}/health/started") == 200
    assert status(f"{url}/health") == 200

    server.start()
    eventually(lambda: status(f"{url}/health/consuming") == 200, 60, lambda: worker.text)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert status(f"{url}/health") == 0
