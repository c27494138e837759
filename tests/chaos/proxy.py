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

_AT_ONCE = 65_536
_TICK = 0.05  # how soon a connection notices that the mode has changed


class Mode(StrEnum):
    OPEN = "open"
    SLOW = "slow"  # everything arrives, late
    SILENT = "silent"  # connections stay, and nothing comes through: what was sent waits, as a network keeps it
    DEAF = "deaf"  # what clients say arrives; what the server answers does not
    CLOSED = "closed"  # nobody listens: whoever would connect is refused; who is connected is left alone
    HANGING_UP = "hanging up"  # connections are taken and ended without a word, as by a balancer that leads nowhere


class Proxy:
    """One port of the loopback, which leads to a server's Unix socket. `lead_to` moves it to another server."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._mode, self._delay = Mode.OPEN, 0.0  # replaced by the conductor, read by every connection's thread
        self._lock = threading.Lock()
        self._lines: set[Line] = set()  # under the lock
        self.port = free_port()
        self._closed = False
        self._listener = _listening(self.port)  # replaced by the conductor when it opens again
        threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True).start()

    # ── what networks do ────────────────────────────────────────────────────────────────────────────────────────

    def slow(self, seconds: float) -> None:
        self._delay, self._mode = seconds, Mode.SLOW

    def silence(self) -> None:
        self._mode = Mode.SILENT

    def deafen(self) -> None:
        self._mode = Mode.DEAF

    def refuse(self) -> None:
        self._mode = Mode.CLOSED
        self._stop_listening()

    def hang_up(self) -> None:
        self._mode = Mode.HANGING_UP

    def heal(self) -> None:
        """What was held back goes on its way."""
        was, self._mode, self._delay = self._mode, Mode.OPEN, 0.0
        if was is Mode.CLOSED:
            self._listener = _listening(self.port)

    def cut(self) -> int:
        """Reset every connection, at both ends."""
        lines = self.lines()
        for line in lines:
            line.cut()
        return len(lines)

    def half_open(self) -> int:
        """The server's ends close; the clients' stay, and nobody tells them. They end with `cut_halves`."""
        lines = self.lines()
        for line in lines:
            line.leave_half_open()
        return len(lines)

    def cut_halves(self) -> None:
        for line in self.lines():
            if line.half:
                line.cut()

    def lead_to(self, address: str) -> None:
        """From now on to another server; who is connected to the old one is cut off."""
        self._address = address
        self.cut()

    # ── what it is made of ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def delay(self) -> float:
        return self._delay

    def lines(self) -> list[Line]:
        with self._lock:
            return list(self._lines)

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
                time.sleep(_TICK)
                continue
            line = Line(self, client)
            with self._lock:
                self._lines.add(line)
            threading.Thread(target=self._carry, args=(line,), daemon=True).start()

    def _carry(self, line: Line) -> None:
        try:
            with contextlib.suppress(OSError, ValueError):  # ValueError: a socket that was closed meanwhile
                while self._mode is Mode.SILENT:  # a packet that is lost opens no connection
                    time.sleep(_TICK)
                if self._mode is Mode.HANGING_UP:
                    return
                line.connect(self._address)
                line.carry()
        finally:
            line.close()
            with self._lock:
                self._lines.discard(line)


class Line:
    """One connection, and its two ends."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self._proxy, self._client = proxy, client
        self._server: socket.socket | None = None
        self.half = False  # set by the conductor
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connect(self, address: str) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(address)

    def carry(self) -> None:
        """Bring everything across until one end has closed."""
        assert self._server is not None
        others = {self._client: self._server, self._server: self._client}
        with selectors.DefaultSelector() as ready:
            for end in others:
                ready.register(end, selectors.EVENT_READ)
            while not self.half:
                found = {key.fileobj for key, _ in ready.select(_TICK * 10)}
                self._hold_back()
                for came_by, other in others.items():
                    if came_by in found:
                        self._bring(came_by, other)
        while self.half:
            time.sleep(_TICK)

    def _bring(self, came_by: socket.socket, other: socket.socket) -> None:
        if came_by is self._server:
            while self._proxy.mode is Mode.DEAF and not self.half:
                time.sleep(_TICK)
        if self.half:
            return
        heard = came_by.recv(_AT_ONCE)
        if not heard:
            raise OSError("the other end has gone")
        other.sendall(heard)

    def _hold_back(self) -> None:
        if self._proxy.mode is Mode.SLOW:
            time.sleep(self._proxy.delay)
        while self._proxy.mode is Mode.SILENT and not self.half:
            time.sleep(_TICK)

    def leave_half_open(self) -> None:
        if self._server is not None:
            self.half = True
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.half = False
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


def _listening(port: int) -> socket.socket:
    """On its own port, again and again."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_server(("127.0.0.1", port), backlog=200)
        except OSError:  # somebody's outgoing connection has it for a moment
            if time.monotonic() > deadline:
                raise
            time.sleep(_TICK)
