"""The page of failures, grouped by the fingerprint of the error."""

from __future__ import annotations

from urllib.parse import urlencode

from flask import Response
from pydantic import Field

from dataloader.app.features.failures.rows import FailureGroup, Failures
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import FormModel, FormText, PageRenderer

_MAX_GROUPS = 200


class FailuresPageQuery(FormModel):
    """Which failures to show; an empty field matches everything."""

    task: FormText = Field("", description="The task.")
    queue: FormText = Field("", description="The queue.")


def create_failures_page(site: Site) -> ApiBlueprint:
    source, options = site.executor, site.options
    pages = PageRenderer("failures_page", options)
    failures = Failures(source)

    @pages.page("/failures", query=FailuresPageQuery)
    def show_failures(query: FailuresPageQuery) -> Response:
        """Show failed and lost jobs, grouped by task and fingerprint of the error."""
        groups = failures.groups(task=query.task or None, queue=query.queue or None, limit=_MAX_GROUPS)
        rows = [(group, _jobs_query(group, query.queue)) for group in groups.failures]
        total = sum(group.jobs for group in groups.failures)
        return pages.render("failures.html", query=query, groups=groups, rows=rows, total=total, max_groups=_MAX_GROUPS)

    return pages.blueprint


def _jobs_query(group: FailureGroup, queue: str) -> str:
    """The filter of the group's jobs, as in the address of the list of jobs."""
    fields = {"status": "failed,lost", "task": group.task, "fingerprint": group.fingerprint, "queue": queue}
    return urlencode({name: value for name, value in fields.items() if value})
