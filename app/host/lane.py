"""The lane for triggers: those that wait at the same time are answered together, by one thread.

A request on its way through the threads of gunicorn and Flask changes threads four times, and at each time several wait
for the interpreter. Here a thread takes all that wait, has them answered in one go, and the main thread hears of all of
them at once. What is not plain goes the ordinary way, as if it had not been here.

None is another's hostage: what is away for long is overtaken, and the database does not wait in here for a key that
somebody else holds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from gunicorn import SERVER  # type: ignore[import-untyped]
from gunicorn.util import http_date  # type: ignore[import-untyped]

from app.host.plain import environ_of
from app.web.express import PATH, Answer, Express

if TYPE_CHECKING:
    from app.host.front import Conn

LINE = f"POST {PATH} HTTP/1.1\r\n".encode()
LONG = 0.1  # seconds that one is away, after which the next may go all the same
_AT_ONCE = 1  # away, as a rule
_MOST = 64  # requests in one go


class Hands(Protocol):
    """What the lane needs of the door. But for `write`, called in the main thread."""

    def submit(self, work: Callable[[], list[Gone]], after: Callable[[Future[list[Gone]]], None]) -> None: ...
    def write(self, conn: Conn, data: bytes) -> bool: ...
    def ordinarily(self, conn: Conn) -> None: ...
    def finish(self, conn: Conn, *, kept_alive: bool) -> None: ...


Gone = tuple["Conn", bool | None]  # None: it has not been answered


class Lane:
    """But for `_answer`, all runs in the main thread."""

    def __init__(self, express: Express, hands: Hands, *, threads: int) -> None:
        self._express, self._hands, self._threads = express, hands, threads
        self._waiting: deque[Conn] = deque()  # the main thread adds, a thread of the lane takes
        self._away = 0
        self._sent_at = 0.0

    def take(self, conn: Conn) -> None:
        self._waiting.append(conn)
        self.look()

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def look(self) -> None:
        """Send a thread, if that is due."""
        now = time.monotonic()
        if self._waiting and (self._away < _AT_ONCE or (now - self._sent_at > LONG and self._away < self._threads)):
            self._away += 1
            self._sent_at = now
            self._hands.submit(self._answer, self._back)

    def _back(self, done: Future[list[Gone]]) -> None:
        self._away -= 1
        self.look()
        for conn, kept_alive in done.result():
            if kept_alive is None:
                self._hands.ordinarily(conn)
            else:
                self._hands.finish(conn, kept_alive=kept_alive)

    def _answer(self) -> list[Gone]:
        taken: list[Conn] = []
        with suppress(IndexError):
            while len(taken) < _MOST:
                taken.append(self._waiting.popleft())
        answered: dict[Conn, bool] = {}
        try:
            self._try_to_answer(taken, answered)
        except Exception as error:  # a bug of ours; whatever has happened until then must not happen twice
            for conn in taken:
                conn.failure = error
        return [(conn, answered.get(conn)) for conn in taken]

    def _try_to_answer(self, taken: Sequence[Conn], answered: dict[Conn, bool]) -> None:
        plain = []
        for conn in taken:
            head, body = conn.arrival.parts(len(LINE))
            environ = environ_of(head, PATH, conn.address)
            if environ is not None:
                plain.append((conn, environ, body))
        answers = self._express.answer([(environ, body) for _, environ, body in plain])
        begin = f"HTTP/1.1 200 OK\r\nServer: {SERVER}\r\nDate: {http_date()}\r\nConnection: keep-alive\r\n"
        for (conn, _, _), answer in zip(plain, answers, strict=True):
            if isinstance(answer, Answer):
                answered[conn] = self._hands.write(conn, f"{begin}{answer.fields}\r\n".encode("latin-1") + answer.body)
            else:
                conn.failure = answer
