"""Jobs as people look for them: lists, everything about one, its journal, and why it is where it is."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from flask import Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.queue.job import Status
from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.queue.lists import (
    Cursor,
    Filter,
    JobRow,
    Lists,
    NotSortable,
    Page,
    Relative,
    Sort,
    Story,
    Tally,
    TooManyLive,
    Try,
)
from app.queue.why import Explanation, Why
from app.web.conditional import Versioned
from app.web.jobs import job_id_of
from app.web.models import LONGEST_LIST, JobDetail, JobEvent, JobEvents, JobLine, read_moment
from app.web.operations import Subject
from app.web.options import WebOptions
from app.web.problems import Code, InvalidRequest
from app.web.strictjson import FieldFault

_DATABASE = (Code.DATABASE_UNAVAILABLE, Code.SCHEMA_MISMATCH)
_LONGEST_SEARCH = 200
_STATUSES = "|".join(Status)

Moment = Annotated[
    datetime | None,
    BeforeValidator(read_moment),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}),
]


def _statuses(told: str) -> str:
    unknown = [word for word in told.split(",") if word not in set(Status)]
    if unknown:
        raise PydanticCustomError("status", "knows {known}, separated by commas", {"known": ", ".join(Status)})
    return told


class JobFilter(BaseModel):
    """Which jobs are meant. Times are from (included) to (left out). What is left out may be anything."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: Annotated[
        Annotated[str, AfterValidator(_statuses), Field(pattern=f"^({_STATUSES})(,({_STATUSES}))*$")] | None,
        Field(description="Only jobs with one of these statuses, separated by commas."),
    ] = None
    queue: Annotated[str | None, Field(description="Only jobs of this queue.")] = None
    task: Annotated[str | None, Field(description="Only jobs of this task.")] = None
    lock_key: Annotated[str | None, Field(description="Only jobs with this key.")] = None
    partition_key: Annotated[str | None, Field(description="Only jobs of this slice of work.")] = None
    producer: Annotated[str | None, Field(description="Only jobs that this one asked for.")] = None
    created_from: Annotated[Moment, Field(description="Only jobs that were made then or later.")] = None
    created_to: Annotated[Moment, Field(description="Only jobs that were made before.")] = None
    started_from: Annotated[Moment, Field(description="Only jobs that first started then or later.")] = None
    started_to: Annotated[Moment, Field(description="Only jobs that first started before.")] = None
    finished_from: Annotated[Moment, Field(description="Only jobs that ended then or later.")] = None
    finished_to: Annotated[Moment, Field(description="Only jobs that ended before.")] = None
    text: Annotated[
        str | None,
        Field(min_length=1, max_length=_LONGEST_SEARCH, description="Only jobs with this text in their args or error."),
    ] = None

    def filter(self) -> Filter:
        told = {name: getattr(self, name) for name in JobFilter.model_fields if name != "status"}
        status = None if self.status is None else frozenset(Status(word) for word in self.status.split(","))
        return Filter(status=status, **told)


_LINE_FIELDS = tuple(JobLine.__dataclass_fields__)


def _fields(told: str) -> str:
    if any(name not in _LINE_FIELDS for name in told.split(",")):
        raise PydanticCustomError("fields", "knows {known}", {"known": ", ".join(_LINE_FIELDS)})
    return told


class JobsQuery(JobFilter):
    """Which jobs to list. From the address, where everything is a text, so numbers may be written as texts."""

    sort: Annotated[
        Sort,
        Field(
            description="In which order; `-` is the greatest first. Another one than that of their making only for "
            "waiting and running jobs, of which there must not be more than five thousand."
        ),
    ] = "-created_at"
    limit: Annotated[int, Field(ge=1, le=LONGEST_LIST, description="How many at most.")] = 50
    after: Annotated[str | None, Field(max_length=500, description="Go on behind the page before: its `next`.")] = None
    fields: Annotated[
        Annotated[str, AfterValidator(_fields), Field(pattern=r"^[a-z_]+(,[a-z_]+)*$")] | None,
        Field(description="Only these members of each job, separated by commas."),
    ] = None
    count: Annotated[bool, Field(description="Whether to tell how many jobs fit.")] = False


class EventsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    after: Annotated[int, Field(ge=0, le=2**63 - 1, description="Only lines behind this `event_id`.")] = 0
    limit: Annotated[int, Field(ge=1, le=LONGEST_LIST, description="How many at most.")] = LONGEST_LIST


@dataclass(frozen=True)
class JobCount:
    """How many jobs fit; not exact where there was no time to count them all."""

    jobs: int
    exact: bool

    @classmethod
    def of(cls, tally: Tally) -> JobCount:
        return cls(tally.jobs, tally.exact)


@dataclass(frozen=True)
class JobList:
    """A page of jobs. With a `next` there may be more, also when this page is not full: a search ends after a moment,
    and `looked_to` tells how far back it has come."""

    jobs: list[dict[str, Any]]
    next: str | None
    looked_to: datetime | None
    count: JobCount | None


@dataclass(frozen=True)
class JobTry:
    """A try at a job, as the journal tells it. `outcome` is the event that ended it; null: it goes on."""

    attempt: int
    run_id: UUID | None
    worker: str | None
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    reason: str | None
    error: str | None
    pause_sec: float | None
    notes: dict[str, Any]

    @classmethod
    def of(cls, told: Try) -> JobTry:
        return cls(**vars(told))


@dataclass(frozen=True)
class RelatedJob:
    """Another job that this one has to do with. `since`: when it was made, or began to hold the key."""

    job_id: UUID
    queue: str
    task: str
    status: Status
    since: datetime

    @classmethod
    def of(cls, told: Relative) -> RelatedJob:
        return cls(told.id, told.queue, told.task, told.status, told.at)


@dataclass(frozen=True, kw_only=True)
class JobStory(JobDetail):
    """Everything about a job. `place`: where a queued job waits: timed, ready or parked. `stray`: it is set aside, as
    no live worker knows its task."""

    place: str
    stray: bool
    tries: list[JobTry]
    parent: RelatedJob | None
    children: list[RelatedJob]
    key_holder: RelatedJob | None

    @classmethod
    def told(cls, story: Story) -> JobStory:
        return cls(
            **vars(JobDetail.of(story.job)),
            place=story.place,
            stray=story.stray,
            tries=[JobTry.of(one) for one in story.tries],
            parent=None if story.parent is None else RelatedJob.of(story.parent),
            children=[RelatedJob.of(child) for child in story.children],
            key_holder=None if story.key_holder is None else RelatedJob.of(story.key_holder),
        )


@dataclass(frozen=True)
class WhyReason:
    """One thing that holds a job, or explains it."""

    code: str
    sentence: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class WhyEstimate:
    """When a waiting job may start, and what that is reckoned from."""

    seconds: float
    basis: str


@dataclass(frozen=True)
class JobWhy:
    """Why a job is where it is. The first reason is the one to look at. `position`: its place in its row."""

    job_id: UUID
    status: Status
    reasons: list[WhyReason]
    position: int | None
    position_exact: bool
    estimate: WhyEstimate | None

    @classmethod
    def of(cls, told: Explanation) -> JobWhy:
        estimate = told.estimate
        return cls(
            told.job.id,
            told.job.status,
            [WhyReason(reason.code, reason.sentence, reason.facts) for reason in told.reasons],
            told.position,
            told.position_exact,
            None if estimate is None else WhyEstimate(round(estimate.seconds, 1), estimate.basis),
        )


def joblists(source: Source, options: WebOptions) -> Subject:
    subject = Subject("lists", "/api/v1", options.max_json_depth)
    lists, why = Lists(source), Why(source)
    absent = (Code.JOB_NOT_FOUND, *_DATABASE)

    @subject.get("/jobs", query=JobsQuery, answer=JobList, problems=_DATABASE, scope=Scope.READ)
    def job_list(wanted: JobsQuery) -> JobList:
        """List jobs, the newest first.

        A page is found in a moment however many jobs there are: a search that takes longer ends with what it has, and
        `next` goes on from there.
        """
        page = _page(lists, wanted)
        names = None if wanted.fields is None else wanted.fields.split(",")
        count = JobCount.of(page.fitting or lists.count(wanted.filter())) if wanted.count else None
        return JobList(
            [_line(row, names) for row in page.jobs], _told_cursor(page.next, wanted.sort), page.looked_to, count
        )

    @subject.get("/jobs/<job:job_id>", answer=JobStory, problems=absent, scope=Scope.READ)
    def job_detail(job_id: str) -> Response | Versioned:
        """Tell everything about a job.

        Its tries with their errors, the job whose run asked for it and those that it asked for, and who holds its key
        while it waits. The `ETag` is what `If-Match` takes when the job is changed.
        """
        story = lists.story(job_id_of(job_id))
        return Versioned(JobStory.told(story), story.version)

    @subject.get("/jobs/<job:job_id>/events", query=EventsQuery, answer=JobEvents, problems=absent, scope=Scope.READ)
    def job_events(wanted: EventsQuery, job_id: str) -> JobEvents:
        """Read a job's journal, the oldest line first.

        To go on behind a full page send the last `event_id` as `after`.
        """
        job = lists.versioned(job_id_of(job_id)).job
        found = lists.events(job.id, after=wanted.after, limit=wanted.limit)
        return JobEvents(job.id, [JobEvent.of(event) for event in found])

    @subject.get("/jobs/<job:job_id>/why", answer=JobWhy, problems=absent, scope=Scope.READ)
    def job_why(job_id: str) -> JobWhy:
        """Tell why a job waits, runs for so long, or ended as it did.

        Each reason has a stable `code`, its facts, and a sentence for people.
        """
        return JobWhy.of(why.explain(job_id_of(job_id)))

    return subject


def _page(lists: Lists, wanted: JobsQuery) -> Page:
    try:
        return lists.page(
            wanted.filter(), sort=wanted.sort, limit=wanted.limit, after=_read_cursor(wanted.after, wanted.sort)
        )
    except NotSortable:
        told = "takes other orders than created_at only with status=queued,running, or one of the two"
        raise InvalidRequest([FieldFault("sort", told)]) from None
    except TooManyLive:
        told = "more than five thousand jobs wait and run; sort by created_at, or narrow the list to a queue"
        raise InvalidRequest([FieldFault("sort", told)]) from None


def _line(row: JobRow, names: list[str] | None) -> dict[str, Any]:
    known = vars(row) | {"job_id": row.id}
    return {name: known[name] for name in names or _LINE_FIELDS}


def _told_cursor(cursor: Cursor | None, sort: Sort) -> str | None:
    if cursor is None:
        return None
    key = cursor.key.isoformat() if isinstance(cursor.key, datetime) else cursor.key
    return base64.urlsafe_b64encode(json.dumps([sort, key, str(cursor.id), cursor.live]).encode()).decode().rstrip("=")


def _read_cursor(told: str | None, sort: Sort) -> Cursor | None:
    if told is None:
        return None
    try:
        said: Any = json.loads(base64.urlsafe_b64decode(told + "=" * (-len(told) % 4)))
        order, key, job_id, live = said
        if order != sort or not isinstance(live, bool):
            raise ValueError
        return Cursor(float(key) if live else datetime.fromisoformat(key), UUID(job_id), live)
    except (ValueError, TypeError, RecursionError):
        raise InvalidRequest(
            [FieldFault("after", "is no `next` of a page of this list; begin again without it")]
        ) from None
