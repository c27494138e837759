"""The lane for triggers: those that wait at the same time are answered together, by one thread.

A request on its way through the threads of gunicorn and Flask changes threads four times, and at each time several wait
for the interpreter. Here a thread takes all that wait, has them answered in one go, and the main thread sends all the
answers. What is not plain goes the ordinary way, and what is not small.

Who waits in here waits for no other request, but for the statement that puts all their jobs into the queue together; it
does not wait for anybody's key. A thread takes one after the other as it comes to look at them, so that those behind
one that takes long are taken by the next thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from gunicorn import SERVER  # type: ignore[import-untyped]
from gunicorn.config import Config  # type: ignore[import-untyped]
from gunicorn.glogging import Logger  # type: ignore[import-untyped]
from gunicorn.util import http_date  # type: ignore[import-untyped]

from app import log
from app.config.mounted import script_name
from app.host.arrival import Arrival
from app.host.plain import environ_of
from app.web.express import PATH, Answer, Express, Wanted

if TYPE_CHECKING:
    from app.host.client import Conn

_log = log.get(__name__)
_LINE = f"POST {PATH} HTTP/1.1\r\n".encode()
_LARGEST = 16_384  # bytes of a request: what is larger would keep its company waiting, and fill the memory with it
LONG = 0.1  # seconds that a thread is away, after which the next may go all the same
_WORTH = 4  # requests that are worth a second thread while one is away
_MOST = 64  # requests in one go
_LOOKING = 0.02  # seconds in which a thread goes on taking requests

# gunicorn's settings that neither change how a request is read, answered or believed, nor tell anybody of it.
_NO_SAY = frozenset({
    "access_log_format", "backlog", "bind", "capture_output", "chdir", "check_config", "child_exit", "config",
    "control_socket", "control_socket_disable", "control_socket_mode", "daemon", "default_proc_name",
    "disable_redirect_access_to_syslog", "enable_stdio_inheritance", "errorlog", "graceful_timeout", "group",
    "initgroups", "keepalive", "logger_class", "loglevel", "nworkers_changed", "on_exit", "on_reload", "on_starting",
    "pidfile", "post_fork", "post_worker_init", "pre_exec", "pre_fork", "preload_app", "print_config", "proc_name",
    "pythonpath", "raw_env", "reload", "reload_engine", "reload_extra_files", "reuse_port", "sendfile", "threads",
    "timeout", "tmp_upload_dir", "umask", "user", "when_ready", "worker_abort", "worker_class", "worker_connections",
    "worker_exit", "worker_int", "worker_tmp_dir", "workers", "wsgi_app",
})  # fmt: skip


class Hands(Protocol):
    """What the lane needs of the door."""

    def submit(self, work: Callable[[], list[Gone]], after: Callable[[Future[list[Gone]]], None]) -> None: ...
    def write(self, conn: Conn, data: bytes) -> bool: ...
    def ordinarily(self, conn: Conn) -> None: ...
    def finish(self, conn: Conn, *, kept_alive: bool) -> None: ...


Gone = tuple["Conn", bytes | None]  # its answer, b"": there will be none; None: it goes the ordinary way


def in_the_way(cfg: Any, logger: Any) -> str | None:
    """Who wants to hear of each request, or has a say in how it is read or answered. None: nobody would miss
    gunicorn's own way."""
    usual = Config().settings
    if not cfg.keepalive:
        return "keepalive"
    if script_name():
        return "SCRIPT_NAME"
    if getattr(type(logger), "access", None) is not Logger.access:
        return "logger_class"
    return next((n for n, it in cfg.settings.items() if n not in _NO_SAY and it.get() != usual[n].get()), None)


class Lane:
    """But for `_answer`, all runs in the main thread."""

    def __init__(self, express: Express, hands: Hands, *, threads: int) -> None:
        self._express, self._hands, self._threads = express, hands, threads
        self._waiting: deque[Conn] = deque()  # the main thread adds, those of the lane take
        self._away = 0
        self._sent_at = 0.0

    @staticmethod
    def is_for(arrival: Arrival) -> bool:
        return arrival.data.startswith(_LINE) and len(arrival.data) <= _LARGEST and arrival.is_simple

    def take(self, conn: Conn) -> None:
        """Called before `look`."""
        self._waiting.append(conn)

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def look(self) -> None:
        """Send a thread, if that is due: when all that has come to the door by now is in here."""
        now, waiting = time.monotonic(), len(self._waiting)
        overdue = now - self._sent_at > LONG and self._away < self._threads
        if waiting and (self._away == 0 or (self._away == 1 and waiting >= _WORTH) or overdue):
            self._away += 1
            self._sent_at = now
            self._hands.submit(self._answer, self._back)

    def _back(self, done: Future[list[Gone]]) -> None:
        self._away -= 1
        for conn, answer in done.result():  # `_answer` raises nothing
            if answer is None:
                self._hands.ordinarily(conn)
            else:  # written here: the thread would have to wait for the interpreter after each
                self._hands.finish(conn, kept_alive=bool(answer) and self._hands.write(conn, answer))

    def _answer(self) -> list[Gone]:
        """In a thread of its own."""
        taken: dict[Conn, bytes | None] = {}
        asking: list[tuple[Conn, Wanted]] = []
        asked: list[tuple[Conn, Wanted]] = []
        try:
            self._take_all(taken, asking)
            asked = asking
            if asked:
                self._answer_all(taken, asked)
        except BaseException:  # a bug, or the end of the thread: nobody knows what was asked, and nobody asks twice
            _log.exception(log.Alert.API_ERROR, path=PATH)
            taken |= {conn: b"" for conn, _ in asked if taken[conn] is None and conn.again is None}
        return list(taken.items())

    def _take_all(self, taken: dict[Conn, bytes | None], asking: list[tuple[Conn, Wanted]]) -> None:
        until = time.monotonic() + _LOOKING
        with suppress(IndexError):
            while len(taken) < _MOST and time.monotonic() < until:
                conn = self._waiting.popleft()
                taken[conn] = None
                head, body = conn.arrival.parts(len(_LINE))
                environ = environ_of(head, PATH, conn.address)
                wanted = None if environ is None else self._express.read(environ, body)
                if isinstance(wanted, Wanted):
                    asking.append((conn, wanted))
                else:
                    conn.again = wanted

    def _answer_all(self, taken: dict[Conn, bytes | None], asking: Sequence[tuple[Conn, Wanted]]) -> None:
        answers = self._express.answer([wanted for _, wanted in asking])
        begin = f"HTTP/1.1 200 OK\r\nServer: {SERVER}\r\nDate: {http_date()}\r\nConnection: keep-alive\r\n"
        for (conn, _), answer in zip(asking, answers, strict=True):
            if isinstance(answer, Answer):
                taken[conn] = f"{begin}{answer.fields}\r\n".encode("latin-1") + answer.body
            else:
                conn.again = answer
