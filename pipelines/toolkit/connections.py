"""The connections under an HTTP source: they can be cut from outside, and know where they lead.

A socket's time-out begins anew with every byte, and a thread that waits in `recv` hears no stop. So every socket is
kept account of, and a watch shuts them all when the time is up or the work is to end.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.poolmanager import PoolManager

from pipelines.toolkit.errors import SourceRefused, SourceTooSlow
from pipelines.toolkit.networks import is_public
from pipelines.toolkit.safepoint import SafePoint

Connected = Callable[[socket.socket], None]

_LOOK_EVERY = 0.2  # seconds


class Sockets:
    """The open sockets of one source."""

    def __init__(self) -> None:
        self._open: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Lock()  # the watch reads while the source connects

    def add(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.add(sock)

    def add_public(self, sock: socket.socket) -> None:
        """Take it only if it leads to the public Internet: asked of the socket, since a name may change its mind."""
        host = sock.getpeername()[0]
        if not is_public(ipaddress.ip_address(host.partition("%")[0])):
            raise SourceRefused(
                f"it redirects to {host}, which is a private address; allow_private_redirects allows it"
            )
        self.add(sock)

    def shut(self) -> None:
        """Whoever waits on one of them wakes up."""
        with self._lock:
            for sock in self._open:
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS sockets have one that is not made for threads


class Watch:
    """Looks, from a thread of its own, whether a request must end; in the end says why it did."""

    def __init__(self, sockets: Sockets, ctx: SafePoint, deadline: float) -> None:
        self._sockets = sockets
        self._ctx = ctx
        self._deadline = deadline  # on the monotonic clock
        self._over = threading.Event()
        self.reason: BaseException | None = None  # set once, by the watch; read by the thread that works

    def look(self) -> None:
        while not self._over.wait(_LOOK_EVERY):
            if self.reason is None:
                self.reason = self._reason_to_end()
            if self.reason is not None:
                self._sockets.shut()  # again at every look: another one may have been opened meanwhile

    def _reason_to_end(self) -> BaseException | None:
        try:
            self._ctx.check()
        except BaseException as reason:  # Stop, to be raised where the work is done
            return reason
        return SourceTooSlow("it did not finish by the deadline") if time.monotonic() > self._deadline else None

    def why(self, error: BaseException) -> BaseException:
        """Why the request really failed: the socket's own time-out, cut to the deadline, may be quicker than a look."""
        return self.reason or self._reason_to_end() or error

    def raise_reason(self) -> None:
        """What looks like an answer cut short, or even whole, is neither if the watch has ended it."""
        if self.reason is not None:
            raise self.reason

    def end(self) -> None:
        self._over.set()


@contextmanager
def watched(sockets: Sockets, ctx: SafePoint, deadline: float) -> Iterator[Watch]:
    watch = Watch(sockets, ctx, deadline)
    thread = threading.Thread(target=watch.look, name="http-watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.end()
        thread.join()


class WatchedAdapter(HTTPAdapter):
    """requests over connections that report themselves, to a proxy or to the source itself."""

    def __init__(self, connected: Connected, through_proxy: Connected) -> None:
        self._connected = connected
        self._through_proxy = through_proxy
        super().__init__()

    def init_poolmanager(self, *args: Any, **named: Any) -> None:
        super().init_poolmanager(*args, **named)
        _report(self.poolmanager, self._connected)

    def proxy_manager_for(self, proxy: str, **named: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **named)
        _report(manager, self._through_proxy)
        return manager


def _report(manager: PoolManager, connected: Connected) -> None:
    class Http(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            connected(self.sock)

    class Https(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            connected(self.sock)

    class HttpPool(HTTPConnectionPool):
        ConnectionCls = Http

    class HttpsPool(HTTPSConnectionPool):
        ConnectionCls = Https

    manager.pool_classes_by_scheme = {"http": HttpPool, "https": HttpsPool}
