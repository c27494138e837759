"""Sources over HTTP, for jobs that must end: bounded in time and size, retried, and stopped when the job is.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

import orjson
import requests
import urllib3
from urllib3.util.retry import Retry

from pipelines.toolkit.connections import Sockets, Watch, WatchedAdapter, watched
from pipelines.toolkit.errors import (
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
from pipelines.toolkit.safepoint import SafePoint, Unattended
from pipelines.toolkit.unpack import PIECE

T = TypeVar("T")

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})  # asking twice does no more than asking once
_TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
_KEEP_METHOD = frozenset({307, 308})
_REDIRECTS = 5
_LONGEST_LENGTH = 18  # digits of a Content-Length
_EXCERPT = 2_000  # bytes of an answer that says no
_PORTS = {"http": 80, "https": 443}
_TO_ANYONE = frozenset({"accept", "accept-encoding", "user-agent"})  # headers; the others may be secrets
_NOT_AN_ADDRESS = (
    requests.exceptions.InvalidURL,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidSchema,
    urllib3.exceptions.LocationParseError,
)
_NEVER_SENT = (
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    urllib3.exceptions.SSLError,
    urllib3.exceptions.ProxyError,
)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to bear with a source."""

    connect_sec: float = 10
    stall_sec: float = 30  # without a single byte
    total_sec: float = 600  # for one request with all its tries and pauses
    tries: int = 4
    pause_sec: float = 1  # doubled from try to try; the source's own Retry-After goes first
    longest_pause_sec: float = 60


@dataclass(frozen=True)
class Answer:
    """What a source said, whole and in memory."""

    url: str  # where it came from in the end, without what may be secret
    status: int
    headers: Mapping[str, str]
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

    def __init__(
        self,
        *,
        ctx: SafePoint | None = None,
        headers: Mapping[str, str] | None = None,
        patience: Patience | None = None,
        max_bytes: int = 16 * 1024**2,
        allow_private_redirects: bool = False,
        user_agent: str = "dataloader",
    ) -> None:
        self._ctx = ctx or Unattended()
        self._headers = {"User-Agent": user_agent, **(headers or {})}
        self._patience = patience or Patience()
        self._max_bytes = max_bytes
        self._sockets = Sockets()
        self._own = _session(WatchedAdapter(self._sockets.add, self._sockets.add))
        guarded = self._sockets.add if allow_private_redirects else self._sockets.add_public
        self._strangers = _session(WatchedAdapter(guarded, self._sockets.add))

    def __enter__(self) -> HttpSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._own.close()
        self._strangers.close()

    def get(self, url: str, **named: Any) -> Answer:
        return self.ask("GET", url, **named)

    def post(self, url: str, **named: Any) -> Answer:
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
    ) -> Answer:
        """The answer to a request, if it is a yes (2xx); every other outcome is a `SourceError`.

        `repeatable` says whether to try again what may have been done already; by itself only what is harmless to
        repeat is. One that never arrived is tried again in any case.
        """
        request = _Request.of(method, url, params, json, data, {**self._headers, **(headers or {})}, repeatable)
        limit = self._max_bytes if max_bytes is None else max_bytes

        def once(response: requests.Response, watch: Watch) -> Answer:
            body = b"".join(_body(response, limit))
            watch.raise_reason()
            return Answer(_shown(response.url), response.status_code, dict(response.headers), body)

        return self._patiently(request, once)

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
        """Fetch a file. It stands under `path` only once it is whole; `on_bytes` is told how far it is, and of what."""
        # identity: packed once more on the way, its length would not be the length that was promised
        wanted = {**self._headers, "Accept-Encoding": "identity", **(headers or {})}
        request = _Request.of("GET", url, params, None, None, wanted, repeatable=True)

        def once(response: requests.Response, watch: Watch) -> Download:
            with _appearing(path) as file:
                size, digest = 0, hashlib.sha256()
                for piece in _body(response, max_bytes):
                    file.write(piece)
                    digest.update(piece)
                    size += len(piece)
                    self._ctx.check()
                    if on_bytes is not None:
                        on_bytes(size, _promised(response))
                watch.raise_reason()
            return Download(path, size, digest.hexdigest(), dict(response.headers))

        return self._patiently(request, once)

    def _patiently(self, request: _Request, once: Callable[[requests.Response, Watch], T]) -> T:
        """One try after another, with pauses, until it works, cannot work or has taken too long."""
        deadline = time.monotonic() + self._patience.total_sec
        retry = Retry(
            total=self._patience.tries - 1,
            backoff_factor=self._patience.pause_sec,
            backoff_max=self._patience.longest_pause_sec,
            backoff_jitter=self._patience.pause_sec / 4,
        )
        while True:
            self._ctx.check()
            try:
                return self._try(request, once, deadline)
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

    def _try(self, request: _Request, once: Callable[[requests.Response, Watch], T], deadline: float) -> T:
        with watched(self._sockets, self._ctx, deadline) as watch:
            try:
                with self._follow(request, deadline) as response:
                    _say_no(response)
                    return once(response, watch)
            except Exception as error:
                reason = watch.why(error)  # a socket shut from outside fails in many ways, none of them the reason
                if not isinstance(reason, requests.RequestException | urllib3.exceptions.HTTPError | SourceError):
                    raise reason from None
                # Not `from error`: what requests says holds the whole address, and with it what may be secret.
                raise _ours(reason, request, self._patience) from None

    def _follow(self, request: _Request, deadline: float) -> requests.Response:
        """Send it where it is to go, and after its redirects."""
        home, session = urlsplit(request.url), self._own
        for _ in range(_REDIRECTS + 1):
            timeout = max(0.05, min(self._patience.stall_sec, deadline - time.monotonic()))
            response = session.request(
                request.method,
                request.url,
                data=request.body,
                headers=request.headers,
                stream=True,
                allow_redirects=False,
                timeout=(min(self._patience.connect_sec, timeout), timeout),
            )
            if not response.is_redirect:
                return response
            response.close()
            request = request.redirected(response.status_code, response.url, response.headers["Location"])
            session = self._own if _same_place(home, urlsplit(request.url)) else self._strangers
        raise SourceRefused(f"it redirects more than {_REDIRECTS} times")


@dataclass(frozen=True)
class _Request:
    method: str
    url: str
    body: bytes | None
    headers: Mapping[str, str]
    repeatable: bool

    @classmethod
    def of(
        cls,
        method: str,
        url: str,
        params: Mapping[str, Any] | None,
        json: Any,
        data: bytes | None,
        headers: Mapping[str, str],
        repeatable: bool | None,
    ) -> _Request:
        try:
            full = requests.Request(method, url, params=dict(params or {})).prepare().url or url
        except _NOT_AN_ADDRESS as error:
            raise SourceRefused(f"{_shown(url)} is not an address to fetch from: {type(error).__name__}") from error
        if urlsplit(full).scheme not in _PORTS:
            raise SourceRefused(f"{_shown(url)} is not an address to fetch from; it needs http:// or https://")
        if json is not None:
            data, headers = orjson.dumps(json), {"Content-Type": "application/json", **headers}
        return cls(method, full, data, headers, method in _REPEATABLE if repeatable is None else repeatable)

    def redirected(self, status: int, here: str, location: str) -> _Request:
        old, new, there = self._places(here, location)
        if new.scheme not in _PORTS or (old.scheme, new.scheme) == ("https", "http"):
            raise SourceRefused(f"it redirects to {_shown(there)}, away from {old.scheme}")
        headers = self.headers
        if not _same_place(old, new):  # what is meant for one host is nobody else's to see
            headers = {name: value for name, value in headers.items() if name.lower() in _TO_ANYONE}
        if status in _KEEP_METHOD or self.method in ("GET", "HEAD"):
            return _Request(self.method, there, self.body, headers, self.repeatable)
        return _Request("GET", there, None, headers, self.repeatable)

    @staticmethod
    def _places(here: str, location: str) -> tuple[SplitResult, SplitResult, str]:
        try:
            there = requests.utils.requote_uri(urljoin(here, location))
            old, new = urlsplit(here), urlsplit(there)
            _ = new.port
        except (ValueError, *_NOT_AN_ADDRESS) as error:
            raise SourceRefused(f"it redirects to {location[:80]!r}, which is no address") from error
        return old, new, there


def _session(adapter: WatchedAdapter) -> requests.Session:
    session = requests.Session()
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _same_place(one: SplitResult, other: SplitResult) -> bool:
    """The same host, on the same port or on the usual ones of http and https."""
    usual = set(_PORTS.values())
    ports = {place.port or _PORTS[place.scheme] for place in (one, other)}
    return one.hostname == other.hostname and (len(ports) == 1 or ports == usual)


def _say_no(response: requests.Response) -> None:
    status = response.status_code
    if requests.codes.ok <= status < requests.codes.multiple_choices:
        return
    if status in _TEMPORARY:
        raise SourceBusy(f"it answered {status} {response.reason}", retry_after=_retry_after(response))
    body = response.raw.read(_EXCERPT, decode_content=True).decode(errors="replace")
    raise SourceAnswered(f"it answered {status} {response.reason}: {body[:200]!r}", status=status, body=body)


def _retry_after(response: requests.Response) -> float | None:
    try:
        return Retry().get_retry_after(response.raw)
    except (urllib3.exceptions.InvalidHeader, ValueError, OverflowError):  # neither seconds nor a date that there is
        return None


def _promised(response: requests.Response) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() and len(length) <= _LONGEST_LENGTH else None


def _body(response: requests.Response, max_bytes: int) -> Iterator[bytes]:
    """The body in pieces. That it is as long as was promised, urllib3 sees to."""
    if (_promised(response) or 0) > max_bytes:
        raise SourceTooLarge(f"it would send {_promised(response)} bytes, and at most {max_bytes} are allowed")
    size = 0
    for piece in response.raw.stream(PIECE, decode_content=True):
        size += len(piece)
        if size > max_bytes:
            raise SourceTooLarge(f"it sent more than the {max_bytes} bytes that are allowed")
        yield piece


@contextmanager
def _appearing(path: Path) -> Iterator[BinaryIO]:
    """A file under another name, which takes its own when all went well and else is gone."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".part", delete=False) as file:
        part = Path(file.name)
        try:
            yield file  # type: ignore[misc]  # a wrapper with the methods of one
            file.flush()
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _shown(url: str) -> str:
    """The address without what may be secret: user, password, query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _ours(error: Exception, request: _Request, patience: Patience) -> SourceError:
    """The error in the toolkit's words, naming the address."""
    where = f"{request.method} {_shown(request.url)}"
    if isinstance(error, SourceError):
        error.args = (f"{where}: {error}",)
        return error
    chain = list(_causes(error))
    if any(isinstance(cause, _NOT_AN_ADDRESS) for cause in chain):
        return SourceRefused(f"{where}: not an address to fetch from")
    if any(isinstance(cause, _NEVER_SENT) for cause in chain):
        return SourceUnreachable(f"{where}: no connection: {_root(chain)}")
    if any(isinstance(cause, urllib3.exceptions.ReadTimeoutError) for cause in chain):
        return SourceStalled(f"{where}: nothing came for {patience.stall_sec:g} s")
    if any(isinstance(cause, urllib3.exceptions.DecodeError) for cause in chain):
        return SourceBroken(f"{where}: its body is not packed as it says: {_root(chain)}")
    return SourceTruncated(f"{where}: it hung up before all was said: {_root(chain)}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What requests and urllib3 wrapped, outermost first: each keeps the one before in its own way."""
    waiting, seen = [error], set[int]()
    while waiting:
        cause = waiting.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        linked = (cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args)
        waiting += [inner for inner in linked if isinstance(inner, BaseException)]


def _root(chain: list[BaseException]) -> str:
    return f"{type(chain[-1]).__name__}: {chain[-1]}"
