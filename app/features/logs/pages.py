"""The page of logs over jobs: a search of lines by text, level, task and time."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from flask import Response
from pydantic import Field

from dataloader.app.features.logs.routes import DEFAULT_SPAN, LEVELS, MAX_TEXT_LENGTH, levels_from
from dataloader.app.features.logs.rows import LineFilter, LogSearch
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, PageRenderer, parse_choice, parse_time

PAGE_LINES = 100
_SEARCH_BUDGET_SEC = 0.02
_CONTINUED_BUDGET_SEC = 0.4  # of a page that continues a search
_MAX_ID_DIGITS = 18


class LogsPageQuery(FormModel):
    """The search as the form sends it; an empty field matches all. Times are in the zone of the pages."""

    text: FormText = Field("", description="Only lines that contain this text.")
    level: FormText = Field("", description="Only lines of this level and above.")
    task: FormText = Field("", description="Only lines of jobs of this task.")
    since: FormText = Field("", description="Only lines written then or later; empty: of the last day.")
    until: FormText = Field("", description="Only lines written before.")
    before: FormText = Field("", description="The cursor of the next page, from the link of the page before.")
    continued: FormText = Field("", description="on: search further back, for longer.")


def create_logs_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("logs_page", site.options)
    search = LogSearch(site.executor)

    @pages.page("/logs", query=LogsPageQuery)
    def show_logs(query: LogsPageQuery) -> Response:
        """Search the logs of all jobs."""
        values: dict[str, Any] = {"error": None}
        try:
            values |= _find(search, query, pages)
        except InvalidForm as error:
            values["error"] = str(error)
        return pages.render(
            "logs.html",
            query=query,
            levels=LEVELS,
            task_names=site.pipelines.names,
            max_text_length=MAX_TEXT_LENGTH,
            limit=PAGE_LINES,
            **values,
        )

    return pages.blueprint


def _find(search: LogSearch, query: LogsPageQuery, pages: PageRenderer) -> dict[str, Any]:
    """The page of the search. Raises InvalidForm."""
    zone = pages.formatter.zone
    since = parse_time("since", query.since, zone) or pages.formatter.now() - DEFAULT_SPAN
    if len(query.text) > MAX_TEXT_LENGTH:
        raise InvalidForm(f"The text has more than {MAX_TEXT_LENGTH} characters.")
    line_filter = LineFilter(
        since=since,
        until=parse_time("until", query.until, zone),
        text=query.text or None,
        levels=levels_from(parse_choice("level", query.level, LEVELS) if query.level else None),
        task=query.task or None,
    )
    is_continued = query.continued == "on"
    page = search.page(
        line_filter,
        before=int(query.before) if query.before.isdecimal() and len(query.before) <= _MAX_ID_DIGITS else None,
        limit=PAGE_LINES,
        time_budget_sec=_CONTINUED_BUDGET_SEC if is_continued else _SEARCH_BUDGET_SEC,
    )
    fields = {name: value for name, value in query.model_dump(exclude={"before", "continued"}).items() if value}
    next_page = None if page.next is None else urlencode(fields | {"before": page.next})
    return {"page": page, "since": since, "next": next_page, "first": urlencode(fields)}
