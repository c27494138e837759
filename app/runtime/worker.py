"""`dataloader worker`: a worker pool alone, with probes and metrics over HTTP."""

from __future__ import annotations

import json
import math
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from dataloader.app import log
from dataloader.app.config import Settings
from dataloader.app.errors import ConfigError, PortTaken, SettingError
from dataloader.app.http.health import Probes
from dataloader.app.runtime.pod_deletion_cost import Pod, reporting_deletion_cost
from dataloader.app.runtime.preemption import PreemptionNotice, watching
from dataloader.app.runtime.service import Service, set_up_logging
from dataloader.app.runtime.shutdown import EXIT_STOP_TIMEOUT, Shutdown
from dataloader.app.runtime.startup import Startup
from dataloader.pipelines.portable import clock
from dataloader.workers.memory import rss_bytes

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_log = log.get(__name__)
_CHECK_INTERVAL_SEC = 1.0
_AGE_SPREAD = 0.1  # of the maximum age
_MIN_AGE_SEC = 15.0  # before the size counts: a process that is too large from the start still runs some jobs
_PROBE_TIMEOUT_SEC = 5.0
_MAX_CONCURRENT_PROBES = 8
ProbeResponse = tuple[HTTPStatus, str, bytes]


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """What ends a worker process, except for a signal."""

    max_jobs: int | None = None  # that it starts
    max_idle_sec: float | None = None
    max_age_sec: float | None = None  # then it starts no more jobs, and ends when those that run have ended
    max_rss_bytes: int | None = None  # above it, the same
    notice: PreemptionNotice | None = None


def run_worker(settings: Settings, *, banner: Callable[[Startup], None], lifetime: Lifetime = Lifetime()) -> int:
    """Run jobs until SIGTERM, SIGINT or SIGHUP, or the end of the lifetime; return the exit code. Raises errors that
    an operator can fix."""
    if not settings.workers:
        raise ConfigError([SettingError("WORKERS_JSON", "no queue", "name one to work on, or use --queue")])
    set_up_logging(settings)
    service = Service(settings, max_jobs=lifetime.max_jobs)
    shutdown = Shutdown(service, grace_sec=settings.longest_grace_sec)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, lambda number, frame: shutdown.request(number))
    try:
        outage = service.database.prepare_or_describe_outage()
        _ = service.pipeline_failures  # by the main thread, as some libraries ask for it
        if outage is not None:
            banner(Startup(service.database.describe(), outage))
        service.on_ready = lambda: banner(service.startup())
        endpoints = ProbeEndpoints(service.probe, service.collectors())
        with probe_server(settings.app_host, settings.probe_port, endpoints):
            shutdown.start()
            service.start()
            with (
                watching(lifetime.notice, shutdown.request_within),
                reporting_deletion_cost(Pod.find(), lambda: service.would_lose_sec),
            ):
                return _supervise(service, shutdown, lifetime)
    finally:
        service.close()
        log.tear_down()


def _supervise(service: Service, shutdown: Shutdown, lifetime: Lifetime) -> int:
    code, is_over, retirement = 0, False, Retirement(lifetime)
    while not shutdown.stopped.wait(_CHECK_INTERVAL_SEC):
        broken = service.failure
        if broken and code == 0:
            _log.error("service.thread_crashed", detail=broken)
            code = EXIT_STOP_TIMEOUT
            shutdown.request(signal.SIGTERM)
        if not retirement.is_due and retirement.check():
            service.retire()
        if not is_over and code == 0 and not service.work_left(lifetime.max_idle_sec):
            is_over = True
            _log.info("worker.lifetime_over", max_jobs=lifetime.max_jobs, max_idle_sec=lifetime.max_idle_sec)
            shutdown.request(signal.SIGTERM)
    if code or not shutdown.clean:
        shutdown.exit_now(code)
    return code


class Retirement:
    """Whether the process is too old or too large to start more jobs. Processes that started together end at different
    times."""

    def __init__(self, lifetime: Lifetime) -> None:
        self._max_rss_bytes, self._size_counts_at = lifetime.max_rss_bytes, clock() + _MIN_AGE_SEC
        max_age_sec = math.inf if lifetime.max_age_sec is None else lifetime.max_age_sec
        self._ends_at = clock() + max_age_sec * random.uniform(1 - _AGE_SPREAD, 1)  # noqa: S311
        self.is_due = False

    def check(self) -> bool:
        """Return whether it is due, and log why."""
        is_too_large = self._is_too_large()
        self.is_due = is_too_large or clock() >= self._ends_at
        if self.is_due:
            _log.info("worker.retiring", reason="size" if is_too_large else "age", rss_bytes=rss_bytes())
        return self.is_due

    @property
    def ends_in_sec(self) -> float:
        """How long it may still start jobs."""
        return self._ends_at - clock()

    def _is_too_large(self) -> bool:
        if self._max_rss_bytes is None or clock() < self._size_counts_at:
            return False
        size = rss_bytes()
        return size is not None and size > self._max_rss_bytes


class ProbeEndpoints:
    """The WSGI app of the probe server."""

    def __init__(self, probe: Callable[[], Mapping[str, Any]], collectors: Iterable[Collector]) -> None:
        def why_not_ready() -> str | None:
            """None if the pool's threads run, and its last heartbeat reached the database in time."""
            state = probe()
            if state["ready"] and state.get("connected", True):
                return None
            return str(state.get("detail") or state.get("outage") or "no heartbeat has reached the database in time")

        probes = Probes(why_not_ready, probe)
        registry = CollectorRegistry()
        for collector in collectors:
            registry.register(collector)
        self._routes: Mapping[str, Callable[[], ProbeResponse]] = {
            "/health": lambda: _json_response(HTTPStatus.OK, {"status": "healthy"}),
            "/health/started": lambda: _probe_response(probes.started()),
            "/health/ready": lambda: _probe_response(probes.ready()),
            "/health/consuming": lambda: _probe_response(probes.consuming()),
            "/metrics": lambda: (HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry)),
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        status, media_type, body = self.respond(environ["PATH_INFO"])
        headers = [("Content-Type", media_type), ("Content-Length", str(len(body))), ("Server", "dataloader")]
        start_response(f"{status.value} {status.phrase}", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def respond(self, path: str) -> ProbeResponse:
        route = self._routes.get(path)
        if route is None:
            detail = f"expected one of: {', '.join(self._routes)}"
            return _json_response(HTTPStatus.NOT_FOUND, {"code": "not_found", "detail": detail})
        try:
            return route()
        except Exception:  # a failing probe is reported as one
            _log.exception(log.Alert.API_ERROR, path=path)
            return _json_response(HTTPStatus.INTERNAL_SERVER_ERROR, {"code": "internal"})


def _probe_response(reason: str | None) -> ProbeResponse:
    if reason is None:
        return _json_response(HTTPStatus.OK, {"ready": True})
    return _json_response(HTTPStatus.SERVICE_UNAVAILABLE, {"code": "not_ready", "ready": False, "detail": reason})


def _json_response(status: HTTPStatus, payload: Mapping[str, Any]) -> ProbeResponse:
    return status, "application/json", f"{json.dumps(payload)}\n".encode()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], endpoints: ProbeEndpoints) -> None:
        self._slots = threading.BoundedSemaphore(_MAX_CONCURRENT_PROBES)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.set_app(endpoints)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(timeout=_PROBE_TIMEOUT_SEC):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has disconnected; the endpoints raise nothing."""


class _Handler(WSGIRequestHandler):
    timeout = _PROBE_TIMEOUT_SEC

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes come every few seconds."""


@contextmanager
def probe_server(host: str, port: int | None, endpoints: ProbeEndpoints) -> Iterator[None]:
    """Run the server while the block lasts, if there is a port. Raises PortTaken."""
    if port is None:
        yield
        return
    try:
        server = _Server((host, port), endpoints)
    except OSError as error:
        raise PortTaken(host, port, reason=error.strerror or str(error)) from error
    thread = threading.Thread(target=server.serve_forever, name="probe-server", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_PROBE_TIMEOUT_SEC)
