"""The service inside a gunicorn worker: started after the fork, stopped before the process ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from gunicorn.glogging import Logger  # type: ignore[import-untyped]
from gunicorn.http.errors import ParseException  # type: ignore[import-untyped]
from gunicorn.workers.gthread import ThreadWorker  # type: ignore[import-untyped]

from app.config import Settings
from app.runtime.buffered_worker import BufferedWorker, ConnectionLimits
from app.runtime.request_buffer import RequestLimits
from app.runtime.service import MAX_BATCH_BYTES, Service
from app.runtime.shutdown import STOP_MARGIN_SEC, Shutdown
from app.web.problems import UnreadableBody

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_WORKER_TIMEOUT_SEC = 120.0  # far above any pause in which a pipeline holds the interpreter
# Between the fork and its own handlers a worker has the arbiter's.
SIGNALS_BLOCKED_AT_FORK = (signal.SIGTERM, signal.SIGQUIT)


def gunicorn_settings(settings: Settings) -> dict[str, Any]:
    """For `dataloader serve` and gunicorn.conf.py alike."""
    longest_end = settings.shutdown_grace_sec + STOP_MARGIN_SEC
    return {
        "bind": f"{_bracket_ipv6(settings.app_host)}:{settings.app_port}",
        "worker_class": BufferedServiceWorker if settings.buffering else ServiceWorker,
        "workers": 1,
        "threads": settings.http_threads,
        "timeout": int(max(_WORKER_TIMEOUT_SEC, longest_end + 10)),  # a worker that stops sends no heartbeat
        "graceful_timeout": int(longest_end),
        "max_requests": 0,
        "preload_app": False,
        "control_socket_disable": True,
        "keepalive": 5,
        "sendfile": False,  # files too are sent without waiting for the client
        "logger_class": GunicornLog,
        "errorlog": None,
        "loglevel": "warning",
    }


def block_signals_at_fork() -> None:
    """Block them around each fork of the arbiter of `gunicorn wsgi:app`. The worker's copy of the arbiter's handler
    would swallow a SIGTERM before `init_signals`, and the arbiter would wait for that worker for the whole grace."""
    arbiter = os.getpid()

    def set_mask(operation: int) -> None:
        if os.getpid() == arbiter:  # a worker that forks has this hook too
            signal.pthread_sigmask(operation, SIGNALS_BLOCKED_AT_FORK)

    os.register_at_fork(
        before=partial(set_mask, signal.SIG_BLOCK), after_in_parent=partial(set_mask, signal.SIG_UNBLOCK)
    )


def _bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class GunicornLog(Logger):  # type: ignore[misc]
    """Sends gunicorn's own lines to the handlers of all others, and only there."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.propagate = True


class ServiceWorker(ThreadWorker):  # type: ignore[misc]
    """gunicorn's threaded worker with the service attached; for TLS, and behind a proxy that buffers requests.

    Ctrl-C and a closed terminal reach every process of the group: the arbiter decides what they mean, and sends SIGTERM
    or, for a second Ctrl-C, SIGQUIT.
    """

    wsgi: WSGIApplication
    shutdown: Shutdown | None = None
    service: Service | None = None

    def init_signals(self) -> None:
        super().init_signals()
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_BLOCKED_AT_FORK)

    def attach_service(self, service: Service) -> None:
        """Start the service; called when the app is loaded, before requests are accepted."""
        self.service = service
        self.wsgi = _with_readable_body(self.wsgi)
        self.shutdown = Shutdown(service, grace_sec=service.settings.shutdown_grace_sec)
        self.shutdown.start()
        service.start()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._detach_service()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._forward_signal(sig)  # claims stop now, not when gunicorn has answered its requests
        super().handle_exit(sig, frame)

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        # gunicorn's own handler leaves from wherever the main thread is, with jobs still running.
        self._forward_signal(sig)
        super().handle_exit(sig, frame)

    def _forward_signal(self, number: int) -> None:
        if self.shutdown is not None:
            self.shutdown.request(number)

    def _detach_service(self) -> None:
        if self.shutdown is None or self.service is None:
            return
        self.shutdown.request(signal.SIGTERM)  # gunicorn also ends by itself, when its arbiter has gone
        self.shutdown.stopped.wait()
        if not self.shutdown.clean:
            self.shutdown.exit_now()
        self.service.close()


class BufferedServiceWorker(ServiceWorker, BufferedWorker):
    """Reads a request whole before a thread answers it."""

    def attach_service(self, service: Service) -> None:
        max_body_bytes = max(MAX_BATCH_BYTES, service.settings.max_body_bytes)
        self.limits = ConnectionLimits(request_limits=RequestLimits(max_body_bytes=max_body_bytes))
        super().attach_service(service)


class ReadableBody:
    """A request's body as the app reads it: what gunicorn finds wrong in it is the client's error, not the app's."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def read(self, size: int | None = None) -> bytes:
        return self._checked(self._body.read, size)

    def readline(self, size: int | None = None) -> bytes:
        return self._checked(self._body.readline, size)

    def readlines(self, size: int | None = None) -> list[bytes]:
        return list(self)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    @staticmethod
    def _checked(read: Callable[[int | None], bytes], size: int | None) -> bytes:
        try:
            return read(size)
        except ParseException as error:
            raise UnreadableBody from error


def _with_readable_body(app: WSGIApplication) -> WSGIApplication:
    def wrapped(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ["wsgi.input"] = ReadableBody(environ["wsgi.input"])
        return app(environ, start_response)

    return wrapped
