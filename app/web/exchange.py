"""What happens around every request: its id, its line in the log, its numbers, the headers of its answer."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from flask import Flask, Response, g, request

from app import log
from app.web import problems
from app.web.metrics import Traffic
from app.web.openapi import template

LOG = log.get("app.web")

# Asked for by machines every few seconds: heard, but not in the log of an ordinary day.
_QUIET = frozenset({"/health", "/metrics", "/status", "/static/{filename}"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+/=@-]{0,127}", re.ASCII)
_PAGE_POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
_API_POLICY = "default-src 'none'; frame-ancestors 'none'"
_OUR_FAULT = 500


@dataclass(frozen=True)
class Exchange:
    """One request on its way through."""

    request_id: str
    started: float
    binding: AbstractContextManager[Any]


def around(app: Flask, traffic: Traffic) -> None:
    """Hang the steps onto the app, in the order a request meets them."""

    @app.before_request
    def begin() -> None:
        told = request.environ.get("HTTP_X_REQUEST_ID", "")
        request_id = told if _REQUEST_ID.fullmatch(told) else uuid4().hex
        binding = log.bound(request_id=request_id)
        g.exchange = Exchange(request_id, time.perf_counter(), binding)
        binding.__enter__()
        traffic.began()
        if _route() not in _QUIET:
            log.audit("request.began", method=request.method, path=request.path[:200], **_who())

    @app.errorhandler(Exception)
    def fail(error: Exception) -> Response:
        response = problems.answer(error, g.exchange.request_id)
        if response.status_code >= _OUR_FAULT:
            _tell_error(error, response.status_code)
        return response

    @app.after_request
    def end(response: Response) -> Response:
        exchange: Exchange = g.exchange
        seconds = time.perf_counter() - exchange.started
        route = _route()
        _dress(response, exchange.request_id)
        traffic.ended(route, response.status_code, seconds)
        _tell(route, response.status_code, round(seconds * 1000, 2))
        return response

    @app.teardown_request
    def leave(_: BaseException | None) -> None:
        exchange: Exchange | None = g.pop("exchange", None)
        if exchange is not None:
            exchange.binding.__exit__(None, None, None)


def _route() -> str:
    """The route's template: addresses themselves are too many to count by, and anybody's to invent."""
    return "unknown" if request.url_rule is None else template(request.url_rule.rule)


def said(event: str, **facts: Any) -> None:
    """Write down, for the audit, what was done at whose wish."""
    log.audit(event, **_who(), **facts)


def _who() -> dict[str, str]:
    return {
        "remote": request.environ.get("REMOTE_ADDR", ""),
        "agent": request.environ.get("HTTP_USER_AGENT", "")[:200],
    }


def _tell(route: str, status: int, duration_ms: float) -> None:
    facts = {"method": request.method, "route": route, "status": status, "duration_ms": duration_ms}
    log.metric("request.ended", **facts)
    if route in _QUIET:
        LOG.debug("api.request", **facts)
        return
    log.audit("request.ended", **facts)
    LOG.info("api.request", path=request.path[:200], **facts)


def _tell_error(error: Exception, status: int) -> None:
    code = problems.code_of(error)
    facts = {"code": code.text, "status": status, "method": request.method, "path": request.path[:200]}
    if code is problems.Code.INTERNAL:
        LOG.exception(log.Alert.API_ERROR, **facts)
    else:  # an expected outage is one line
        LOG.warning(log.Alert.API_ERROR, error=str(error), **facts)


def _dress(response: Response, request_id: str) -> None:
    headers = response.headers
    headers["X-Request-ID"] = request_id
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    page = response.mimetype in ("text/html", "text/css", "text/javascript")
    headers["Content-Security-Policy"] = _PAGE_POLICY if page else _API_POLICY
    if "Cache-Control" not in headers:
        headers["Cache-Control"] = "no-store"
