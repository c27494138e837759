"""A client of the door: its connection, the request on its way on it, and what it has not taken of its answer."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from socket import socket
from typing import Any

from gunicorn.http.errors import ParseException  # type: ignore[import-untyped]
from gunicorn.workers.gthread import TConn  # type: ignore[import-untyped]

from app.host.arrival import Arrival, Sizes
from app.web.again import Again
from app.web.problems import UnreadableBody

LAST_BYTES = 1.0  # seconds for what a parser may find missing after all
AT_ONCE = 1024 * 1024  # bytes that are sent in one turn


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long, how many and how much. Times in seconds."""

    sizes: Sizes = field(default_factory=Sizes)
    head_sec: float = 10  # from the first byte, or from the connection, to the end of the head
    body_sec: float = 20  # from there, beside what the slowest line tolerated takes
    slowest: float = 50_000  # bytes a second
    answer_sec: float = 30  # for a client to take its answer, beside what the slowest line takes
    leave_sec: float = 10  # for a client to hang up after it; less when the service stops
    patience_sec: float = 1  # what a client may have at least, however many others wait
    queued: int = 256  # whole requests without a thread
    held_bytes: int = 64 * 1024**2  # of all requests together, beside two of the largest

    @property
    def most_held(self) -> int:
        return self.held_bytes + 2 * self.sizes.framed


class Outbox:
    """A socket to write an answer to that keeps nobody waiting: what the client does not take at once is kept. The head
    of an answer of known length goes out with the beginning of its body."""

    def __init__(self, sock: socket, limits: Limits) -> None:
        self._sock, self._limits = sock, limits
        self._head: bytes | None = None  # None: it has gone out
        self._begun = False
        self.unsent = bytearray()

    def sendall(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            if b"\r\nContent-Length: " in data:
                self._head = data
                return
        if self._head is not None:
            data, self._head = self._head + data, None
        self._send(data)

    def end(self) -> None:
        """Nothing more comes."""
        if self._head is not None:
            self._send(self._head)

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        if not self.unsent:
            view = view[send_some(self._sock, view) :]
        self.unsent += view
        if len(self.unsent) > self._limits.held_bytes:  # more than fits in here: the thread waits for its client
            try:
                self._sock.settimeout(self._limits.answer_sec)
                self._sock.sendall(self.unsent)
            finally:
                self._sock.setblocking(False)
                self.unsent.clear()

    send = sendall

    def close(self) -> None:
        """Not here: the poller still knows the socket, and only the main thread speaks to it."""

    def shutdown(self, _how: int) -> None:
        raise OSError(errno.ENOTCONN, "the main thread says good-bye")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def send_some(sock: socket, data: memoryview) -> int:
    """As much as the socket takes without waiting, for it never does."""
    sent = 0
    with suppress(BlockingIOError):
        while sent < len(data):
            sent += sock.send(data[sent : sent + AT_ONCE])
    return sent


class Patient:
    """What a parser reads from, should it find missing what we have taken for whole: for a moment, all told."""

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self.until = 0.0

    def recv(self, size: int) -> bytes:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        try:
            return self._sock.recv(size)
        finally:
            self._sock.setblocking(False)


class ReadableBody:
    """A body for the app to read: what gunicorn's parser finds wrong in it is the client's error, not the app's.

    Without it a bad chunk behind TLS of gunicorn's own, where nothing is gathered, is a 500 and an alert.
    """

    def __init__(self, body: Any) -> None:
        self._body = body

    def read(self, size: int | None = None) -> bytes:
        return self._checked(self._body.read, size)

    def readline(self, size: int | None = None) -> bytes:
        return self._checked(self._body.readline, size)

    def readlines(self, size: int | None = None) -> list[bytes]:
        return list(self)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    @staticmethod
    def _checked(read: Callable[[int | None], bytes], size: int | None) -> bytes:
        try:
            return read(size)
        except ParseException as error:
            raise UnreadableBody from error


class Conn(TConn):  # type: ignore[misc]
    """A client's connection, and the request that is on its way on it. Its socket never waits: to say so each time
    would be a call of the system each time, and at each of those another thread takes the interpreter."""

    arrival: Arrival
    patient: Patient
    unsent: bytearray  # of its answer
    kept_alive = False
    since = 0.0  # when that began
    begun = 0.0  # when its first byte came; 0: none has
    until = 0.0  # when it must be there
    held = 0  # bytes that are kept for it
    urgent = False
    again: Again | None = None  # what it came to in the lane, from which it was sent on
    idle = False  # kept alive, until its client says something
    watched = False  # the poller tells when there is something to read

    def expect(self, sizes: Sizes, limits: Limits) -> None:
        self.arrival = Arrival(sizes)
        self.unsent = bytearray()
        self.since = time.monotonic()
        self.until = self.since + limits.head_sec
        self.begun = 0.0

    def begin(self) -> None:
        """Make ready for a thread: what has been gathered is the first that its parser reads."""
        if not self.initialized:
            self.init()
            self.sock.setblocking(False)
            self.patient = self.parser.unreader.sock = Patient(self.sock)
        self.patient.until = time.monotonic() + LAST_BYTES
        self.parser.unreader.unread(self.arrival.whole())

    def left_over(self) -> bytes:
        rest: bytes = self.parser.unreader.take_buffered() if self.initialized else b""
        return rest

    @property
    def address(self) -> str:
        """Whose it is, as WSGI has it."""
        told = self.client[0] if isinstance(self.client, tuple) else self.client
        return told.decode() if isinstance(told, bytes) else str(told)
