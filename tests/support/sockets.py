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
class RawResponse:
    """An answer, as far as it came; status 0: none did."""

    status: int
    head: bytes
    body: bytes

    @property
    def header_names(self) -> set[str]:
        return {line.partition(b":")[0].decode("latin-1").lower() for line in self.head.split(b"\r\n")[1:]}

    def json(self) -> Any:
        return json.loads(self.body)


def request_head(method: str = "GET", path: str = "/health", *lines: str, close: bool = True) -> bytes:
    last = ["Connection: close"] if close else []
    whole = [f"{method} {path} HTTP/1.1", "Host: localhost", *lines, *last, "", ""]
    return "\r\n".join(whole).encode("utf-8", "surrogatepass")


def post_request(body: bytes, *lines: str, path: str = TRIGGER, kind: str = "application/json") -> bytes:
    return request_head("POST", path, f"Content-Type: {kind}", f"Content-Length: {len(body)}", *lines) + body


def chunked_body(pieces: Iterable[bytes], *lines: str, trailer: bytes = b"0\r\n\r\n") -> bytes:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return (
        request_head("POST", TRIGGER, "Content-Type: application/json", "Transfer-Encoding: chunked", *lines)
        + framed
        + trailer
    )


def send_and_read(port: int, data: bytes, *, timeout: float = 30, half_close: bool = False) -> RawResponse:
    """Send it all, and read until the other side hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as client:
        with suppress(ConnectionError):  # refused before the whole request was sent: the response can be read
            client.sendall(data)
            if half_close:
                client.shutdown(socket.SHUT_WR)
        return read_response(client)


def read_response(client: socket.socket) -> RawResponse:
    """The first final answer, with whatever came until the other side hung up."""
    came = bytearray()
    with suppress(ConnectionError, TimeoutError):
        while piece := client.recv(65_536):
            came += piece
    return parse_response(bytes(came))


def parse_response(received: bytes) -> RawResponse:
    while True:
        top, _, rest = received.partition(b"\r\n\r\n")
        words = top.split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
            return RawResponse(0, b"", received)
        if not words[1].startswith(b"1"):
            return RawResponse(int(words[1]), top, rest)
        received = rest
