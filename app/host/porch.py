"""A small door for a process that runs jobs and has no API: probes and numbers, and nothing that changes anything."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from app import log
from app.errors import PortTaken
from app.web.probes import Probes

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = log.get(__name__)
_PATIENCE = 5.0  # seconds for a caller to say what he wants
_MOST_AT_ONCE = 8
Answer = tuple[int, str, bytes]


class Porch:
    """What is answered, to whomever."""

    def __init__(self, probe: Callable[[], Mapping[str, Any]], collectors: Iterable[Collector]) -> None:
        self._probes = Probes(lambda: _is_ready(probe()), probe)
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        self._answers: Mapping[str, Callable[[], Answer]] = {
            "/health": lambda: _json(HTTPStatus.OK, {"status": "healthy"}),
            "/health/started": lambda: _probed(self._probes.started()),
            "/health/ready": lambda: _probed(self._probes.ready()),
            "/health/consuming": lambda: _probed(self._probes.consuming()),
            "/metrics": lambda: (HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)),
        }

    def answer(self, path: str) -> Answer:
        found = self._answers.get(path)
        if found is None:
            return _json(HTTPStatus.NOT_FOUND, {"code": "not_found", "detail": f"here are {', '.join(self._answers)}"})
        try:
            return found()
        except Exception:  # whoever watches must hear that something is wrong
            _log.exception(log.Alert.API_ERROR, path=path)
            return _json(HTTPStatus.INTERNAL_SERVER_ERROR, {"code": "internal"})


def _is_ready(state: Mapping[str, Any]) -> bool:
    """The pool's threads live, and its heartbeat has reached the database not long ago."""
    return bool(state["ready"]) and bool(state.get("connected", True))


def _probed(why: str | None) -> Answer:
    if why is None:
        return _json(HTTPStatus.OK, {"ready": True})
    return _json(HTTPStatus.SERVICE_UNAVAILABLE, {"code": "not_ready", "ready": False, "detail": why})


def _json(status: int, told: Mapping[str, Any]) -> Answer:
    return status, "application/json", json.dumps(told).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], porch: Porch) -> None:
        self.porch = porch
        self._room = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Caller)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(timeout=_PATIENCE):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away; nothing of ours raises here."""


class _Caller(BaseHTTPRequestHandler):
    timeout = _PATIENCE
    server: _Server

    def do_GET(self) -> None:
        status, kind, body = self.server.porch.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def version_string(self) -> str:
        return "dataloader"

    def log_message(self, format: str, *args: Any) -> None:
        """Asked by machines every few seconds: not in the log."""


@contextmanager
def porch(host: str, port: int | None, made: Callable[[], Porch]) -> Iterator[None]:
    """Answer there while the block lasts; without a port, nowhere. Raises PortTaken."""
    if port is None:
        yield
        return
    try:
        server = _Server((host, port), made())
    except OSError as error:
        raise PortTaken(host, port, why=error.strerror or str(error)) from error
    thread = threading.Thread(target=server.serve_forever, name="porch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_PATIENCE)
