"""The steps around every request: request id, log lines, metrics, security headers, error pages."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from flask import Response, g, request
from prometheus_client import CollectorRegistry, Counter, Histogram

from dataloader.app import log
from dataloader.app.http.auth.guard import AUTHENTICATOR, IS_PAGE, IS_READ, REQUEST_ID, Authenticator, log_fields
from dataloader.app.http.links import current_url, render_html
from dataloader.app.http.openapi import route_template
from dataloader.app.http.problems import ProblemCode, problem_code, problem_response

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = log.get("dataloader.app.http")

# Polled by machines every few seconds: logged at level DEBUG only.
_QUIET_PATHS = frozenset({"/health", "/health/started", "/health/ready", "/health/consuming", "/metrics", "/status"})
# Answered with a 503 in normal operation: not logged as errors.
_EXPECTED_CODES = (ProblemCode.NOT_READY, ProblemCode.TOO_MANY_WAITING)
_REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+/=@-]{0,127}", re.ASCII)
_PROBLEM_TYPES = ("application/problem+json", "application/json", "text/html")
_PAGE_MEDIA_TYPES = ("text/html", "text/css", "text/javascript")
_PAGE_POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)
_BUCKETS_SEC = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_API_POLICY = "default-src 'none'; frame-ancestors 'none'"
_COMMON_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_NO_STORE = ("Cache-Control", "no-store")  # the last one, left out where the response has its own
_PAGE_HEADERS = (*_COMMON_HEADERS, ("Content-Security-Policy", _PAGE_POLICY), _NO_STORE)
_API_HEADERS = (*_COMMON_HEADERS, ("Content-Security-Policy", _API_POLICY), _NO_STORE)


class RequestMetrics:
    """Counters and histograms of HTTP requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter("requests_total", "Requests that came in.", registry=registry)
        self._responses = Counter(
            "responses_total", "Responses by route template and status.", ("route", "status"), registry=registry
        )
        self._duration = Histogram(
            "request_duration_seconds", "Time to answer.", ("route",), buckets=_BUCKETS_SEC, registry=registry
        )
        self.feedback = Counter("feedback_total", "Votes on the service.", ("vote",), registry=registry)

    def start(self) -> None:
        self._requests.inc()

    def finish(self, route: str, status: str, seconds: float) -> None:
        self._responses.labels(route, status).inc()
        self._duration.labels(route).observe(seconds)


class RequestMiddleware:
    """Wraps the WSGI app; Flask's own hooks would cost a request several times as much."""

    def __init__(
        self, wrapped_app: WSGIApplication, request_metrics: RequestMetrics, authenticator: Authenticator
    ) -> None:
        self._wrapped_app = wrapped_app
        self._request_metrics = request_metrics
        self._authenticator = authenticator

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        started = time.perf_counter()
        request_id = self._request_id(environ)
        environ[REQUEST_ID] = request_id
        environ[AUTHENTICATOR] = self._authenticator
        status = route = ""

        def start_with_headers(
            status_line: str, headers: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], object]:
            nonlocal status, route
            status, route = status_line[:3], _route_template(environ)  # Flask drops the request after its response
            headers = [*headers, ("X-Request-ID", request_id), *_security_headers(headers)]
            return start_response(status_line, headers, exc_info)

        token = log.bind(lambda: {"request_id": request_id})
        try:
            self._log_start(environ)
            body = self._wrapped_app(environ, start_with_headers)
            self._log_end(environ, route, status, started)
        finally:
            log.unbind(token)
        return body

    @staticmethod
    def _request_id(environ: WSGIEnvironment) -> str:
        """Return the caller's request id if it is a valid one, else a new one."""
        sent = environ.get("HTTP_X_REQUEST_ID", "")
        return sent if _REQUEST_ID_PATTERN.fullmatch(sent) else os.urandom(16).hex()

    def _log_start(self, environ: WSGIEnvironment) -> None:
        self._request_metrics.start()
        if log.audit_file_enabled() and not _is_quiet(environ):
            log.audit(
                "request.started",
                method=environ["REQUEST_METHOD"],
                path=_display_path(environ),
                **_client_fields(environ),
            )

    def _log_end(self, environ: WSGIEnvironment, route: str, status: str, started: float) -> None:
        seconds = time.perf_counter() - started
        self._request_metrics.finish(route, status, seconds)
        _log_request(environ, route, int(status), round(seconds * 1000, 2))


def handle_error(error: Exception) -> Response:
    """Answer an error with a problem, as JSON or as a page; errors of the service are logged."""
    code = problem_code(error)
    if code is ProblemCode.KEY_REQUIRED and request.environ.get(IS_PAGE):
        return _redirect_to_login()
    response = problem_response(error, request.environ[REQUEST_ID], is_read=request.environ.get(IS_READ, False))
    if request.environ.get(IS_PAGE) or _is_unknown_page():
        response = _problem_page(response)
    if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR and code not in _EXPECTED_CODES:
        _log_error(error, code, response.status_code)
    return response


def _is_unknown_page() -> bool:
    """Whether a browser asked for an address that no route has; programs get JSON."""
    return request.url_rule is None and request.accept_mimetypes.best_match(_PROBLEM_TYPES) == _PROBLEM_TYPES[-1]


def _redirect_to_login() -> Response:
    """Redirect a browser to the login page, which leads back to the requested page or to the submitted form."""
    login_url = "/login?" + urlencode({"next": g.get("page_path") or current_url()})
    if "HTTP_HX_REQUEST" in request.environ:  # for a fragment htmx redirects the whole page
        return Response(status=HTTPStatus.UNAUTHORIZED, headers={"HX-Redirect": login_url})
    return Response(status=HTTPStatus.SEE_OTHER, headers={"Location": login_url})


def _problem_page(problem: Response) -> Response:
    """Render a problem as a page for a browser."""
    payload = problem.get_json()
    errors = [f"{error['field']}: {error['message']}" for error in payload.get("errors", ())]
    text = render_html("problem.html", title=payload["title"], reasons=errors or [payload.get("detail", "")])
    problem.set_data(text)
    problem.content_type = "text/html; charset=utf-8"
    return problem


def audit_action(event: str, **fields: Any) -> None:
    """Write an event with the caller to the audit file."""
    if log.audit_file_enabled():
        log.audit(event, **_client_fields(request.environ), **fields)


def _client_fields(environ: WSGIEnvironment) -> dict[str, Any]:
    authenticator: Authenticator = environ[AUTHENTICATOR]
    client = {"remote": authenticator.client_address(environ), "agent": environ.get("HTTP_USER_AGENT", "")[:200]}
    return client | log_fields(environ)


def _is_quiet(environ: WSGIEnvironment) -> bool:
    path = environ["PATH_INFO"]
    if environ.get("HTTP_HX_REQUEST") == "true" and environ["REQUEST_METHOD"] == "GET":
        return True  # the refresh of a page
    return path in _QUIET_PATHS or path.startswith("/static/")


def _display_path(environ: WSGIEnvironment) -> str:
    """The path as UTF-8; WSGI decodes its bytes as latin-1."""
    return str(environ["PATH_INFO"][:200].encode("latin-1").decode("utf-8", "replace"))


def _route_template(environ: WSGIEnvironment) -> str:
    """The template of the route, since the number of paths is unbounded."""
    rule = environ["werkzeug.request"].url_rule
    return "unknown" if rule is None else route_template(rule.rule)


def _security_headers(headers: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    added, has_cache_control = _API_HEADERS, False
    for name, value in headers:
        match name.lower():
            case "content-type" if value.startswith(_PAGE_MEDIA_TYPES):
                added = _PAGE_HEADERS
            case "cache-control":
                has_cache_control = True
    return added[:-1] if has_cache_control else added


def _log_request(environ: WSGIEnvironment, route: str, status: int, duration_ms: float) -> None:
    fields = {"method": environ["REQUEST_METHOD"], "route": route, "status": status, "duration_ms": duration_ms}
    if log.file_logging_enabled():
        log.metric("request.finished", **fields)
    if _is_quiet(environ):
        LOG.debug("http.request", **fields)
        return
    fields |= log_fields(environ)
    if log.audit_file_enabled():
        log.audit("request.finished", **fields)
    LOG.info("http.request", path=_display_path(environ), **fields)


def _log_error(error: Exception, code: ProblemCode, status: int) -> None:
    fields = {"code": code.text, "status": status, "method": request.method, "path": request.path[:200]}
    if code is ProblemCode.INTERNAL:
        LOG.exception(log.Alert.API_ERROR, **fields)
    else:  # an outage is one line without a traceback
        LOG.warning(log.Alert.API_ERROR, error=str(error), **fields)
