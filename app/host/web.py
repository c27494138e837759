"""Under gunicorn: the API and the worker pool in one process, started after the fork and stopped before its end."""

from __future__ import annotations

import errno
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]
from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]

from app import log
from app.config import Settings
from app.errors import DatabaseUnavailable, PortTaken
from app.host.service import Database, Service, set_up_logging

_log = log.get(__name__)
_STOP_MARGIN = 25  # seconds beyond the grace: jobs that were asked to stop, and settlements on their way


def gunicorn_settings(settings: Settings) -> dict[str, Any]:
    """For `dataloader serve` and gunicorn.conf.py alike."""
    return {
        "bind": f"{settings.app_host}:{settings.app_port}",
        "worker_class": "gthread",
        "workers": 1,
        "threads": settings.http_threads,
        "timeout": 120,  # far above any pause in which a pipeline holds the interpreter
        "graceful_timeout": int(settings.shutdown_grace_sec) + _STOP_MARGIN,
        "max_requests": 0,
        "preload_app": False,
        "control_socket_disable": True,
        "keepalive": 5,
        "logconfig_dict": {
            "version": 1,
            "disable_existing_loggers": False,
            "root": {"handlers": [], "level": "NOTSET"},
            "loggers": {
                name: {"handlers": [], "propagate": True, "level": "WARNING"}
                for name in ("gunicorn.error", "gunicorn.access")
            },
        },
    }


class Tenant:
    """The service in a gunicorn worker: started after the fork, told of the end by a note from the signal handler."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._notes: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._stopper = threading.Thread(target=self._wait_for_the_end, name="stopper", daemon=True)
        self.clean = True

    @property
    def app(self) -> Flask:
        return self._service.app

    def move_in(self) -> None:
        self._service.start()
        self._stopper.start()
        before = signal.getsignal(signal.SIGTERM)

        def on_term(number: int, frame: FrameType | None) -> None:
            self._notes.put(number)  # claims end now, not when gunicorn is done with its requests
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, on_term)
        # Ctrl-C and a closed terminal reach every process of the group; the arbiter decides, and sends SIGTERM.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def move_out(self) -> None:
        """Wait until the service has stopped; called by the main thread when gunicorn's own work is done."""
        self._notes.put(0)
        self._stopper.join()
        if not self.clean:
            log.tear_down()
            os._exit(0)  # a pipeline does not stop: leave without waiting for its thread, so that its key is free

    def _wait_for_the_end(self) -> None:
        self._notes.get()
        try:
            self.clean = self._service.stop()
        except Exception:
            _log.exception("service.stop.failed")


class _Terminal(Arbiter):  # type: ignore[misc]
    """An arbiter for a person's terminal: Ctrl-C and hanging up end it as cleanly as SIGTERM does."""

    def handle_hup(self) -> None:
        raise StopIteration

    def handle_int(self) -> None:
        raise StopIteration


class Server(BaseApplication):  # type: ignore[misc]
    """gunicorn as `dataloader serve` runs it."""

    def __init__(self, options: Mapping[str, Any], load: Callable[[], Flask]) -> None:
        self._options, self._load = options, load
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        return self._load()

    def run(self) -> None:
        _Terminal(self).run()


def serve(settings: Settings, *, workers: bool, banner: Callable[[str], None]) -> int:
    """Run until told to stop; returns the exit code. Raises what a person can mend before anything is started."""
    set_up_logging(settings)
    with _listening(settings.app_host, settings.app_port) as door:
        database = Database(settings)
        try:
            _prepare(database)
            return _run(settings, workers, door, ready=lambda: banner(database.describe()))
        finally:
            database.close()


def _prepare(database: Database) -> None:
    """A schema that cannot be used is told at once; a database that is away may come back."""
    try:
        database.prepare()
    except DatabaseUnavailable as error:
        _log.warning("database.away", error=str(error), detail="serving without it until it is back")


def _run(settings: Settings, workers: bool, door: socket.socket, *, ready: Callable[[], None]) -> int:
    tenants: list[Tenant] = []  # filled after the fork: one, in the process that serves

    def load() -> Flask:
        tenants.append(Tenant(Service(settings, workers=workers)))
        return tenants[-1].app

    def move_in(worker: Any) -> None:
        tenants[-1].move_in()

    def move_out(server: Any, worker: Any) -> None:
        if tenants:
            tenants[-1].move_out()

    options = gunicorn_settings(settings) | {
        "bind": f"fd://{door.detach()}",  # gunicorn's from here on: it closes it
        "when_ready": lambda server: ready(),
        "post_worker_init": move_in,
        "worker_exit": move_out,
    }
    try:
        Server(options, load).run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _listening(host: str, port: int) -> socket.socket:
    """Take the address before anything is started, so that a second service harms nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((host, port))
        door.listen(2048)
    except OSError as error:
        door.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(host, port) from error
        raise PortTaken(host, port, why=str(error)) from error
    return door
