"""The search of the header, and the names that the command palette offers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from flask import Response
from pydantic import Field

from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.features.jobs.job_lookup import JobLookup
from dataloader.app.features.jobs.job_search import JobSearch
from dataloader.app.features.limits.rows import Limits
from dataloader.app.features.quality.rows import DataQuality
from dataloader.app.features.schedules.rows import Schedules
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.json_io import dump_body
from dataloader.app.http.links import quote_name
from dataloader.app.http.routing import JSON, ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.state.queues import Queues
from dataloader.app.state.statistics import Statistics
from dataloader.app.ui.base import FormModel, FormText, PageRenderer, redirect_to

_MAX_OF_A_KIND = 20
_MAX_SCHEDULES = 500
_MAX_NAMES = 500  # of datasets, and of limits


class SearchQuery(FormModel):
    q: FormText = Field(
        "", description="A job id, a key, a name of a task, queue, schedule, dataset or limit, or any text."
    )


@dataclass(frozen=True)
class Match:
    """Something that a search found."""

    kind: str
    title: str
    path: str
    is_exact: bool = True
    detail: str = ""


@dataclass(frozen=True)
class Names:
    """The names that a search compares with its text."""

    tasks: list[str]
    queues: list[str]
    schedules: list[str]
    datasets: list[str]
    limits: list[str]

    def matches(self, text: str) -> Iterator[Match]:
        """Those that are the text, or contain it."""
        folders = (
            ("task", "/tasks/", self.tasks),
            ("queue", "/queues/", self.queues),
            ("schedule", "/schedules/", self.schedules),
            ("dataset", "/datasets/", self.datasets),
            ("limit", "/limits#limit-", self.limits),
        )
        for kind, folder, names in folders:
            for name in names:
                if text.lower() in name.lower():
                    yield Match(kind, name, folder + quote_name(name), name == text)


def create_search_page(site: Site) -> ApiBlueprint:
    source, pipelines, options = site.executor, site.pipelines, site.options
    pages = PageRenderer("search_page", options)
    lookup, reader, search = JobLookup(source), JobReader(source), JobSearch(source)
    queues, statistics, schedules = Queues(source), Statistics(source), Schedules(source)
    quality, limits = DataQuality(source), Limits(source)

    def read_names() -> Names:
        tasks = {*pipelines.names, *statistics.task_names()}
        listed = schedules.list_by_name(limit=_MAX_SCHEDULES)
        return Names(
            sorted(tasks),
            queues.names(),
            [schedule.name for schedule in listed],
            quality.dataset_names(limit=_MAX_NAMES),
            limits.names(limit=_MAX_NAMES),
        )

    def find(text: str) -> list[Match]:
        """What the text names; exact matches alone, if there are any."""
        jobs = [
            Match("job", job.task, f"/jobs/{job.job_id}", detail=f"{job.job_id} in {job.queue}, {job.status.value}")
            for job in lookup.by_id(text)
        ]
        if jobs:
            return jobs
        by_key = reader.by_idempotency_key(text)
        matches = [] if by_key is None else [Match("idempotency key", text, f"/jobs/{by_key.job_id}")]
        matches += read_names().matches(text)
        if search.has_lock_key(text):
            matches.append(Match("lock key", text, "/jobs?" + urlencode({"lock_key": text})))
        exact = [match for match in matches if match.is_exact]
        return exact or _first_of_each_kind(matches)

    @pages.page(
        "/search",
        query=SearchQuery,
        standby=False,
        html_responses={303: "To the page of the only match, or to the jobs."},
    )
    def find_anything(query: SearchQuery) -> Response:
        """Find a job, key, task, queue, schedule, dataset or limit; other text is searched in args and errors."""
        text = query.q.strip()
        if not text:
            return redirect_to("/jobs")
        matches, text_path = find(text), "/jobs?" + urlencode({"q": text})
        if not matches:
            return redirect_to(text_path)
        if len(matches) == 1 and matches[0].is_exact:
            return redirect_to(matches[0].path)
        return pages.render("search.html", text=text, matches=matches, text_path=text_path)

    @pages.blueprint.get("/palette", response=dict, scope=Scope.READ, standby=True)
    def list_palette() -> Response:
        """List the pages of the dashboard and the names of what it shows, for the command palette."""
        names = read_names()
        entries = [_entry(link.group, link.title, link.path) for link in site.navigation]
        entries += [_entry(match.kind, match.title, match.path) for match in names.matches("")]
        return Response(dump_body({"entries": entries}), content_type=JSON)

    return pages.blueprint


def _first_of_each_kind(matches: Iterable[Match]) -> list[Match]:
    counts: dict[str, int] = {}
    first = []
    for match in matches:
        counts[match.kind] = counts.get(match.kind, 0) + 1
        if counts[match.kind] <= _MAX_OF_A_KIND:
            first.append(match)
    return first


def _entry(kind: str, title: str, path: str) -> dict[str, Any]:
    return {"kind": kind, "title": title, "path": path}
