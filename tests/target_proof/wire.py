"""A proxy that knows the messages of the PostgreSQL protocol, and stops the network of a worker at any of them.

Each worker has a `Line`: Unix sockets of its own, one for each server, so that it can be frozen, cut off and killed
alone. One thread forwards for all lines.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from psycopg2.extensions import make_dsn, parse_dsn

from tests.target_proof.messages import RESPONSE_ENDS, Exchange, Side, request_text, startup_options, take_message

_RECV_BYTES = 65_536
_POLL_SEC = 0.5
_PEER = struct.Struct("3i")  # pid, uid, gid of the process that has connected
_STOPPER = "dataloader-stop"  # the name of sessions that end those of an attempt


Stop = Callable[[Exchange, Side], bool]


@dataclass
class Wire:
    """One connection. All fields are used under the lock of the proxy."""

    line: Line
    role: str
    client: socket.socket
    peer_pid: int
    server: socket.socket | None = None
    database: str = ""
    backend_pid: int = 0
    status: bytes = b"I"  # of the transaction
    is_starting: bool = True
    requests: bytearray = field(default_factory=bytearray)  # not forwarded yet
    responses: bytearray = field(default_factory=bytearray)
    exchange: Exchange | None = None  # whose response has not ended
    stops_at: Side | None = None  # in its response

    is_gone_at_server: bool = False  # the server has closed it, and its client was not asked yet

    @property
    def is_in_transaction(self) -> bool:
        """Whether the server may be in a transaction, or in a statement."""
        return self.server is not None and (self.exchange is not None or self.status != b"I")


class Line:
    """The network of one worker. It stops once where `stop_at` asks; then all of it is frozen until `thaw`."""

    def __init__(self, proxy: WireProxy, name: str, *, refuses_stopper: bool, counts_children: bool) -> None:
        self._proxy = proxy
        self._ignored_pid = os.getpid() if counts_children else 0  # whose messages are not counted, and meet no stop
        self._refuses_stopper = refuses_stopper  # the worker cannot end its sessions by their names
        self.folder = proxy.folder / name
        self.folder.mkdir()
        self.is_frozen = self.is_dead = False
        self.refused: Collection[str] = ()  # roles of servers
        self.exchanges: list[Exchange] = []
        self.wires: list[Wire] = []
        self.stopped_in: Wire | None = None  # where it was frozen, and in which exchange
        self.stopped_at: Exchange | None = None
        self.changed = threading.Event()  # it was frozen, or its worker has ended
        self.running = threading.Event()  # it is not frozen
        self.running.set()
        self._stop: Stop | None = None
        self._listeners: dict[int, tuple[str, socket.socket]] = {}
        self._waiting: list[tuple[str, socket.socket]] = []  # accepted while it was frozen
        with proxy.lock:
            for port, role in enumerate(proxy.servers, 1):
                listener = socket.socket(socket.AF_UNIX)
                listener.bind(str(self.folder / f".s.PGSQL.{port}"))
                listener.listen(50)
                listener.setblocking(False)
                self._listeners[listener.fileno()] = (role, listener)
                proxy.watch(listener, self._accept)

    def dsn(self, role: str, dsn: str) -> str:
        """The DSN that leads to the same database over this line."""
        port = list(self._proxy.servers).index(role) + 1
        return str(make_dsn(**{**parse_dsn(dsn), "host": str(self.folder), "port": port}))

    # ── what happens to the worker ──────────────────────────────────────────────────────────────────────────────

    def stop_at(self, stop: Stop | None) -> None:
        with self._proxy.lock:
            self._stop = stop

    def thaw(self, *, refused: Collection[str] = ()) -> None:
        """Go on; connections to the servers of these roles are lost, and new ones refused."""
        with self._proxy.lock:
            self.is_frozen, self.stopped_in, self.refused = False, None, refused
            for wire in [wire for wire in self.wires if wire.role in refused or wire.is_gone_at_server]:
                self._close(wire)
            waiting, self._waiting = self._waiting, []
            for role, client in waiting:
                self._open(role, client)
            for wire in list(self.wires):
                self._forward_requests(wire)
                self._forward_responses(wire)
            if not self.is_frozen:
                self.running.set()

    def kill(self) -> None:
        """As the kernel does for a killed process: all of its connections are closed."""
        with self._proxy.lock:
            self.is_dead = True
            for wire in list(self.wires):
                self._close(wire)
            for _, client in self._waiting:
                client.close()
            self._waiting.clear()
            for _, listener in self._listeners.values():
                self._proxy.forget(listener)
                listener.close()
            self._listeners.clear()
            shutil.rmtree(self.folder, ignore_errors=True)
            self.is_frozen = False
            self.running.set()

    def close_server_side(self, role: str = "", *, is_half: bool = False, in_transaction: bool = False) -> int:
        """As servers do that have found their client gone: of all connections, of those that were cut by half, or of
        those in a transaction. Return their number. A frozen worker notices it when it is thawed."""
        with self._proxy.lock:
            found = [wire for wire in self.wires if wire.server is not None and role in ("", wire.role)]
            found = [wire for wire in found if wire.client.fileno() < 0 or not is_half]
            found = [wire for wire in found if wire.is_in_transaction or not in_transaction]
            for wire in found:
                if not self.is_frozen and wire.client.fileno() >= 0:
                    self._close(wire)
                    continue
                assert wire.server is not None
                self._proxy.forget(wire.server)
                wire.server.close()
                wire.server, wire.is_gone_at_server = None, True
            return len(found)

    def cut(self, wire: Wire, *, is_half: bool) -> None:
        """End one connection; a half one goes on at the server, which does not notice."""
        with self._proxy.lock:
            if not is_half:
                self._close(wire)
            elif wire in self.wires:
                self._proxy.forget(wire.client)
                wire.client.close()
                wire.requests.clear()

    def has_transaction(self, role: str) -> bool:
        with self._proxy.lock:
            return any(wire.is_in_transaction for wire in self.wires if wire.role == role)

    def backend_pids(self) -> dict[str, set[int]]:
        """By server."""
        with self._proxy.lock:
            return {
                role: {wire.backend_pid for wire in self.wires if wire.role == role} for role in self._proxy.servers
            }

    # ── the thread of the proxy ─────────────────────────────────────────────────────────────────────────────────

    def _accept(self, descriptor: int) -> None:
        role, listener = self._listeners[descriptor]
        client, _ = listener.accept()
        client.setblocking(True)
        if self.is_frozen:
            self._waiting.append((role, client))
        else:
            self._open(role, client)

    def _open(self, role: str, client: socket.socket) -> None:
        if self.is_dead or role in self.refused:
            client.close()
            return
        pid = _PEER.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0]
        wire = Wire(self, role, client, pid)
        self.wires.append(wire)
        self._proxy.watch(client, lambda _: self._read(wire, client, wire.requests, self._forward_requests))

    def _read(self, wire: Wire, end: socket.socket, buffer: bytearray, forward: Callable[[Wire], None]) -> None:
        if self.is_frozen:
            self._proxy.forget(end)  # until it is thawed
            return
        try:
            received = end.recv(_RECV_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._close(wire)
            return
        buffer += received
        forward(wire)

    def _forward_requests(self, wire: Wire) -> None:
        self._watch_again(wire)
        while (
            not self.is_frozen
            and wire in self.wires
            and (message := take_message(wire.requests, is_starting=wire.is_starting))
        ):
            if wire.is_starting and wire.server is None and not self._connect_server(wire, message):
                return
            text = request_text(message, is_starting=wire.is_starting)
            if text is None or wire.peer_pid == self._ignored_pid:
                self._send(wire, wire.server, message)
            else:
                self._forward_counted(wire, message, text)

    def _forward_counted(self, wire: Wire, message: bytes, text: str) -> None:
        exchange = Exchange(len(self.exchanges), wire.role, wire.database, text)
        if self._stops(exchange, Side.REQUEST_HELD):
            wire.requests[:0] = message
            self._freeze(wire, exchange)
            return
        self.exchanges.append(exchange)
        wire.exchange = exchange
        sides = (Side.RESPONSE_HELD, Side.RESPONSE_PART, Side.RESPONSE_SENT)
        wire.stops_at = next((side for side in sides if self._stops(exchange, side)), None)
        self._send(wire, wire.server, message)
        if self._stops(exchange, Side.REQUEST_SENT):
            self._freeze(wire, exchange)

    def _forward_responses(self, wire: Wire) -> None:
        """At once, or at the end of a response in which the line is to stop."""
        stops_at, exchange, taken = wire.stops_at, wire.exchange, bytearray()
        while not self.is_frozen and wire in self.wires and (message := take_message(wire.responses)):
            taken += message
            self._note_response(wire, message)
            has_ended = message[0] in RESPONSE_ENDS
            if stops_at is None or has_ended:
                kept = {Side.RESPONSE_HELD: len(taken), Side.RESPONSE_PART: len(message)}.get(
                    stops_at or Side.RESPONSE_SENT, 0
                )
                self._send(wire, wire.client, bytes(taken[: len(taken) - kept]))
                wire.responses[:0] = taken[len(taken) - kept :]
                if stops_at is not None:
                    wire.stops_at = stops_at = None
                    self._freeze(wire, exchange)
                taken.clear()
        if taken:
            wire.responses[:0] = taken

    def _note_response(self, wire: Wire, message: bytes) -> None:
        if message[:1] == b"K":
            wire.backend_pid = int.from_bytes(message[5:9], "big")
        elif message[0] in RESPONSE_ENDS:
            wire.exchange, wire.is_starting = None, False
            wire.status = message[5:6] if message[:1] == b"Z" else b"T"

    def _connect_server(self, wire: Wire, message: bytes) -> bool:
        options = startup_options(message)
        wire.database = options.get("database", "")
        if self._refuses_stopper and options.get("application_name") == _STOPPER:
            self._close(wire)
            return False
        try:
            wire.server = self._proxy.servers[wire.role]()
        except OSError:
            self._close(wire)
            return False
        server = wire.server
        self._proxy.watch(server, lambda _: self._read(wire, server, wire.responses, self._forward_responses))
        return True

    def _watch_again(self, wire: Wire) -> None:
        """Both ends, after it was frozen."""
        if not self.is_frozen and wire in self.wires:
            for end in (wire.client, wire.server):
                if end is not None and end.fileno() >= 0:
                    self._proxy.resume(end)

    def _stops(self, exchange: Exchange, side: Side) -> bool:
        return self._stop is not None and self._stop(exchange, side)

    def _freeze(self, wire: Wire, exchange: Exchange | None) -> None:
        self.is_frozen, self.stopped_in, self.stopped_at, self._stop = True, wire, exchange, None
        self.running.clear()
        self.changed.set()

    def _send(self, wire: Wire, end: socket.socket | None, data: bytes) -> None:
        if end is None or end.fileno() < 0 or not data:
            return
        try:
            end.sendall(data)
        except OSError:
            self._close(wire)

    def _close(self, wire: Wire) -> None:
        for end in (wire.client, wire.server):
            if end is not None:
                self._proxy.forget(end)
                end.close()
        if wire in self.wires:
            self.wires.remove(wire)


class WireProxy:
    """`servers`: by role, what connects to one."""

    def __init__(self, servers: Mapping[str, Callable[[], socket.socket]]) -> None:
        self.servers = dict(servers)
        self.lock = threading.RLock()
        self.folder = Path(tempfile.mkdtemp(prefix="dl-wire-"))
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._polled: set[int] = set()
        self._epoll = select.epoll()
        self._line_count = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="wire-proxy", daemon=True)
        self._thread.start()

    def line(self, *, refuses_stopper: bool = False, counts_children: bool = False) -> Line:
        self._line_count += 1
        return Line(self, str(self._line_count), refuses_stopper=refuses_stopper, counts_children=counts_children)

    def close(self) -> None:
        self._is_closed = True
        self._thread.join(10)
        shutil.rmtree(self.folder, ignore_errors=True)

    # Called by lines, under the lock

    def watch(self, end: socket.socket, handler: Callable[[int], None]) -> None:
        self._handlers[end.fileno()] = handler
        self.resume(end)

    def resume(self, end: socket.socket) -> None:
        if end.fileno() not in self._polled:
            self._polled.add(end.fileno())
            self._epoll.register(end.fileno(), select.EPOLLIN)

    def forget(self, end: socket.socket) -> None:
        """Its handler stays, for `resume`, until another socket has the number."""
        if end.fileno() in self._polled:
            self._polled.discard(end.fileno())
            self._epoll.unregister(end.fileno())

    def _run(self) -> None:
        while not self._is_closed:
            ready = self._epoll.poll(_POLL_SEC)
            with self.lock:
                for descriptor, _ in ready:
                    if descriptor in self._polled:  # not closed meanwhile
                        with suppress(OSError):
                            self._handlers[descriptor](descriptor)


def connector(dsn: str) -> Callable[[], socket.socket]:
    """What connects to the server of a DSN, over its Unix socket or TCP."""
    target = parse_dsn(dsn)
    host, port = target.get("host", "/tmp"), target.get("port", "5432")

    def connect() -> socket.socket:
        if not host.startswith("/"):
            return socket.create_connection((host, int(port)))
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(f"{host}/.s.PGSQL.{port}")
        except OSError:
            server.close()
            raise
        return server

    return connect
