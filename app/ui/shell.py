"""The frame around every page: navigation, environment, the zone of times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

from flask import request

from dataloader.app.features.overview.service_counts import COUNTED_PATHS, ProblemCounter
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import ACTOR, Actor
from dataloader.app.http.links import current_url
from dataloader.app.http.options import WebOptions
from dataloader.app.ui.formatter import Formatter

ZONE_COOKIE, UTC_CHOICE = "dl_zone", "utc"
_UTC = "UTC"


@dataclass(frozen=True)
class NavLink:
    """A page of the side navigation and of the command palette."""

    group: str
    title: str
    path: str

    def is_current(self, path: str) -> bool:
        return path == self.path or (self.path != "/" and path.startswith(f"{self.path}/"))


NAVIGATION = (
    NavLink("Work", "Overview", "/"),
    NavLink("Work", "Jobs", "/jobs"),
    NavLink("Work", "Failures", "/failures"),
    NavLink("Work", "Graphs", "/graphs"),
    NavLink("Work", "Backfills", "/backfills"),
    NavLink("Definitions", "Tasks", "/tasks"),
    NavLink("Definitions", "Schedules", "/schedules"),
    NavLink("Definitions", "Calendar", "/calendar"),
    NavLink("Definitions", "Datasets", "/datasets"),
    NavLink("Capacity", "Queues", "/queues"),
    NavLink("Capacity", "Workers", "/workers"),
    NavLink("Capacity", "Limits", "/limits"),
    NavLink("Watch", "Alerts", "/alerts"),
    NavLink("Watch", "Charts", "/charts"),
    NavLink("Watch", "Audit", "/audit"),
    NavLink("Settings", "Webhooks", "/webhooks"),
    NavLink("Settings", "API keys", "/keys"),
    NavLink("Settings", "Settings", "/settings"),
    NavLink("Settings", "API", "/docs"),
)


def shell_values(options: WebOptions, counter: ProblemCounter) -> dict[str, Any]:
    """Return what the layout shows on every page."""
    return {
        "current_url": current_url(),
        "navigation": list(_groups()),
        "options": options,
        "formatter": formatter_of_request(options),
        "nav_counts": lambda: _shown_counts(counter),
        "problem_count": lambda: counter.get() if _can_read() else None,
    }


def _shown_counts(counter: ProblemCounter) -> dict[str, tuple[int | None, str]]:
    """By the path of a page its number in the navigation, None while it is not known."""
    if not _can_read():
        return {}
    counts = counter.counts()
    return dict.fromkeys(COUNTED_PATHS, (None, "")) if counts is None else {**counts.by_path}


def _can_read() -> bool:
    actor: Actor | None = request.environ.get(ACTOR)
    return actor is not None and actor.has_scope((Scope.READ,))


def formatter_of_request(options: WebOptions) -> Formatter:
    """Return the formatter of the zone that the browser has chosen: that of the service, or UTC."""
    return _formatter(_UTC if request.cookies.get(ZONE_COOKIE) == UTC_CHOICE else options.timezone)


@lru_cache(maxsize=8)
def _formatter(zone: str) -> Formatter:
    return Formatter(zone)


def _groups() -> Iterator[tuple[str, list[NavLink]]]:
    for group, members in groupby(NAVIGATION, key=attrgetter("group")):
        yield group, list(members)
