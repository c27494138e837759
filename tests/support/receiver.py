"""A receiver of webhooks on the loopback, and what may be wrong with one."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tests.support.waiting import eventually

Behave = Callable[["Receiver", socket.socket], None]


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.body)
        return told

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


def answering(status: int, *headers: str, body: str = "") -> Behave:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers, "", body]
    return lambda receiver, channel: channel.sendall("\r\n".join(lines).encode())


def hanging(receiver: Receiver, channel: socket.socket) -> None:
    receiver.over.wait(30)


def dripping(receiver: Receiver, channel: socket.socket) -> None:
    """A byte now and then: no time-out of a single read ever fires."""
    for byte in b"HTTP/1.1 200 OK\r\nX-Endless: " + b"." * 10_000:
        if receiver.over.wait(0.02):
            return
        channel.sendall(bytes([byte]))


def dying(receiver: Receiver, channel: socket.socket) -> None:
    """Hears everything, and is gone."""


OK = answering(200, body="thanks")


class Receiver:
    """Notes what it is sent, then behaves: `then` for each request in turn, the last one for all that follow."""

    def __init__(self, *then: Behave, tls: ssl.SSLContext | None = None) -> None:
        self.received: list[Received] = []
        self.over = threading.Event()
        self._then, self._tls = list(then) or [OK], tls
        self._lock = threading.Lock()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/hook?from=test"

    def wait_for(self, count: int, timeout: float = 60) -> list[Received]:
        eventually(lambda: len(self.received) >= count, timeout, lambda: f"{count} requests: {self.received}")
        return list(self.received)

    def then(self, *behave: Behave) -> None:
        """From now on."""
        with self._lock:
            self._then = list(behave)

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        with socket.socket() as last:  # closing the door does not wake who waits at it
            last.connect_ex(("127.0.0.1", self.port))
        self._thread.join(10)
        self._door.close()

    def _serve(self) -> None:
        while not self.over.is_set():
            channel, _ = self._door.accept()
            threading.Thread(target=self._hear, args=(channel,), daemon=True).start()

    def _hear(self, channel: socket.socket) -> None:
        try:
            with channel:
                if self._tls is None:
                    self._answer(channel)
                else:
                    with self._tls.wrap_socket(channel, server_side=True) as inner:
                        self._answer(inner)
        except OSError:
            pass  # whoever sent it did not wait

    def _answer(self, channel: socket.socket) -> None:
        request = _read(channel)
        if request is None:
            return
        with self._lock:
            self.received.append(request)
            behave = self._then.pop(0) if len(self._then) > 1 else self._then[0]
        behave(self, channel)


def _read(channel: socket.socket) -> Received | None:
    heard = b""
    while b"\r\n\r\n" not in heard:
        more = channel.recv(65_536)
        if not more:
            return None
        heard += more
    head, _, body = heard.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += channel.recv(65_536)
    return Received(first.split(" ")[1], headers, body)
