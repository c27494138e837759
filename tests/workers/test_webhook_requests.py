"""The request that carries a delivery: one deadline, checked addresses, verified TLS, a response for each fault."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import time
from typing import Any

import pytest

from dataloader.app.features.webhooks.sender import (
    PostResult,
    WebhookOptions,
    send_post,
    sign_message,
)
from dataloader.app.net import AllowedHosts
from tests.support.waiting import eventually
from tests.support.webhook_receiver import LOOPBACK, OK, WebhookReceiver, drip, drop_connection, hang, respond_with


def send(url: str, body: str = "{}", headers: dict[str, str] | None = None, **more: Any) -> PostResult:
    return send_post(url, body, headers or {}, WebhookOptions(**{"allowed_hosts": LOOPBACK, **more}))


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
        answer = eventually(lambda: found if (found := send(receiver.url, timeout_sec=0.5)).ok else None)

    assert answer is not None
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


def test_deliveries_share_the_certificates_of_the_system():
    assert WebhookOptions().tls_context() is WebhookOptions().tls_context()


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
