"""Authentication and authorization: API keys, browser sessions, and local callers of a service without keys.

Every operation declares its scopes (`scope=`, see `app/http/routing.py`), which are checked before its handler runs.
Handlers use `current_actor()`. One that enqueues jobs calls `current_actor().require_trigger(task, queue)` for each,
since a key may be limited to certain tasks and queues; one that shows a job to a key without `read` checks
`can_see(task, queue)`.

A page that changes something sends the CSRF token of its session in the form field `csrf_token` or the header
`X-CSRF-Token`; templates have `actor` and `csrf_token`. A page that needs a session redirects to `/login`."""

from __future__ import annotations

import hmac
import ipaddress
import math
import re
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flask import request

from dataloader.app import log
from dataloader.app.db.statements import AuditContext
from dataloader.app.http.auth.api_keys import ActiveKey, Scope
from dataloader.app.http.auth.sessions import LoginThrottle, Session, Sessions
from dataloader.app.http.caches import KeyCache
from dataloader.app.http.problems import ProblemCode, RequestRejected

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Any of these headers shows that a proxy has forwarded the request.
_FORWARDING_HEADERS = (
    "HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP", "HTTP_X_FORWARDED_HOST", "HTTP_X_FORWARDED_PROTO",
    "HTTP_VIA", "HTTP_X_CLIENT_IP", "HTTP_TRUE_CLIENT_IP", "HTTP_CF_CONNECTING_IP",
)  # fmt: skip
_HOST_HEADER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::\d+)?")
_SAME_SITE = ("same-origin", "none")  # none: a typed address or a bookmark


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse addresses and networks such as 10.0.0.0/8. Raises ValueError."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def is_local(environ: WSGIEnvironment) -> bool:
    """Whether a program on this machine sent the request itself; a proxy on this machine only forwards."""
    return (
        is_loopback(environ.get("REMOTE_ADDR", ""))
        and not any(header in environ for header in _FORWARDING_HEADERS)
        and environ.get("SERVER_PROTOCOL") != "HTTP/1.0"  # proxies use it towards their backends
    )


@lru_cache(maxsize=256)
def is_loopback(text: str) -> bool:
    address = _parse_address(text)
    return address is not None and address.is_loopback


@lru_cache(maxsize=256)
def is_local_host_header(host: str) -> bool:
    """Whether a Host header names this machine. DNS rebinding makes the name of another site resolve to 127.0.0.1: its
    pages send their own name."""
    match = _HOST_HEADER.fullmatch(host)
    if match is None:
        return False
    name = match[1].strip("[]").lower().rstrip(".")
    return name in ("localhost", socket.gethostname().lower()) or name.endswith(".localhost") or is_loopback(name)


def is_cross_site(environ: WSGIEnvironment) -> bool:
    """Whether a page of another site made a browser send the request; other clients send neither header."""
    site = environ.get("HTTP_SEC_FETCH_SITE")
    if site is not None:
        return site not in _SAME_SITE
    origin = environ.get("HTTP_ORIGIN")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != environ.get("HTTP_HOST", "").lower() or not origin.startswith("http")
    except ValueError:
        return True


def _parse_address(text: str) -> Address | None:
    """Parse an address, or return None; an IPv4 address mapped into IPv6 is returned as IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _in_networks(text: str, networks: tuple[Network, ...]) -> bool:
    address = _parse_address(text)
    return address is not None and any(address in network for network in networks)


LOG = log.get("dataloader.app.http.auth.guard")
# Keys of the WSGI environment.
AUTHENTICATOR, ACTOR = "dataloader.authenticator", "dataloader.actor"
IS_PAGE, IS_READ, REQUEST_ID = "dataloader.page", "dataloader.read", "dataloader.request_id"
_CHALLENGE = 'Bearer realm="dataloader"'
CSRF_FIELD = "csrf_token"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_FORM_MEDIA_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")


@dataclass(frozen=True, kw_only=True)
class Actor:
    """The caller of a request and its permissions."""

    name: str
    auth_method: str  # key | session | loopback: no keys exist, local caller | none: authentication is disabled
    address: str
    scopes: frozenset[Scope]  # with the implied ones
    key_id: str | None = None
    tasks: frozenset[str] | None = None  # None: all
    queues: frozenset[str] | None = None
    session: Session | None = None

    def has_scope(self, required_scopes: tuple[Scope, ...]) -> bool:
        """Whether the actor has one of these scopes; with an empty tuple every actor has."""
        return not required_scopes or not self.scopes.isdisjoint(required_scopes)

    def can_trigger(self, task: str, queue: str) -> bool:
        return (
            Scope.TRIGGER in self.scopes
            and (self.tasks is None or task in self.tasks)
            and (self.queues is None or queue in self.queues)
        )

    def require_trigger(self, task: str, queue: str) -> None:
        """Raises RequestRejected."""
        if not self.can_trigger(task, queue):
            detail = f"this key may not trigger the task {task!r} in the queue {queue!r}"
            raise RequestRejected(ProblemCode.OUTSIDE_KEY_LIMITS, detail)

    def can_see_task(self, task: str) -> bool:
        """Without `read`, an actor sees only the tasks that it may trigger."""
        return Scope.READ in self.scopes or self.tasks is None or task in self.tasks

    def can_see_queue(self, queue: str) -> bool:
        return Scope.READ in self.scopes or self.queues is None or queue in self.queues

    def can_see(self, task: str, queue: str) -> bool:
        """Without `read`, an actor sees only jobs that it might have triggered."""
        return Scope.READ in self.scopes or self.can_trigger(task, queue)

    @property
    def sees_all_jobs(self) -> bool:
        return Scope.READ in self.scopes or (self.tasks is None and self.queues is None)

    @property
    def limits(self) -> dict[str, frozenset[str] | None]:
        """The tasks and queues whose jobs it sees without `read`; None: all."""
        return {"tasks": self.tasks, "queues": self.queues}

    def audit_context(self, action: str, request_id: str) -> AuditContext:
        return AuditContext(
            action=action,
            actor=self.name,
            via=self.auth_method,
            key_id=self.key_id,
            address=self.address,
            request_id=request_id,
        )


_ALL_SCOPES = frozenset(Scope)
_LOCAL_ACTOR, _ANONYMOUS = "anonymous (localhost)", "anonymous"


class Authenticator:
    """Identifies callers. Without a key cache only local callers are accepted."""

    def __init__(
        self,
        key_cache: KeyCache | None,
        sessions: Sessions | None,
        *,
        auth_disabled: bool = False,
        proxies: tuple[Network, ...] = (),
        throttle: LoginThrottle | None = None,
    ) -> None:
        self.key_cache, self.sessions = key_cache, sessions
        self._auth_disabled, self._proxies = auth_disabled, proxies
        self._throttle = throttle or LoginThrottle()

    def client_address(self, environ: WSGIEnvironment) -> str:
        """The address of the peer, or of the client for which trusted proxies have forwarded the request."""
        peer = str(environ.get("REMOTE_ADDR", ""))
        if not self._proxies or not _in_networks(peer, self._proxies):
            return peer
        for entry in reversed(environ.get("HTTP_X_FORWARDED_FOR", "").split(",")):
            hop = str(entry).strip()
            if _parse_address(hop) is None:
                return peer
            if not _in_networks(hop, self._proxies):
                return hop
        return peer

    def is_https(self, environ: WSGIEnvironment) -> bool:
        if environ.get("wsgi.url_scheme") == "https":
            return True
        from_proxy = _in_networks(str(environ.get("REMOTE_ADDR", "")), self._proxies)
        return from_proxy and environ.get("HTTP_X_FORWARDED_PROTO", "") == "https"

    def authenticate(self, environ: WSGIEnvironment) -> Actor:
        """Raises RequestRejected or DatabaseUnavailable."""
        actor = self._find_actor(environ)
        if actor is not None:
            return actor
        if _has_bearer(environ):
            raise self.reject_key(self.client_address(environ))
        raise RequestRejected(ProblemCode.KEY_REQUIRED, headers={"WWW-Authenticate": _CHALLENGE})

    def _find_actor(self, environ: WSGIEnvironment) -> Actor | None:
        """Return the caller, or None if it is not accepted. Raises RequestRejected or DatabaseUnavailable."""
        address = self.client_address(environ)
        if self._auth_disabled:
            if is_local(environ) and not is_local_host_header(environ.get("HTTP_HOST", "")):
                raise RequestRejected(ProblemCode.HOST_REFUSED)  # a page of another site, in a browser on this machine
            return Actor(name=_ANONYMOUS, auth_method="none", address=address, scopes=_ALL_SCOPES)
        key_cache = self.key_cache
        if key_cache is not None and self.sessions is not None:
            actor = self._actor_of_credentials(environ, key_cache, self.sessions, address)
            if actor is not None:
                return actor
        if is_local(environ) and not (key_cache is not None and key_cache.has_keys):
            if not is_local_host_header(environ.get("HTTP_HOST", "")):
                raise RequestRejected(ProblemCode.HOST_REFUSED)
            return Actor(name=_LOCAL_ACTOR, auth_method="loopback", address=address, scopes=_ALL_SCOPES)
        return None

    def is_still_valid(self, actor: Actor, required_scopes: tuple[Scope, ...]) -> bool:
        """Whether an actor of an open stream would be accepted again. Raises DatabaseUnavailable."""
        if self._auth_disabled or self.key_cache is None:
            return True
        if actor.key_id is None:
            return not self.key_cache.has_keys
        if actor.session is not None and actor.session.expires_at <= time.time():
            return False
        key = self.key_cache.get(actor.key_id)
        return key is not None and actor_for_key(key, actor.auth_method, actor.address).has_scope(required_scopes)

    def _actor_of_credentials(
        self, environ: WSGIEnvironment, key_cache: KeyCache, sessions: Sessions, address: str
    ) -> Actor | None:
        """The actor of the bearer token, or without one of the session cookie."""
        if _has_bearer(environ):
            key = key_cache.find(environ["HTTP_AUTHORIZATION"][7:].strip())
            return None if key is None else actor_for_key(key, "key", address)
        cookie = request.cookies.get(cookie_name(secure=self.is_https(environ))) if "HTTP_COOKIE" in environ else None
        session = sessions.read(cookie) if cookie else None
        key = None if session is None else key_cache.get(session.key_id)
        if key is None:
            return None
        key_cache.record_use(key.id)
        return actor_for_key(key, "session", address, session)

    def reject_key(self, address: str) -> RequestRejected:
        """Return the error for an invalid key; it is logged unless the address has failed too often."""
        wait = self._throttle.record_failure(address)
        if wait is not None:
            headers = {"Retry-After": str(max(1, math.ceil(wait)))}
            return RequestRejected(
                ProblemCode.TOO_MANY_LOGIN_ATTEMPTS, "too many attempts with invalid keys", headers=headers
            )
        LOG.warning("auth.rejected", address=address, reason="key_invalid")
        log.audit("auth.rejected", remote=address, reason="key_invalid")
        challenge = f'{_CHALLENGE}, error="invalid_token"'
        return RequestRejected(ProblemCode.KEY_INVALID, headers={"WWW-Authenticate": challenge})

    def check_csrf(self, environ: WSGIEnvironment, actor: Actor | None) -> None:
        """Reject a changing request that a page of another site has sent. Raises RequestRejected."""
        if actor is not None and actor.auth_method == "key":
            return  # browsers never send a key by themselves
        if is_cross_site(environ):
            raise RequestRejected(ProblemCode.CROSS_SITE)
        if actor is None or actor.session is None:
            return
        token = environ.get("HTTP_X_CSRF_TOKEN")
        if token is None and request.mimetype in _FORM_MEDIA_TYPES:
            token = request.form.get(CSRF_FIELD)
        if token is None or not hmac.compare_digest(token.encode(), self.csrf_token(actor.session).encode()):
            detail = "the CSRF token of the session is missing or wrong; reload the page"
            raise RequestRejected(ProblemCode.CROSS_SITE, detail)

    def csrf_token(self, session: Session) -> str:
        return "" if self.sessions is None else self.sessions.csrf_token(session)


def _has_bearer(environ: WSGIEnvironment) -> bool:
    return str(environ.get("HTTP_AUTHORIZATION", ""))[:7].lower() == "bearer "


def actor_for_key(key: ActiveKey, auth_method: str, address: str, session: Session | None = None) -> Actor:
    return Actor(
        name=key.name, auth_method=auth_method, address=address, scopes=key.scopes, key_id=key.id,
        tasks=key.tasks, queues=key.queues, session=session,
    )  # fmt: skip


def cookie_name(*, secure: bool) -> str:
    """Browsers accept a cookie with the prefix `__Host-` only over TLS and from the host itself."""
    return "__Host-dl_session" if secure else "dl_session"


def authorize(environ: WSGIEnvironment, required_scopes: tuple[Scope, ...], *, is_page: bool) -> Actor | None:
    """Authenticate the caller and check its scopes; None if the operation is open to everyone."""
    is_safe = environ["REQUEST_METHOD"] in _SAFE_METHODS
    authenticator: Authenticator = environ[AUTHENTICATOR]
    environ[IS_PAGE] = is_page
    if not required_scopes:
        if not is_safe:
            authenticator.check_csrf(environ, None)
        return None
    actor = environ[ACTOR] = authenticator.authenticate(environ)
    if not is_safe:
        authenticator.check_csrf(environ, actor)
    if not actor.has_scope(required_scopes):
        challenge = f'{_CHALLENGE}, error="insufficient_scope", scope="{" ".join(required_scopes)}"'
        detail = f"this takes a key with the scope {' or '.join(required_scopes)}"
        raise RequestRejected(ProblemCode.SCOPE_MISSING, detail, headers={"WWW-Authenticate": challenge})
    return actor


def current_actor() -> Actor:
    """The caller of this request; operations that are open to everyone have none."""
    actor: Actor = request.environ[ACTOR]
    return actor


def revalidator(required_scopes: tuple[Scope, ...]) -> Callable[[], bool]:
    """Return a check of the caller for use after the request: see `Authenticator.is_still_valid`."""
    authenticator: Authenticator = request.environ[AUTHENTICATOR]
    actor = current_actor()
    return lambda: authenticator.is_still_valid(actor, required_scopes)


def csrf_token() -> str:
    actor = request.environ.get(ACTOR)
    authenticator: Authenticator = request.environ[AUTHENTICATOR]
    return "" if actor is None or actor.session is None else authenticator.csrf_token(actor.session)


def has_full_details() -> bool:
    """Whether an open operation may answer in full: to local callers and to those with the scope `read`."""
    authenticator: Authenticator = request.environ[AUTHENTICATOR]
    if is_local(request.environ) and is_local_host_header(request.environ.get("HTTP_HOST", "")):
        return True
    try:
        return authenticator.authenticate(request.environ).has_scope((Scope.READ,))
    except Exception:  # an open operation answers every caller
        return False


def log_fields(environ: WSGIEnvironment) -> dict[str, Any]:
    """The fields that name the caller in log lines; empty before authentication."""
    actor: Actor | None = environ.get(ACTOR)
    if actor is None:
        return {}
    return {"actor": actor.name, "via": actor.auth_method} | ({} if actor.key_id is None else {"key_id": actor.key_id})
