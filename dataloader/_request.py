"""HTTP requests of the client: connections, retries, and the meaning of a response."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter

from dataloader._address import DEFAULT_URL, RETRY_TIMEOUT_SEC, parse_api_key, parse_url
from dataloader.errors import Conflict, NotAllowed, NotFound, Refused, ServiceFault, ServiceUnavailable

FIRST_RETRY_SEC, MAX_RETRY_SEC = 0.2, 2.0
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
RETRYABLE = frozenset({429, 502, 503, 504})
_STREAM_TIMEOUT_SEC = 40.0  # the event stream sends a comment every fifteen seconds
_NOT_SENT = (requests.ConnectTimeout, urllib3.exceptions.NewConnectionError, urllib3.exceptions.LocationValueError)


class _SystemTrustAdapter(HTTPAdapter):
    """Trusts the certificates of the system and of SSL_CERT_FILE in addition to those of `requests`."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, ssl_context=ssl.create_default_context(), **kwargs)


class Transport:
    """Sends requests to one service.

    A request is repeated until `retry_timeout_sec` has passed if that cannot do anything twice: it never reached the
    service, or it is `repeatable`. Proxies of the environment and redirects are not followed. No error shows the key.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        key: str | None = None,
        timeout_sec: float = 10.0,
        retry_timeout_sec: float = RETRY_TIMEOUT_SEC,
        sleep: Callable[[float], None] = time.sleep,
        on_retry: Callable[[ServiceUnavailable], None] = lambda _: None,
    ) -> None:
        self.url = parse_url(url)
        self.etag: str | None = None  # of the last response; a value for `if_match`
        self._timeout_sec, self._retry_timeout_sec = timeout_sec, retry_timeout_sec
        self._sleep, self._on_retry = sleep, on_retry
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers.clear()
        # A kept connection may be closed by the service just as a request is sent, which would then count as sent.
        self._session.headers.update({"User-Agent": "dataloader-client", "Connection": "close"})
        if key is not None:
            self._session.headers["Authorization"] = f"Bearer {parse_api_key(key)}"
        if self.url.startswith("https:"):
            self._session.mount("https://", _SystemTrustAdapter())

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
        repeatable: bool | None = None,
    ) -> Any:
        """Send a request, such as `request("GET", "/api/v1/workers")`, and return the JSON of the response.

        Query parameters and headers that are None are left out; None in a body is null. Times, UUIDs and flags are
        converted. By default only a GET is `repeatable`.
        """
        can_repeat = method == "GET" if repeatable is None else repeatable
        deadline, pause = time.monotonic() + self._retry_timeout_sec, FIRST_RETRY_SEC
        while True:
            try:
                with self._open(method, path, self._timeout_sec, query=query, body=body, headers=headers) as response:
                    payload = self._parse_response(response, path)
            except ServiceUnavailable as outage:
                delay = pause if outage.retry_after_sec is None else outage.retry_after_sec
                if (outage.sent and not can_repeat) or time.monotonic() + delay > deadline:
                    raise
                self._on_retry(outage)
            else:
                self.etag = response.headers.get("ETag")
                return payload
            self._sleep(delay)
            pause = min(pause * 2, MAX_RETRY_SEC)

    def _stream_lines(self, path: str, query: Mapping[str, Any] | None = None) -> Iterator[str]:
        """Yield the lines of a text response as they arrive."""
        with self._open("GET", path, max(self._timeout_sec, _STREAM_TIMEOUT_SEC), query=query) as response:
            if response.status_code != requests.codes.ok:
                self._parse_response(response, path)
            # Without a length and without chunks a larger read would wait for data that comes much later.
            has_frames = {"Content-Length", "Transfer-Encoding"} & {name.title() for name in response.headers}
            for line in response.iter_lines(chunk_size=None if has_frames else 1):
                yield line.decode("utf-8", "replace")

    @contextmanager
    def _open(
        self,
        method: str,
        path: str,
        timeout_sec: float,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Iterator[requests.Response]:
        parameters = {name: _format_query(value) for name, value in (query or {}).items() if value is not None}
        sent_headers = dict(headers or {})
        data = None
        if body is not None:
            data = json.dumps(body, allow_nan=False, default=_encode).encode()
            sent_headers["Content-Type"] = "application/json"
        try:
            with self._session.request(
                method, self.url + path, params=parameters, data=data, headers=sent_headers,
                timeout=timeout_sec, allow_redirects=False, stream=True,
            ) as response:  # fmt: skip
                yield response
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            causes = list(_causes(error))
            sent = not any(isinstance(cause, _NOT_SENT) for cause in causes)
            problem = f"no answer from {self.url}" if sent else f"cannot connect to {self.url}"
            raise ServiceUnavailable(f"{problem}: {_format_cause(causes[-1])}", sent=sent) from error

    def _parse_response(self, response: requests.Response, path: str) -> Any:
        """Return the JSON of a successful response; raise the error that any other one means."""
        status, payload = response.status_code, _decode_json(response.raw.read(MAX_RESPONSE_BYTES, decode_content=True))
        if status == requests.codes.ok and isinstance(payload, dict):
            return payload
        problem = payload if isinstance(payload, dict) else {}
        if status in RETRYABLE:
            detail = problem.get("detail") or response.reason or "not now"
            retry_after = response.headers.get("Retry-After", "")
            raise ServiceUnavailable(
                f"{self.url} answered {status}: {detail}",
                sent=True,
                retry_after_sec=float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None,
            )
        if status == requests.codes.not_found:
            if str(problem.get("code", "")).endswith("_not_found"):
                raise NotFound(status, problem)
            raise ServiceFault(f"{self.url} has nothing at {path}: not a dataloader, or another version of it")
        if status == requests.codes.conflict:
            raise Conflict(status, problem)
        if status in (requests.codes.unauthorized, requests.codes.forbidden) and "code" in problem:
            raise NotAllowed(status, problem)
        if requests.codes.bad_request <= status < requests.codes.server_error and "code" in problem:
            raise Refused(status, problem)
        detail = problem.get("detail") or f"{status} {response.reason}".strip()
        raise ServiceFault(f"{self.url} gave an unexpected answer: {detail}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        reason = getattr(cause, "reason", None)  # of urllib3's MaxRetryError
        cause = cause.__cause__ or cause.__context__ or (reason if isinstance(reason, BaseException) else None)


def _format_cause(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _decode_json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _encode(value: Any) -> str:
    """Convert what JSON lacks: times to UTC, anything else, such as a UUID, to text."""
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)


def _format_query(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else _encode(value)
