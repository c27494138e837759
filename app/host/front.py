"""The door of the API: a request is gathered whole before one of the few threads is given to it.

gunicorn's own threaded worker reads a request in the thread that answers it, and says good-bye to clients in the thread
that accepts them: as many slow clients as there are threads stop the service, and a few that leave slowly delay
everyone. Here one thread waits for all clients at once, those that send and those that read, within limits of time,
number and memory; the other threads only answer. `/health` has a thread of its own.

Behind TLS of gunicorn's own none of this applies: it takes a proxy, which gathers requests too.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty
from selectors import EVENT_READ, EVENT_WRITE
from socket import SHUT_WR, socket
from typing import Any

from gunicorn.http import errors  # type: ignore[import-untyped]
from gunicorn.http.body import ChunkedReader  # type: ignore[import-untyped]
from gunicorn.workers.gthread import (  # type: ignore[import-untyped]
    STOP_KEEPALIVE_LINGER,
    PollableMethodQueue,
    ThreadWorker,
)

from app import log
from app.host.arrival import Need
from app.host.client import AT_ONCE, LAST_BYTES, Conn, Limits, Outbox, ReadableBody, send_some
from app.host.lane import LONG, Gone, Lane, in_the_way
from app.host.refusals import BAD_REQUEST, OVERLOADED, REFUSED, TOO_SLOW, UNREADABLE, Refusal
from app.web.again import once_more
from app.web.express import Express

_log = log.get(__name__)
_PIECE = 65_536
_URGENT = (b"GET /health ", b"HEAD /health ")
_LOOK_EVERY = 0.5  # seconds between two looks for who has taken too long
_ACCEPT_AT_ONCE = 64
_ACCEPT_SEC = 0.002  # in one turn, with the first requests of the connections accepted
_DRAIN = 64 * 1024**2  # bytes read from a client that was refused while it sent, so that it can read why
_NOTIFY_EVERY = 0.5  # seconds
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Calls(PollableMethodQueue):  # type: ignore[misc]
    """What the main thread is to do, as gunicorn has it; but it is rung once for all that waits."""

    _rung = False

    def defer(self, callback: Callable[..., object], *args: Any) -> None:
        self._queue.put(partial(callback, *args))
        if not self._rung:
            self._rung = True
            with suppress(OSError):
                os.write(self._write_fd, b"\0")

    def run_callbacks(self, _fileobj: Any, max_callbacks: int = 50) -> None:
        with suppress(OSError):
            os.read(self._read_fd, max_callbacks)
        self._rung = False  # before the first is taken: whoever comes after the last rings again
        with suppress(Empty):
            for _ in range(self._queue.qsize()):
                self._queue.get_nowait()()


class Front(ThreadWorker):  # type: ignore[misc]
    """All but `handle` runs in the process's main thread, and waits for nobody."""

    limits = Limits()

    def init_process(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        if soft != resource.RLIM_INFINITY:  # the rest is for the database, files and children
            self.worker_connections: int = max(1, min(self.cfg.worker_connections, soft // 2))
        self.arriving: dict[Conn, None] = {}  # in the order of `since`
        self.sending: dict[Conn, float] = {}  # until when
        self.leaving: dict[Conn, tuple[float, int]] = {}  # until when, and how many bytes are still read from each
        self.in_hand = self.urgent_in_hand = 0
        self.held = 0  # bytes of all requests that are here
        self._looked = 0.0
        self._notified = 0.0
        self.urgent = ThreadPoolExecutor(1, thread_name_prefix="http-urgent")
        self.method_queue = Calls()
        self.lane: Lane | None = None
        super().init_process()

    def open_lane(self, express: Express | None) -> None:
        """Let it answer what it can, unless somebody stands in the way of requests."""
        closed = in_the_way(self.cfg, self.log) if express else "spans are drawn, or others stand in the app's way"
        if express is None or closed is not None:
            _log.info("api.lane.closed", why=closed)
        else:
            self.lane = Lane(express, self, threads=self.cfg.threads)

    def notify(self) -> None:
        """Tell the arbiter that we live: it looks every few seconds."""
        now = time.monotonic()
        if now - self._notified > _NOTIFY_EVERY:
            self._notified = now
            super().notify()

    # ── in ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def accept(self, listener: socket) -> None:
        if self.cfg.is_ssl:
            super().accept(listener)
            return
        # Beside others of its kind one at a time: the first to wake would have them all, and the others nothing to do.
        until = time.monotonic() + _ACCEPT_SEC
        for _ in range(_ACCEPT_AT_ONCE if self.cfg.workers == 1 else 1):
            if self.nr_conns >= self.worker_connections:
                return
            try:
                sock, address = listener.accept()
            except OSError as error:  # as a rule: there is nobody more
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._make_room(time.monotonic())
                return
            self.nr_conns += 1
            self._await(Conn(self.cfg, sock, address, listener.getsockname()), b"")  # which makes it non-blocking
            if time.monotonic() > until:
                return  # the rest at the next turn: clients that come back after each refusal would keep it here

    def _await(self, conn: Conn, rest: bytes) -> None:
        """Wait for the connection's next request, of which `rest` has come already."""
        conn.expect(self.limits.sizes, self.limits)
        self.arriving[conn] = None
        if rest:
            self._take(conn, rest)
        else:
            self._read(conn)  # it often comes with the connection, and most come whole
        if conn in self.arriving:
            self._watch(conn)

    def _watch(self, conn: Conn) -> None:
        if not conn.watched:
            conn.watched = True
            self.poller.register(conn.sock, EVENT_READ, partial(self._on_readable, conn))

    def _unwatch(self, conn: Conn) -> None:
        if conn.watched:
            conn.watched = False
            self.poller.unregister(conn.sock)

    def _on_readable(self, conn: Conn, _client: socket) -> None:
        if conn in self.arriving:
            self._read(conn)
        elif conn.idle:
            conn.idle = False
            self.keepalived_conns.remove(conn)
            self._await(conn, b"")
        else:  # it has more to say, or has hung up: after the answer
            self._unwatch(conn)

    def _read(self, conn: Conn) -> None:
        try:
            piece = conn.sock.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if piece:
            self._take(conn, piece)
        else:
            self._drop(conn)

    def _take(self, conn: Conn, piece: bytes) -> None:
        arrival, before = conn.arrival, conn.arrival.need
        if not conn.begun:
            conn.begun = time.monotonic()
            conn.until = conn.begun + self.limits.head_sec
        need = arrival.take(piece)
        self._hold(conn, len(arrival.data))
        if need in REFUSED:
            self._refuse(conn, REFUSED[need])
        elif need is Need.NOTHING:
            self._hand_over(conn)
        elif self.held > self.limits.most_held:
            self._refuse(conn, OVERLOADED)
        elif need is Need.BODY and before is Need.MORE:
            conn.until += self.limits.body_sec + arrival.expected_bytes / self.limits.slowest
            if arrival.expects:
                with suppress(OSError):
                    conn.sock.send(_CONTINUE)

    def _hold(self, conn: Conn, size: int) -> None:
        self.held += size - conn.held
        conn.held = size

    # ── through ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _hand_over(self, conn: Conn) -> None:
        conn.urgent = conn.arrival.line.startswith(_URGENT)
        if (self.urgent_in_hand if conn.urgent else self.in_hand) >= self.limits.queued + self.cfg.threads:
            self._refuse(conn, OVERLOADED)
            return
        del self.arriving[conn]
        if conn.urgent:
            self.urgent_in_hand += 1
        else:
            self.in_hand += 1
        if self.lane is not None and self.alive and self.lane.is_for(conn.arrival):
            self.lane.take(conn)
        else:
            self.ordinarily(conn)

    def ordinarily(self, conn: Conn) -> None:
        """Give the request to a thread of its own."""
        future = (self.urgent if conn.urgent else self.tpool).submit(self.handle, conn)
        future.add_done_callback(lambda done: self.method_queue.defer(self.finish_request, conn, done))

    def submit(self, work: Callable[[], list[Gone]], after: Callable[[Future[list[Gone]]], None]) -> None:
        self.tpool.submit(work).add_done_callback(lambda done: self.method_queue.defer(after, done))

    def write(self, conn: Conn, data: bytes) -> bool:
        """The whole answer; what its client does not take at once is kept. False: it has hung up."""
        with memoryview(data) as view:
            try:
                sent = send_some(conn.sock, view)
            except OSError as error:
                _log.debug("api.client.gone", remote=conn.address, error=str(error))
                return False
        conn.unsent += data[sent:]
        return True

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        waits = self.lane is not None and self.lane.waits
        super().wait_for_and_dispatch_events(min(timeout, LONG) if waits else timeout)
        if self.lane is not None:
            self.lane.look()

    def handle(self, conn: Any) -> Any:
        """Answer one request, in a thread of its own. Returns whether the connection may be used again."""
        if self.cfg.is_ssl:
            return super().handle(conn)
        try:
            conn.begin()
            request = next(conn.parser)
            if isinstance(request.body.reader, ChunkedReader) is not conn.arrival.is_chunked:
                # It would wait, in this thread, for a body that was not gathered.
                self._tell(conn, BAD_REQUEST)
                return False
            request._expected_100_continue = False  # the body is here, or is not wanted
            if conn.arrival.too_long:
                request.force_close()  # its body will never be read
            return self._answer(request, conn) and conn.parser.finish_body(deadline=time.monotonic() + LAST_BYTES)
        except (StopIteration, errors.NoMoreData):
            return False
        except OSError as error:  # it hung up, or does not take its answer
            _log.debug("api.client.gone", remote=conn.address, error=str(error))
            return False
        except errors.ParseException as error:
            self._tell(conn, next(said for kind, said in UNREADABLE.items() if isinstance(error, kind)), error)
            return False
        except Exception as error:
            self.handle_error(None, conn.sock, conn.client, error)
            return False

    def _answer(self, request: Any, conn: Conn) -> bool:
        sock = conn.sock
        outbox = conn.sock = Outbox(sock, self.limits)
        try:
            with once_more(conn.again):
                return bool(self.handle_request(request, conn))
        finally:
            conn.sock, conn.unsent = sock, outbox.unsent
            outbox.end()

    def handle_request(self, req: Any, conn: Any) -> Any:
        body = req.body
        req.body = ReadableBody(body)
        try:
            return super().handle_request(req, conn)
        finally:
            req.body = body  # the parser reads what the app has left, and expects errors of its own

    def finish_request(self, conn: Any, fs: Future[Any]) -> None:
        """The main thread's part of the end of a request."""
        if self.cfg.is_ssl:
            super().finish_request(conn, fs)
        else:
            self.finish(conn, kept_alive=not fs.cancelled() and fs.exception() is None and bool(fs.result()))

    def finish(self, conn: Conn, *, kept_alive: bool) -> None:
        if conn.urgent:
            self.urgent_in_hand -= 1
        else:
            self.in_hand -= 1
        conn.kept_alive, conn.again = kept_alive, None
        self._hold(conn, len(conn.unsent))
        if self.held > self.limits.most_held:
            self._close(conn)
        elif conn.unsent:
            self.sending[conn] = time.monotonic() + self.limits.answer_sec + len(conn.unsent) / self.limits.slowest
            self._unwatch(conn)
            self.poller.register(conn.sock, EVENT_WRITE, partial(self._on_writable, conn))
        else:
            self._go_on(conn)

    def _on_writable(self, conn: Conn, _client: socket) -> None:
        if conn not in self.sending:
            return
        try:
            with memoryview(conn.unsent) as rest:
                sent = send_some(conn.sock, rest[:AT_ONCE])
        except OSError:
            self._close(conn)
            return
        del conn.unsent[:sent]
        if not conn.unsent:
            del self.sending[conn]
            self.poller.unregister(conn.sock)
            self._go_on(conn)

    def _go_on(self, conn: Conn) -> None:
        """The answer is out: wait for the next request, or say good-bye."""
        self._hold(conn, 0)
        if not conn.kept_alive:
            self._leave(conn)
        elif rest := conn.left_over():
            self._await(conn, rest)
        else:
            conn.set_timeout()
            if not self.alive:
                conn.timeout = min(conn.timeout, time.monotonic() + STOP_KEEPALIVE_LINGER)
            conn.idle = True
            self.keepalived_conns.append(conn)
            self._watch(conn)

    # ── out ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def murder_pending(self) -> None:
        """Called in each turn of gunicorn's loop: let go of those who take too long."""
        super().murder_pending()
        if self.cfg.is_ssl:
            return
        now = time.monotonic()
        full = self.nr_conns >= self.worker_connections
        if now - self._looked < _LOOK_EVERY and not full:
            return
        self._looked = now
        if not self.alive:  # it stops: whoever has not said all by now
            self._let_go(lambda conn: now > conn.since + STOP_KEEPALIVE_LINGER)
        self._let_go(lambda conn: now > conn.until)
        late = [conn for conn, until in self.sending.items() if now > until]
        spare = 0 if self.alive else self.limits.leave_sec - STOP_KEEPALIVE_LINGER
        late += [conn for conn, (until, _) in self.leaving.items() if now > until - spare]
        for conn in late:
            self._close(conn)
        if full:
            self._make_room(now)

    def _let_go(self, late: Callable[[Conn], bool]) -> None:
        for conn in [conn for conn in self.arriving if late(conn)]:
            if conn.begun:
                self._refuse(conn, TOO_SLOW)
            else:
                self._drop(conn)

    def _make_room(self, now: float) -> None:
        """Others wait outside: those who only wait in here go, and those who have been at it for a while."""
        while self.keepalived_conns:
            conn = self.keepalived_conns.popleft()
            self._close(conn)
        for conn in [conn for conn in self.arriving if now > conn.since + self.limits.patience_sec]:
            self._drop(conn)
        for conn in list(self.leaving):
            self._close(conn)

    def _refuse(self, conn: Conn, refusal: Refusal) -> None:
        del self.arriving[conn]
        self._tell(conn, refusal)
        self._leave(conn)

    def _tell(self, conn: Conn, refusal: Refusal, error: Exception | None = None) -> None:
        """A few hundred bytes: they fit into the socket's buffer, or nobody reads there anyway."""
        with suppress(OSError):
            conn.sock.send(bytes(refusal))
        why = refusal.detail if error is None else str(error)[:200]
        _log.info("api.refused", status=refusal.status.value, remote=conn.address, detail=why)

    def _leave(self, conn: Conn) -> None:
        """Say good-bye, and close when the other side has: or what it was told last may never reach it."""
        self._hold(conn, 0)
        self._unwatch(conn)
        try:
            conn.sock.setblocking(False)
            conn.sock.shutdown(SHUT_WR)
        except OSError:
            self._close(conn)
            return
        self.leaving[conn] = (time.monotonic() + self.limits.leave_sec, _DRAIN)
        self.poller.register(conn.sock, EVENT_READ, partial(self._drain, conn))
        self._drain(conn, conn.sock)

    def _drain(self, conn: Conn, _client: socket) -> None:
        if conn not in self.leaving:  # let go of for want of room, in the same turn
            return
        try:
            read = len(conn.sock.recv(_PIECE))
        except BlockingIOError:
            return
        except OSError:
            read = 0
        until, left = self.leaving[conn]
        if read and left > read:
            self.leaving[conn] = (until, left - read)
        else:
            self._close(conn)

    def _drop(self, conn: Conn) -> None:
        del self.arriving[conn]
        self._close(conn)

    def _close(self, conn: Conn) -> None:
        conn.idle = False
        self._unwatch(conn)
        if self.leaving.pop(conn, None) is not None or self.sending.pop(conn, None) is not None:
            self.poller.unregister(conn.sock)
        self._hold(conn, 0)
        self.nr_conns -= 1
        conn.close()
