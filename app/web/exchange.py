"""What happens around every request: its id, its line in the log, its numbers, the headers of its answer."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from flask import Response, current_app, render_template, request

from app import log
from app.web import problems
from app.web.again import before
from app.web.auth import ACTOR, GUARD, PAGE, REQUEST_ID, Actor, Guard, named
from app.web.metrics import Traffic
from app.web.openapi import template

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = log.get("app.web")

# Asked for by machines every few seconds: heard, but not in the log of an ordinary day.
_QUIET = frozenset({"/health", "/health/started", "/health/ready", "/health/consuming", "/metrics", "/status"})
# Refused with a 503, and no fault of ours: a part is not ready yet, or the places of waiting requests are taken.
_NO_FAULT = (problems.NotReady, problems.TooManyWaiting)
_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+/=@-]{0,127}", re.ASCII)
_IDS_AT_ONCE = 64
_PAGES = ("text/html", "text/css", "text/javascript")
_PAGE_POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)
_API_POLICY = "default-src 'none'; frame-ancestors 'none'"
_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_UNKEPT = ("Cache-Control", "no-store")  # last, to be left off where something else is said
_PAGE_HEADERS = (*_HEADERS, ("Content-Security-Policy", _PAGE_POLICY), _UNKEPT)
API_HEADERS = (*_HEADERS, ("Content-Security-Policy", _API_POLICY), _UNKEPT)


class Around:
    """The steps around the app, as WSGI: Flask's own hooks would cost a request several times as much."""

    def __init__(self, inner: WSGIApplication, traffic: Traffic, guard: Guard) -> None:
        self._inner = inner
        self._traffic = traffic
        self._guard = guard
        self._ids: deque[str] = deque()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        started = time.perf_counter()
        request_id = self.name(environ)
        status = route = ""

        def answered(line: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
            nonlocal status, route
            status, route = line[:3], _route(environ)  # Flask forgets the request as soon as it has answered
            return start_response(line, [*headers, ("X-Request-ID", request_id), *_dress(headers)], exc_info)

        token = log.bind(lambda: {"request_id": request_id})
        again = before()
        try:
            if again is None or not again.told:
                self._began(environ)
            body = self._inner(environ, answered)
            self._ended(environ, route, status, started)
        finally:
            log.unbind(token)
        return body

    def name(self, environ: WSGIEnvironment) -> str:
        """Give the request its id, and its guard."""
        again, told = before(), environ.get("HTTP_X_REQUEST_ID", "")
        if again is None:
            request_id: str = told if _REQUEST_ID.fullmatch(told) else self._new_id()
        else:
            request_id = again.request_id
        environ[REQUEST_ID] = request_id
        environ[GUARD] = self._guard
        return request_id

    def begin(self, environ: WSGIEnvironment, request_id: str) -> None:
        """Say that somebody's request is looked at; before it does anything."""
        token = log.bind(lambda: {"request_id": request_id})
        try:
            self._began(environ)
        finally:
            log.unbind(token)

    def end(
        self,
        environ: WSGIEnvironment,
        request_id: str,
        actor: Actor,
        route: str,
        started: float,
        event: str,
        facts: Mapping[str, Any],
    ) -> None:
        """Say that it went well, and did `event`."""
        environ[ACTOR] = actor
        token = log.bind(lambda: {"request_id": request_id})
        try:
            if log.is_audited():
                log.audit(event, **_who(environ), **facts)
            self._ended(environ, route, "200", started)
        finally:
            log.unbind(token)

    def _began(self, environ: WSGIEnvironment) -> None:
        self._traffic.began()
        if log.is_audited() and not _quiet(environ):
            log.audit("request.began", method=environ["REQUEST_METHOD"], path=_path(environ), **_who(environ))

    def _ended(self, environ: WSGIEnvironment, route: str, status: str, started: float) -> None:
        seconds = time.perf_counter() - started
        self._traffic.ended(route, status, seconds)
        _tell(environ, route, int(status), round(seconds * 1000, 2))

    def _new_id(self) -> str:
        """Many are drawn at once: at each question to the system another thread takes the interpreter."""
        try:
            return self._ids.pop()
        except IndexError:
            drawn = os.urandom(16 * _IDS_AT_ONCE).hex()
            self._ids.extend(drawn[n : n + 32] for n in range(32, 32 * _IDS_AT_ONCE, 32))
            return drawn[:32]


def fail(error: Exception) -> Response:
    """Flask's handler of every error: the problem that tells it, and a line in the log if it is ours."""
    if isinstance(error, problems.KeyRequired) and request.environ.get(PAGE):
        return _to_login()
    response = problems.answer(error, request.environ[REQUEST_ID], is_read=request.method in ("GET", "HEAD"))
    if request.environ.get(PAGE):
        response = _page_of(response)
    if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, _NO_FAULT):
        _tell_error(error, response.status_code)
    return response


def _to_login() -> Response:
    """A person with a browser is shown where to come in, and comes back to where he was going, or to his form."""
    back = urlencode({"next": request.full_path.rstrip("?") if request.method in ("GET", "HEAD") else _page_of_form()})
    if "HTTP_HX_REQUEST" in request.environ:  # a fragment: the page around it is to go there
        return Response(status=HTTPStatus.UNAUTHORIZED, headers={"HX-Redirect": f"/login?{back}"})
    there = f"/login?{back}"
    return Response(status=HTTPStatus.SEE_OTHER, headers={"Location": there})


def _page_of_form() -> str:
    """The page of ours with the form that was sent: at the same address, or the address without the name of the act."""
    rule = request.url_rule
    rules = current_app.url_map.iter_rules()
    if rule is None or any(other.rule == rule.rule and "GET" in (other.methods or ()) for other in rules):
        return request.path
    return request.path.rpartition("/")[0] or "/"


def _page_of(problem: Response) -> Response:
    """For a person with a browser: what went wrong as a page, with the way back."""
    told = problem.get_json()
    faults = [f"{fault['field']}: {fault['message']}" for fault in told.get("errors", ())]
    text = render_template("problem.html", title=told["title"], why=faults or [told.get("detail", "")])
    problem.set_data(text)
    problem.content_type = "text/html; charset=utf-8"
    return problem


def said(event: str, **facts: Any) -> None:
    """Write down, for the audit, what was done at whose wish."""
    if log.is_audited():
        log.audit(event, **_who(request.environ), **facts)


def _who(environ: WSGIEnvironment) -> dict[str, Any]:
    guard: Guard = environ[GUARD]
    who = {"remote": guard.address(environ), "agent": environ.get("HTTP_USER_AGENT", "")[:200]}
    return who | named(environ)


def _quiet(environ: WSGIEnvironment) -> bool:
    path = environ["PATH_INFO"]
    if environ.get("HTTP_HX_REQUEST") == "true" and environ["REQUEST_METHOD"] == "GET":
        return True  # a page that refreshes itself
    return path in _QUIET or path.startswith("/static/")


def _path(environ: WSGIEnvironment) -> str:
    """As the caller meant it: WSGI hands the bytes over as latin-1."""
    return str(environ["PATH_INFO"][:200].encode("latin-1").decode("utf-8", "replace"))


def _route(environ: WSGIEnvironment) -> str:
    """The route's template: addresses themselves are too many to count by, and anybody's to invent."""
    rule = environ["werkzeug.request"].url_rule
    return "unknown" if rule is None else template(rule.rule)


def _dress(headers: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    dress, kept = API_HEADERS, False
    for name, value in headers:
        match name.lower():
            case "content-type" if value.startswith(_PAGES):
                dress = _PAGE_HEADERS
            case "cache-control":
                kept = True
    return dress[:-1] if kept else dress


def _tell(environ: WSGIEnvironment, route: str, status: int, duration_ms: float) -> None:
    facts = {"method": environ["REQUEST_METHOD"], "route": route, "status": status, "duration_ms": duration_ms}
    if log.lines_are_kept():
        log.metric("request.ended", **facts)
    if _quiet(environ):
        LOG.debug("api.request", **facts)
        return
    facts |= named(environ)
    if log.is_audited():
        log.audit("request.ended", **facts)
    LOG.info("api.request", path=_path(environ), **facts)


def _tell_error(error: Exception, status: int) -> None:
    code = problems.code_of(error)
    facts = {"code": code.text, "status": status, "method": request.method, "path": request.path[:200]}
    if code is problems.Code.INTERNAL:
        LOG.exception(log.Alert.API_ERROR, **facts)
    else:  # an expected outage is one line
        LOG.warning(log.Alert.API_ERROR, error=str(error), **facts)
