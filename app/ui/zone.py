"""The choice of the zone in which pages show times: that of the service, or UTC."""

from __future__ import annotations

from typing import Annotated, Literal

from flask import Response, request
from pydantic import Field

from dataloader.app.http.auth.guard import AUTHENTICATOR, Authenticator
from dataloader.app.http.routing import ANY_KEY, HTML, ApiBlueprint
from dataloader.app.http.schemas import QueryModel
from dataloader.app.http.site import Site
from dataloader.app.ui.base import PageRenderer, redirect_to, safe_path
from dataloader.app.ui.shell import UTC_CHOICE, ZONE_COOKIE

_MAX_AGE_SEC = 365 * 86_400


class ZoneQuery(QueryModel):
    zone: Annotated[Literal["utc", "service"], Field(description="`service`: the zone of `TIMEZONE`.")]
    next: Annotated[str, Field(max_length=2000, description="The path of this service to redirect to.")] = "/"


def create_zone_page(site: Site) -> ApiBlueprint:
    options = site.options
    pages = PageRenderer("zone_page", options)

    @pages.blueprint.get(
        "/zone",
        query=ZoneQuery,
        response=str,
        media_type=HTML,
        html_responses={303: "To `next`, with a cookie that all pages obey."},
        scope=ANY_KEY,
    )
    def choose_zone(query: ZoneQuery) -> Response:
        """Choose the zone in which the pages of this browser show times."""
        authenticator: Authenticator = request.environ[AUTHENTICATOR]
        response = redirect_to(safe_path(query.next))
        if query.zone == UTC_CHOICE:
            is_https = authenticator.is_https(request.environ)
            response.set_cookie(
                ZONE_COOKIE, UTC_CHOICE, max_age=_MAX_AGE_SEC, httponly=True, secure=is_https, samesite="Lax"
            )
        else:
            response.delete_cookie(ZONE_COOKIE)
        return response

    return pages.blueprint
