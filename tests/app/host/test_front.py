"""The parts of the door that can be tried alone; real clients try all of it in tests/hostile/test_requests.py."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from gunicorn.config import Config  # type: ignore[import-untyped]
from gunicorn.http.parser import RequestParser  # type: ignore[import-untyped]
from gunicorn.util import close_graceful  # type: ignore[import-untyped]

from app.host.arrival import Sizes
from app.host.client import Limits, Outbox, ReadableBody
from app.host.refusals import no
from app.web.problems import Code, UnreadableBody


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # as every client's is
    with ours, theirs:
        yield ours, theirs


def test_a_refusal_is_a_problem_with_its_code_and_says_when_to_come_back():
    head, _, body = bytes(no(HTTPStatus.SERVICE_UNAVAILABLE, "too much", Code.OVERLOADED)).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"Retry-After: 1" in head
    assert b"Connection: close" in head
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert json.loads(body)["code"] == "overloaded"
    assert b"Retry-After" not in bytes(no(HTTPStatus.BAD_REQUEST, "no"))


def test_what_a_client_does_not_take_at_once_is_kept_in_order(pair):
    ours, theirs = pair
    outbox = Outbox(ours, Limits())
    data = bytes(range(256)) * 40_000

    outbox.sendall(data[:9_000_000])
    outbox.send(data[9_000_000:])

    assert outbox.unsent
    came = b""
    while len(came) + len(outbox.unsent) < len(data):
        came += theirs.recv(1 << 20)
    assert came + outbox.unsent == data


def test_the_head_of_an_answer_of_known_length_goes_out_with_its_body_and_any_other_at_once(pair):
    ours, theirs = pair
    theirs.settimeout(5)
    sized, stream, bare = (Outbox(ours, Limits()) for _ in range(3))

    sized.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
    assert not select.select([theirs], [], [], 0)[0]
    sized.sendall(b"body")
    assert theirs.recv(100) == b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"

    stream.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    assert theirs.recv(100) == b"HTTP/1.1 200 OK\r\n\r\n"
    stream.sendall(b"one")
    assert theirs.recv(100) == b"one"

    bare.sendall(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")
    bare.end()
    assert theirs.recv(100).startswith(b"HTTP/1.1 204")


def test_what_is_more_than_can_be_kept_waits_for_its_client(pair):
    ours, theirs = pair
    outbox = Outbox(ours, Limits(held_bytes=1_000))
    came: list[bytes] = []
    reader = threading.Thread(target=lambda: came.extend(iter(lambda: theirs.recv(1 << 20), b"")))
    reader.start()

    outbox.sendall(bytes(5_000_000))
    ours.close()
    reader.join(30)

    assert sum(map(len, came)) == 5_000_000
    assert not outbox.unsent


def test_a_client_that_takes_nothing_of_too_much_is_given_up_and_its_socket_still_waits_for_nobody(pair):
    ours, theirs = pair
    outbox = Outbox(ours, Limits(held_bytes=1_000, answer_sec=0.1))

    with pytest.raises(TimeoutError):
        outbox.sendall(bytes(50_000_000))

    assert ours.gettimeout() == 0.0
    assert not outbox.unsent
    assert theirs.recv(1)


def test_a_request_that_fails_in_the_midst_of_its_answer_does_not_close_what_the_poller_watches(pair):
    ours, _ = pair
    outbox = Outbox(ours, Limits())

    close_graceful(outbox)

    assert ours.fileno() >= 0
    assert ours.gettimeout() == 0.0


def test_what_may_be_held_leaves_room_for_two_of_the_largest_bodies():
    limits = Limits(sizes=Sizes(body=10_000_000), held_bytes=100)

    assert limits.most_held > 2 * 10_000_000


BODIES = {
    b"3\r\nabc\r\n0\r\nbad\r\n\r\n": "a trailer without a colon",
    b"zz\r\n": "a size of letters",
    b"1\r\nabc\r\n": "a chunk that is longer than its size",
}


@pytest.mark.parametrize("body", BODIES, ids=BODIES.get)
def test_parser_error_in_a_body_is_a_bad_request(body: bytes):
    """As the app meets it behind TLS of gunicorn's own, where nothing is gathered first."""
    head = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    request = next(RequestParser(Config(), iter([head + body]), ("127.0.0.1", 1)))

    with pytest.raises(UnreadableBody):
        ReadableBody(request.body).read()

    assert request.body.failed, "the connection is not used again"


def test_readable_body_gives_lines_and_rest_unchanged():
    head = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n"
    request = next(RequestParser(Config(), iter([head + b"a\nbb\nccc"]), ("127.0.0.1", 1)))
    body = ReadableBody(request.body)

    assert (body.readline(), body.read(2), list(body), body.read()) == (b"a\n", b"bb", [b"\n", b"ccc"], b"")
