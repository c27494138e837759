"""Operations on all jobs that fit a filter: counted, confirmed, done in the background, and watched."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from app.queue.bulk import Action, Bulk, BulkOperation, BulkState
from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.web.auth import current_actor
from app.web.exchange import said
from app.web.joblists import JobFilter
from app.web.models import INT4_MAX
from app.web.operations import Subject
from app.web.options import WebOptions
from app.web.problems import Code

_DATABASE = (Code.DATABASE_UNAVAILABLE, Code.SCHEMA_MISMATCH)
_MOST = 2**53


class BulkCount(BaseModel):
    """What is to be done, and to which jobs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: Action = Field(description="What is to be done to each.")
    filter: JobFilter = Field(description="To which jobs; of those only the ones that it can be done to.")


class BulkRequest(BulkCount):
    """What is to be done, to which jobs, and how many of them the caller has seen that there are."""

    expected: Annotated[int, Field(ge=0, le=_MOST)] = Field(
        description="How many jobs it will be, as the dry run told. With another number nothing is done; where they "
        "are too many to be counted, it stops when it meets more."
    )
    priority: Annotated[int, Field(ge=0, le=INT4_MAX)] | None = Field(
        None, description="The new priority; for reprioritise alone, which needs it."
    )

    @model_validator(mode="after")
    def _priority(self) -> Self:
        if (self.priority is not None) != (self.action is Action.REPRIORITISE):
            raise PydanticCustomError("priority", "priority is what reprioritise needs, and nothing else takes")
        return self


class BulkQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: Annotated[int, Field(ge=1, le=200, description="How many at most.")] = 50


@dataclass(frozen=True)
class BulkTold:
    """How many jobs it would be done to; not exact where there was no time to count them all."""

    jobs: int
    exact: bool


@dataclass(frozen=True, kw_only=True)
class BulkLine:
    """A bulk operation. `matched` jobs were met so far, and `changed` of them; `looked` were looked at to find them. It
    goes from the newest to the oldest: what was made after `seen_to` has been seen to."""

    bulk_id: UUID
    action: Action
    filter: dict[str, Any]
    priority: int | None
    expected: int
    state: BulkState
    cancel_requested: bool
    looked: int
    matched: int
    changed: int
    seen_to: datetime
    asked_by: str | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, told: BulkOperation) -> BulkLine:
        row = vars(told)
        shown = {name: row[name] for name in cls.__dataclass_fields__ if name in row}
        wanted = {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in vars(told.filter).items()
            if value is not None
        }
        return cls(**{**shown, "bulk_id": told.id, "filter": wanted, "seen_to": told.seen_at})


@dataclass(frozen=True)
class BulkList:
    operations: list[BulkLine]


def bulk(source: Source, options: WebOptions) -> Subject:
    subject = Subject("bulk", "/api/v1", options.max_json_depth)
    operations = Bulk(source)
    absent = (Code.BULK_NOT_FOUND, *_DATABASE)

    @subject.post("/bulk/count", body=BulkCount, answer=BulkTold, problems=_DATABASE, scope=Scope.READ)
    def bulk_count(wanted: BulkCount) -> BulkTold:
        """Count the jobs that a bulk operation would be done to: the dry run."""
        tally = operations.count(wanted.action, wanted.filter.filter())
        return BulkTold(tally.jobs, tally.exact)

    @subject.post(
        "/bulk", body=BulkRequest, answer=BulkLine, problems=(Code.BULK_MISMATCH, *_DATABASE), scope=Scope.OPERATE
    )
    def bulk_start(wanted: BulkRequest) -> BulkLine:
        """Do something to all jobs that fit a filter.

        It is done in the background, in batches, by one of the worker processes, and goes on after a crash. Jobs that
        are made from now on are not meant. `cancel` is for waiting and running jobs, `retry` for failed, canceled and
        lost ones, `delete` for those that are over, `reprioritise` for waiting ones.
        """
        actor = current_actor()
        started = operations.start(
            wanted.action,
            wanted.filter.filter(),
            expected=wanted.expected,
            priority=wanted.priority,
            by=actor.name,
        )
        said("bulk.start", bulk_id=started.id, action=wanted.action, expected=wanted.expected)
        return BulkLine.of(started)

    @subject.get("/bulk", query=BulkQuery, answer=BulkList, problems=_DATABASE, scope=Scope.READ)
    def bulk_list(wanted: BulkQuery) -> BulkList:
        """List bulk operations, the newest first."""
        return BulkList([BulkLine.of(operation) for operation in operations.list(limit=wanted.limit)])

    @subject.get("/bulk/<uuid:bulk_id>", answer=BulkLine, problems=absent, scope=Scope.READ)
    def bulk_show(bulk_id: UUID) -> BulkLine:
        """Tell how far a bulk operation has come."""
        return BulkLine.of(operations.get(bulk_id))

    @subject.post("/bulk/<uuid:bulk_id>/cancel", answer=BulkLine, problems=absent, scope=Scope.OPERATE)
    def bulk_cancel(bulk_id: UUID) -> BulkLine:
        """Stop a bulk operation after the batch at hand.

        What it has done stays done. One that is over is left as it is.
        """
        said("bulk.cancel", bulk_id=bulk_id)
        return BulkLine.of(operations.cancel(bulk_id))

    return subject
