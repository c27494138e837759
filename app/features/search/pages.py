"""The search of the header, and the names that the command palette offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from flask import Response, current_app
from pydantic import Field

from dataloader.app.acts.feature import load_all
from dataloader.app.acts.matches import Match
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.json_io import dump_body
from dataloader.app.http.links import SHAPES_KEY, has_page
from dataloader.app.http.routing import JSON, ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import FormModel, FormText, PageRenderer, redirect_to

_MAX_OF_A_KIND = 20


class SearchQuery(FormModel):
    q: FormText = Field(
        "", description="A job id, a key, a name of a task, queue, schedule, dataset or limit, or any text."
    )


def create_search_page(site: Site) -> ApiBlueprint:
    pages = PageRenderer("search_page", site.options)
    finders = tuple(load_all(site.features, "search"))

    def find(text: str) -> list[Match]:
        return [match for finder in finders for match in finder(site, text)]

    @pages.page(
        "/search",
        query=SearchQuery,
        standby=False,
        html_responses={303: "To the page of the only match, or to the jobs."},
    )
    def find_anything(query: SearchQuery) -> Response:
        """Find a job, key, task, queue, schedule, dataset or limit; other text is searched in args and errors."""
        text = query.q.strip()
        has_jobs = has_page("jobs", current_app.config[SHAPES_KEY])
        if not text:
            return redirect_to("/jobs" if has_jobs else "/")
        matches, text_path = _exact_or_first(find(text)), "/jobs?" + urlencode({"q": text})
        if not matches and has_jobs:
            return redirect_to(text_path)
        if len(matches) == 1 and matches[0].is_exact:
            return redirect_to(matches[0].path)
        return pages.render("search.html", text=text, matches=matches, text_path=text_path)

    @pages.blueprint.get("/palette", response=dict, scope=Scope.READ, standby=True)
    def list_palette() -> Response:
        """List the pages of the dashboard and the names of what it shows, for the command palette."""
        entries = [_entry(link.group, link.title, link.path) for link in site.navigation]
        entries += [_entry(match.kind, match.title, match.path) for match in find("")]
        return Response(dump_body({"entries": entries}), content_type=JSON)

    return pages.blueprint


def _exact_or_first(matches: Sequence[Match]) -> list[Match]:
    """Exact matches alone, if there are any; else the first of each kind."""
    if exact := [match for match in matches if match.is_exact]:
        return exact
    counts: dict[str, int] = {}
    first = []
    for match in matches:
        counts[match.kind] = counts.get(match.kind, 0) + 1
        if counts[match.kind] <= _MAX_OF_A_KIND:
            first.append(match)
    return first


def _entry(kind: str, title: str, path: str) -> dict[str, Any]:
    return {"kind": kind, "title": title, "path": path}
