"""gunicorn with the API and the worker pool: for `dataloader serve`, and for gunicorn.conf.py."""

from __future__ import annotations

import errno
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from types import FrameType
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]
from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]
from gunicorn.errors import AppImportError  # type: ignore[import-untyped]
from gunicorn.glogging import Logger  # type: ignore[import-untyped]
from gunicorn.http.errors import ParseException  # type: ignore[import-untyped]
from gunicorn.workers.gthread import ThreadWorker  # type: ignore[import-untyped]

from dataloader.app import log
from dataloader.app.config import Settings
from dataloader.app.errors import ConfigError, DatabaseUnavailable, PortTaken, SchemaError, SettingError
from dataloader.app.http.auth.api_keys import ApiKeys
from dataloader.app.http.middleware import handle_error
from dataloader.app.http.options import MAX_BATCH_BYTES
from dataloader.app.http.problems import UnreadableBody
from dataloader.app.runtime.buffered_worker import BufferedWorker
from dataloader.app.runtime.connection import ConnectionLimits
from dataloader.app.runtime.database import Database
from dataloader.app.runtime.request_buffer import RequestLimits
from dataloader.app.runtime.service import Service, set_up_logging
from dataloader.app.runtime.shutdown import STOP_MARGIN_SEC, Shutdown
from dataloader.app.runtime.startup import Startup

EXIT_STARTUP_FAILED = 70  # a bug keeps the service from starting; the log names it
# Between the fork and its own handlers a worker has the arbiter's.
SIGNALS_BLOCKED_AT_FORK = (signal.SIGTERM, signal.SIGQUIT)
_WORKER_TIMEOUT_SEC = 120.0  # far above any pause in which a pipeline holds the interpreter
_NO_KEY_REMEDY = (
    "make one with `dataloader keys create NAME --scope admin`, or listen on 127.0.0.1, or allow every caller that "
    "can reach it with DL_AUTH=none"
)
_log = log.get(__name__)


def serve(settings: Settings, *, workers: bool, banner: Callable[[Startup], None]) -> int:
    """Run until a stop signal; return the exit code. Raises errors that an operator can fix before anything starts."""
    set_up_logging(settings)
    with (
        _hold_signals() as received,
        _bind_socket(settings.app_host, settings.app_port) as listening_socket,
        closing(Database(settings)) as database,
    ):
        outage = database.prepare_or_describe_outage()
        starting = None if outage is None else Startup(database.describe(), outage)
        require_key_if_public(settings, database, [settings.app_host])
        if received:
            return 0
        # Its parts are made after the fork, where they are first asked for.
        service = Service(settings, workers=workers)
        service.on_ready = lambda: banner(service.startup())
        options = gunicorn_settings(settings) | {
            "bind": f"fd://{listening_socket.detach()}",  # gunicorn's from here on: it closes it
            "when_ready": lambda arbiter: None if starting is None else banner(starting),
            # The worker's share in an embedded server is its own, for it may outlive the arbiter.
            "post_fork": lambda arbiter, worker: database.close(),
            "post_worker_init": lambda worker: worker.attach_service(service),
        }
        return _run_gunicorn(GunicornApp(options, service), received)


@contextmanager
def _hold_signals() -> Iterator[list[int]]:
    """Record signals until gunicorn handles them, so that nothing is left half started."""
    received: list[int] = []

    def _record(signal_number: int, frame: FrameType | None) -> None:
        if signal_number == signal.SIGINT and received:
            raise KeyboardInterrupt  # a second Ctrl-C: the operator does not want to wait
        received.append(signal_number)

    numbers = [signal.SIGTERM, signal.SIGINT] + [signal.SIGHUP] * (not _is_hangup_ignored())
    before = {number: signal.signal(number, _record) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_hangup_ignored() -> bool:
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # by nohup


@contextmanager
def _bind_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Listen before anything is started, so that a second service on the port does no harm."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening_socket:
        try:
            listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening_socket.bind((host, port))
            listening_socket.listen(2048)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(host, port) from error
            raise PortTaken(host, port, reason=error.strerror or str(error)) from error
        yield listening_socket


def _run_gunicorn(app: GunicornApp, startup_signals: list[int]) -> int:
    arbiter = os.getpid()
    block_signals_at_fork()
    try:
        TerminalArbiter(app, startup_signals).run()
    except SystemExit as end:
        if os.getpid() != arbiter:
            raise  # of a worker: the arbiter expects gunicorn's codes
        if end.code == Arbiter.APP_LOAD_ERROR:
            return ConfigError.exit_code
        return EXIT_STARTUP_FAILED if end.code else 0
    return 0


class GunicornApp(BaseApplication):  # type: ignore[misc]
    """gunicorn as `dataloader serve` runs it."""

    def __init__(self, options: dict[str, Any], service: Service) -> None:
        self._options, self._service = options, service
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        try:
            return self._service.app
        except ConfigError as error:  # gunicorn prints the text of this one error, and ends with its own code for it
            raise AppImportError(f"Error: {error}") from error


class TerminalArbiter(Arbiter):  # type: ignore[misc]
    """An arbiter for a terminal: Ctrl-C and hanging up stop it as cleanly as SIGTERM."""

    def __init__(self, app: GunicornApp, startup_signals: list[int]) -> None:
        self._startup_signals, self._is_hangup_ignored = startup_signals, _is_hangup_ignored()
        super().__init__(app)

    def init_signals(self) -> None:
        super().init_signals()
        for number in self._startup_signals:
            self.signal(number, None)

    def handle_int(self) -> None:
        raise StopIteration

    def handle_hup(self) -> None:
        if not self._is_hangup_ignored:
            raise StopIteration

    def handle_usr2(self) -> None:
        """Not offered: a second `dataloader serve` would find the port taken."""


# ── also for gunicorn.conf.py ───────────────────────────────────────────────────────────────────────────────────


def gunicorn_settings(settings: Settings) -> dict[str, Any]:
    """For `dataloader serve` and gunicorn.conf.py alike."""
    host = settings.app_host
    longest_end = settings.longest_grace_sec + STOP_MARGIN_SEC
    return {
        "bind": f"[{host}]:{settings.app_port}" if ":" in host else f"{host}:{settings.app_port}",
        "worker_class": BufferedServiceWorker,
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

    shutdown: Shutdown | None = None

    def init_signals(self) -> None:
        super().init_signals()
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_BLOCKED_AT_FORK)

    def attach_service(self, service: Service) -> None:
        """Start the service; called when the app is loaded, before requests are accepted."""
        if self.age > 1:  # in place of one that died: the terminal knows already what is where
            service.on_ready = lambda: None
        answer_unreadable_bodies(service.app)
        self.shutdown = Shutdown(service, grace_sec=service.settings.longest_grace_sec)
        self.shutdown.start()
        service.start()

    def run(self) -> None:
        try:
            super().run()
        finally:
            if self.shutdown is not None:
                self.shutdown.request(signal.SIGTERM)  # gunicorn also ends by itself, when its arbiter has gone
                self.shutdown.finish()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.shutdown is not None:
            self.shutdown.request(sig)  # claims stop now, not when gunicorn has answered its requests
        super().handle_exit(sig, frame)

    handle_quit = handle_exit  # gunicorn's own leaves from wherever the main thread is, with jobs still running


class BufferedServiceWorker(ServiceWorker, BufferedWorker):
    """Reads a request whole before a thread answers it."""

    limits = ConnectionLimits(request_limits=RequestLimits(max_body_bytes=MAX_BATCH_BYTES))


def answer_unreadable_bodies(app: Flask) -> None:
    """What gunicorn finds wrong in a body while the app reads it is the client's error, not the app's."""
    app.register_error_handler(ParseException, lambda error: handle_error(UnreadableBody()))


def require_key_if_public(settings: Settings, database: Database, hosts: Iterable[str]) -> None:
    """Raise ConfigError for a service that others can reach if there is no API key.

    While the database does not answer, the service starts and answers callers on this machine only.
    """
    if settings.auth == "none":
        _log.warning(
            "auth.disabled",
            detail="DL_AUTH=none: every caller that can reach this service may do everything, without a key",
        )
        return
    public = [host for host in hosts if is_public(host)]
    if public and _has_no_api_key(settings, database):
        raise ConfigError(
            [SettingError("APP_HOST", f"{public[0]!r}, which others can reach, and no API key", _NO_KEY_REMEDY)]
        )


def is_public(host: str) -> bool:
    """Return whether other machines can reach a listener at this address; socket paths and localhost are local."""
    if host == "localhost" or host.startswith(("unix:", "/")):
        return False
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return True


def _has_no_api_key(settings: Settings, database: Database) -> bool:
    """Return False also if the database does not answer."""
    try:
        with database.pool("dataloader-keys", direct=settings.worker_dsn is None) as pool:
            return not ApiKeys(pool).active().has_any_key
    except SchemaError:  # no tables yet, or those of a time before keys
        return True
    except DatabaseUnavailable as error:
        _log.warning("auth.keys_unknown", error=str(error), detail="only callers with a key will be let in")
        return False
