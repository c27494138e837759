"""One signed POST: to receivers that answer, hang, drip, redirect and die, and to places that are not spoken to."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import time

import pytest

from app.addresses import Allowed
from tests.support.receiver import OK, Receiver, answering, dripping, dying, hanging
from workers.posting import Post, signatures

HERE = Allowed.of(["127.0.0.0/8"])


def test_what_is_sent_arrives_as_it_is_and_the_first_bytes_of_the_answer_are_kept():
    with Receiver(answering(202, body="x" * 5000)) as receiver:
        answer = Post(HERE).send(receiver.url, '{"é": 1}', {"webhook-id": "7"})

        (request,) = receiver.received
    assert answer.welcome
    assert (answer.status, answer.text) == (202, "x" * 1024)
    assert request.path == "/hook?from=test"
    assert request.json == {"é": 1}
    assert request.headers["webhook-id"] == "7"
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.headers["content-type"] == "application/json"


def test_a_redirect_is_not_followed():
    with Receiver() as inner, Receiver(answering(302, f"Location: {inner.url}")) as receiver:
        answer = Post(HERE).send(receiver.url, "{}", {})

        assert inner.received == []
    assert not answer.welcome
    assert answer.error == "answered 302; redirects are not followed"


@pytest.mark.parametrize("behave", [hanging, dripping])
def test_one_deadline_holds_for_all_of_it(behave):
    with Receiver(behave) as receiver:
        began = time.monotonic()
        answer = Post(HERE, timeout_sec=0.5).send(receiver.url, "{}", {})

    assert answer.error == "no answer within 0.5 s"
    assert answer.down
    assert time.monotonic() - began < 10


def test_a_body_that_drips_does_not_undo_the_answer():
    def slow_body(receiver: Receiver, channel) -> None:
        channel.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nso far")
        receiver.over.wait(30)

    with Receiver(slow_body) as receiver:
        answer = Post(HERE, timeout_sec=0.5).send(receiver.url, "{}", {})

    assert answer.welcome
    assert answer.text == "so far"


@pytest.mark.parametrize(
    ("behave", "down"),
    [(dying, True), (answering(500), True), (answering(429, "Retry-After: 7"), True), (answering(400), False)],
)
def test_what_is_wrong_with_a_receiver_is_told(behave, down):
    with Receiver(behave) as receiver:
        answer = Post(HERE).send(receiver.url, "{}", {})

    assert not answer.welcome
    assert answer.error
    assert answer.down is down


def test_words_that_are_no_http_and_a_port_where_nobody_listens_are_failures():
    with Receiver(lambda receiver, channel: channel.sendall(b"SSH-2.0-x\r\n")) as receiver:
        assert "SSH" in (Post(HERE).send(receiver.url, "{}", {}).error or "")
        gone = receiver.url

    assert "refused" in (Post(HERE).send(gone, "{}", {}).error or "")


def test_how_long_to_wait_and_that_it_is_gone_for_good_is_understood():
    with Receiver(answering(503, "Retry-After: 120"), answering(503, "Retry-After: soon"), answering(410)) as receiver:
        answers = [Post(HERE).send(receiver.url, "{}", {}) for _ in range(3)]

    assert [answer.retry_after_sec for answer in answers] == [120.0, None, None]
    assert [answer.never for answer in answers] == [False, False, True]


def test_a_private_address_is_not_even_connected_to():
    with Receiver() as receiver:
        by_address = Post().send(receiver.url, "{}", {})
        by_name = Post(look_up=lambda host, port: ["127.0.0.1"]).send(
            f"http://hooks.example.com:{receiver.port}/", "{}", {}
        )

        assert receiver.received == []
    assert "127.0.0.1, which is not public; DL_WEBHOOK_ALLOW" in (by_address.error or "")
    assert "hooks.example.com is the address 127.0.0.1" in (by_name.error or "")


def test_a_name_is_asked_for_once_and_the_answer_that_was_looked_at_is_the_one_that_is_connected_to():
    asked = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    with Receiver() as receiver:
        post = Post(Allowed.of(["127.0.0.1/32"]), look_up=rebinding)
        answer = post.send(f"http://hooks.example.com:{receiver.port}/", "{}", {})

        assert answer.welcome
        assert receiver.received[0].headers["host"] == f"hooks.example.com:{receiver.port}"
        again = post.send(f"http://hooks.example.com:{receiver.port}/", "{}", {})
    assert asked == ["hooks.example.com"] * 2
    assert "127.0.0.2, which is not public" in (again.error or "")


def test_the_next_address_is_tried_where_the_first_refuses():
    with Receiver() as receiver:
        post = Post(HERE, look_up=lambda host, port: ["127.0.0.9", "127.0.0.1"])

        assert post.send(f"http://two.example.com:{receiver.port}/", "{}", {}).welcome
    nowhere = Post(HERE, look_up=lambda host, port: [])
    assert "has no address" in (nowhere.send("http://none.example.com/", "{}", {}).error or "")


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


def test_tls_checks_the_name_although_the_address_is_what_is_connected_to(certificate):
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(f"{certificate}/cert", f"{certificate}/key")

    def ours() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=f"{certificate}/cert")

    def look_up(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    with Receiver(OK, tls=theirs) as receiver:
        right = Post(HERE, tls=ours, look_up=look_up).send(f"https://hooks.example.com:{receiver.port}/", "{}", {})
        other = Post(HERE, tls=ours, look_up=look_up).send(f"https://other.example.com:{receiver.port}/", "{}", {})
        unknown = Post(HERE, look_up=look_up).send(f"https://hooks.example.com:{receiver.port}/", "{}", {})

    assert right.welcome, right
    assert (other.error or "").startswith("TLS: ")
    assert (unknown.error or "").startswith("TLS: ")
    assert len(receiver.received) == 1


def test_each_secret_signs_for_itself():
    one, both = signatures(["whsec_MDEyMw=="], "id", 1, "{}"), signatures(["whsec_MDEyMw==", "made up"], "id", 1, "{}")

    assert both.split(" ")[0] == one
    assert both.split(" ")[1].startswith("v1,")
    assert signatures(["whsec_MDEyMw=="], "id", 2, "{}") != one
