"""The page of circuit breakers, limits and rates: what is used by whom, who waits since when; and their forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flask import Response
from pydantic import Field

from dataloader.app.acts.matches import MAX_NAMES, Match, match_names
from dataloader.app.acts.web import ActForms, Choice
from dataloader.app.features.limits.acts import delete_breaker, delete_limit, set_breaker, set_limit
from dataloader.app.features.limits.breakers import Breakers, BreakerState, BreakerStatus
from dataloader.app.features.limits.rows import Limits
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import FormModel, FormText, PageRenderer
from dataloader.app.ui.forms import format_duration

_MAX_HOLDERS_SHOWN = 4
_LIMIT_CHOICES = {"set": Choice(act=set_limit), "delete": Choice(act=delete_limit)}
_BREAKER_CHOICES = {
    "set": Choice(act=set_breaker),
    "pause": Choice(act=set_breaker, preset={"state": "open"}),
    "resume": Choice(act=set_breaker, preset={"state": "closed"}),
    "delete": Choice(act=delete_breaker),
}


class LimitsPageQuery(FormModel):
    edit: FormText = Field("", description="The limit that the form shows.")
    holders: FormText = Field("", description="The limit of which all running jobs are listed.")


def find_limits(site: Site, text: str) -> Iterator[Match]:
    return match_names("limit", "/limits#limit-", Limits(site.executor).names(limit=MAX_NAMES), text)


def create_limits_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("limits_page", site.options)
    limits, breakers = Limits(site.executor), Breakers(site.executor)

    @pages.page("/limits", query=LimitsPageQuery)
    def show_limits(query: LimitsPageQuery | None = None) -> Response:
        """Show what each limit allows, who holds it, how many jobs wait since when, and the tasks' breakers."""
        statuses, of_tasks = limits.statuses(), breakers.statuses()
        name = "" if query is None else query.edit
        return pages.render(
            "limits.html",
            concurrency_limits=[status for status in statuses if status.concurrency is not None or not status.rate],
            rates=[status for status in statuses if status.rate],
            holders={status.name: limits.holders(status.name) for status in statuses if status.used},
            max_holders=_MAX_HOLDERS_SHOWN,
            shown_whole="" if query is None else query.holders,
            breakers=of_tasks,
            open_breakers=[breaker for breaker in of_tasks if breaker.state is not BreakerState.CLOSED],
            waiting=sum(status.waiting for status in statuses),
            own=[status for status in statuses if status.setting == status.name],
            edited=next((status for status in statuses if status.name == name), None),
            format_duration=format_duration,
            breaker_word=_breaker_word,
        )

    forms = ActForms(pages=pages, runner=site.runner, page=show_limits, page_url="/limits")
    forms.add("/limits", "submit_limit", _LIMIT_CHOICES, default="set")
    replace(forms, page_url="/limits#breakers").add("/breakers", "submit_breaker", _BREAKER_CHOICES)
    return pages.blueprint


def _breaker_word(breaker: BreakerStatus) -> str:
    """The state as people call it: a breaker that a person opened is a paused task."""
    if breaker.state is BreakerState.OPEN and breaker.probe_at is None:
        return "paused"
    return breaker.state.value.replace("_", "-")
