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
from gunicorn.workers.gthread import ThreadWorker  # type: ignore[import-untyped]

from app.config import load_settings
from app.runtime.buffered_worker import (
    BufferedSocket,
    BufferedWorker,
    Connection,
    ConnectionLimits,
    Rejection,
    RequestLimits,
)
from app.runtime.serve import answer_unreadable_bodies
from app.runtime.service import Service
from app.web.problems import ProblemCode


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # as every client's is
    with ours, theirs:
        yield ours, theirs


def test_rejection_is_a_problem_with_retry_after():
    head, _, body = bytes(Rejection(HTTPStatus.SERVICE_UNAVAILABLE, "too much", ProblemCode.OVERLOADED)).partition(
        b"\r\n\r\n"
    )

    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"Retry-After: 1" in head
    assert b"Connection: close" in head
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert json.loads(body)["code"] == "overloaded"
    assert b"Retry-After" not in bytes(Rejection(HTTPStatus.BAD_REQUEST, "no"))


def test_what_a_client_does_not_take_at_once_is_kept_in_order(pair):
    ours, theirs = pair
    outbox = BufferedSocket(ours, ConnectionLimits())
    data = bytes(range(256)) * 40_000

    outbox.sendall(data[:9_000_000])
    outbox.send(data[9_000_000:])

    assert outbox.pending_output
    came = b""
    while len(came) + len(outbox.pending_output) < len(data):
        came += theirs.recv(1 << 20)
    assert came + outbox.pending_output == data


def test_head_of_sized_response_is_sent_with_its_body(pair):
    ours, theirs = pair
    theirs.settimeout(5)
    sized, stream, bare = (BufferedSocket(ours, ConnectionLimits()) for _ in range(3))

    sized.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
    assert not select.select([theirs], [], [], 0)[0]
    sized.sendall(b"body")
    assert theirs.recv(100) == b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"

    stream.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    assert theirs.recv(100) == b"HTTP/1.1 200 OK\r\n\r\n"
    stream.sendall(b"one")
    assert theirs.recv(100) == b"one"

    bare.sendall(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")
    bare.flush()
    assert theirs.recv(100).startswith(b"HTTP/1.1 204")


def test_what_is_more_than_can_be_kept_waits_for_its_client(pair):
    ours, theirs = pair
    outbox = BufferedSocket(ours, ConnectionLimits(max_buffered_bytes=1_000))
    came: list[bytes] = []
    reader = threading.Thread(target=lambda: came.extend(iter(lambda: theirs.recv(1 << 20), b"")))
    reader.start()

    outbox.sendall(bytes(5_000_000))
    ours.close()
    reader.join(30)

    assert sum(map(len, came)) == 5_000_000
    assert not outbox.pending_output


def test_client_that_reads_nothing_times_out(pair):
    ours, theirs = pair
    outbox = BufferedSocket(ours, ConnectionLimits(max_buffered_bytes=1_000, write_timeout_sec=0.1))

    with pytest.raises(TimeoutError):
        outbox.sendall(bytes(50_000_000))

    assert ours.gettimeout() == 0.0
    assert not outbox.pending_output
    assert theirs.recv(1)


def test_failed_response_keeps_the_watched_socket_open(pair):
    ours, _ = pair
    outbox = BufferedSocket(ours, ConnectionLimits())

    close_graceful(outbox)

    assert ours.fileno() >= 0
    assert ours.gettimeout() == 0.0


def test_buffer_limit_leaves_room_for_two_largest_bodies():
    limits = ConnectionLimits(request_limits=RequestLimits(max_body_bytes=10_000_000), max_buffered_bytes=100)

    assert limits.buffered_limit > 2 * 10_000_000


BODIES = {
    b"3\r\nabc\r\n0\r\nbad\r\n\r\n": "a trailer without a colon",
    b"zz\r\n": "a size of letters",
    b"1\r\nabc\r\n": "a chunk that is longer than its size",
}


@pytest.mark.parametrize("body", BODIES, ids=BODIES.get)
def test_parser_error_in_a_body_is_a_bad_request(body: bytes):
    """As the app meets it behind TLS of gunicorn's own, where nothing is gathered first."""
    head = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    parsed = next(RequestParser(Config(), iter([head + body]), ("127.0.0.1", 1)))
    service = Service(load_settings({"DL_PIPELINES": "pipelines.noop", "DL_AUTH": "none"}, dotenv=None))
    answer_unreadable_bodies(service.app)
    environ = {"wsgi.input": parsed.body, "wsgi.input_terminated": True}

    response = service.app.test_client().post(
        "/api/v1/jobs/trigger", content_type="application/json", environ_overrides=environ
    )

    assert response.status_code == 400
    assert "chunks or trailers" in response.get_json()["detail"]
    assert parsed.body.failed, "the connection is not used again"


def test_gunicorn_has_every_private_name_in_use(pair):
    ours, _ = pair
    conn = Connection(Config(), ours, ("127.0.0.1", 1), ("127.0.0.1", 2))
    conn.init()
    request = next(RequestParser(Config(), iter([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]), ("127.0.0.1", 1)))
    worker = BufferedWorker(1, 1, [], None, 30, Config(), None)
    worker.tmp.close()

    assert {"poller", "method_queue", "tpool", "nr_conns", "worker_connections"} <= vars(worker).keys()
    overridden = ("accept", "handle", "handle_request", "finish_request", "murder_pending")
    assert all(hasattr(ThreadWorker, name) for name in overridden)
    assert request._expected_100_continue is False
    assert all(hasattr(conn.parser, name) for name in ("unreader", "finish_body"))
    assert all(hasattr(conn.parser.unreader, name) for name in ("sock", "unread", "take_buffered"))
