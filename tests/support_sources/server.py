"""An HTTP server on loopback whose responses a test determines, malformed ones too."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    body: bytes | Iterable[bytes] = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None  # what Content-Length claims, if not the truth
    stall: bool = False  # after the body: say nothing more, and do not hang up
    drip_interval_sec: float = 0  # seconds between two bytes of the body

    @classmethod
    def from_json(cls, value: Any, headers: Mapping[str, str] | None = None, **named: Any) -> Reply:
        result = {"Content-Type": "application/json", **(headers or {})}
        return cls(json.dumps(value).encode(), headers=result, **named)


Route = Callable[[Request], Reply]


class SourceServer:
    """`server.on("GET", "/path", Reply(...), ...)`: the replies one after another, the last one for ever."""

    def __init__(self) -> None:
        self.requests: list[Request] = []  # appended by the handlers' threads
        self.closing = threading.Event()
        self._routes: dict[tuple[str, str], list[Reply | Route]] = {}
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with suppress(ConnectionError):
                    super().handle_one_request()

            def do_GET(self) -> None:
                outer._respond(self)

            def do_POST(self) -> None:
                outer._respond(self)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.block_on_close = False
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def add_route(self, method: str, path: str, *replies: Reply | Route) -> None:
        with self._lock:
            self._routes[method, path] = list(replies)

    def requests_to(self, path: str) -> list[Request]:
        return [request for request in list(self.requests) if request.path == path]

    def close(self) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _respond(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        request = Request(handler.command, url.path, dict(parse_qsl(url.query)), dict(handler.headers), body)
        with self._lock:
            self.requests.append(request)
            replies = self._routes.get((request.method, request.path), [Reply(b"no such page", status=404)])
            reply = replies.pop(0) if len(replies) > 1 else replies[0]
        with suppress(ConnectionError):
            self._send(handler, reply if isinstance(reply, Reply) else reply(request))

    def _send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        chunked = not isinstance(reply.body, bytes) and reply.length is None
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        if chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        else:
            length = len(reply.body) if isinstance(reply.body, bytes) else 0
            length = length + reply.stall if reply.length is None else reply.length
            handler.send_header("Content-Length", str(length))
        handler.end_headers()
        pieces = [reply.body] if isinstance(reply.body, bytes) else reply.body
        if reply.drip_interval_sec:
            pieces = (bytes([byte]) for piece in pieces for byte in piece)
        for piece in pieces:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            if reply.drip_interval_sec and self.closing.wait(reply.drip_interval_sec):
                break
        if reply.stall:
            self.closing.wait()
        if chunked and not reply.stall:
            handler.wfile.write(b"0\r\n\r\n")
        if reply.length is not None or reply.stall:
            handler.close_connection = True
