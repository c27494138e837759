"""The page of failures, grouped by the fingerprint of the error."""

from __future__ import annotations

from datetime import datetime, timedelta
from urllib.parse import urlencode

from flask import Response
from pydantic import Field

from dataloader.app.features.failures.rows import HOURS, FailureGroup, Failures
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, PageRenderer, parse_time

_MAX_GROUPS = 200
_HOUR = timedelta(hours=1)


class FailuresPageQuery(FormModel):
    """Which failures to show; an empty field matches everything."""

    task: FormText = Field("", description="The task.")
    queue: FormText = Field("", description="The queue.")
    since: FormText = Field("", description="Only jobs that ended at this time or later.")
    until: FormText = Field("", description="Only jobs that ended before this time.")


def create_failures_page(site: Site) -> ApiBlueprint:
    source, options = site.executor, site.options
    pages = PageRenderer("failures_page", options)
    failures = Failures(source)

    @pages.page("/failures", query=FailuresPageQuery)
    def show_failures(query: FailuresPageQuery) -> Response:
        """Show failed and lost jobs, grouped by task and fingerprint of the error."""
        since, until, problem = None, None, None
        try:
            since = parse_time("since", query.since, pages.formatter.zone)
            until = parse_time("until", query.until, pages.formatter.zone)
        except InvalidForm as error:
            problem = str(error)
        groups = failures.groups(
            task=query.task or None, queue=query.queue or None, since=since, until=until, limit=_MAX_GROUPS
        )
        rows = [(group, _jobs_query(group, query, since, until)) for group in groups.failures]
        hours = [groups.hours_from + timedelta(hours=n) for n in range(HOURS)]
        return pages.render(
            "failures.html",
            query=query,
            problem=problem,
            groups=groups,
            rows=rows,
            total=sum(group.jobs for group in groups.failures),
            max_groups=_MAX_GROUPS,
            hours=[
                (hour, sum(group.by_hour[n] for group in groups.failures), _hour_url(query, hour))
                for n, hour in enumerate(hours)
            ],
            jobs_url=lambda group, n: "/jobs?" + _jobs_query(group, query, hours[n], hours[n] + _HOUR),
            is_one_hour=since is not None and until is not None and until - since <= _HOUR,
        )

    return pages.blueprint


def _jobs_query(group: FailureGroup, query: FailuresPageQuery, since: datetime | None, until: datetime | None) -> str:
    """The filter of the group's jobs, as in the address of the list of jobs."""
    fields = {
        "status": "failed,lost",
        "task": group.task,
        "fingerprint": group.fingerprint,
        "queue": query.queue,
        "finished_from": since and since.isoformat(),
        "finished_to": until and until.isoformat(),
    }
    return urlencode({name: value for name, value in fields.items() if value})


def _hour_url(query: FailuresPageQuery, hour: datetime) -> str:
    fields = {"task": query.task, "queue": query.queue, "since": hour.isoformat(), "until": (hour + _HOUR).isoformat()}
    return "/failures?" + urlencode({name: value for name, value in fields.items() if value})
