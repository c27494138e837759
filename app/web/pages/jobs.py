"""The list of jobs, with its filter in the address; and bulk actions on all matching jobs."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from flask import Response
from pydantic import Field

from app.admin.bulk import MAX_PER_MINUTE, BulkAction, BulkOperations, Redrive
from app.admin.job_search import Filter, JobSearch, NotSortable, Sort
from app.db.statements import Executor
from app.errors import BulkMismatch
from app.queue.job import Status
from app.web.api.job_list import decode_cursor, encode_cursor
from app.web.auth.guard import current_actor
from app.web.options import WebOptions
from app.web.pages.base import (
    FormModel,
    FormText,
    InvalidForm,
    PageRenderer,
    parse_choice,
    parse_priority,
    parse_time,
    redirect_to,
)
from app.web.problems import ProblemCode
from app.web.routing import ApiBlueprint

PAGE_SIZE = 50
_SORT_LABELS: dict[Sort, str] = {
    "-created_at": "Newest first",
    "created_at": "Oldest first",
    "priority": "Priority",
    "available_at": "Due soonest",
    "-available_at": "Due latest",
    "started_at": "Started first",
    "-started_at": "Started last",
}
_UNSORTABLE = (
    "This order needs a small number of queued or running jobs: filter by these statuses, and by queue or task."
)
_DEFAULT_SORT = "-created_at"
_WARNINGS = ("true", "false")


class JobsPageQuery(FormModel):
    """The filter as the form sends it; an empty field matches everything."""

    status: FormText = Field("", description="One or several statuses, separated by commas.")
    queue: FormText = Field("", description="The queue.")
    task: FormText = Field("", description="The task.")
    lock_key: FormText = Field("", description="The lock_key.")
    partition_key: FormText = Field("", description="The partition_key.")
    producer: FormText = Field("", description="The producer.")
    fingerprint: FormText = Field("", description="The fingerprint of the last error.")
    warnings: FormText = Field("", description="true: succeeded with data checks that did not pass.")
    created_from: FormText = Field("", description="Created at this time or later, in the zone of the pages.")
    created_to: FormText = Field("", description="Created before this time.")
    text: FormText = Field("", description="A text in the args or in the error.")
    sort: FormText = Field(_DEFAULT_SORT, description="The order; only queued and running jobs have the others.")
    after: FormText = Field("", description="The cursor of the next page, from the link of the page before.")


class BulkForm(FormModel):
    """A bulk action on all jobs that match a filter; without `expected` the matching jobs are only counted."""

    filter: FormText = Field(description="The filter, as in the address of the page.")
    action: FormText = Field(description="cancel, retry, redrive, delete or reprioritise.")
    priority: FormText = Field("", description="The new priority, of reprioritise.")
    per_minute: FormText = Field("", description="At most so many jobs a minute, of redrive.")
    expected: FormText = Field("", description="The count of the preview; empty: show the preview.")


def create_jobs_page(source: Executor, options: WebOptions) -> ApiBlueprint:
    pages = PageRenderer("jobs_page", options)
    search, bulk = JobSearch(source), BulkOperations(source)

    @pages.page("/jobs", query=JobsPageQuery)
    def show_jobs(query: JobsPageQuery) -> Response:
        """Show jobs that match the filter in the address."""
        values: dict[str, Any] = {"error": None}
        try:
            values |= _job_list(search, query, pages.formatter.zone)
        except InvalidForm as error:
            values["error"] = str(error)
        except NotSortable:
            values["error"] = _UNSORTABLE
        return pages.render("jobs.html", query=query, sort_labels=_SORT_LABELS, **values)

    @pages.action("/jobs/bulk", form=BulkForm, page_url="/jobs")
    def start_bulk(form: BulkForm) -> Response:
        """Preview a bulk action on all matching jobs, and start it when the preview is confirmed."""
        back_url = f"/jobs?{form.filter}" if form.filter else "/jobs"
        try:
            query = JobsPageQuery.model_validate(_query_pairs(form.filter))
            job_filter = parse_filter(query, pages.formatter.zone)
            action = parse_choice("action", form.action, BulkAction)
            priority = parse_priority(form.priority) if action is BulkAction.REPRIORITISE else None
            if action is BulkAction.REPRIORITISE and priority is None:
                raise InvalidForm("priority: required to change the priority")
            redrive = _parse_redrive(form.per_minute) if action is BulkAction.REDRIVE else None
            if form.expected:
                actor, expected = current_actor().name, int(form.expected)
                operation = bulk.start(
                    action, job_filter, expected=expected, priority=priority, redrive=redrive, requested_by=actor
                )
                return redirect_to(f"/bulk/{operation.bulk_id}")
            count = bulk.count(action, job_filter)
        except (BulkMismatch, ValueError) as error:
            return pages.render_failure(error, back_url=back_url)
        return pages.render(
            "confirm.html", action=action, priority=priority, count=count, form=form, query=query, back_url=back_url
        )

    @pages.page("/bulk/<uuid:bulk_id>", problems=(ProblemCode.BULK_NOT_FOUND,))
    def show_bulk_operation(bulk_id: UUID) -> Response:
        """Show the progress of a bulk operation."""
        return pages.render("bulk.html", operation=bulk.get(bulk_id), others=bulk.list(limit=10))

    @pages.action("/bulk/<uuid:bulk_id>/cancel", page_url="/bulk/{bulk_id}", problems=(ProblemCode.BULK_NOT_FOUND,))
    def cancel_bulk(bulk_id: UUID) -> None:
        """Stop a bulk operation; jobs that it has changed stay changed."""
        bulk.cancel(bulk_id)

    return pages.blueprint


def _job_list(search: JobSearch, query: JobsPageQuery, zone: str) -> dict[str, Any]:
    job_filter, sort = parse_filter(query, zone), parse_choice("order", query.sort, _SORT_LABELS)
    try:
        after = decode_cursor(query.after, sort) if query.after else None
    except ValueError:
        raise InvalidForm("The position in the list is invalid; start with its first page.") from None
    page = search.page(job_filter, sort=sort, limit=PAGE_SIZE, after=after)
    # A search that reached its time limit has not seen all jobs: counting them would take longer.
    is_incomplete = page.next and len(page.jobs) < PAGE_SIZE
    return {
        "page": page,
        "count": page.matching or (None if is_incomplete else search.count(job_filter)),
        "limit": PAGE_SIZE,
        "filter": query_string(query),
        "next": None if page.next is None else query_string(query, after=encode_cursor(page.next, sort)),
    }


def parse_filter(query: JobsPageQuery, zone: str) -> Filter:
    """Parse the fields of the form. Raises InvalidForm."""
    texts = query.model_dump(include={"queue", "task", "lock_key", "partition_key", "producer", "fingerprint", "text"})
    statuses = [parse_choice("status", raw.strip(), Status) for raw in query.status.split(",") if raw.strip()]
    return Filter(
        status=frozenset(statuses) or None,
        warnings=parse_choice("warnings", query.warnings, _WARNINGS) == "true" if query.warnings else None,
        created_from=parse_time("created_from", query.created_from, zone),
        created_to=parse_time("created_to", query.created_to, zone),
        **{name: text for name, text in texts.items() if text},
    )


def query_string(query: JobsPageQuery, **more: str) -> str:
    """The filter as in an address, without empty and default fields."""
    fields = {name: value for name, value in query.model_dump(exclude={"after"}).items() if value}
    if fields.get("sort") == _DEFAULT_SORT:
        del fields["sort"]
    return urlencode(fields | more)


def _parse_redrive(raw: str) -> Redrive:
    if not raw.strip().isdecimal() or not 1 <= int(raw) <= MAX_PER_MINUTE:
        raise InvalidForm(f"jobs a minute: {raw!r} is not a whole number from 1 to {MAX_PER_MINUTE}")
    return Redrive(per_minute=int(raw))


def _query_pairs(query: str) -> dict[str, str]:
    return {name: value for name, value in parse_qsl(query) if name in JobsPageQuery.model_fields}
