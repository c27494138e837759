"""Connections of an HTTP source that a watchdog can shut down, and that refuse private addresses after a redirect.

A socket's timeout restarts with every byte, and a thread that waits in `recv` cannot check for a stop. So every
socket is recorded, and a watchdog shuts them all down at the deadline or when the work is to end.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self
from weakref import WeakSet

from requests.adapters import HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.poolmanager import PoolManager

from dataloader.pipelines.toolkit.errors import SourceRefused, SourceTooSlow
from dataloader.pipelines.toolkit.networks import is_public
from dataloader.pipelines.toolkit.safepoint import SafePoint

OnConnect = Callable[[socket.socket], None]

_CHECK_INTERVAL_SEC = 0.2


class OpenSockets:
    """The open sockets of one source."""

    def __init__(self) -> None:
        self._open: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Lock()  # the watchdog reads while the source connects

    def add(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.add(sock)

    def add_public(self, sock: socket.socket) -> None:
        """Add it if its peer is a public address. The socket is checked, since a name may resolve differently later."""
        host = sock.getpeername()[0]
        if not is_public(ipaddress.ip_address(host.partition("%")[0])):
            raise SourceRefused(f"it redirects to {host}, a private address; allow_private_redirects allows it")
        self.add(sock)

    def shut_down_all(self) -> None:
        """Shut all sockets down, which wakes the threads that wait on them."""
        with self._lock:
            for sock in self._open:
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)  # SSLSocket.shutdown is not thread-safe


class ConnectionWatchdog:
    """Checks in a thread of its own whether a request must end, and keeps the reason."""

    def __init__(self, sockets: OpenSockets, ctx: SafePoint, deadline: float) -> None:
        self._sockets = sockets
        self._ctx = ctx
        self._deadline = deadline  # on the monotonic clock
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="http-watch", daemon=True)
        self.reason: BaseException | None = None  # set once, by the watchdog; read by the requesting thread

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._finished.wait(_CHECK_INTERVAL_SEC):
            if self.reason is None:
                self.reason = self._reason_to_end()
            if self.reason is not None:
                self._sockets.shut_down_all()  # at every check: another may have been opened

    def _reason_to_end(self) -> BaseException | None:
        try:
            self._ctx.check()
        except BaseException as reason:  # Stop, to be raised where the work is done
            return reason
        return SourceTooSlow("it did not finish by the deadline") if time.monotonic() > self._deadline else None

    def cause_of(self, error: BaseException) -> BaseException:
        """Return why the request failed: a socket's timeout at the deadline may come before the watchdog's check."""
        return self.reason or self._reason_to_end() or error

    def raise_reason(self) -> None:
        """Raise the reason if the watchdog ended the request: its response may be cut short, or look complete."""
        if self.reason is not None:
            raise self.reason


class WatchedAdapter(HTTPAdapter):
    """An adapter of requests that reports each new connection, to the source or to a proxy."""

    def __init__(self, on_connect: OnConnect, through_proxy: OnConnect) -> None:
        self._on_connect = on_connect
        self._through_proxy = through_proxy
        super().__init__()

    def init_poolmanager(self, *args: Any, **named: Any) -> None:
        super().init_poolmanager(*args, **named)
        _report_connections(self.poolmanager, self._on_connect)

    def proxy_manager_for(self, proxy: str, **named: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **named)
        _report_connections(manager, self._through_proxy)
        return manager


def _report_connections(manager: PoolManager, on_connect: OnConnect) -> None:
    def watched(pool: type[HTTPConnectionPool]) -> type[HTTPConnectionPool]:
        class Connection(pool.ConnectionCls):  # type: ignore[name-defined, misc]  # of http or of https
            def connect(self) -> None:
                super().connect()
                on_connect(self.sock)

        return type(pool.__name__, (pool,), {"ConnectionCls": Connection})

    manager.pool_classes_by_scheme = {"http": watched(HTTPConnectionPool), "https": watched(HTTPSConnectionPool)}
