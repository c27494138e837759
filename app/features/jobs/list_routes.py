"""Lists, details, events and explanations of jobs over HTTP."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_type_hints
from uuid import UUID

from pydantic import AfterValidator, Field, create_model
from pydantic_core import PydanticCustomError

from dataloader._job_filter import FILTER_FIELDS, MAX_JOB_IDS, FilterField
from dataloader.app.acts.web import add_routes
from dataloader.app.features.jobs.acts import clone_job, delete_job, edit_job
from dataloader.app.features.jobs.job_detail import JobDetail, JobReader, RelatedJob, masked_detail, masked_values
from dataloader.app.features.jobs.job_lookup import JobLookup
from dataloader.app.features.jobs.job_rows import JobRows
from dataloader.app.features.jobs.job_search import (
    SUMMARY_FIELDS,
    Cursor,
    Filter,
    JobPage,
    JobSearch,
    JobSummary,
    MatchCount,
    NotSortable,
    Sort,
)
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.problems import DATABASE_PROBLEMS, InvalidRequest, ProblemCode
from dataloader.app.http.routing import ApiBlueprint, VersionedResponse
from dataloader.app.http.schemas import MAX_PAGE_SIZE, JobEvents, QueryModel, Timestamp, parse_job_id
from dataloader.app.http.site import Site
from dataloader.app.log import mask_secret_fields
from dataloader.app.queue.job import Status
from dataloader.app.queue.jobs import JobQueue

_STATUS_PATTERN = "|".join(Status)


def _validate_statuses(raw: str) -> str:
    if not {*raw.split(",")} <= {*Status}:
        raise PydanticCustomError("status", "must be of {known}, separated by commas", {"known": ", ".join(Status)})
    return raw


def _validate_job_ids(raw: str) -> str:
    try:
        job_ids = {UUID(job_id) for job_id in raw.split(",")}
    except ValueError:
        raise PydanticCustomError("job_id", "must be ids of jobs, separated by commas") from None
    if len(job_ids) > MAX_JOB_IDS:
        raise PydanticCustomError("job_id", "has more than {max} ids", {"max": MAX_JOB_IDS})
    return raw


def _parameter(field: FilterField) -> tuple[Any, Any]:
    """A field of a filter as `create_model` takes it."""
    types: dict[Any, Any] = {
        bool: bool,
        datetime: Timestamp,
        str: Literal[field.choices] if field.choices else str,
        frozenset[UUID]: Annotated[
            str, AfterValidator(_validate_job_ids), Field(pattern=r"^[0-9a-fA-F-]{36}(,[0-9a-fA-F-]{36})*$")
        ],
        frozenset[str]: Annotated[
            str, AfterValidator(_validate_statuses), Field(pattern=f"^({_STATUS_PATTERN})(,({_STATUS_PATTERN}))*$")
        ],
    }
    size: dict[str, Any] = {} if field.max_length is None else {"min_length": 1, "max_length": field.max_length}
    size |= {} if field.pattern is None else {"pattern": field.pattern}
    of_type = types[field.type]
    annotation = of_type if field.type is datetime else of_type | None
    return Annotated[annotation, Field(description=field.text, **size)], None


class _JobFilter(QueryModel):
    @classmethod
    def from_filter(cls, job_filter: Filter) -> Self:
        """Raises ValidationError."""
        fields = {
            name: ",".join(map(str, value)) if isinstance(value, list)
            else value.isoformat() if isinstance(value, datetime) else value
            for name, value in job_filter.to_dict().items()
        }  # fmt: skip
        return cls.model_validate(fields)

    def to_filter(self) -> Filter:
        fields = {name: getattr(self, name) for name in FILTER_FIELDS}
        if (status := fields["status"]) is not None:
            fields["status"] = frozenset(Status(name) for name in status.split(","))
        if (job_ids := fields["job_id"]) is not None:
            fields["job_id"] = frozenset(UUID(job_id) for job_id in job_ids.split(","))
        return Filter(**fields)


if TYPE_CHECKING:

    class JobFilter(_JobFilter):
        fingerprint: str | None
else:
    JobFilter = create_model(
        "JobFilter",
        __base__=_JobFilter,
        __module__=__name__,
        __doc__="Which jobs to select. Time ranges include their start and exclude their end. A field left out matches "
        "any job.\n\nJobs with an id, an idempotency key, a lock key or a rare tag are found at once, however old they "
        "are.",
        **{name: _parameter(field) for name, field in FILTER_FIELDS.items()},
    )


def _validate_fields(raw: str) -> str:
    if any(name not in SUMMARY_FIELDS for name in raw.split(",")):
        raise PydanticCustomError("fields", "must be of {known}", {"known": ", ".join(SUMMARY_FIELDS)})
    return raw


class JobsQuery(JobFilter):
    """Which jobs to list, and how."""

    sort: Annotated[
        Sort,
        Field(
            description="The order; `-` means descending. Only queued and running jobs, and those of ids or a key, can "
            "be sorted by anything but `created_at`, if there are at most five thousand of them."
        ),
    ] = "-created_at"
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE, description="The maximum number of entries.")] = 50
    after: Annotated[str | None, Field(max_length=500, description="Continue after a page: its `next`.")] = None
    fields: Annotated[
        Annotated[str, AfterValidator(_validate_fields), Field(pattern=r"^[a-z_]+(,[a-z_]+)*$")] | None,
        Field(description="Only these fields of each job, separated by commas."),
    ] = None
    count: Annotated[bool, Field(description="Whether to count the matching jobs.")] = False


class JobIdQuery(QueryModel):
    id: Annotated[
        str,
        Field(
            min_length=1,
            max_length=40,
            description="The first eight or more digits of an id, or its short form in lists, `01a2…f554`.",
        ),
    ]


@dataclass(frozen=True)
class JobMatches:
    """Jobs whose ids match, newest first, at most ten."""

    jobs: list[RelatedJob]


class EventsQuery(QueryModel):
    after: Annotated[int, Field(ge=0, le=2**63 - 1, description="Only events after this `event_id`.")] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE, description="The maximum number of entries.")] = MAX_PAGE_SIZE


if TYPE_CHECKING:
    ListedJob = dict[str, Any]
else:
    # `fields` chooses which of them there are, so none is required. They have no default.
    ListedJob = create_model(
        "ListedJob",
        __doc__="A job in a list, with the fields that the request asks for.",
        **{name: (kind, Field(default_factory=type(None))) for name, kind in get_type_hints(JobSummary).items()},
    )


@dataclass(frozen=True)
class JobList:
    """A page of jobs. With `next` there may be more, even if this page is not full: a search stops after a moment, at
    jobs created at `scanned_to`."""

    jobs: list[ListedJob]
    next: str | None
    scanned_to: datetime | None
    count: MatchCount | None


def create_job_list_blueprint(site: Site) -> ApiBlueprint:
    executor = site.executor
    blueprint = ApiBlueprint("job_list", "/api/v1", problems=DATABASE_PROBLEMS)
    search, reader, rows = JobSearch(executor), JobReader(executor), JobRows(executor)
    queue, lookup = JobQueue(executor), JobLookup(executor)
    job_problems = (ProblemCode.JOB_NOT_FOUND,)

    @blueprint.get("/jobs", query=JobsQuery, response=JobList, scope=Scope.READ, standby=True)
    def list_jobs(query: JobsQuery) -> JobList:
        """List jobs, newest first.

        A page takes only a moment, however many jobs there are: a longer search returns what it has found, and `next`
        continues it.
        """
        page = _find_page(search, query)
        names = SUMMARY_FIELDS if query.fields is None else query.fields.split(",")
        jobs = rows.with_durations(page.jobs) if "duration_ms" in names else page.jobs
        return JobList(
            [masked_values(job, names) for job in jobs],
            None if page.next is None else encode_cursor(page.next, query.sort),
            page.scanned_to,
            (page.matching or search.count(query.to_filter())) if query.count else None,
        )

    @blueprint.get("/jobs/find", query=JobIdQuery, response=JobMatches, scope=Scope.READ, standby=True)
    def find_jobs(query: JobIdQuery) -> JobMatches:
        """Find jobs by a part of their id."""
        return JobMatches(lookup.by_id(query.id))

    @blueprint.get("/jobs/<job:job_id>", response=JobDetail, problems=job_problems, scope=Scope.READ)
    def get_job(job_id: str) -> VersionedResponse:
        """Get a job with its attempts and related jobs. Its `ETag` is what `If-Match` takes when the job is edited."""
        detail = masked_detail(reader.detail(parse_job_id(job_id)))
        return VersionedResponse(detail, detail.version)

    @blueprint.get(
        "/jobs/<job:job_id>/events", query=EventsQuery, response=JobEvents, problems=job_problems, scope=Scope.READ
    )
    def list_job_events(query: EventsQuery, job_id: str) -> JobEvents:
        """List a job's events, oldest first. To continue after a full page, send the last `event_id` as `after`."""
        job = reader.get_with_version(parse_job_id(job_id)).job
        events = queue.events(job.id, after=query.after, limit=query.limit)
        return JobEvents(job.id, [replace(event, payload=mask_secret_fields(event.payload)) for event in events])

    add_routes(blueprint, (edit_job, clone_job, delete_job), site.runner)
    return blueprint


def _find_page(search: JobSearch, query: JobsQuery) -> JobPage:
    try:
        after = None if query.after is None else decode_cursor(query.after, query.sort)
    except ValueError:
        raise InvalidRequest(
            [FieldError("after", "is not the `next` of a page of this list; start without it")]
        ) from None
    try:
        return search.page(query.to_filter(), sort=query.sort, limit=query.limit, after=after)
    except NotSortable as error:
        raise InvalidRequest([FieldError("sort", error.message)]) from None


def encode_cursor(cursor: Cursor, sort: Sort) -> str:
    key = cursor.key.isoformat() if isinstance(cursor.key, datetime) else cursor.key
    text = json.dumps([sort, key, str(cursor.id), cursor.is_active])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(raw: str, expected_sort: Sort) -> Cursor:
    """Raises ValueError for a text that `encode_cursor` did not return for this sort order."""
    try:
        sort, key, job_id, is_active = json.loads(base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)))
        if sort != expected_sort or not isinstance(is_active, bool):
            raise ValueError
        return Cursor(float(key) if is_active else datetime.fromisoformat(key), UUID(job_id), is_active)
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError from error
