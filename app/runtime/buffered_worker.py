"""A gunicorn threaded worker that reads a whole request before it gives it to a thread.

gunicorn's own threaded worker reads a request in the thread that answers it, and closes connections in the thread that
accepts them: as many slow clients as there are threads stop the service. Here the main thread reads from and writes to
all clients without blocking, within limits of time, number and memory; threads only run the app. `/health` has a
thread of its own.

`RequestBuffer` finds only where a request ends (RFC 9112). Everything else in it is for gunicorn's parser, which gets
the same bytes. Refused here is what that parser would read another way, or find out only while the app reads the body:

- a length or a coding that does not give the body exactly one end: the parser would accept some of them and wait, in a
  thread, for bytes that were not gathered;
- wrongly framed chunks and trailers: the parser raises in the app, which is a 500;
- more chunks than honest clients send: each costs the main thread some microseconds.

A body of many chunks is handed on as one, without trailers: for each chunk the parser copies all that follows it.

Undocumented names of gunicorn that it uses: of `ThreadWorker` `poller`, `method_queue`, `tpool`, `nr_conns`,
`worker_connections`, `accept`, `handle`, `handle_request`, `finish_request`, `murder_pending`; `TConn`; of its parser
`unreader`, `finish_body`; of a request `_expected_100_continue`. A test checks that they are there.
"""

from __future__ import annotations

import errno
import json
import math
import re
import resource
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from http import HTTPStatus
from selectors import EVENT_READ, EVENT_WRITE
from socket import SHUT_WR, socket
from typing import Any

from gunicorn.http import errors  # type: ignore[import-untyped]
from gunicorn.http.body import ChunkedReader  # type: ignore[import-untyped]
from gunicorn.workers.gthread import TConn, ThreadWorker  # type: ignore[import-untyped]

from app import log
from app.web.problems import MEDIA_TYPE, ProblemCode

# ── where a request ends ─────────────────────────────────────────────────────────────────────────────────────────────

_HEAD_END = b"\r\n\r\n"
# As strict as RFC 9112: no other parser reads these lines after this one.
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED_STRING = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_CHUNK_EXTENSION = rb"[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?" % (_TOKEN, _TOKEN, _QUOTED_STRING)
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:%b)*" % _CHUNK_EXTENSION)
_TRAILER = re.compile(
    rb"(?!(?:authorization|content-length|host|te|trailer|transfer-encoding):)%b:[\t -~\x80-\xff]*" % _TOKEN,
    re.IGNORECASE,
)
_MAX_TRAILER_COUNT = 100
# One search instead of a split: a head of thousands of lines would keep the main thread.
_FRAMING_FIELD = re.compile(
    rb"\r\n(content-length|transfer-encoding|expect)([ \t]*):[ \t]*((?:[^\r]|\r(?!\n))*)", re.IGNORECASE
)
_MAX_CHUNK_LINE_BYTES = 4096
_DIGITS = re.compile(rb"[0-9]+")
_MAX_LENGTH_DIGITS = 15
_CHUNK_OVERHEAD_FLOOR = 65_536  # bytes: small bodies may come in any chunks
# Clients write chunks of 4 kB and more, proxies what one read gives; a generator of lines sends one chunk a line.
_CHUNK_COUNT_FLOOR = 1_000
_MIN_CHUNK_BYTES = 1_024  # on average, of the chunks after those
_MAX_EMPTY_LINES = 2  # before a request line; RFC 9112 2.2 asks for one at least


@dataclass(frozen=True)
class Rejection:
    """A response that the worker sends itself, without the app."""

    status: HTTPStatus
    detail: str
    code: ProblemCode = ProblemCode.HTTP_ERROR

    def __bytes__(self) -> bytes:
        body = json.dumps({
            "type": f"/docs#{self.code.text}",
            "title": self.code.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code.text,
            "errors": [],
        }).encode()  # fmt: skip
        retry_after = "Retry-After: 1\r\n" if self.status is HTTPStatus.SERVICE_UNAVAILABLE else ""
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nContent-Type: {MEDIA_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\nX-Content-Type-Options: nosniff\r\n"
            f"Cache-Control: no-store\r\n{retry_after}\r\n"
        )
        return head.encode("latin-1") + body


BAD_REQUEST = Rejection(HTTPStatus.BAD_REQUEST, "The request is not HTTP/1.1, or can be read in more than one way.")
HEAD_TOO_LARGE = Rejection(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request's head is too large.")
OVERLOADED = Rejection(HTTPStatus.SERVICE_UNAVAILABLE, ProblemCode.OVERLOADED.description, ProblemCode.OVERLOADED)
REQUEST_TIMEOUT = Rejection(HTTPStatus.REQUEST_TIMEOUT, "The request did not come whole in time.")
UNSUPPORTED_EXPECTATION = Rejection(HTTPStatus.EXPECTATION_FAILED, "Only 100-continue can be expected.")
URI_TOO_LONG = Rejection(HTTPStatus.REQUEST_URI_TOO_LONG, "The address is too long.")
BODY_TOO_LARGE = Rejection(
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, ProblemCode.BODY_TOO_LARGE.description, ProblemCode.BODY_TOO_LARGE
)
BAD_CHUNKING = Rejection(HTTPStatus.BAD_REQUEST, "The body's chunks or trailers are not framed as RFC 9112 has it.")
TOO_MANY_CHUNKS = Rejection(
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "The body comes in too many small chunks; send it in chunks of 1 kB or more, or with a Content-Length.",
    ProblemCode.BODY_TOO_LARGE,
)
AMBIGUOUS_FRAMING = Rejection(
    HTTPStatus.BAD_REQUEST,
    "The end of the body cannot be known; send one Content-Length, or the one Transfer-Encoding chunked.",
)
UNKNOWN_CODING = Rejection(
    HTTPStatus.NOT_IMPLEMENTED, "The only Transfer-Encoding that is understood is chunked, and chunked alone."
)
NO_REQUEST_LINE = Rejection(HTTPStatus.BAD_REQUEST, "More than two empty lines came in place of a request.")


class Progress(Enum):
    """How far a request has come that is not rejected."""

    HEAD = auto()  # its head is not all here
    BODY = auto()  # its head is, and its body may come
    COMPLETE = auto()  # it can be answered


@dataclass(frozen=True)
class RequestLimits:
    """What may be gathered of one request, in bytes."""

    max_head_bytes: int = 65_536
    max_body_bytes: int = 1_048_576

    @property
    def max_chunked_bytes(self) -> int:
        """Of a chunked body with its frames."""
        return self.max_body_bytes + self.chunk_overhead(self.max_body_bytes)

    @staticmethod
    def chunk_overhead(content_bytes: int) -> int:
        """Of the frames around so much: chunks of a few bytes are waste, and of one byte an attack."""
        return content_bytes // 2 + _CHUNK_OVERHEAD_FLOOR


class RequestBuffer:
    """One request, gathered piece by piece. What comes behind its end belongs to the next one."""

    def __init__(self, limits: RequestLimits) -> None:
        self.data = bytearray()
        self.state: Progress | Rejection = Progress.HEAD
        self.expect_continue = False  # its sender waits for a word before the body
        self.body_declared_too_large = False  # its body is not waited for: the app refuses it by its length
        self._limits = limits
        self._searched_bytes = 0
        self._body_start = 0
        self._body_end: int | None = None  # None: the body is chunked
        self._chunk_start = 0
        self._next_request_start = 0  # where a chunked one ends
        self._chunks: list[slice] = []  # where their content is
        self._content_bytes = 0  # bytes of all chunks
        self._empty_line_count = 0

    def feed(self, chunk: bytes) -> Progress | Rejection:
        self.data += chunk
        if self.state is Progress.HEAD:
            self._find_head()
        if self.state is Progress.BODY:
            self._find_end()
        return self.state

    def normalized(self) -> bytes:
        """The request as the parser is to see it, and what came behind it."""
        if not self.is_chunked:
            return bytes(self.data)
        content = b"".join(self.data[chunk] for chunk in self._chunks)
        one_chunk = b"%x\r\n%s\r\n" % (len(content), content) if content else b""
        return b"".join((self.data[: self._body_start], one_chunk, b"0\r\n\r\n", self.data[self._next_request_start :]))

    @property
    def is_chunked(self) -> bool:
        """Known once the head has been read."""
        return self._body_end is None

    @property
    def expected_body_bytes(self) -> int:
        """Of its body, as far as that is known."""
        return self._limits.max_body_bytes if self._body_end is None else self._body_end - self._body_start

    def _find_head(self) -> None:
        while self.data.startswith(b"\r\n"):  # left over from the body before, by some clients
            del self.data[:2]
            self._searched_bytes = 0
            self._empty_line_count += 1
            if self._empty_line_count > _MAX_EMPTY_LINES:
                self.state = NO_REQUEST_LINE
                return
        found = self.data.find(_HEAD_END, max(0, self._searched_bytes - 3))
        self._searched_bytes = len(self.data)
        if found > self._limits.max_head_bytes or (found < 0 and len(self.data) > self._limits.max_head_bytes):
            self.state = HEAD_TOO_LARGE
        elif found >= 0:
            self._body_start = self._chunk_start = found + len(_HEAD_END)
            self._read_head(bytes(self.data[:found]))

    def _read_head(self, head: bytes) -> None:
        lengths, codings, sound = [], [], True
        for name, blank, value in _FRAMING_FIELD.findall(head):
            match name.lower():
                case b"content-length":
                    lengths.append(value.rstrip(b" \t"))
                case b"transfer-encoding":
                    codings += [coding.strip(b" \t").lower() for coding in value.split(b",")]
                case b"expect":
                    self.expect_continue = value.rstrip(b" \t").lower() == b"100-continue"
            sound = sound and not blank  # a blank before the colon: some read it as the field, others do not
        if not sound or (codings and lengths):
            self.state = AMBIGUOUS_FRAMING
        elif not codings:
            self._read_length(lengths)
        elif codings == [b"chunked"]:
            self.state = Progress.BODY
        elif codings[-1] == b"chunked" and codings.count(b"chunked") == 1:
            self.state = UNKNOWN_CODING
        else:  # the end of such a body cannot be known (RFC 9112, 6.3)
            self.state = AMBIGUOUS_FRAMING

    def _read_length(self, lengths: list[bytes]) -> None:
        if len(lengths) > 1 or not all(map(_DIGITS.fullmatch, lengths)):
            self.state = AMBIGUOUS_FRAMING
        elif lengths and len(lengths[0]) > _MAX_LENGTH_DIGITS:
            self.state = BODY_TOO_LARGE
        else:
            self.state = Progress.BODY
            length = int(lengths[0]) if lengths else 0
            self.body_declared_too_large = length > self._limits.max_body_bytes
            self._body_end = self._body_start + (0 if self.body_declared_too_large else length)

    def _find_end(self) -> None:
        if self._body_end is not None:
            if len(self.data) >= self._body_end:
                self.state = Progress.COMPLETE
            return
        while self.state is Progress.BODY and self._next_chunk():
            pass
        if self.state is Progress.BODY and len(self.data) - self._body_start > self._limits.max_chunked_bytes:
            self.state = BODY_TOO_LARGE

    def _next_chunk(self) -> bool:
        """Pass over one chunk; False: it is not all here."""
        end = self.data.find(b"\r\n", self._chunk_start, self._chunk_start + _MAX_CHUNK_LINE_BYTES)
        line = None if end < 0 else _CHUNK_LINE.fullmatch(self.data, self._chunk_start, end)
        if line is None:
            begun = len(self.data) - self._chunk_start
            if end >= 0 or begun >= _MAX_CHUNK_LINE_BYTES or b"\n" in self.data[self._chunk_start :]:
                self.state = BAD_CHUNKING
            return False
        size = int(line[1], 16)
        if size == 0:
            return self._find_trailers(end)
        if self._content_bytes + size > self._limits.max_body_bytes:
            self.state = BODY_TOO_LARGE
            return False
        after = end + 2 + size
        if len(self.data) < after + 2:
            return False
        if self.data[after : after + 2] != b"\r\n":
            self.state = BAD_CHUNKING
            return False
        self._chunks.append(slice(end + 2, after))
        self._chunk_start, self._content_bytes = after + 2, self._content_bytes + size
        if len(self._chunks) > _CHUNK_COUNT_FLOOR + self._content_bytes // _MIN_CHUNK_BYTES:
            self.state = TOO_MANY_CHUNKS
            return False
        overhead = self._chunk_start - self._body_start - self._content_bytes
        if overhead > self._limits.chunk_overhead(self._content_bytes):
            self.state = BODY_TOO_LARGE
            return False
        return True

    def _find_trailers(self, last_line_end: int) -> bool:
        found = self.data.find(_HEAD_END, last_line_end)
        end = len(self.data) if found < 0 else found
        if (
            end - last_line_end > self._limits.max_head_bytes
            or self.data.count(b"\r\n", last_line_end, end) > _MAX_TRAILER_COUNT
        ):
            self.state = HEAD_TOO_LARGE
        elif found >= 0:
            trailers = bytes(self.data[last_line_end + 2 : found]).split(b"\r\n") if found > last_line_end else []
            self.state = Progress.COMPLETE if all(map(_TRAILER.fullmatch, trailers)) else BAD_CHUNKING
            self._next_request_start = found + len(_HEAD_END)
        return False


# ── connections and the worker ───────────────────────────────────────────────────────────────────────────────────────

_log = log.get(__name__)
_RECV_BYTES = 65_536
_SEND_CHUNK_BYTES = 1024 * 1024
_MAX_DISCARD_BYTES = 64 * 1024**2  # read from a rejected client that still sends, so that it can read the rejection
_HEALTH_PREFIXES = (b"GET /health ", b"HEAD /health ")
_SWEEP_INTERVAL_SEC = 0.5
_ACCEPT_BATCH = 64
_STOP_LINGER_SEC = 2.0  # for clients of a worker that stops
_MAX_UNREAD_BYTES = 65_536  # of a body that the app leaves: the parser copies all of it to pass over a kilobyte
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BY_PARSE_ERROR: dict[type[Exception], Rejection] = {
    errors.LimitRequestLine: URI_TOO_LONG,
    errors.LimitRequestHeaders: HEAD_TOO_LARGE,
    errors.ExpectationFailed: UNSUPPORTED_EXPECTATION,
    errors.ParseException: BAD_REQUEST,
}


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
            view = view[_send_nonblocking(self._sock, view) :]
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


class BufferedWorker(ThreadWorker):  # type: ignore[misc]
    """Only `handle` and what it calls run in threads; everything else runs in the main thread and never blocks."""

    limits = ConnectionLimits()
    nr_conns: int

    def init_process(self) -> None:
        self.worker_connections: int = _max_connections(self.cfg.worker_connections)
        self.connections: set[Connection] = set()
        self.buffered_bytes = 0
        self._handling = {True: 0, False: 0}  # requests for `/health`, and all others
        self._last_sweep = 0.0
        self.health_pool = ThreadPoolExecutor(1, thread_name_prefix="http-health")
        super().init_process()

    # ── read ────────────────────────────────────────────────────────────────────────────────────────────────────

    def accept(self, listener: socket) -> None:
        # With other workers one connection a turn: the first worker to wake would take all of them.
        for _ in range(_ACCEPT_BATCH if self.cfg.workers == 1 else 1):
            if self.nr_conns >= self.worker_connections:
                return
            try:
                sock, address = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._evict_idle(time.monotonic())
                return
            conn = Connection(self.cfg, sock, address, listener.getsockname())
            self.connections.add(conn)
            self.nr_conns = len(self.connections)
            self._expect_request(conn, b"")

    def _expect_request(self, conn: Connection, pipelined: bytes) -> None:
        """Wait for the connection's next request, of which `pipelined` has come."""
        conn.enter(Phase.READING, self.limits.head_timeout_sec)
        conn.request_buffer, conn.has_request = RequestBuffer(self.limits.request_limits), False
        if pipelined:
            self._feed(conn, pipelined)
        else:
            self._read(conn)  # a request often comes whole, and with the connection
        if conn.phase is Phase.READING:
            self._watch(conn, EVENT_READ)

    def _watch(self, conn: Connection, events: int) -> None:
        if events == conn.watched_events:
            return
        if conn.watched_events:
            self.poller.unregister(conn.sock)
        if events:
            self.poller.register(conn.sock, events, partial(self._on_event, conn))
        conn.watched_events = events

    def _on_event(self, conn: Connection, _sock: socket) -> None:
        match conn.phase:
            case Phase.READING:
                self._read(conn)
            case Phase.HANDLING:
                self._watch(conn, 0)  # what came is read after the response
            case Phase.WRITING:
                self._write(conn)
            case Phase.IDLE:
                self._expect_request(conn, b"")
            case Phase.CLOSING:
                self._discard_input(conn)

    def _read(self, conn: Connection) -> None:
        try:
            chunk = conn.sock.recv(_RECV_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if chunk:
            self._feed(conn, chunk)
        else:
            self._close(conn)

    def _feed(self, conn: Connection, chunk: bytes) -> None:
        buffer, before = conn.request_buffer, conn.request_buffer.state
        if not conn.has_request:
            conn.has_request = True
            conn.deadline = time.monotonic() + self.limits.head_timeout_sec
        state = buffer.feed(chunk)
        self._account(conn, len(buffer.data))
        if isinstance(state, Rejection):
            self._reject(conn, state)
        elif state is Progress.COMPLETE:
            self._dispatch(conn)
        elif self.buffered_bytes > self.limits.buffered_limit:
            self._reject(conn, OVERLOADED)
        elif state is Progress.BODY and before is Progress.HEAD:
            conn.deadline += self.limits.body_timeout_sec + buffer.expected_body_bytes / self.limits.min_bytes_per_sec
            if buffer.expect_continue:
                with suppress(OSError):
                    conn.sock.send(_CONTINUE)

    def _account(self, conn: Connection, size: int) -> None:
        self.buffered_bytes += size - conn.buffered_bytes
        conn.buffered_bytes = size

    # ── handle ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _dispatch(self, conn: Connection) -> None:
        conn.is_health = conn.request_buffer.data.startswith(_HEALTH_PREFIXES)
        if self._handling[conn.is_health] >= self.limits.max_pending + self.cfg.threads:
            self._reject(conn, OVERLOADED)
            return
        conn.enter(Phase.HANDLING, math.inf)
        self._handling[conn.is_health] += 1
        future = (self.health_pool if conn.is_health else self.tpool).submit(self.handle, conn)
        future.add_done_callback(lambda done: self.method_queue.defer(self.finish_request, conn, done))

    def handle(self, conn: Connection) -> bool:
        """Answer one request, in a thread. Return whether the connection may be used again."""
        try:
            conn.prepare()
            request = next(conn.parser)
            if isinstance(request.body.reader, ChunkedReader) is not conn.request_buffer.is_chunked:
                # The parser would wait, in this thread, for a body that was not buffered.
                self._send_rejection(conn, BAD_REQUEST)
                return False
            request._expected_100_continue = False  # the body is buffered, or is not wanted
            if conn.request_buffer.body_declared_too_large:
                request.force_close()  # its body will never be read
            is_kept_alive = self._respond(request, conn)
            return is_kept_alive and conn.parser.finish_body(max_bytes=_MAX_UNREAD_BYTES)
        except (StopIteration, errors.NoMoreData):
            pass
        except OSError as error:  # the client hung up, or does not read its response
            _log.debug("http.client_disconnected", remote=conn.address, error=str(error))
        except errors.ParseException as error:
            rejection = next(found for kind, found in _BY_PARSE_ERROR.items() if isinstance(error, kind))
            self._send_rejection(conn, rejection, error)
        except Exception as error:
            self.handle_error(None, conn.sock, conn.client, error)
        return False

    def _respond(self, request: Any, conn: Connection) -> bool:
        sock = conn.sock
        buffered = conn.sock = BufferedSocket(sock, self.limits)
        try:
            return bool(self.handle_request(request, conn))
        finally:
            conn.sock, conn.pending_output = sock, buffered.pending_output
            buffered.flush()

    def finish_request(self, conn: Connection, fs: Future[bool]) -> None:
        self._handling[conn.is_health] -= 1
        conn.is_kept_alive = not fs.cancelled() and fs.exception() is None and fs.result()
        self._account(conn, len(conn.pending_output))
        if self.buffered_bytes > self.limits.buffered_limit:
            self._close(conn)
        elif conn.pending_output:
            write_sec = len(conn.pending_output) / self.limits.min_bytes_per_sec
            conn.enter(Phase.WRITING, self.limits.write_timeout_sec + write_sec)
            self._watch(conn, EVENT_WRITE)
        else:
            self._next_request(conn)

    # ── write ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, conn: Connection) -> None:
        try:
            with memoryview(conn.pending_output) as rest:
                sent = _send_nonblocking(conn.sock, rest[:_SEND_CHUNK_BYTES])
        except OSError:
            self._close(conn)
            return
        del conn.pending_output[:sent]
        if not conn.pending_output:
            self._next_request(conn)

    def _next_request(self, conn: Connection) -> None:
        """Wait for the next request, or end the connection: the response is sent."""
        self._account(conn, 0)
        if not conn.is_kept_alive:
            self._half_close(conn)
        elif pipelined := conn.parser.unreader.take_buffered():
            self._expect_request(conn, pipelined)
        else:
            conn.enter(Phase.IDLE, self.cfg.keepalive)
            self._watch(conn, EVENT_READ)

    def _reject(self, conn: Connection, rejection: Rejection) -> None:
        self._send_rejection(conn, rejection)
        self._half_close(conn)

    def _send_rejection(self, conn: Connection, rejection: Rejection, error: Exception | None = None) -> None:
        with suppress(OSError):
            conn.sock.send(bytes(rejection))
        detail = rejection.detail if error is None else str(error)[:200]
        _log.info("http.request_rejected", status=rejection.status.value, remote=conn.address, detail=detail)

    # ── close ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _half_close(self, conn: Connection) -> None:
        """Close when the client has: closing at once could discard what was sent last."""
        self._account(conn, 0)
        conn.enter(Phase.CLOSING, self.limits.linger_sec)
        try:
            conn.sock.setblocking(False)
            conn.sock.shutdown(SHUT_WR)
        except OSError:
            self._close(conn)
            return
        self._watch(conn, EVENT_READ)
        self._discard_input(conn)

    def _discard_input(self, conn: Connection) -> None:
        try:
            received_bytes = len(conn.sock.recv(_RECV_BYTES))
        except BlockingIOError:
            return
        except OSError:
            received_bytes = 0
        conn.discard_bytes_left -= received_bytes
        if not received_bytes or conn.discard_bytes_left < 0:
            self._close(conn)

    def _close(self, conn: Connection) -> None:
        self._watch(conn, 0)
        self._account(conn, 0)
        conn.phase = Phase.CLOSED
        self.connections.discard(conn)
        self.nr_conns = len(self.connections)
        conn.close()

    def murder_pending(self) -> None:
        """Close what has taken too long. gunicorn's loop calls this in each turn."""
        now = time.monotonic()
        is_full = self.nr_conns >= self.worker_connections
        if now - self._last_sweep < _SWEEP_INTERVAL_SEC and not is_full:
            return
        self._last_sweep = now
        for conn in [conn for conn in self.connections if now > self._deadline(conn)]:
            if conn.phase is Phase.READING and conn.has_request:
                self._reject(conn, REQUEST_TIMEOUT)
            else:
                self._close(conn)
        if is_full:
            self._evict_idle(now)

    def _deadline(self, conn: Connection) -> float:
        if self.alive or conn.phase in (Phase.HANDLING, Phase.WRITING):
            return conn.deadline
        return min(conn.deadline, conn.phase_started_at + _STOP_LINGER_SEC)

    def _evict_idle(self, now: float) -> None:
        """Close connections without a complete request in favour of clients that wait to be accepted."""
        idle_since = now - self.limits.min_idle_sec
        for conn in list(self.connections):
            if conn.phase is Phase.READING and conn.phase_started_at > idle_since:
                continue
            if conn.phase in (Phase.READING, Phase.IDLE, Phase.CLOSING):
                self._close(conn)


def _max_connections(configured: int) -> int:
    """Half of the open files that the system allows; the rest is for the database, files and children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return configured if soft == resource.RLIM_INFINITY else max(1, min(configured, soft // 2))


def _send_nonblocking(sock: socket, data: memoryview) -> int:
    """Send as much as the socket takes without blocking."""
    sent = 0
    with suppress(BlockingIOError):
        while sent < len(data):
            sent += sock.send(data[sent : sent + _SEND_CHUNK_BYTES])
    return sent
