"""Who calls, and whether he may: keys, sessions of browsers, and who needs neither.

Every operation says who may call it (`scope=`, see `app.web.operations`) and is asked for nothing else; the rest is
done around it. What its code may ask:

    current_actor()      who calls: .name, .key_id, .via, .address, .may((Scope.OPERATE,)), .may_trigger(task, queue)
    csrf_token()         the token of the browser's session, "" if the caller has none

A page that changes something sends the token back, in a hidden field `csrf_token` of a form or, as htmx can for all
that it sends (`hx-headers='{"X-CSRF-Token": "…"}'` on the body), in the header `X-CSRF-Token`. Templates have both as
`actor` and `csrf_token`. A page (an operation that answers with HTML) that is asked for without a session is answered
with the way to `/login`; a fragment that htmx asks for likewise, with `HX-Redirect`.

An operation that puts jobs into the queue calls `current_actor().must_trigger(task, queue)` for each, as a key may be
limited to some; one that tells a holder of `trigger` alone about a job asks `.may_see(task, queue)` first.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flask import request

from app import log
from app.queue.audit import Act
from app.queue.keys import Live, Scope
from app.web.callers import (
    Network,
    address_of,
    comes_from_another_site,
    is_encrypted,
    is_from_here,
    names_this_machine,
)
from app.web.keyring import KeyRing
from app.web.problems import (
    CrossSite,
    HostRefused,
    KeyInvalid,
    KeyRequired,
    OutsideKeyLimits,
    ScopeMissing,
    TooManyTries,
)
from app.web.sessions import Session, Sessions
from app.web.tries import Tries

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

LOG = log.get("app.web.auth")
# In a request's environment.
GUARD, ACTOR, PAGE, REQUEST_ID = "dataloader.guard", "dataloader.actor", "dataloader.page", "dataloader.request_id"
TOKEN_HEADER, TOKEN_FIELD = "X-CSRF-Token", "csrf_token"  # where a token is sent
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


@dataclass(frozen=True, kw_only=True)
class Actor:
    """Who calls, and what he may do."""

    name: str
    via: str  # key | session | loopback: somebody of this machine | none: nobody is asked
    address: str
    scopes: frozenset[Scope]  # the implied ones too
    key_id: str | None = None
    tasks: frozenset[str] | None = None  # None: all
    queues: frozenset[str] | None = None
    session: Session | None = None

    def may(self, access: tuple[Scope, ...]) -> bool:
        """Has he one of these scopes? None is needed where none is named."""
        return not access or not self.scopes.isdisjoint(access)

    def may_trigger(self, task: str, queue: str) -> bool:
        return (
            Scope.TRIGGER in self.scopes
            and (self.tasks is None or task in self.tasks)
            and (self.queues is None or queue in self.queues)
        )

    def must_trigger(self, task: str, queue: str) -> None:
        """Raises OutsideKeyLimits, unless he may."""
        if not self.may_trigger(task, queue):
            raise OutsideKeyLimits(f"this key may not trigger the task {task!r} in the queue {queue!r}")

    def may_know(self, task: str) -> bool:
        """Who may only trigger knows of the tasks that he might trigger."""
        return Scope.READ in self.scopes or self.tasks is None or task in self.tasks

    def may_know_queue(self, queue: str) -> bool:
        return Scope.READ in self.scopes or self.queues is None or queue in self.queues

    def may_see(self, task: str, queue: str) -> bool:
        """Who may read sees every job; who may only trigger sees those he might have triggered."""
        return Scope.READ in self.scopes or self.may_trigger(task, queue)

    def act(self, action: str, request_id: str) -> Act:
        return Act(
            action=action,
            actor=self.name,
            via=self.via,
            key_id=self.key_id,
            address=self.address,
            request_id=request_id,
        )


_EVERYTHING = frozenset(Scope)
_HERE, _ANYBODY = "somebody on this machine", "anybody"


class Guard:
    """Decides who a caller is. One an app; `ring` None: there are no keys, and only this machine is let in."""

    def __init__(
        self,
        ring: KeyRing | None,
        sessions: Sessions | None,
        *,
        wide_open: bool = False,
        proxies: tuple[Network, ...] = (),
        tries: Tries | None = None,
    ) -> None:
        self.ring, self.sessions = ring, sessions
        self._wide_open, self._proxies = wide_open, proxies
        self._tries = tries or Tries()

    def address(self, environ: WSGIEnvironment) -> str:
        return address_of(environ, self._proxies)

    def encrypted(self, environ: WSGIEnvironment) -> bool:
        return is_encrypted(environ, self._proxies)

    def identify(self, environ: WSGIEnvironment) -> Actor:
        """Raises KeyRequired, KeyInvalid, TooManyTries, HostRefused; DatabaseUnavailable, if it cannot be known."""
        actor = self.known(environ)
        if actor is not None:
            return actor
        if _shows_a_key(environ):
            raise self.refusal(address_of(environ, self._proxies))
        raise KeyRequired

    def knows_at_once(self, environ: WSGIEnvironment) -> bool:
        """Can be told who it is without asking the database, and by the head alone?"""
        if self._wide_open or self.ring is None:
            return True
        shown = environ["HTTP_AUTHORIZATION"][7:].strip() if _shows_a_key(environ) else None
        return "HTTP_COOKIE" not in environ and self.ring.knows_at_once(shown)

    def known(self, environ: WSGIEnvironment) -> Actor | None:
        """Who it is; None: nobody who is let in. Raises HostRefused; DatabaseUnavailable, if it cannot be known."""
        address = address_of(environ, self._proxies)
        if self._wide_open:
            if is_from_here(environ) and not names_this_machine(environ.get("HTTP_HOST", "")):
                raise HostRefused  # a page of another site, in a browser of this machine
            return Actor(name=_ANYBODY, via="none", address=address, scopes=_EVERYTHING)
        ring = self.ring
        if ring is not None and _shows_a_key(environ):
            key = ring.find(environ["HTTP_AUTHORIZATION"][7:].strip())
            if key is not None:
                return _holder(key, "key", address)
        elif self.sessions is not None and ring is not None and "HTTP_COOKIE" in environ:
            actor = self._by_session(environ, ring, address)
            if actor is not None:
                return actor
        if is_from_here(environ) and not (ring is not None and ring.configured):
            if not names_this_machine(environ.get("HTTP_HOST", "")):
                raise HostRefused
            return Actor(name=_HERE, via="loopback", address=address, scopes=_EVERYTHING)
        return None

    def still(self, actor: Actor, access: tuple[Scope, ...]) -> bool:
        """Would he be let in again, who was a while ago? For answers that last. Raises DatabaseUnavailable, if it
        cannot be known."""
        if self._wide_open or self.ring is None:
            return True
        if actor.key_id is None:
            return not self.ring.configured
        if actor.session is not None and actor.session.expires_at <= time.time():
            return False
        key = self.ring.by_id(actor.key_id)
        return key is not None and _holder(key, actor.via, actor.address).may(access)

    def _by_session(self, environ: WSGIEnvironment, ring: KeyRing, address: str) -> Actor | None:
        assert self.sessions is not None  # noqa: S101 - whoever calls has looked
        cookie = request.cookies.get(cookie_name(encrypted=self.encrypted(environ)))
        session = None if not cookie else self.sessions.read(cookie)
        key = None if session is None else ring.by_id(session.key_id)
        if key is None:
            return None
        ring.note_use(key.id)
        return _holder(key, "session", address, session)

    def refusal(self, address: str) -> Exception:
        """For somebody whose key is not valid; told in the log, unless he has tried too often."""
        wait = self._tries.failed(address)
        if wait is not None:
            return TooManyTries(wait)
        LOG.warning("auth.refused", address=address, reason="key_invalid")
        log.audit("auth.refused", remote=address, reason="key_invalid")
        return KeyInvalid()

    def must_be_ours(self, environ: WSGIEnvironment, actor: Actor | None) -> None:
        """A request that changes something, from a browser: it must come from a page of ours. Raises CrossSite."""
        if actor is not None and actor.via == "key":
            return  # no browser sends a key by itself
        if comes_from_another_site(environ):
            raise CrossSite
        if actor is None or actor.session is None:
            return
        told = environ.get("HTTP_X_CSRF_TOKEN")
        if told is None and request.mimetype in _FORMS:
            told = request.form.get(TOKEN_FIELD)
        if told is None or not _equal(told, self.token(actor.session)):
            raise CrossSite("the request lacks the token of its session; load the page again")

    def token(self, session: Session) -> str:
        return "" if self.sessions is None else self.sessions.token(session)


def _shows_a_key(environ: WSGIEnvironment) -> bool:
    return str(environ.get("HTTP_AUTHORIZATION", ""))[:7].lower() == "bearer "


def _holder(key: Live, via: str, address: str, session: Session | None = None) -> Actor:
    return Actor(
        name=key.name, via=via, address=address, scopes=key.scopes, key_id=key.id, tasks=key.tasks, queues=key.queues,
        session=session,
    )  # fmt: skip


def cookie_name(*, encrypted: bool) -> str:
    """With the prefix a browser takes it from this very host alone, and over TLS alone."""
    return "__Host-dl_session" if encrypted else "dl_session"


def admit(access: tuple[Scope, ...], *, page: bool) -> Actor | None:
    """Let the caller of this request in, or raise why not. None: nobody was asked who he is."""
    environ = request.environ
    guard: Guard = environ[GUARD]
    environ[PAGE] = page
    if not access:
        if request.method not in _SAFE:
            guard.must_be_ours(environ, None)
        return None
    actor = environ[ACTOR] = guard.identify(environ)
    if request.method not in _SAFE:
        guard.must_be_ours(environ, actor)
    if not actor.may(access):
        raise ScopeMissing([scope.value for scope in access])
    return actor


def current_actor() -> Actor:
    """Who calls. For operations that are not open to everybody; of an open one there may be nobody to name."""
    actor: Actor = request.environ[ACTOR]
    return actor


def still_welcome(access: tuple[Scope, ...]) -> Callable[[], bool]:
    """A question that may be asked while an answer lasts, in no request any more: see Guard.still."""
    guard: Guard = request.environ[GUARD]
    actor = current_actor()
    return lambda: guard.still(actor, access)


def csrf_token() -> str:
    actor = request.environ.get(ACTOR)
    guard: Guard = request.environ[GUARD]
    return "" if actor is None or actor.session is None else guard.token(actor.session)


def may_know_more() -> bool:
    """Of an operation that is open: is it somebody who may read, or who stands beside the service anyway?"""
    guard: Guard = request.environ[GUARD]
    if is_from_here(request.environ) and names_this_machine(request.environ.get("HTTP_HOST", "")):
        return True
    try:
        return guard.identify(request.environ).may((Scope.READ,))
    except Exception:  # whoever it is, what is open is answered
        return False


def named(environ: WSGIEnvironment) -> dict[str, Any]:
    """The caller as lines of the log name him, once he is known."""
    actor = environ.get(ACTOR)
    if actor is None:
        return {}
    return {"actor": actor.name, "via": actor.via} | ({} if actor.key_id is None else {"key_id": actor.key_id})


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
