"""One service, asked one question at a time: connections, patience, and what an answer means."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from app.client.errors import Conflict, NotAllowed, NotFound, Refused, ServiceFault, ServiceUnavailable

DEFAULT_URL = "http://127.0.0.1:8081"
PATIENCE_SEC = 6.0  # enough for one Retry-After of a service whose database is away
MAX_ANSWER_BYTES = 64 * 1024 * 1024
NOT_NOW = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
_SILENCE_SEC = 40.0  # a stream says something every fifteen
FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC = 0.2, 2.0


class Transport:
    """Asks again while `patience_sec` lasts, if that cannot do anything twice: the request never left, or it changes
    nothing, or it carries an idempotency key. No proxy from the environment is used and no redirect followed.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout_sec: float = 10.0,
        patience_sec: float = PATIENCE_SEC,
        key: str | None = None,
        wait: Callable[[float], None] = time.sleep,
        on_pause: Callable[[ServiceUnavailable], None] = lambda _: None,
    ) -> None:
        self.url = service_url(url)
        self._address = urlsplit(self.url)
        self.etag: str | None = None  # of the last answer: what `if_match` takes
        self._timeout_sec = timeout_sec
        self._patience_sec = patience_sec
        self._key = None if key is None else api_key(key)
        self._wait = wait
        self._on_pause = on_pause  # told before each pause that precedes another try

    def _ask(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        repeatable: bool,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        deadline = time.monotonic() + self._patience_sec
        pause = FIRST_PAUSE_SEC
        while True:
            try:
                return self._exchange(method, path, body, headers or {})
            except ServiceUnavailable as outage:
                rest = pause if outage.retry_after_sec is None else outage.retry_after_sec
                if (outage.sent and not repeatable) or time.monotonic() + rest > deadline:
                    raise
                self._on_pause(outage)
            self._wait(rest)
            pause = min(pause * 2, LONGEST_PAUSE_SEC)

    def _exchange(self, method: str, path: str, body: dict[str, Any] | None, more: Mapping[str, str]) -> Any:
        headers = {"Accept": "application/json", "User-Agent": "dataloader-client", **more}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None
        if body is not None:
            data = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            try:
                connection.connect()
            except (OSError, UnicodeError) as error:
                raise ServiceUnavailable(f"cannot connect to {self.url}: {_why(error)}", sent=False) from error
            try:
                connection.request(method, self._address.path + path, data, headers)
                answer = connection.getresponse()
                text = answer.read(MAX_ANSWER_BYTES)
                if answer.length:  # a read with a limit does not say when the answer breaks off
                    raise http.client.IncompleteRead(text, answer.length)
            except (OSError, http.client.HTTPException) as error:
                raise ServiceUnavailable(f"no answer from {self.url}: {_why(error)}", sent=True) from error
        finally:
            connection.close()
        said = self._judge(answer, text, path)
        self.etag = answer.getheader("ETag")
        return said

    def _lines(self, path: str) -> Iterator[str]:
        """The lines of an answer that is a text, as they come."""
        headers = {"User-Agent": "dataloader-client"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = self._connection(timeout=max(self._timeout_sec, _SILENCE_SEC))
        try:
            try:
                connection.connect()
            except (OSError, UnicodeError) as error:
                raise ServiceUnavailable(f"cannot connect to {self.url}: {_why(error)}", sent=False) from error
            try:
                connection.request("GET", self._address.path + path, headers=headers)
                answer = connection.getresponse()
                if answer.status != HTTPStatus.OK:
                    self._judge(answer, answer.read(MAX_ANSWER_BYTES), path)
                for line in answer:
                    yield line.decode("utf-8", "replace").rstrip("\r\n")
            except (OSError, http.client.HTTPException) as error:
                raise ServiceUnavailable(f"no answer from {self.url}: {_why(error)}", sent=True) from error
        finally:
            connection.close()

    def _connection(self, timeout: float | None = None) -> http.client.HTTPConnection:
        host, port, timeout = self._address.hostname or "", self._address.port, timeout or self._timeout_sec
        if self._address.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _judge(self, answer: http.client.HTTPResponse, text: bytes, path: str) -> Any:
        said = _json(text)
        if answer.status == HTTPStatus.OK and isinstance(said, dict):
            return said
        problem = said if isinstance(said, dict) else {}
        if answer.status in NOT_NOW:
            detail = problem.get("detail") or answer.reason or "not now"
            raise ServiceUnavailable(
                f"{self.url} answered {answer.status}: {detail}", sent=True, retry_after_sec=_retry_after(answer)
            )
        if answer.status == HTTPStatus.NOT_FOUND:
            if str(problem.get("code", "")).endswith("_not_found"):
                raise NotFound(answer.status, problem)
            raise ServiceFault(
                f"{self.url} has nothing at {path.partition('?')[0]}: not a dataloader, or another version of it"
            )
        if answer.status == HTTPStatus.CONFLICT:
            raise Conflict(answer.status, problem)
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) and "code" in problem:
            raise NotAllowed(answer.status, problem)
        if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and "code" in problem:
            raise Refused(answer.status, problem)
        told = problem.get("detail") or f"{answer.status} {answer.reason}".strip()
        raise ServiceFault(f"{self.url} gave an answer that was not expected: {told}")


def service_url(url: str) -> str:
    """The address of a service, without the slashes at its end. ValueError, if it is none."""
    try:
        address = urlsplit(url)
        _ = address.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no address of a service: {error}") from error
    if address.username is not None or address.password is not None:
        raise ValueError("an address of a service has no user name or password in it")
    if address.scheme not in ("http", "https") or not address.hostname or address.query or address.fragment:
        raise ValueError(f"{url!r} is no address of a service; one looks like {DEFAULT_URL}")
    if not all("!" <= character <= "~" for character in url):
        raise ValueError(f"{url!r} has characters that do not belong in an address")
    return url.rstrip("/")


def api_key(told: str) -> str:
    """A key as it can be sent. ValueError, which does not repeat it, if it is none."""
    key = told.strip()
    if not key or not all("!" <= character <= "~" for character in key):
        raise ValueError("the API key is empty, or has characters that no key has; one looks like dlk_…_…")
    return key


@contextmanager
def understood(url: str) -> Iterator[None]:
    """An answer that lacks what the contract promises is the service's fault, told with its address."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        told = f"{type(error).__name__}: {error}"
        raise ServiceFault(f"{url} gave an answer that was not understood: {told}") from error


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _retry_after(answer: http.client.HTTPResponse) -> float | None:
    told = answer.getheader("Retry-After", "")
    return float(told) if told.isascii() and told.isdigit() else None
