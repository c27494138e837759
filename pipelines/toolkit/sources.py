"""Fetches from HTTP sources with limits of time and size, retries, and an end when the job is stopped.

with HttpSource(ctx=ctx) as source:
    started = source.post("https://…/start", json={"date": "2024-01-31"}).json()
    archive = source.download("https://…/file", folder / "export.zst")
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

import orjson
import requests
import urllib3
from urllib3.util.retry import Retry

from dataloader.pipelines.toolkit.connections import ConnectionWatchdog, OpenSockets, WatchedAdapter
from dataloader.pipelines.toolkit.deprecation import renamed_attributes, renamed_fields, renamed_keywords
from dataloader.pipelines.toolkit.errors import (
    SourceAnswered,
    SourceBroken,
    SourceBusy,
    SourceError,
    SourceRefused,
    SourceStalled,
    SourceTooLarge,
    SourceTruncated,
    SourceUnreachable,
)
from dataloader.pipelines.toolkit.safepoint import NoSafePoints, SafePoint
from dataloader.pipelines.toolkit.unpack import PIECE_BYTES

T = TypeVar("T")
_ReadResponse = Callable[[requests.Response, Iterator[bytes]], T]

if not TYPE_CHECKING:
    __getattr__ = renamed_attributes(__name__, Patience="Timeouts", Answer="SourceResponse")

_IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})  # a repeated request changes nothing more
_RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_METHOD_KEEPING_STATUSES = frozenset({307, 308})
_MAX_REDIRECTS = 5
_MAX_CONTENT_LENGTH_DIGITS = 18  # digits of a Content-Length
_MAX_EXCERPT_BYTES = 2_000  # bytes of an error response
_DEFAULT_PORTS = {"http": 80, "https": 443}
_CROSS_ORIGIN_HEADERS = frozenset({"accept", "accept-encoding", "user-agent"})  # the others may be secrets
_INVALID_URL_ERRORS = (
    requests.exceptions.InvalidURL,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidSchema,
    urllib3.exceptions.LocationParseError,
)
_CONNECT_ERRORS = (
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    urllib3.exceptions.SSLError,
    urllib3.exceptions.ProxyError,
)


@renamed_fields(tries="max_attempts", pause_sec="retry_delay_sec", longest_pause_sec="max_retry_delay_sec")
@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Limits of time and attempts for a source."""

    connect_sec: float = 10
    stall_sec: float = 30  # without a single byte
    total_sec: float = 600  # for one request with all its attempts and pauses
    max_attempts: int = 4
    retry_delay_sec: float = 1  # doubled with each attempt; the source's Retry-After has precedence
    max_retry_delay_sec: float = 60


@dataclass(frozen=True)
class SourceResponse:
    """A complete response in memory."""

    url: str  # after redirects, without user, password and query
    status: int
    headers: Mapping[str, str]  # their names in any case
    body: bytes

    def json(self) -> Any:
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            beginning = self.body[:80].decode(errors="replace")
            raise SourceBroken(f"{self.url} answered no JSON: {error}; it begins {beginning!r}") from error


@dataclass(frozen=True)
class Download:
    """A file fetched whole."""

    path: Path
    size: int
    sha256: str
    headers: Mapping[str, str]


class HttpSource:
    """One source, for one thread. Its connections are kept between requests and closed at the end."""

    @renamed_keywords(patience="timeouts")
    def __init__(
        self,
        *,
        ctx: SafePoint | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        max_bytes: int = 16 * 1024**2,
        allow_private_redirects: bool = False,
        user_agent: str = "dataloader",
    ) -> None:
        self._ctx = ctx or NoSafePoints()
        self._headers = {"User-Agent": user_agent, **(headers or {})}
        self._timeouts = timeouts or Timeouts()
        self._max_bytes = max_bytes
        self._sockets = OpenSockets()
        self._session = _make_session(WatchedAdapter(self._sockets.add, self._sockets.add))
        guarded = self._sockets.add if allow_private_redirects else self._sockets.add_public
        self._redirect_session = _make_session(WatchedAdapter(guarded, self._sockets.add))

    def __enter__(self) -> HttpSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()
        self._redirect_session.close()

    def get(self, url: str, **named: Any) -> SourceResponse:
        return self.ask("GET", url, **named)

    def post(self, url: str, **named: Any) -> SourceResponse:
        return self.ask("POST", url, **named)

    def ask(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
        max_bytes: int | None = None,
    ) -> SourceResponse:
        """Return the response to a request if its status is 2xx; every other outcome is a `SourceError`.

        `repeatable` allows retries of a request that the source may have carried out already; by default only
        idempotent methods are. A request that never arrived is always retried.
        """
        all_headers = {**self._headers, **(headers or {})}
        if json is not None:
            data, all_headers = orjson.dumps(json), {"Content-Type": "application/json", **all_headers}
        if repeatable is None:
            repeatable = method in _IDEMPOTENT_METHODS
        request = _Request(method, _full_url(url, params), data, all_headers, repeatable)

        def read_response(response: requests.Response, body: Iterator[bytes]) -> SourceResponse:
            content = b"".join(body)
            return SourceResponse(_redact_url(response.url), response.status_code, response.headers, content)

        return self._with_retries(request, self._max_bytes if max_bytes is None else max_bytes, read_response)

    def download(
        self,
        url: str,
        path: Path,
        *,
        max_bytes: int,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        on_bytes: Callable[[int, int | None], None] | None = None,
    ) -> Download:
        """Fetch a file. `path` exists only once it is complete; `on_bytes` gets the bytes so far and the total."""
        # identity: with a content encoding, the length would not be that of the file
        all_headers = {**self._headers, "Accept-Encoding": "identity", **(headers or {})}
        request = _Request("GET", _full_url(url, params), None, all_headers, repeatable=True)

        def read_response(response: requests.Response, body: Iterator[bytes]) -> Download:
            size, digest = 0, hashlib.sha256()
            with _atomic_file(path) as file:
                for piece in body:
                    file.write(piece)
                    digest.update(piece)
                    size += len(piece)
                    self._ctx.check()
                    if on_bytes is not None:
                        on_bytes(size, _content_length(response))
            return Download(path, size, digest.hexdigest(), response.headers)

        return self._with_retries(request, max_bytes, read_response)

    def _with_retries(self, request: _Request, max_bytes: int, read_response: _ReadResponse[T]) -> T:
        """Retry with pauses until the request succeeds, fails permanently or reaches its deadline."""
        deadline = time.monotonic() + self._timeouts.total_sec
        retry = Retry(
            total=self._timeouts.max_attempts - 1,
            backoff_factor=self._timeouts.retry_delay_sec,
            backoff_max=self._timeouts.max_retry_delay_sec,
            backoff_jitter=self._timeouts.retry_delay_sec / 4,
        )
        while True:
            self._ctx.check()
            try:
                return self._attempt(request, max_bytes, read_response, deadline)
            except SourceError as error:
                if error.permanent or not (request.repeatable or isinstance(error, SourceUnreachable)):
                    raise
                try:
                    retry = retry.increment(request.method, request.url)
                except urllib3.exceptions.MaxRetryError:
                    raise error from None
                pause = retry.get_backoff_time() if error.retry_after is None else error.retry_after
                if time.monotonic() + pause >= deadline:
                    raise
            self._ctx.sleep(pause)

    def _attempt(self, request: _Request, max_bytes: int, read_response: _ReadResponse[T], deadline: float) -> T:
        with ConnectionWatchdog(self._sockets, self._ctx, deadline) as watchdog:
            try:
                with self._send(request, deadline) as response:
                    _raise_for_status(response)
                    return read_response(response, _read_body(response, max_bytes, watchdog))
            except Exception as error:
                reason = watchdog.cause_of(error)  # a socket that is shut down fails in many ways
                if not isinstance(reason, requests.RequestException | urllib3.exceptions.HTTPError | SourceError):
                    raise reason from None
                # Not `from error`: messages of requests have the whole URL, with its secrets.
                raise _to_source_error(reason, request, self._timeouts) from None

    def _send(self, request: _Request, deadline: float) -> requests.Response:
        """Send the request and follow its redirects."""
        home, session = urlsplit(request.url), self._session
        for _ in range(_MAX_REDIRECTS + 1):
            timeout = max(0.05, min(self._timeouts.stall_sec, deadline - time.monotonic()))
            response = session.request(
                request.method,
                request.url,
                data=request.body,
                headers=request.headers,
                stream=True,
                allow_redirects=False,
                timeout=(min(self._timeouts.connect_sec, timeout), timeout),
            )
            if not response.is_redirect:
                return response
            response.close()
            request = request.redirected(response.status_code, response.url, response.headers["Location"])
            session = self._session if _is_same_origin(home, urlsplit(request.url)) else self._redirect_session
        raise SourceRefused(f"it redirects more than {_MAX_REDIRECTS} times")


@dataclass(frozen=True)
class _Request:
    method: str
    url: str
    body: bytes | None
    headers: Mapping[str, str]
    repeatable: bool

    def redirected(self, status: int, current_url: str, location: str) -> _Request:
        try:
            there = requests.utils.requote_uri(urljoin(current_url, location))
            old, new = urlsplit(current_url), urlsplit(there)
            _ = new.port
        except (ValueError, *_INVALID_URL_ERRORS) as error:
            raise SourceRefused(f"it redirects to {location[:80]!r}, which is no address") from error
        if new.scheme not in _DEFAULT_PORTS or (old.scheme, new.scheme) == ("https", "http"):
            raise SourceRefused(f"it redirects to {_redact_url(there)}, away from {old.scheme}")
        headers = self.headers
        if not _is_same_origin(old, new):  # headers for one host may hold secrets
            headers = {name: value for name, value in headers.items() if name.lower() in _CROSS_ORIGIN_HEADERS}
        if status in _METHOD_KEEPING_STATUSES or self.method in ("GET", "HEAD"):
            return replace(self, url=there, headers=headers)
        return replace(self, method="GET", url=there, body=None, headers=headers)


def _full_url(url: str, params: Mapping[str, Any] | None) -> str:
    """Return the URL with its parameters. Raises `SourceRefused`."""
    problem = f"{_redact_url(url)} is not an address to fetch from"
    try:
        full = requests.Request("GET", url, params=dict(params or {})).prepare().url or url
    except _INVALID_URL_ERRORS as error:
        raise SourceRefused(f"{problem}: {type(error).__name__}") from error
    if urlsplit(full).scheme not in _DEFAULT_PORTS:
        raise SourceRefused(f"{problem}; it needs http:// or https://")
    return full


def _make_session(adapter: WatchedAdapter) -> requests.Session:
    session = requests.Session()
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _is_same_origin(first: SplitResult, second: SplitResult) -> bool:
    """Whether two URLs have the same host, on the same port or on the default ports of http and https."""
    usual = set(_DEFAULT_PORTS.values())
    ports = {place.port or _DEFAULT_PORTS[place.scheme] for place in (first, second)}
    return first.hostname == second.hostname and (len(ports) == 1 or ports == usual)


def _raise_for_status(response: requests.Response) -> None:
    status = response.status_code
    if requests.codes.ok <= status < requests.codes.multiple_choices:
        return
    if status in _RETRYABLE_STATUSES:
        raise SourceBusy(f"it answered {status} {response.reason}", retry_after=_retry_after(response))
    body = response.raw.read(_MAX_EXCERPT_BYTES, decode_content=True).decode(errors="replace")
    raise SourceAnswered(f"it answered {status} {response.reason}: {body[:200]!r}", status=status, body=body)


def _retry_after(response: requests.Response) -> float | None:
    try:
        return Retry().get_retry_after(response.raw)
    except (urllib3.exceptions.InvalidHeader, ValueError, OverflowError):  # neither seconds nor a valid date
        return None


def _content_length(response: requests.Response) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() and len(length) <= _MAX_CONTENT_LENGTH_DIGITS else None


def _read_body(response: requests.Response, max_bytes: int, watchdog: ConnectionWatchdog) -> Iterator[bytes]:
    """Yield the body in pieces. urllib3 checks that it has the announced length."""
    if (_content_length(response) or 0) > max_bytes:
        raise SourceTooLarge(f"it would send {_content_length(response)} bytes, and at most {max_bytes} are allowed")
    size = 0
    for piece in response.raw.stream(PIECE_BYTES, decode_content=True):
        size += len(piece)
        if size > max_bytes:
            raise SourceTooLarge(f"it sent more than the {max_bytes} bytes that are allowed")
        yield piece
    watchdog.raise_reason()


@contextmanager
def _atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that is renamed to `path` on success and deleted on error."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".part", delete=False) as file:
        part = Path(file.name)
        try:
            yield file  # type: ignore[misc]  # a wrapper with the methods of one
            file.flush()
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _redact_url(url: str) -> str:
    """Return the URL without user, password and query, which may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:  # such as http://[::1
        return "the URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _to_source_error(error: Exception, request: _Request, timeouts: Timeouts) -> SourceError:
    """Convert an error of requests or urllib3; the message names the URL."""
    where = f"{request.method} {_redact_url(request.url)}"
    if isinstance(error, SourceError):
        error.args = (f"{where}: {error}",)
        return error
    chain = list(_causes(error))
    root = f"{type(chain[-1]).__name__}: {chain[-1]}"

    def is_caused_by(*kinds: type[Exception]) -> bool:
        return any(isinstance(cause, kinds) for cause in chain)

    if is_caused_by(*_INVALID_URL_ERRORS):
        return SourceRefused(f"{where}: not an address to fetch from")
    if is_caused_by(*_CONNECT_ERRORS):
        return SourceUnreachable(f"{where}: no connection: {root}")
    if is_caused_by(urllib3.exceptions.ReadTimeoutError):
        return SourceStalled(f"{where}: nothing came for {timeouts.stall_sec:g} s")
    if is_caused_by(urllib3.exceptions.DecodeError):
        return SourceBroken(f"{where}: its body does not match its Content-Encoding: {root}")
    return SourceTruncated(f"{where}: it closed the connection before the end of the body: {root}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that requests and urllib3 wrapped, outermost first."""
    pending, seen = [error], set[int]()
    while pending:
        cause = pending.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        linked = (cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args)
        pending += [inner for inner in linked if isinstance(inner, BaseException)]
