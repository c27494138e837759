"""Coming in with a browser, and leaving: a key is exchanged for a session."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from flask import Response, render_template, request
from pydantic import BaseModel, ConfigDict, Field

from app import log
from app.errors import DataloaderError
from app.queue.audit import Audit
from app.web.auth import ACTOR, REQUEST_ID, Actor, Guard, cookie_name
from app.web.exchange import said
from app.web.operations import HTML, OPEN, Subject
from app.web.options import WebOptions
from app.web.problems import AccessRefused, Code, TooManyTries

LOG = log.get("app.web.auth")
_FRONT = "/"


class LoginForm(BaseModel):
    """A key, and where to go with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: Annotated[str, Field(max_length=200, description="An API key.")]
    next: Annotated[str, Field(max_length=2000, description="The page to go to, of this service.")] = _FRONT


class LoginQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    next: Annotated[str, Field(max_length=2000, description="The page to go to afterwards, of this service.")] = _FRONT


def login(guard: Guard, audit: Audit, options: WebOptions) -> Subject:
    subject = Subject("session", "", options.max_json_depth)

    @subject.get("/login", query=LoginQuery, answer=str, media_type=HTML, scope=OPEN)
    def login_page(wanted: LoginQuery) -> str:
        """See the form to come in by."""
        return _page(wanted.next, None)

    @subject.post(
        "/login",
        form=LoginForm,
        answer=str,
        media_type=HTML,
        problems=(Code.DATABASE_UNAVAILABLE,),
        pages={303: "To `next`.", 401: "The form again.", 429: "The form again, after `Retry-After` seconds."},
        scope=OPEN,
    )
    def log_in(given: LoginForm) -> Response:
        """Exchange a key for a session.

        The answer sets a cookie that scripts cannot read and other sites' pages cannot use, and goes on to `next`.
        """
        ring, sessions = guard.ring, guard.sessions
        key = None if ring is None else ring.find(given.key.strip())
        if key is None or sessions is None:
            return _refused(guard, given.next)
        _, cookie = sessions.begin(key.id)
        actor = Actor(
            name=key.name, via="session", address=guard.address(request.environ), scopes=key.scopes, key_id=key.id
        )
        _tell("login", actor, audit)
        response = _go(_ours(given.next))
        encrypted = guard.encrypted(request.environ)
        response.set_cookie(
            cookie_name(encrypted=encrypted),
            cookie,
            max_age=sessions.lasts_sec,
            path="/",
            httponly=True,
            secure=encrypted,
            samesite="Lax",
        )
        return response

    @subject.post("/logout", answer=str, media_type=HTML, scope=OPEN, pages={303: "To /login."})
    def log_out() -> Response:
        """End the browser's session. There may be none any more."""
        try:
            actor = guard.identify(request.environ)
        except (AccessRefused, DataloaderError):
            actor = None
        if actor is not None and actor.session is not None:
            guard.must_be_ours(request.environ, actor)
            _tell("logout", actor, audit)
        response = _go("/login")
        encrypted = guard.encrypted(request.environ)
        response.delete_cookie(
            cookie_name(encrypted=encrypted), path="/", httponly=True, secure=encrypted, samesite="Lax"
        )
        return response

    return subject


def _go(there: str) -> Response:
    return Response(status=HTTPStatus.SEE_OTHER, headers={"Location": there}, content_type=f"{HTML}; charset=utf-8")


def _refused(guard: Guard, there: str) -> Response:
    refusal = guard.refusal(guard.address(request.environ))
    headers, status = {}, HTTPStatus.UNAUTHORIZED
    told = "This key is not valid: it was never made, has run out, or was revoked."
    if isinstance(refusal, TooManyTries):
        status, told = HTTPStatus.TOO_MANY_REQUESTS, "Too many tries; wait a little before the next one."
        headers["Retry-After"] = str(refusal.retry_after_sec)
    return Response(_page(there, told), status, headers, content_type=f"{HTML}; charset=utf-8")


def _page(there: str, told: str | None) -> str:
    return render_template("login.html", next=_ours(there), told=told)


def _ours(there: str) -> str:
    """An address of this service; whatever else it is, and be it only for some browsers, becomes the front page."""
    fine = there.startswith("/") and not there.startswith(("//", "/\\")) and there.isprintable() and "\\" not in there
    return there if fine else _FRONT


def _tell(what: str, actor: Actor, audit: Audit) -> None:
    """In the log, in the audit file and in its table; a table that cannot be written keeps nobody out, as the keys that
    are known do not while the database is away."""
    request.environ[ACTOR] = actor
    said(f"session.{what}")
    LOG.info(f"session.{what}", actor=actor.name, key_id=actor.key_id, remote=actor.address)
    try:
        audit.record(actor.act(what, request.environ[REQUEST_ID]), "session", actor.key_id)
    except DataloaderError as error:
        LOG.error("audit.failed", error=str(error), action=what)
