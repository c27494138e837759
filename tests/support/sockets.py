"""HTTP by hand, for what no client library would send: whole requests as bytes, and what came back."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

TRIGGER = "/api/v1/jobs/trigger"


@dataclass(frozen=True)
class Reply:
    """An answer, as far as it came; status 0: none did."""

    status: int
    head: bytes
    body: bytes

    @property
    def header_names(self) -> set[str]:
        return {line.partition(b":")[0].decode("latin-1").lower() for line in self.head.split(b"\r\n")[1:]}

    def json(self) -> Any:
        return json.loads(self.body)


def head(method: str = "GET", path: str = "/health", *lines: str, close: bool = True) -> bytes:
    last = ["Connection: close"] if close else []
    whole = [f"{method} {path} HTTP/1.1", "Host: localhost", *lines, *last, "", ""]
    return "\r\n".join(whole).encode("utf-8", "surrogatepass")


def post(body: bytes, *lines: str, path: str = TRIGGER, kind: str = "application/json") -> bytes:
    return head("POST", path, f"Content-Type: {kind}", f"Content-Length: {len(body)}", *lines) + body


def chunked(pieces: Iterable[bytes], *lines: str, end: bytes = b"0\r\n\r\n") -> bytes:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head("POST", TRIGGER, "Content-Type: application/json", "Transfer-Encoding: chunked", *lines) + framed + end


def say(port: int, sent: bytes, *, timeout: float = 30, half_close: bool = False) -> Reply:
    """Send it all, and read until the other side hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as client:
        with suppress(ConnectionError):  # refused before all was said: the answer is there to be read
            client.sendall(sent)
            if half_close:
                client.shutdown(socket.SHUT_WR)
        return read_reply(client)


def read_reply(client: socket.socket) -> Reply:
    """The first final answer, with whatever came until the other side hung up."""
    came = bytearray()
    with suppress(ConnectionError, TimeoutError):
        while piece := client.recv(65_536):
            came += piece
    return parsed(bytes(came))


def parsed(came: bytes) -> Reply:
    while True:
        top, _, rest = came.partition(b"\r\n\r\n")
        words = top.split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
            return Reply(0, b"", came)
        if not words[1].startswith(b"1"):
            return Reply(int(words[1]), top, rest)
        came = rest
