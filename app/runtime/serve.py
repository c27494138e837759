"""`dataloader serve`: gunicorn for a terminal, with the API and the worker pool in one process."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]
from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]
from gunicorn.errors import AppImportError  # type: ignore[import-untyped]

from app.config import Settings
from app.errors import ConfigError, PortTaken
from app.runtime.access_check import require_key_if_public
from app.runtime.database import Database
from app.runtime.gunicorn_worker import SIGNALS_BLOCKED_AT_FORK, ServiceWorker, gunicorn_settings
from app.runtime.service import Service, set_up_logging
from app.runtime.startup import Startup

EXIT_STARTUP_FAILED = 70  # a bug keeps the service from starting; the log names it


def serve(settings: Settings, *, workers: bool, banner: Callable[[Startup], None]) -> int:
    """Run until a stop signal; return the exit code. Raises errors that an operator can fix before anything starts."""
    set_up_logging(settings)
    with _hold_signals() as early, _bind_socket(settings.app_host, settings.app_port) as listening_socket:
        database = Database(settings)
        try:
            outage = database.prepare_or_describe_outage()
            starting = None if outage is None else Startup(database.describe(), outage)
            require_key_if_public(settings, database, [settings.app_host])
            if early.received:
                return 0
            # Its parts are made after the fork, where they are first asked for.
            service = Service(settings, workers=workers)
            service.on_ready = lambda: banner(Startup(service.database.describe(), None, service.pipeline_failures))
            return _run_gunicorn(
                service, listening_socket, early, database, lambda: None if starting is None else banner(starting)
            )
        finally:
            database.close()


class StartupSignals:
    """Signals that came before gunicorn handles them."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # by nohup

    def record(self, signal_number: int, frame: FrameType | None) -> None:
        if signal_number == signal.SIGINT and self.received:
            raise KeyboardInterrupt  # a second Ctrl-C: the operator does not want to wait
        self.received.append(signal_number)


@contextmanager
def _hold_signals() -> Iterator[StartupSignals]:
    """Record signals until the database is ready, so that nothing is left half started."""
    early = StartupSignals()
    numbers = [signal.SIGTERM, signal.SIGINT] + [signal.SIGHUP] * (not early.hangup_ignored)
    before = {number: signal.signal(number, early.record) for number in numbers}
    try:
        yield early
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def _run_gunicorn(
    service: Service,
    listening_socket: socket.socket,
    startup_signals: StartupSignals,
    database: Database,
    on_listening: Callable[[], None],
) -> int:
    def _post_fork(arbiter: Arbiter, worker: ServiceWorker) -> None:
        database.close()  # the worker's share in an embedded server is its own, for it may outlive the arbiter

    def _post_worker_init(worker: ServiceWorker) -> None:
        if worker.age > 1:  # in place of one that died: the terminal knows already what is where
            service.on_ready = lambda: None
        worker.attach_service(service)

    options = gunicorn_settings(service.settings) | {
        "bind": f"fd://{listening_socket.detach()}",  # gunicorn's from here on: it closes it
        "when_ready": lambda arbiter: on_listening(),
        "post_fork": _post_fork,
        "post_worker_init": _post_worker_init,
    }
    arbiter = os.getpid()
    try:
        GunicornApp(options, lambda: _load_app(service), startup_signals).run()
    except SystemExit as end:
        if os.getpid() != arbiter:
            raise  # of a worker: the arbiter expects gunicorn's codes
        if end.code == Arbiter.APP_LOAD_ERROR:
            return ConfigError.exit_code
        return EXIT_STARTUP_FAILED if end.code else 0
    return 0


def _load_app(service: Service) -> Flask:
    """gunicorn prints the text of this one error, and ends with its own code for it."""
    try:
        return service.app
    except ConfigError as error:
        raise AppImportError(f"Error: {error}") from error


class GunicornApp(BaseApplication):  # type: ignore[misc]
    """gunicorn as `dataloader serve` runs it."""

    def __init__(
        self, options: Mapping[str, Any], load_app: Callable[[], Flask], startup_signals: StartupSignals
    ) -> None:
        self._options, self._load_app, self._startup_signals = options, load_app, startup_signals
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        return self._load_app()

    def run(self) -> None:
        TerminalArbiter(self, self._startup_signals).run()


class TerminalArbiter(Arbiter):  # type: ignore[misc]
    """An arbiter for a terminal: Ctrl-C and hanging up stop it as cleanly as SIGTERM."""

    def __init__(self, app: GunicornApp, startup_signals: StartupSignals) -> None:
        self._startup_signals = startup_signals
        super().__init__(app)

    def init_signals(self) -> None:
        super().init_signals()
        for number in self._startup_signals.received:
            self.signal(number, None)

    def spawn_worker(self) -> int:
        """The worker lifts the block when it has handlers of its own."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS_BLOCKED_AT_FORK)
        try:
            pid: int = super().spawn_worker()
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_BLOCKED_AT_FORK)

    def handle_int(self) -> None:
        raise StopIteration

    def handle_hup(self) -> None:
        if not self._startup_signals.hangup_ignored:
            raise StopIteration

    def handle_usr2(self) -> None:
        """Not offered: a second `dataloader serve` would find the port taken."""
