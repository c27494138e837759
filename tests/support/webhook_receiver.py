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

from dataloader.app.net import AllowedHosts
from tests.support.waiting import eventually

LOOPBACK = AllowedHosts.parse(["127.0.0.0/8"])
Behavior = Callable[["WebhookReceiver", socket.socket], None]


@dataclass(frozen=True)
class ReceivedRequest:
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.body)
        return result

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


def respond_with(status: int, *headers: str, body: str = "") -> Behavior:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers, "", body]
    return lambda receiver, channel: channel.sendall("\r\n".join(lines).encode())


def hang(receiver: WebhookReceiver, channel: socket.socket) -> None:
    receiver.is_closed.wait(30)


def drip(receiver: WebhookReceiver, channel: socket.socket) -> None:
    """A byte now and then: no time-out of a single read ever fires."""
    for byte in b"HTTP/1.1 200 OK\r\nX-Endless: " + b"." * 10_000:
        if receiver.is_closed.wait(0.02):
            return
        channel.sendall(bytes([byte]))


def drop_connection(receiver: WebhookReceiver, channel: socket.socket) -> None:
    """Reads the request, then closes the connection."""


OK = respond_with(200, body="thanks")


class WebhookReceiver:
    """Notes what it is sent, then behaves: `then` for each request in turn, the last one for all that follow."""

    def __init__(self, *behaviors: Behavior, tls: ssl.SSLContext | None = None) -> None:
        self.received: list[ReceivedRequest] = []
        self.is_closed = threading.Event()
        self._behaviors, self._tls = list(behaviors) or [OK], tls
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/hook?from=test"

    def wait_for(self, count: int, timeout: float = 60) -> list[ReceivedRequest]:
        eventually(lambda: len(self.received) >= count, timeout, lambda: f"{count} requests: {self.received}")
        return list(self.received)

    def set_behavior(self, *behaviors: Behavior) -> None:
        """From now on."""
        with self._lock:
            self._behaviors = list(behaviors)

    def __enter__(self) -> WebhookReceiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_closed.set()
        with socket.socket() as last:  # closing the door does not wake who waits at it
            last.connect_ex(("127.0.0.1", self.port))
        self._thread.join(10)
        self._listener.close()

    def _serve(self) -> None:
        while not self.is_closed.is_set():
            channel, _ = self._listener.accept()
            threading.Thread(target=self._handle, args=(channel,), daemon=True).start()

    def _handle(self, channel: socket.socket) -> None:
        try:
            with channel:
                if self._tls is None:
                    self._respond(channel)
                else:
                    with self._tls.wrap_socket(channel, server_side=True) as inner:
                        self._respond(inner)
        except OSError:
            pass  # the sender did not wait

    def _respond(self, channel: socket.socket) -> None:
        request = _read_request(channel)
        if request is None:
            return
        with self._lock:
            self.received.append(request)
            behave = self._behaviors.pop(0) if len(self._behaviors) > 1 else self._behaviors[0]
        behave(self, channel)


def _read_request(channel: socket.socket) -> ReceivedRequest | None:
    output = b""
    while b"\r\n\r\n" not in output:
        more = channel.recv(65_536)
        if not more:
            return None
        output += more
    head, _, body = output.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += channel.recv(65_536)
    return ReceivedRequest(first.split(" ")[1], headers, body)
