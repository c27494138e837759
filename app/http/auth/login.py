"""Login and logout of browsers: an API key is exchanged for a session cookie."""

from __future__ import annotations

from typing import Annotated, Any

from flask import Response, request
from pydantic import Field

from dataloader.app import log
from dataloader.app.acts.audit_log import AuditLog
from dataloader.app.errors import DataloaderError
from dataloader.app.http.auth.guard import ACTOR, REQUEST_ID, Actor, Authenticator, actor_for_key, cookie_name
from dataloader.app.http.links import render_html
from dataloader.app.http.middleware import audit_action
from dataloader.app.http.problems import ProblemCode, RequestRejected
from dataloader.app.http.routing import HTML, OPEN, ApiBlueprint
from dataloader.app.http.schemas import QueryModel
from dataloader.app.ui.base import redirect_to, safe_path

LOG = log.get("dataloader.app.http.auth.guard")
_HOME = "/"


class LoginQuery(QueryModel):
    next: Annotated[str, Field(max_length=2000, description="The path of this service to redirect to.")] = _HOME


class LoginForm(LoginQuery):
    """The login form."""

    key: Annotated[str, Field(max_length=200, description="An API key.")]


def create_login_blueprint(authenticator: Authenticator, audit: AuditLog) -> ApiBlueprint:
    blueprint = ApiBlueprint("session", "")

    @blueprint.get("/login", query=LoginQuery, response=str, media_type=HTML, scope=OPEN)
    def show_login(query: LoginQuery) -> str:
        """Show the login form."""
        return _render_login(query.next, None)

    @blueprint.post(
        "/login",
        form=LoginForm,
        response=str,
        media_type=HTML,
        problems=(ProblemCode.DATABASE_UNAVAILABLE,),
        html_responses={303: "To `next`.", 401: "The form again.", 429: "The form again, after `Retry-After` seconds."},
        scope=OPEN,
    )
    def log_in(form: LoginForm) -> Response:
        """Exchange an API key for a session.

        Sets a cookie that scripts cannot read and pages of other sites cannot use, and redirects to `next`.
        """
        key_cache, sessions = authenticator.key_cache, authenticator.sessions
        key = None if key_cache is None else key_cache.find(form.key.strip())
        if key is None or sessions is None:
            return _login_failed(authenticator, form.next)
        actor = actor_for_key(key, "session", authenticator.client_address(request.environ))
        _audit_session("login", actor, audit)
        response = redirect_to(safe_path(form.next))
        response.set_cookie(
            value=sessions.create(key.id), max_age=sessions.max_age_sec, **_cookie_options(authenticator)
        )
        return response

    @blueprint.post("/logout", response=str, media_type=HTML, scope=OPEN, html_responses={303: "To /login."})
    def log_out() -> Response:
        """End the session of the browser, if there is one."""
        try:
            actor = authenticator.authenticate(request.environ)
        except (RequestRejected, DataloaderError):
            actor = None
        if actor is not None and actor.session is not None:
            authenticator.check_csrf(request.environ, actor)
            _audit_session("logout", actor, audit)
        response = redirect_to("/login")
        response.delete_cookie(**_cookie_options(authenticator))
        return response

    return blueprint


def _cookie_options(authenticator: Authenticator) -> dict[str, Any]:
    is_https = authenticator.is_https(request.environ)
    return {
        "key": cookie_name(secure=is_https), "path": "/", "httponly": True, "secure": is_https, "samesite": "Lax"
    }  # fmt: skip


def _login_failed(authenticator: Authenticator, next_url: str) -> Response:
    error = authenticator.reject_key(authenticator.client_address(request.environ))
    message, wait_sec = "Invalid API key: unknown, expired or revoked.", error.headers.get("Retry-After")
    if wait_sec is not None:
        message = f"Too many failed logins; try again in {wait_sec} s."
    headers = {} if wait_sec is None else {"Retry-After": wait_sec}
    page = _render_login(next_url, message)
    return Response(page, error.code.status, headers, content_type=f"{HTML}; charset=utf-8")


def _render_login(next_url: str, message: str | None) -> str:
    return render_html("login.html", next=safe_path(next_url), message=message)


def _audit_session(action: str, actor: Actor, audit: AuditLog) -> None:
    """Record a login or logout in the log, the audit file and the audit table. Like known keys, logins work while the
    database is unavailable."""
    request.environ[ACTOR] = actor
    audit_action(f"session.{action}")
    LOG.info(f"session.{action}", actor=actor.name, key_id=actor.key_id, remote=actor.address)
    try:
        audit.record(actor.audit_context(action, request.environ[REQUEST_ID]), "session", actor.key_id)
    except DataloaderError as error:
        LOG.error("audit.failed", error=str(error), action=action)
