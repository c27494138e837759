"""A client's connection, whose socket never blocks, and the limits of all connections of a worker."""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from socket import socket
from typing import Any

from gunicorn.workers.gthread import TConn  # type: ignore[import-untyped]

from dataloader.app.runtime.request_buffer import RequestBuffer, RequestLimits

SEND_CHUNK_BYTES = 1024 * 1024
_MAX_DISCARD_BYTES = 64 * 1024**2  # read from a rejected client that still sends, so that it can read the rejection


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits of time, number and memory for the clients of one worker."""

    request_limits: RequestLimits = field(default_factory=RequestLimits)
    head_timeout_sec: float = 10  # from the first byte, or from the connection, to the end of the head
    body_timeout_sec: float = 20  # from there; a body may also take its size at `min_bytes_per_sec`
    min_bytes_per_sec: float = 50_000
    write_timeout_sec: float = 30  # for a client to read its response, in addition to its size at `min_bytes_per_sec`
    linger_sec: float = 10  # for a client to close the connection after the response
    min_idle_sec: float = 1  # before a connection without a request is closed in favour of others
    max_pending: int = 256  # complete requests without a thread
    max_buffered_bytes: int = 64 * 1024**2  # of all requests, in addition to two of the largest

    @property
    def buffered_limit(self) -> int:
        return self.max_buffered_bytes + 2 * self.request_limits.max_chunked_bytes


class Phase(Enum):
    """What a connection waits for."""

    READING = auto()  # the rest of a request
    HANDLING = auto()  # the app
    WRITING = auto()  # the client, which reads the response slowly
    IDLE = auto()  # the next request
    CLOSING = auto()  # the client, which is to close the connection
    CLOSED = auto()


class Connection(TConn):  # type: ignore[misc]
    """A client's connection and its current request. The socket never blocks: toggling that costs a system call and
    may hand over the GIL."""

    phase = Phase.READING
    request_buffer: RequestBuffer
    pending_output = bytearray()  # the part of the response that the client has not taken
    phase_started_at = 0.0
    deadline = 0.0  # of the phase
    has_request = False  # a byte of it has come
    is_health = False
    is_kept_alive = False
    buffered_bytes = 0
    watched_events = 0  # what the poller reports
    discard_bytes_left = _MAX_DISCARD_BYTES

    def enter(self, phase: Phase, timeout_sec: float) -> None:
        self.phase, self.phase_started_at = phase, time.monotonic()
        self.deadline = self.phase_started_at + timeout_sec

    def prepare(self) -> None:
        """Make the parser read what was buffered."""
        if not self.initialized:
            self.init()
            self.sock.setblocking(False)
            self.parser.unreader.sock = self
        self.parser.unreader.unread(self.request_buffer.normalized())

    def recv(self, _size: int) -> bytes:
        raise BlockingIOError(errno.EAGAIN, "the parser wants more bytes than the buffer has found to be the request")

    @property
    def address(self) -> str:
        return str(self.client[0] if isinstance(self.client, tuple) else self.client)  # of a Unix socket mostly empty


class BufferedSocket:
    """A socket for a thread to write a response to without waiting for the client: what the client does not take at
    once is kept. The head of a response of known length goes out with the beginning of its body."""

    def __init__(self, sock: socket, limits: ConnectionLimits) -> None:
        self._sock, self._limits = sock, limits
        self._head: bytes | None = None  # not sent yet
        self._has_started = False
        self.pending_output = bytearray()

    def sendall(self, data: bytes) -> None:
        if not self._has_started:
            self._has_started = True
            if b"\r\nContent-Length: " in data:
                self._head = data
                return
        if self._head is not None:
            data, self._head = self._head + data, None
        self._send_or_keep(data)

    def flush(self) -> None:
        if self._head is not None:
            self._send_or_keep(self._head)

    def _send_or_keep(self, data: bytes) -> None:
        view = memoryview(data)
        if not self.pending_output:
            view = view[send_nonblocking(self._sock, view) :]
        self.pending_output += view
        if len(self.pending_output) > self._limits.max_buffered_bytes:  # the thread waits for its client after all
            try:
                self._sock.settimeout(self._limits.write_timeout_sec)
                self._sock.sendall(self.pending_output)
            finally:
                self._sock.setblocking(False)
                self.pending_output.clear()

    send = sendall

    def close(self) -> None:
        """Do nothing: the poller still watches the socket, and the main thread closes it."""

    def shutdown(self, _how: int) -> None:
        raise OSError(errno.ENOTCONN, "the main thread closes the connection")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def send_nonblocking(sock: socket, data: memoryview) -> int:
    """Send as much as the socket takes without blocking."""
    sent = 0
    with suppress(BlockingIOError):
        while sent < len(data):
            sent += sock.send(data[sent : sent + SEND_CHUNK_BYTES])
    return sent
