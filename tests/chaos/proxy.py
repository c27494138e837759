"""A TCP proxy between the services and PostgreSQL, which does to them what networks do.

A thread a connection. Whatever a mode does, it begins for the connections that are there and for those that come, and
ends with `heal`.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from enum import StrEnum

from tests.support.processes import free_port

_RECV_BYTES = 65_536
_POLL_INTERVAL_SEC = 0.05  # how soon a connection notices that the mode has changed


class ProxyMode(StrEnum):
    OPEN = "open"
    SLOW = "slow"  # everything arrives, late
    SILENT = "silent"  # connections stay, and nothing comes through: what was sent waits, as a network keeps it
    ONE_WAY = "deaf"  # what clients say arrives; what the server answers does not
    CLOSED = "closed"  # new connections are refused; existing ones are left alone
    HANGING_UP = "hanging up"  # connections are taken and ended without a word, as by a balancer that leads nowhere


class FaultProxy:
    """One port of the loopback, which leads to a server's Unix socket. `lead_to` moves it to another server."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._mode, self._delay = ProxyMode.OPEN, 0.0  # replaced by the conductor, read by every connection's thread
        self._lock = threading.Lock()
        self._connections: set[ProxyConnection] = set()  # under the lock
        self.port = free_port()
        self._closed = False
        self._listener = _listen_on(self.port)  # replaced by the conductor when it opens again
        threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True).start()

    # ── what networks do ────────────────────────────────────────────────────────────────────────────────────────

    def slow(self, seconds: float) -> None:
        self._delay, self._mode = seconds, ProxyMode.SLOW

    def silence(self) -> None:
        self._mode = ProxyMode.SILENT

    def block_responses(self) -> None:
        self._mode = ProxyMode.ONE_WAY

    def refuse(self) -> None:
        self._mode = ProxyMode.CLOSED
        self._stop_listening()

    def hang_up(self) -> None:
        self._mode = ProxyMode.HANGING_UP

    def heal(self) -> None:
        """Forward the data that was held back."""
        was, self._mode, self._delay = self._mode, ProxyMode.OPEN, 0.0
        if was is ProxyMode.CLOSED:
            self._listener = _listen_on(self.port)

    def cut(self) -> int:
        """Reset every connection, at both ends."""
        lines = self.connections()
        for line in lines:
            line.cut()
        return len(lines)

    def half_open(self) -> int:
        """Close the server's ends without closing the clients' ends; `cut_halves` closes those."""
        lines = self.connections()
        for line in lines:
            line.leave_half_open()
        return len(lines)

    def cut_half_open(self) -> None:
        for line in self.connections():
            if line.is_half_open:
                line.cut()

    def redirect_to(self, address: str) -> None:
        """From now on to another server; who is connected to the old one is cut off."""
        self._address = address
        self.cut()

    # ── what it is made of ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def mode(self) -> ProxyMode:
        return self._mode

    @property
    def delay(self) -> float:
        return self._delay

    def connections(self) -> list[ProxyConnection]:
        with self._lock:
            return list(self._connections)

    def close(self) -> None:
        self._closed = True
        self._stop_listening()
        self.cut()

    def _stop_listening(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                time.sleep(_POLL_INTERVAL_SEC)
                continue
            line = ProxyConnection(self, client)
            with self._lock:
                self._connections.add(line)
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: ProxyConnection) -> None:
        try:
            with contextlib.suppress(OSError, ValueError):  # ValueError: a socket that was closed meanwhile
                while self._mode is ProxyMode.SILENT:  # a packet that is lost opens no connection
                    time.sleep(_POLL_INTERVAL_SEC)
                if self._mode is ProxyMode.HANGING_UP:
                    return
                line.connect(self._address)
                line.forward()
        finally:
            line.close()
            with self._lock:
                self._connections.discard(line)


class ProxyConnection:
    """One connection, and its two ends."""

    def __init__(self, proxy: FaultProxy, client: socket.socket) -> None:
        self._proxy, self._client = proxy, client
        self._server: socket.socket | None = None
        self.is_half_open = False  # set by the conductor
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connect(self, address: str) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(address)

    def forward(self) -> None:
        """Bring everything across until one end has closed."""
        assert self._server is not None
        others = {self._client: self._server, self._server: self._client}
        with selectors.DefaultSelector() as ready:
            for end in others:
                ready.register(end, selectors.EVENT_READ)
            while not self.is_half_open:
                found = {key.fileobj for key, _ in ready.select(_POLL_INTERVAL_SEC * 10)}
                self._delay_or_block()
                for came_by, other in others.items():
                    if came_by in found:
                        self._copy(came_by, other)
        while self.is_half_open:
            time.sleep(_POLL_INTERVAL_SEC)

    def _copy(self, came_by: socket.socket, other: socket.socket) -> None:
        if came_by is self._server:
            while self._proxy.mode is ProxyMode.ONE_WAY and not self.is_half_open:
                time.sleep(_POLL_INTERVAL_SEC)
        if self.is_half_open:
            return
        result = came_by.recv(_RECV_BYTES)
        if not result:
            raise OSError("the other end has gone")
        other.sendall(result)

    def _delay_or_block(self) -> None:
        if self._proxy.mode is ProxyMode.SLOW:
            time.sleep(self._proxy.delay)
        while self._proxy.mode is ProxyMode.SILENT and not self.is_half_open:
            time.sleep(_POLL_INTERVAL_SEC)

    def leave_half_open(self) -> None:
        if self._server is not None:
            self.is_half_open = True
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.is_half_open = False
        for end in (self._client, self._server):
            if end is not None:
                with contextlib.suppress(OSError):
                    # No time to linger: the close is a reset.
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in (self._client, self._server):
            if end is not None:
                end.close()


def _listen_on(port: int) -> socket.socket:
    """On its own port, again and again."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_server(("127.0.0.1", port), backlog=200)
        except OSError:  # an outgoing connection has the port for a moment
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_INTERVAL_SEC)
