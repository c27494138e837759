"""Requests of executors to an engine's HTTP API. No answer is EngineUnavailable; an answer has a bound in bytes and in
seconds, and is collected in time that grows with its length alone."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from dataloader.pipelines.executors.cluster_tls import cluster_tls_context
from dataloader.pipelines.offload import MAX_LOG_LINES, EngineUnavailable, OffloadFailed, RemoteState

_CONNECT_TIMEOUT_SEC, _READ_TIMEOUT_SEC = 5.0, 10.0  # of a connection, and of each piece of an answer
ANSWER_TIMEOUT_SEC = 20.0  # of a whole answer
LOG_TIMEOUT_SEC = 30.0  # of a whole answer that is a log
_MAX_ANSWER_BYTES = 4_000_000
MAX_LOG_BYTES = 32_000_000  # of an answer that is a log
_PIECE_BYTES = 65_536
_LOG_BYTES_PER_SEC = 100_000  # of a log that is sent whole each time; a longer one is asked for more seldom
_MAX_LOG_PAUSE_SEC = 300.0
_MAX_CUT_LENGTH = 2_000_000  # of characters that are looked at for the next lines
_SHOWN_BYTES = 500  # of an answer in an error
OK, BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT = 200, 400, 401, 403, 404, 409
TOO_MANY, SERVER_ERROR = 429, 500


class AnswerTooLarge(OffloadFailed):
    """An answer has more bytes than are read of one."""


class Answer:
    """A status code and what was sent with it."""

    def __init__(self, code: int, content: bytes, date: str = "") -> None:
        self.code, self.content = code, content
        self.date = date  # of the header `Date`

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")

    def json(self) -> dict[str, Any]:
        try:
            value = json.loads(self.content)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise EngineUnavailable(f"the answer is no JSON object: {self.text[:200]!r}")
        return value


@dataclass(frozen=True)
class StreamedAnswer:
    code: int
    pieces: Iterator[bytes]
    date: str

    def read(self) -> Answer:
        """The whole of a short one."""
        return Answer(self.code, _join(self.pieces, _MAX_ANSWER_BYTES, ""), self.date)


class HttpApi:
    """Sends requests to one address. Used by any thread: each request has a session of its own."""

    def __init__(
        self, address: str, *, token: str | None = None, verify: bool | str = True, token_is_file: bool = False
    ) -> None:
        self.address = address.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._verify = verify
        self._has_token = token is not None
        self._token_setting = "token_file" if token_is_file else "token"

    def send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        max_bytes: int = _MAX_ANSWER_BYTES,
        timeout_sec: float = ANSWER_TIMEOUT_SEC,
        is_checked: bool = True,
    ) -> Answer:
        """Raises EngineUnavailable, also where the token is refused: that is not the work's fault."""
        with self.stream(method, path, body=body, query=query, timeout_sec=timeout_sec) as response:
            answer = Answer(response.code, _join(response.pieces, max_bytes, path), response.date)
        if is_checked:
            self.check(answer)
        return answer

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        timeout_sec: float = ANSWER_TIMEOUT_SEC,
    ) -> Iterator[StreamedAnswer]:
        """Send a request; the answer is read in pieces as they come. After `timeout_sec` as a whole the
        connection is closed, and EngineUnavailable raised."""
        with _Deadline(timeout_sec) as deadline, requests.Session() as session:
            for scheme in ("http://", "https://"):
                session.mount(
                    scheme, _DeadlineAdapter(deadline, self._verify if isinstance(self._verify, str) else None)
                )
            try:
                with session.request(
                    method,
                    f"{self.address}{path}",
                    json=body,
                    params=query,
                    headers=self._headers,
                    timeout=(_CONNECT_TIMEOUT_SEC, _READ_TIMEOUT_SEC),
                    verify=self._verify,
                    allow_redirects=False,  # a token goes to the address of the settings alone
                    stream=True,
                ) as response:
                    date = response.headers.get("Date", "")
                    yield StreamedAnswer(response.status_code, response.iter_content(_PIECE_BYTES), date)
            except requests.RequestException as error:
                if not deadline.is_over:
                    raise EngineUnavailable(f"{type(error).__name__}: {self.address}") from error
            if deadline.is_over:  # the end of a connection may look like that of an answer
                raise EngineUnavailable(f"{self.address} has not sent its answer within {timeout_sec:g} s")

    def check(self, answer: Answer) -> None:
        """Raise EngineUnavailable for an answer to the account or the rate, not to the request."""
        if answer.code in (UNAUTHORIZED, FORBIDDEN):
            what = "does not accept" if self._has_token else "asks for"
            setting = f'the setting "{self._token_setting}" of this engine in DL_EXECUTORS'
            text = f"it answered {answer.code}: {answer.content[:_SHOWN_BYTES]!r}"
            raise EngineUnavailable(f"{self.address} {what} {setting}; {text}")
        if answer.code == TOO_MANY:
            raise EngineUnavailable(f"{self.address} answered {answer.code}: {answer.content[:_SHOWN_BYTES]!r}")


class _Deadline:
    """Closes the connections of one request when its time is over: a server that sends a byte now and then meets no
    timeout of a single read."""

    def __init__(self, timeout_sec: float) -> None:
        self.is_over = False
        self._sockets: list[socket.socket] = []  # appended to by the request, read by the timer
        self._timer = threading.Timer(timeout_sec, self._close)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()

    def add(self, connection: socket.socket) -> None:
        self._sockets.append(connection)

    def _close(self) -> None:
        self.is_over = True
        for connection in self._sockets:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # an SSLSocket's own would wait for a reader


class _DeadlineAdapter(HTTPAdapter):
    """Its connections are those of one request, and known to its deadline."""

    def __init__(self, deadline: _Deadline, ca_file: str | None) -> None:
        self._deadline, self._ca_file = deadline, ca_file
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> Any:
        if self._ca_file is not None:
            options["ssl_context"] = cluster_tls_context(self._ca_file)
        return super().init_poolmanager(*args, **options)

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        base: Any = pool.ConnectionCls
        add = self._deadline.add

        class Connection(base):  # type: ignore[misc]  # of the pool: plain or TLS
            def connect(self) -> None:
                super().connect()
                add(self.sock)

        pool.ConnectionCls = Connection
        return pool


def _join(pieces: Iterable[bytes], max_bytes: int, path: str) -> bytes:
    content, size = [], 0
    for piece in pieces:
        content.append(piece)
        size += len(piece)
        if size > max_bytes:
            raise AnswerTooLarge(f"the engine's answer has more than {max_bytes:,} bytes: {path}")
    return b"".join(content)


class LogPieces:
    """Cuts logs that an engine sends whole into pieces, by their position in characters. A log that has ended is kept
    until its end is read: it is asked for once, and not for each piece."""

    def __init__(self) -> None:
        self._next_at: dict[str, float] = {}  # by name; dict operations are atomic
        self._ended: tuple[str, str] = ("", "")  # the name and log of one that has ended

    def read(self, name: str, after: str, read: Callable[[], str], *, is_over: bool) -> tuple[list[str], str]:
        """The next lines, of the log that `read` returns."""
        kept_name, text = self._ended
        if not is_over or kept_name != name:
            text = read()
        lines, position = self.cut(name, text, after, is_over=is_over)
        if is_over:
            self._ended = (name, text) if lines else ("", "")
        return lines, position

    def is_due(self, name: str) -> bool:
        return time.monotonic() >= self._next_at.get(name, 0.0)

    def record_state(self, name: str, state: RemoteState) -> None:
        if state.is_over:
            self._next_at.pop(name, None)

    def cut(self, name: str, text: str, after: str, *, is_over: bool) -> tuple[list[str], str]:
        """The next lines; the begun last one only if no more comes."""
        begin = int(after or 0)
        rest = text[begin:]
        if not is_over:
            self._next_at[name] = time.monotonic() + min(_MAX_LOG_PAUSE_SEC, len(text) / _LOG_BYTES_PER_SEC)
            rest = rest[: rest.rfind("\n") + 1]
        lines = rest[:_MAX_CUT_LENGTH].splitlines(keepends=True)[:MAX_LOG_LINES]
        if len(lines) > 1 and len(rest) > _MAX_CUT_LENGTH:
            lines.pop()  # it may have been cut
        return [line.rstrip("\r\n") for line in lines], str(begin + sum(map(len, lines)))
