"""The frame around every page: navigation, environment, the zone of times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from flask import request

from dataloader.app.acts.feature import NavLink
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import ACTOR, Actor
from dataloader.app.http.links import current_url
from dataloader.app.http.options import WebOptions
from dataloader.app.ui.formatter import Formatter

ZONE_COOKIE, UTC_CHOICE = "dl_zone", "utc"
_UTC = "UTC"
GROUPS = ("Work", "Definitions", "Capacity", "Watch", "Settings")  # of the navigation


def shell_values(options: WebOptions, navigation: Iterable[NavLink]) -> dict[str, Any]:
    """Return what the layout shows on every page. Features replace those that are empty here."""
    return {
        "current_url": current_url(),
        "navigation": list(_groups(navigation)),
        "options": options,
        "formatter": formatter_of_request(options),
        "nav_counts": dict,
        "problem_count": lambda: None,
        "last_act": lambda: None,
    }


def can_read() -> bool:
    actor: Actor | None = request.environ.get(ACTOR)
    return actor is not None and actor.has_scope((Scope.READ,))


def formatter_of_request(options: WebOptions) -> Formatter:
    """Return the formatter of the zone that the browser has chosen: that of the service, or UTC."""
    return _formatter(_UTC if request.cookies.get(ZONE_COOKIE) == UTC_CHOICE else options.timezone)


@lru_cache(maxsize=8)
def _formatter(zone: str) -> Formatter:
    return Formatter(zone)


def _groups(links: Iterable[NavLink]) -> Iterator[tuple[str, list[NavLink]]]:
    by_group: dict[str, list[NavLink]] = {group: [] for group in GROUPS}
    for link in links:
        by_group[link.group].append(link)
    return ((group, members) for group, members in by_group.items() if members)
