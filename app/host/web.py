"""`dataloader serve`: gunicorn for a person's terminal, with the API and the worker pool in one process."""

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

from app import log
from app.config import Settings
from app.errors import ConfigError, DatabaseUnavailable, PortTaken
from app.host.database import Database
from app.host.door import try_the_door
from app.host.guest import BLOCKED_AT_BIRTH, Host, gunicorn_settings
from app.host.service import Service, set_up_logging
from app.host.startup import Startup

_log = log.get(__name__)
DID_NOT_BEGIN = 70  # exit code: a bug keeps the service from starting; the log names it


def serve(settings: Settings, *, workers: bool, banner: Callable[[Startup], None]) -> int:
    """Run until told to stop; returns the exit code. Raises what a person can mend before anything is started."""
    set_up_logging(settings)
    with _early_signals() as early, _listening(settings.app_host, settings.app_port) as door:
        database = Database(settings)
        try:
            outage = _prepare(database)
            starting = None if outage is None else Startup(database.describe(), outage)
            try_the_door(settings, database, [settings.app_host])
            if early.notes:
                return 0
            # Its parts are made after the fork, where they are first asked for.
            service = Service(settings, workers=workers)
            service.on_ready = lambda: banner(Startup(service.database.describe(), None, service.loading.failures))
            return _run(service, door, early, database, lambda: None if starting is None else banner(starting))
        finally:
            database.close()


class Early:
    """Signals that came before gunicorn minded them."""

    def __init__(self) -> None:
        self.notes: list[int] = []
        self.hangup_ignored = (
            signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        )  # nohup: a closed terminal means nothing

    def note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.notes:
            raise KeyboardInterrupt  # whatever we wait for takes too long for somebody
        self.notes.append(number)


@contextmanager
def _early_signals() -> Iterator[Early]:
    """Nothing is left half started: a signal is a note, looked at when the database is there."""
    early = Early()
    numbers = [signal.SIGTERM, signal.SIGINT] + [signal.SIGHUP] * (not early.hangup_ignored)
    before = {number: signal.signal(number, early.note) for number in numbers}
    try:
        yield early
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Take the address before anything is started, so that a second service harms nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as door:
        try:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind((host, port))
            door.listen(2048)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(host, port) from error
            raise PortTaken(host, port, why=error.strerror or str(error)) from error
        yield door


def _prepare(database: Database) -> str | None:
    """Prepare the schema; return why the database is away, or None. Raises at once if the schema cannot be used."""
    try:
        database.prepare()
    except DatabaseUnavailable as error:
        _log.warning("database.away", error=str(error), detail="serving without it until it is back")
        return database.describe_outage(error)
    return None


def _run(
    service: Service, door: socket.socket, early: Early, database: Database, on_listening: Callable[[], None]
) -> int:
    def let_go(arbiter: Arbiter, worker: Host) -> None:
        database.close()  # the worker's share in an embedded server is its own, for it may outlive the arbiter

    def move_in(worker: Host) -> None:
        if worker.age > 1:  # in place of one that died: the terminal knows already what is where
            service.on_ready = lambda: None
        worker.move_in(service)

    options = gunicorn_settings(service.settings) | {
        "bind": f"fd://{door.detach()}",  # gunicorn's from here on: it closes it
        "when_ready": lambda arbiter: on_listening(),
        "post_fork": let_go,
        "post_worker_init": move_in,
    }
    arbiter = os.getpid()
    try:
        Server(options, lambda: _load(service), early).run()
    except SystemExit as end:
        if os.getpid() != arbiter:
            raise  # a worker that cannot begin: gunicorn knows its own codes, and no others
        # gunicorn has codes of its own for a worker that cannot begin.
        if end.code == Arbiter.APP_LOAD_ERROR:
            return ConfigError.exit_code
        return DID_NOT_BEGIN if end.code else 0
    return 0


def _load(service: Service) -> Flask:
    """gunicorn prints the text of this one error, and ends with its own code for it."""
    try:
        return service.app
    except ConfigError as error:
        raise AppImportError(f"Error: {error}") from error


class Server(BaseApplication):  # type: ignore[misc]
    """gunicorn as `dataloader serve` runs it."""

    def __init__(self, options: Mapping[str, Any], load: Callable[[], Flask], early: Early) -> None:
        self._options, self._load, self._early = options, load, early
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        return self._load()

    def run(self) -> None:
        Terminal(self, self._early).run()


class Terminal(Arbiter):  # type: ignore[misc]
    """An arbiter for a person's terminal: Ctrl-C and hanging up end it as cleanly as SIGTERM does."""

    def __init__(self, app: Server, early: Early) -> None:
        self._early = early
        super().__init__(app)

    def init_signals(self) -> None:
        super().init_signals()
        for number in self._early.notes:
            self.signal(number, None)

    def spawn_worker(self) -> int:
        """The worker lifts the block when it has handlers of its own."""
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_AT_BIRTH)
        try:
            pid: int = super().spawn_worker()
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_AT_BIRTH)

    def handle_int(self) -> None:
        raise StopIteration

    def handle_hup(self) -> None:
        if not self._early.hangup_ignored:
            raise StopIteration

    def handle_usr2(self) -> None:
        """Not offered: a second `dataloader serve` would find the port taken."""
