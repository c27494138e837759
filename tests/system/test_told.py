"""Being told, by real processes: a webhook outlives the worker that was sending it, and probes tell the truth."""

from __future__ import annotations

import signal
from collections.abc import Callable
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from app.queue.webhooks import DeliveryState, Webhooks
from tests.support import PrivateServer, Process, eventually, free_port
from tests.support.desk import Desk
from tests.support.receiver import Receiver, hanging
from tests.support.running import QUICK, Jobs, ask


def status(url: str) -> int:
    try:
        with urlopen(url, timeout=10) as answer:  # noqa: S310 - an address of our own
            return int(answer.status)
    except HTTPError as refusal:
        with refusal:
            return refusal.code
    except URLError:
        return 0


def test_what_a_killed_worker_was_sending_is_sent_again_under_the_same_id(dsn, start: Callable[..., Process], tmp_path):
    env = QUICK | {"DL_DB_DSN": dsn, "DL_WEBHOOK_ALLOW": "127.0.0.0/8", "DL_WEBHOOK_TIMEOUT_SEC": "60"}
    desk = Desk(dsn)
    hooks = Webhooks(desk.session)
    with Receiver(hanging) as receiver:
        hooks.add(receiver.url)
        first = start("worker", env=env)
        (job,) = Jobs(dsn, tmp_path).insert("test.nap")
        (sent,) = receiver.wait_for(1, 60)

        first.signal(signal.SIGKILL)
        first.wait()
        assert [one.state for one in hooks.deliveries()] == [DeliveryState.WAITING]
        receiver.then(lambda receiver, channel: channel.sendall(b"HTTP/1.1 204 No Content\r\n\r\n"))
        ask(dsn, "UPDATE dl_deliveries SET due_at = now()")  # its lease has run out
        start("worker", env=env)
        eventually(lambda: hooks.deliveries(state=DeliveryState.DELIVERED), 60, lambda: str(hooks.deliveries()))

    desk.close()
    assert [told.id for told in receiver.received] == [sent.id] * 2
    assert {told.json["data"]["job_id"] for told in receiver.received} == {job}


def test_the_probes_of_a_worker_tell_of_an_outage_and_of_its_end(server: PrivateServer, start: Callable[..., Process]):
    port = free_port()
    env = QUICK | {"DL_DB_DSN": server.dsn, "DL_PROBE_PORT": str(port), "DL_CLAIM_BACKOFF_SEC": "0.3"}
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
