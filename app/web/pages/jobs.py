"""Lists of jobs, with their filter in the address; and acts on all that match."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime
from typing import Annotated, Any, cast, get_args
from urllib.parse import parse_qsl, urlencode
from uuid import UUID
from zoneinfo import ZoneInfo

from flask import Response
from pydantic import Field

from app.errors import BulkMismatch
from app.queue.bulk import Action, Bulk
from app.queue.job import Status
from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.queue.lists import Cursor, Filter, Lists, NotSortable, Sort, TooManyLive
from app.web.auth import current_actor
from app.web.operations import HTML, Subject
from app.web.pages.frame import FormModel, Frame, Unreadable, acting, go
from app.web.problems import Code

LIMIT = 50
_SORTS = get_args(Sort)
_ORDERS = {
    "-created_at": "the newest first",
    "created_at": "the oldest first",
    "priority": "by priority",
    "available_at": "the first due first",
    "-available_at": "the last due first",
    "started_at": "the first started first",
    "-started_at": "the last started first",
}
_UNSORTABLE = (
    "Only waiting and running jobs can be sorted like that, and only few of them: choose these statuses, and narrow."
)
_Text = Annotated[str, Field(max_length=1000)]


class JobsQuery(FormModel):
    """The filter as the form sends it: fields that are left empty mean any."""

    status: _Text = Field("", description="One or several statuses, separated by commas.")
    queue: _Text = Field("", description="The queue.")
    task: _Text = Field("", description="The task.")
    lock_key: _Text = Field("", description="The lock_key.")
    partition_key: _Text = Field("", description="The partition_key.")
    producer: _Text = Field("", description="Who asked for the job.")
    created_from: _Text = Field("", description="Made at that time or later, in the zone of the page.")
    created_to: _Text = Field("", description="Made before that time.")
    text: _Text = Field("", description="Somewhere in the args or in the error.")
    sort: _Text = Field("-created_at", description="The order; the others are for waiting and running jobs alone.")
    after: _Text = Field("", description="Where the list goes on, from the link of the page before.")


class BulkForm(FormModel):
    """What shall be done to all jobs that fit, first only counted."""

    filter: _Text = Field(description="The filter, as the page had it in its address.")
    action: _Text = Field(description="cancel, retry, delete or reprioritise.")
    priority: _Text = Field("", description="The new priority, of reprioritise.")
    expected: _Text = Field("", description="How many jobs it was said to be; empty: count, and ask.")


class WrongFilter(ValueError):
    """What somebody wrote into the form cannot be meant."""


def jobs(source: Source, frame: Frame) -> Subject:
    subject = Subject("job_pages", "", frame.options.max_json_depth)
    lists, bulk = Lists(source), Bulk(source)

    @subject.get("/jobs", query=JobsQuery, answer=str, media_type=HTML, scope=Scope.READ)
    def jobs_page(wanted: JobsQuery) -> Response:
        """See jobs, filtered; the filter stands in the address."""
        try:
            wish = filter_of(wanted, frame.words.zone)
            sort = _sort(wanted.sort)
            page = lists.page(wish, sort=sort, limit=LIMIT, after=_cursor(wanted.after))
            # A search that goes on has not found them all: there is no time left to count them.
            count = page.fitting or (None if page.next and len(page.jobs) < LIMIT else lists.count(wish))
        except WrongFilter as error:
            return frame.show("jobs.html", wanted=wanted, fault=str(error), sorts=_SORTS, orders=_ORDERS)
        except (TooManyLive, NotSortable):
            return frame.show("jobs.html", wanted=wanted, fault=_UNSORTABLE, sorts=_SORTS, orders=_ORDERS)
        except Unreadable as error:
            return frame.away("The jobs", error)
        return frame.show(
            "jobs.html",
            wanted=wanted,
            fault=None,
            page=page,
            count=count,
            limit=LIMIT,
            sorts=_SORTS,
            orders=_ORDERS,
            filter=address_of(wanted),
            next=None if page.next is None else address_of(wanted, after=_told(page.next)),
            may=current_actor().may((Scope.OPERATE,)),
        )

    @acting(subject, "/jobs/bulk", form=BulkForm)
    def act_on_all(asked: BulkForm) -> Response:
        """Do something to all jobs that fit a filter: say how many first, and begin when that is confirmed."""
        back = f"/jobs?{asked.filter}" if asked.filter else "/jobs"
        try:
            wanted = JobsQuery.model_validate(_pairs(asked.filter))
            wish = filter_of(wanted, frame.words.zone)
            action, priority = _action(asked.action), _priority(asked.action, asked.priority)
            if asked.expected:
                begun = bulk.start(
                    action, wish, expected=int(asked.expected), priority=priority, by=current_actor().name
                )
                return go(f"/bulk/{begun.id}")
            count = bulk.count(action, wish)
        except BulkMismatch as error:
            return frame.refused(error, back=back)
        except ValueError as error:
            return frame.refused(error, back=back)
        return frame.show(
            "confirm.html", action=action, priority=priority, count=count, asked=asked, told=wanted, back=back
        )

    @subject.get("/bulk/<uuid:bulk_id>", answer=str, media_type=HTML, problems=(Code.BULK_NOT_FOUND,), scope=Scope.READ)
    def bulk_page(bulk_id: UUID) -> Response:
        """See how far an act on many jobs has come."""
        try:
            it, others = bulk.get(bulk_id), bulk.list(limit=10)
        except Unreadable as error:
            return frame.away("The operation", error)
        return frame.show("bulk.html", it=it, others=others, may=current_actor().may((Scope.OPERATE,)))

    @acting(subject, "/bulk/<uuid:bulk_id>/cancel", problems=(Code.BULK_NOT_FOUND,))
    def cancel_bulk_page(bulk_id: UUID) -> Response:
        """Stop an act on many jobs; what it has done stays done."""
        bulk.cancel(bulk_id)
        return go(f"/bulk/{bulk_id}")

    return subject


def filter_of(wanted: JobsQuery, zone: str) -> Filter:
    """The filter that the fields mean. Raises WrongFilter."""
    statuses = {told.strip() for told in wanted.status.split(",") if told.strip()}
    if unknown := statuses - set(Status):
        raise WrongFilter(f"There is no status {', '.join(sorted(unknown))}; there are {', '.join(Status)}.")
    texts = {name: getattr(wanted, name) or None for name in ("queue", "task", "lock_key", "producer", "text")}
    return Filter(
        status=frozenset(Status(told) for told in statuses) or None,
        partition_key=wanted.partition_key or None,
        created_from=_time(wanted.created_from, zone),
        created_to=_time(wanted.created_to, zone),
        **texts,
    )


def address_of(wanted: JobsQuery, **more: str) -> str:
    """The filter as it stands in an address, without what is empty or usual."""
    said = {name: value for name, value in wanted.model_dump(exclude={"after"}).items() if value}
    if said.get("sort") == "-created_at":
        del said["sort"]
    return urlencode(said | more)


def _time(told: str, zone: str) -> datetime | None:
    if not told:
        return None
    try:
        at = datetime.fromisoformat(told)
    except ValueError:
        raise WrongFilter(f"{told!r} is no time; 2026-11-21 or 2026-11-21T18:30 would do.") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=ZoneInfo(zone))


def _sort(told: str) -> Sort:
    if told not in _SORTS:
        raise WrongFilter(f"Jobs cannot be sorted by {told!r}; there are {', '.join(_SORTS)}.")
    return cast("Sort", told)


def _told(cursor: Cursor) -> str:
    key: Any = cursor.key.isoformat() if isinstance(cursor.key, datetime) else cursor.key
    text = json.dumps([key, str(cursor.id), cursor.live])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _cursor(told: str) -> Cursor | None:
    if not told:
        return None
    try:
        key, job, live = json.loads(base64.urlsafe_b64decode(told + "=" * (-len(told) % 4)))
        if not isinstance(live, bool) or not isinstance(key, str | float | int):
            raise TypeError
        return Cursor(datetime.fromisoformat(key) if isinstance(key, str) else float(key), UUID(job), live)
    except (ValueError, TypeError, AttributeError, binascii.Error, RecursionError):
        raise WrongFilter("That is no place where a list goes on; begin with its first page.") from None


def _pairs(query: str) -> dict[str, str]:
    return {name: value for name, value in parse_qsl(query) if name in JobsQuery.model_fields}


def _action(told: str) -> Action:
    if told not in set(Action):
        raise WrongFilter(f"Nothing is known of {told!r}; there are {', '.join(Action)}.")
    return Action(told)


def _priority(action: str, told: str) -> int | None:
    if action != Action.REPRIORITISE:
        return None
    if not told.isdecimal() or int(told) > 2**31 - 1:
        raise WrongFilter("A priority is a whole number from 0 on.")
    return int(told)
