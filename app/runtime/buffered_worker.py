"""A gunicorn threaded worker that reads a whole request before it gives it to a thread.

gunicorn's own threaded worker reads a request in the thread that answers it, and closes connections in the thread that
accepts them: as many slow clients as there are threads stop the service. Here the main thread reads from and writes to
all clients without blocking, within limits of time, number and memory; threads only run the app. `/health` has a
thread of its own.

Undocumented names of gunicorn that it and `connection.py` use: of `ThreadWorker` `poller`, `method_queue`, `tpool`,
`nr_conns`, `worker_connections`, `accept`, `handle`, `handle_request`, `finish_request`, `murder_pending`; `TConn`; of
its parser `unreader`, `finish_body`; of a request `_expected_100_continue`. A test checks that they are there.
"""

from __future__ import annotations

import errno
import math
import resource
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE
from socket import SHUT_WR, socket
from typing import Any

from gunicorn.http import errors  # type: ignore[import-untyped]
from gunicorn.http.body import ChunkedReader  # type: ignore[import-untyped]
from gunicorn.workers.gthread import ThreadWorker  # type: ignore[import-untyped]

from dataloader.app import log
from dataloader.app.runtime.connection import (
    SEND_CHUNK_BYTES,
    BufferedSocket,
    Connection,
    ConnectionLimits,
    Phase,
    send_nonblocking,
)
from dataloader.app.runtime.request_buffer import (
    BAD_REQUEST,
    HEAD_TOO_LARGE,
    OVERLOADED,
    REQUEST_TIMEOUT,
    UNSUPPORTED_EXPECTATION,
    URI_TOO_LONG,
    Progress,
    Rejection,
    RequestBuffer,
)

_log = log.get(__name__)
_RECV_BYTES = 65_536
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
                sent = send_nonblocking(conn.sock, rest[:SEND_CHUNK_BYTES])
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
