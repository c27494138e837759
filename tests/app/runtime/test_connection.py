"""Responses to clients that read slowly or not at all."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator

import pytest
from gunicorn.util import close_graceful  # type: ignore[import-untyped]

from dataloader.app.runtime.connection import BufferedSocket, ConnectionLimits
from dataloader.app.runtime.request_buffer import RequestLimits


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # as every client's is
    with ours, theirs:
        yield ours, theirs


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
    theirs.settimeout(30)
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
