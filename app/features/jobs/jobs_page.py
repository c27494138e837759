"""The list of jobs, with its filter in the address; and bulk actions on selected or all matching jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from flask import Response
from pydantic import Field, create_model

from dataloader._job_filter import FILTER_FIELDS, MAX_JOB_IDS, FilterField
from dataloader.app.acts.matches import Match
from dataloader.app.acts.web import ActForms, ActRunner, refusing_form
from dataloader.app.errors import BulkMismatch
from dataloader.app.features.bulk.acts import BulkRequest, cancel_bulk_operation, start_bulk_operation
from dataloader.app.features.bulk.rows import BulkAction, BulkOperation, BulkOperations, BulkState
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.features.jobs.job_lookup import JobLookup
from dataloader.app.features.jobs.job_rows import STATES, JobRows
from dataloader.app.features.jobs.job_search import (
    Filter,
    JobSearch,
    JobSummary,
    MatchCount,
    NotSortable,
    Sort,
)
from dataloader.app.features.jobs.list_routes import JobFilter, decode_cursor, encode_cursor
from dataloader.app.features.jobs.search_words import SPANS, WORDS, Chip, chips, join_fields, parse_words
from dataloader.app.features.jobs.state_counts import StateCounter, StateCounts
from dataloader.app.http.jobs.acts import cancel_job, retry_job
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.log import mask_secret_fields
from dataloader.app.queue.job import WAIT_STATES, Status
from dataloader.app.state.queues import Queues
from dataloader.app.ui.base import (
    FormModel,
    FormText,
    InvalidForm,
    PageRenderer,
    parse_choice,
    parse_time,
    redirect_to,
)
from dataloader.app.ui.forms import parse_number

PAGE_SIZE = 50
_SEARCH_BUDGET_SEC = 0.02  # of a page, which also counts
_CONTINUED_BUDGET_SEC = 0.4  # of a page that continues a search, and does not count
_SORT_LABELS: dict[Sort, str] = {
    "-created_at": "newest first",
    "created_at": "oldest first",
    "priority": "priority",
    "available_at": "due soonest",
    "-available_at": "due latest",
    "started_at": "started first",
    "-started_at": "started last",
}
_UNSORTABLE = (
    "This order needs a small number of queued or running jobs: filter by these states, and by queue or task; "
    "or by a key."
)
_DEFAULT_SORT = "-created_at"
_NOT_OF_FILTER = {"after", "q", "continued"}  # fields of the address that select no jobs
_FormIds = Annotated[str, Field(max_length=37 * MAX_JOB_IDS)]


class _ListQuery(FormModel):
    q: FormText = Field("", description="Words of the search: fields such as `task:load.invoices`, and text.")
    continued: FormText = Field("", description="on: search further back, without counting.")
    sort: FormText = Field(_DEFAULT_SORT, description="The order; only queued and running jobs have the others.")
    after: FormText = Field("", description="The cursor of the next page, from the link of the page before.")


if TYPE_CHECKING:

    class JobsPageQuery(_ListQuery):
        job_id: str
        status: str
        wait_state: str
else:
    JobsPageQuery = create_model(
        "JobsPageQuery",
        __base__=_ListQuery,
        __module__=__name__,
        __doc__="The filter as the form sends it; an empty field matches all. Times are in the zone of the pages.",
        **{
            name: (_FormIds if name == "job_id" else FormText, Field("", description=field.text))
            for name, field in FILTER_FIELDS.items()
        },
    )


class BulkForm(FormModel):
    """A bulk action on the checked jobs, or on all that match a filter; without `expected` they are only counted. Or
    an action on one job."""

    filter: Annotated[str, Field(max_length=40 * MAX_JOB_IDS)] = Field(
        "", description="The filter, as in the address of the page."
    )
    action: FormText = Field("", description="cancel, retry, redrive, delete or reprioritise.")
    all: FormText = Field("", description="on: all jobs that match the filter.")
    job_id: list[UUID] = Field([], max_length=MAX_JOB_IDS, description="The checked jobs.")
    row: FormText = Field("", description="cancel or retry, and the id of one job: done without a preview.")
    priority: FormText = Field("", description="The new priority, of reprioritise.")
    per_minute: FormText = Field("", description="At most so many jobs a minute, of redrive.")
    expected: FormText = Field("", description="The count of the preview; empty: show the preview.")


def find_jobs(site: Site, text: str) -> Iterator[Match]:
    """Jobs by id and by key. Part of a key finds none, so for an empty text there is nothing."""
    source = site.executor
    if not text:
        return
    for job in JobLookup(source).by_id(text):
        yield Match("job", job.task, f"/jobs/{job.job_id}", detail=f"{job.job_id} in {job.queue}, {job.status.value}")
    if by_key := JobReader(source).by_idempotency_key(text):
        yield Match("idempotency key", text, f"/jobs/{by_key.job_id}")
    if JobSearch(source).has_lock_key(text):
        yield Match("lock key", text, "/jobs?" + urlencode({"lock_key": text}))


def create_jobs_page(site: Site) -> ApiBlueprint:
    queue, pipelines, options = site.queue, site.pipelines, site.options
    pages = PageRenderer("jobs_page", options)
    source = queue.executor
    search, rows, bulk, queues = JobSearch(source), JobRows(source), BulkOperations(source), Queues(source)
    counter = StateCounter(rows)

    @pages.page(
        "/jobs", query=JobsPageQuery, html_responses={303: "To the address that has the words of `q` as fields."}
    )
    def show_jobs(query: JobsPageQuery) -> Response:
        """Show jobs that match the filter in the address."""
        values: dict[str, Any] = {"error": None}
        zone = pages.formatter.zone
        try:
            if query.q.strip():
                return redirect_to(_search_address(query, zone, pages.formatter.now()))
            values |= _job_list(search, rows, counter, query, zone)
        except InvalidForm as error:
            values["error"] = str(error)
        except NotSortable:
            values["error"] = _UNSORTABLE
        return pages.render(
            "jobs.html",
            query=query,
            sort_labels=_SORT_LABELS,
            task_names=pipelines.names,
            queue_names=queues.names(),
            today=f"{pages.formatter.now():%Y-%m-%d}",
            fields=filter_fields(query),
            chips=_chips(query, zone),
            words=WORDS,
            spans=SPANS,
            **values,
        )

    @pages.action("/jobs/bulk", form=BulkForm, page_url="/jobs")
    def start_bulk(form: BulkForm) -> Response:
        """Preview a bulk action on the checked or all matching jobs, and start it when the preview is confirmed."""
        back_url = f"/jobs?{urlencode(_query_pairs(form.filter))}".rstrip("?")
        if form.row:
            _act_on_row(site.runner, form.row)
            counter.forget()
            return redirect_to(back_url)
        try:
            selection = _selection(form)
            query = JobsPageQuery.model_validate(_query_pairs(selection))
            job_filter = parse_filter(query, pages.formatter.zone)
            action = parse_choice("action", form.action, BulkAction)
        except ValueError as error:
            return pages.render_failure(error, back_url=back_url)
        problem = None
        if form.expected:
            try:
                operation = _start(site.runner, action, job_filter, form)
                counter.forget()
                return redirect_to(f"/bulk/{operation.bulk_id}")
            except InvalidForm as error:
                problem = error
            except (BulkMismatch, ValueError) as error:
                return pages.render_failure(error, back_url=back_url)
        return pages.render(
            "confirm.html",
            status=HTTPStatus.UNPROCESSABLE_ENTITY if problem else HTTPStatus.OK,
            action=action,
            count=bulk.count(action, job_filter),
            form=form,
            selection=selection,
            fields=_shown_fields(query),
            job_count=len(job_filter.job_id or ()),
            problem=problem,
            back_url=back_url,
        )

    @pages.page("/bulk/<uuid:bulk_id>", problems=(ProblemCode.BULK_NOT_FOUND,), standby=False)
    def show_bulk_operation(bulk_id: UUID) -> Response:
        """Show the progress of a bulk operation."""
        operation = bulk.get(bulk_id)
        parameters = operation.filter.as_parameters()
        return pages.render(
            "bulk.html",
            operation=operation,
            fields={name: value for name, value in parameters.items() if name not in ("job_id", "status")},
            statuses=sorted(operation.filter.status or ()),
            job_count=len(operation.filter.job_id or ()),
            undo=_undo_filter(operation),
            others=bulk.list(limit=10),
        )

    forms = ActForms(
        pages=pages, runner=site.runner, page=show_bulk_operation, page_url="/bulk/{bulk_id}",
        problems=(ProblemCode.BULK_NOT_FOUND,),
    )  # fmt: skip
    forms.add_button(cancel_bulk_operation.path, "cancel_bulk", cancel_bulk_operation)
    return pages.blueprint


def _job_list(
    search: JobSearch, rows: JobRows, counter: StateCounter, query: JobsPageQuery, zone: str
) -> dict[str, Any]:
    job_filter, sort = parse_filter(query, zone), parse_choice("order", query.sort, _SORT_LABELS)
    try:
        after = decode_cursor(query.after, sort) if query.after else None
    except ValueError:
        raise InvalidForm("The position in the list is invalid; start with its first page.") from None
    is_continued = after is not None and query.continued == "on"
    budget_sec = _CONTINUED_BUDGET_SEC if is_continued else _SEARCH_BUDGET_SEC
    page = search.page(job_filter, sort=sort, limit=PAGE_SIZE, after=after, time_budget_sec=budget_sec)
    counts = StateCounts(dict.fromkeys(STATES), 0.0) if is_continued else counter.count(job_filter)
    states = counts.by_state
    details = rows.details(page.jobs)
    return {
        "page": replace(page, jobs=rows.with_durations(page.jobs)),
        "args": {job_id: mask_secret_fields(found.args) for job_id, found in details.items()},
        "details": details,
        "queue_sec": {job.job_id: _queue_sec(job) for job in page.jobs},
        "count": page.matching or _matching(job_filter, states),
        "states": states,
        "counts_age_sec": counts.age_sec,
        "tabs": [(state, query_string(_with_state(query, state))) for state in STATES],
        "all_query": query_string(query.model_copy(update={"status": "", "wait_state": ""})),
        "all_count": _sum(list(states.values())),
        "limit": PAGE_SIZE,
        "filter": query_string(query),
        "next": None if page.next is None else query_string(query, after=encode_cursor(page.next, sort)),
    }


def _chips(query: JobsPageQuery, zone: str) -> list[tuple[Chip, str]]:
    """The words of the filter, each with the address of the page without it."""
    found = chips(filter_fields(query), zone)
    return [(chip, query_string(query.model_copy(update=chip.without))) for chip in found]


def _search_address(query: JobsPageQuery, zone: str, now: datetime) -> str:
    """The page of the filter that the words of the search narrow. Raises InvalidForm."""
    fields = join_fields(filter_fields(query), parse_words(query.q, zone, now))
    narrowed = query.model_copy(update=fields)
    parse_filter(narrowed, zone)
    return f"/jobs?{query_string(narrowed)}"


def filter_fields(query: JobsPageQuery) -> dict[str, str]:
    """The fields of the filter as the address has them; an empty one matches all."""
    return {name: getattr(query, name) for name in FILTER_FIELDS}


def _with_state(query: JobsPageQuery, state: str) -> JobsPageQuery:
    is_waiting = state in WAIT_STATES
    return query.model_copy(
        update={"status": Status.QUEUED if is_waiting else state, "wait_state": state if is_waiting else ""}
    )


def _matching(job_filter: Filter, states: dict[str, MatchCount | None]) -> MatchCount | None:
    """The number of matching jobs by the counts of their states."""
    statuses = frozenset(Status) if job_filter.status is None else job_filter.status
    wanted = [
        count
        for state, count in states.items()
        if (Status.QUEUED if state in WAIT_STATES else Status(state)) in statuses
        and (job_filter.wait_state is None or state == job_filter.wait_state)
    ]
    return _sum(wanted)


def _sum(counts: list[MatchCount | None]) -> MatchCount | None:
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return None
    return MatchCount(sum(count.jobs for count in known), all(count.exact for count in known), 0)


def _queue_sec(job: JobSummary) -> float | None:
    """Seconds from when the job was due to its first start; of a ready or blocked job, so far."""
    due_at = max(job.created_at, job.available_at)
    if job.started_at is not None:
        # A retry has moved available_at behind the first start.
        due_at = job.available_at if job.created_at < job.available_at <= job.started_at else job.created_at
        return (job.started_at - due_at).total_seconds()
    if job.status is not Status.QUEUED or job.wait_state == "scheduled":
        return None
    return max(0.0, (datetime.now(UTC) - due_at).total_seconds())


def parse_filter(query: JobsPageQuery, zone: str) -> Filter:
    """Parse the fields of the form. Raises InvalidForm."""
    return Filter(
        **{field.name: _parse_field(field, getattr(query, field.name), zone) for field in FILTER_FIELDS.values()}
    )


def _parse_field(field: FilterField, raw: str, zone: str) -> Any:
    if field.name == "job_id":
        return _parse_job_ids(raw)
    if field.name == "status":
        statuses = [parse_choice("status", name.strip(), Status) for name in raw.split(",") if name.strip()]
        return frozenset(statuses) or None
    if field.type is datetime:
        return parse_time(field.name, raw, zone)
    if not raw:
        return None
    if field.type is bool:
        return parse_choice(field.name, raw, ("true", "false")) == "true"
    return parse_choice(field.name, raw, field.choices) if field.choices else raw


def _parse_job_ids(raw: str) -> frozenset[UUID] | None:
    try:
        job_ids = frozenset(UUID(job_id.strip()) for job_id in raw.split(",") if job_id.strip())
    except ValueError:
        raise InvalidForm(f"job_id: {raw[:100]!r} is not one or several ids of jobs, separated by commas") from None
    if len(job_ids) > MAX_JOB_IDS:
        raise InvalidForm(f"job_id: has more than {MAX_JOB_IDS} ids")
    return job_ids or None


def query_string(query: JobsPageQuery, **more: str) -> str:
    """The filter as in an address, without empty and default fields."""
    fields = {name: value for name, value in query.model_dump(exclude=_NOT_OF_FILTER).items() if value}
    if fields.get("sort") == _DEFAULT_SORT:
        del fields["sort"]
    return urlencode(fields | more)


def _selection(form: BulkForm) -> str:
    """The filter of the jobs that the form selects. Raises InvalidForm if it selects none."""
    if form.all:
        return form.filter
    if not form.job_id:
        raise InvalidForm("No jobs are selected: check some rows, or all matching jobs.")
    return urlencode({"job_id": ",".join(map(str, form.job_id))})


def _start(runner: ActRunner, action: BulkAction, job_filter: Filter, form: BulkForm) -> BulkOperation:
    """Raises InvalidForm."""
    fields = {
        BulkAction.REPRIORITISE: {"priority": parse_number(form.priority)},
        BulkAction.REDRIVE: {"per_minute": parse_number(form.per_minute)},
    }
    with refusing_form():
        filter_fields = JobFilter.from_filter(job_filter)
        values = {"action": action, "filter": filter_fields, "expected": int(form.expected), **fields.get(action, {})}
        operation: BulkOperation = runner.perform(start_bulk_operation, {}, BulkRequest.model_validate(values))
    return operation


def _act_on_row(runner: ActRunner, raw: str) -> None:
    """Cancel or retry one job. Raises InvalidForm."""
    action, _, job_id = raw.partition(" ")
    act = {"cancel": cancel_job, "retry": retry_job}.get(action)
    try:
        if act is None:
            raise ValueError(action)
        UUID(job_id)
    except ValueError:
        raise InvalidForm(f"Unknown action {raw[:100]!r}; expected cancel or retry, and the id of a job.") from None
    runner.perform(act, {"job_id": job_id})


def _undo_filter(operation: BulkOperation) -> str | None:
    """The filter of the jobs that a finished cancel has canceled, of which those that may can be retried."""
    if operation.action is not BulkAction.CANCEL or not operation.state.final or not operation.changed:
        return None
    if operation.state is BulkState.FAILED:
        return None
    canceled = replace(
        operation.filter,
        status=frozenset({Status.CANCELED}),
        wait_state=None,
        created_to=min(operation.filter.created_to or operation.created_at, operation.created_at),
        finished_from=operation.created_at,
    )
    fields = canceled.as_parameters() | {"status": Status.CANCELED.value}
    if canceled.job_id is not None:
        fields["job_id"] = ",".join(sorted(map(str, canceled.job_id)))
    return urlencode(fields)


def _shown_fields(query: JobsPageQuery) -> dict[str, str]:
    fields = query.model_dump(exclude={*_NOT_OF_FILTER, "sort", "job_id"})
    return {name.replace("_", " ").capitalize(): value for name, value in fields.items() if value}


def _query_pairs(query: str) -> dict[str, str]:
    return {name: value for name, value in parse_qsl(query) if name in JobsPageQuery.model_fields}
