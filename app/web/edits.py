"""Jobs are changed while they wait, made again with other args, and deleted when they are over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from app.queue.edits import Edit, Edits
from app.queue.job import NewJob
from app.queue.jobqueue import JobQueue
from app.queue.keys import Scope
from app.queue.lists import Lists
from app.web.auth import current_actor
from app.web.conditional import Versioned, demanded
from app.web.exchange import said
from app.web.jobs import job_id_of
from app.web.models import (
    INT4_MAX,
    NAME_PATTERN,
    POLICIES,
    JobDetail,
    Triggered,
    need_one_of,
    read_indexed,
    read_moment,
    read_name,
    read_retry,
)
from app.web.operations import Subject
from app.web.options import WebOptions
from app.web.problems import Code, InvalidRequest
from app.web.strictjson import FieldFault
from app.web.tasks import args_faults
from pipelines.contract import Pipelines

_DATABASE = (Code.DATABASE_UNAVAILABLE, Code.SCHEMA_MISMATCH)

Positive = Annotated[int, Field(ge=1, le=INT4_MAX)]
Moment = Annotated[
    datetime | None,
    BeforeValidator(read_moment),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}),
]
Policy = Annotated[
    dict[str, Any],
    AfterValidator(read_retry),
    WithJsonSchema({"type": "object", "required": ["kind"], "properties": {"kind": {"enum": POLICIES}}}),
]
Indexed = Annotated[str, Field(max_length=1000), AfterValidator(read_indexed)]
Name = Annotated[
    str, Field(min_length=1, max_length=1000, json_schema_extra={"pattern": NAME_PATTERN}), AfterValidator(read_name)
]
_NULLABLE = ("time_limit_sec", "retry")  # null means: as the task says


class JobChange(BaseModel):
    """What a waiting job shall have instead; what is left out stays. Null in `time_limit_sec` and `retry`: as the task
    says."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, json_schema_extra=need_one_of(null_counts=True))

    priority: Annotated[int, Field(ge=0, le=INT4_MAX)] | None = Field(None, description="Smaller runs first.")
    available_at: Moment = Field(None, description="Not before this time (RFC 3339 with a zone).")
    args: dict[str, Any] | None = Field(None, description="What the pipeline is given, as a whole.")
    max_attempts: Positive | None = Field(None, description="How many tries the job has, those that are over included.")
    lease_ttl_sec: Positive | None = Field(None, description="How long its worker may be silent.")
    time_limit_sec: Positive | None = Field(None, description="How long a try may take.")
    retry: Policy | None = Field(None, description="How long to wait between tries.")
    partition_key: Indexed | None = Field(None, description="Names the slice of work.")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_fields_set:
            raise PydanticCustomError("change", "nothing is to be changed; name a field")
        return self

    def edit(self) -> Edit:
        clear = frozenset(field for field in _NULLABLE if field in self.model_fields_set and vars(self)[field] is None)
        return Edit(**vars(self), clear=clear)


class JobClone(BaseModel):
    """What the new job shall have instead; what is left out is as in the old one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    queue: Name | None = Field(None, description="The queue whose workers run the job.")
    lock_key: Name | None = Field(None, description="Jobs with one key never run at the same time.")
    args: dict[str, Any] | None = Field(None, description="What the pipeline is given, as a whole.")
    priority: Annotated[int, Field(ge=0, le=INT4_MAX)] | None = Field(None, description="Smaller runs first.")
    available_at: Moment = Field(None, description="Not before this time; left out: at once.")
    max_attempts: Positive | None = Field(None, description="How many tries the job has.")
    idempotency_key: Name | None = Field(None, description="Makes it safe to ask twice. The old one's is not taken.")


@dataclass(frozen=True)
class JobDeleted:
    job_id: UUID
    deleted: bool


def edits(queue: JobQueue, pipelines: Pipelines, options: WebOptions) -> Subject:
    subject = Subject("edits", "/api/v1", options.max_json_depth)
    changes, lists = Edits(queue.source), Lists(queue.source)

    @subject.patch(
        "/jobs/<job:job_id>",
        body=JobChange,
        answer=JobDetail,
        problems=(Code.JOB_NOT_FOUND, Code.NOT_EDITABLE, Code.CHANGED, *_DATABASE),
        scope=Scope.OPERATE,
        if_match=True,
    )
    def job_patch(wanted: JobChange, job_id: str) -> Versioned:
        """Change a job that waits.

        With `If-Match`, the `ETag` of the job as it was looked at, nothing is changed if it is another one by now. The
        journal tells the values before and after. A repeated trigger with the job's idempotency key finds it as before.
        """
        found = lists.versioned(job_id_of(job_id))
        _refuse(wanted, found.job.task, pipelines, options)
        edited = changes.edit(found.job.id, wanted.edit(), seen=demanded())
        said("job.patch", job_id=found.job.id, fields=sorted(wanted.model_fields_set))
        return Versioned(JobDetail.of(edited.job), edited.version)

    @subject.post(
        "/jobs/<job:job_id>/clone",
        body=JobClone,
        answer=Triggered,
        problems=(Code.JOB_NOT_FOUND, Code.IDEMPOTENCY_CONFLICT, *_DATABASE),
        scope=Scope.OPERATE,
    )
    def job_clone(wanted: JobClone, job_id: str) -> dict[str, Any]:
        """Make a new job like this one, with other args if given.

        Its idempotency key, its live key and its parent are not taken over.
        """
        old = lists.versioned(job_id_of(job_id)).job
        given = {field: value for field, value in vars(wanted).items() if value is not None}
        kept = ("queue", "task", "lock_key", "args", "partition_key", "priority", "max_attempts", "lease_ttl_sec")
        more = ("producer", "consumer_group", "time_limit_sec", "retry", "webhook")
        new = NewJob(**{**{field: getattr(old, field) for field in (*kept, *more)}, **given})
        current_actor().must_trigger(new.task, new.queue)
        faults = args_faults(pipelines.get(new.task), dict(new.args))
        if faults:
            raise InvalidRequest(faults)
        made = queue.enqueue(new)
        said("job.clone", job_id=made.job_id, cloned_from=old.id, queue=new.queue, task=new.task)
        return Triggered(made.job_id, made.status).answer()

    @subject.delete(
        "/jobs/<job:job_id>",
        answer=JobDeleted,
        problems=(Code.JOB_NOT_FOUND, Code.NOT_DELETABLE, Code.CHANGED, *_DATABASE),
        scope=Scope.OPERATE,
        if_match=True,
    )
    def job_delete(job_id: str) -> JobDeleted:
        """Delete a job that is over, with its journal and its log.

        Its idempotency key may then be used anew.
        """
        found = job_id_of(job_id)
        changes.delete(found, seen=demanded())
        said("job.delete", job_id=found)
        return JobDeleted(found, True)

    return subject


def _refuse(wanted: JobChange, task: str, pipelines: Pipelines, options: WebOptions) -> None:
    faults = [] if wanted.args is None else args_faults(pipelines.get(task), wanted.args)
    shortest = options.shortest_lease_sec
    if wanted.lease_ttl_sec is not None and wanted.lease_ttl_sec < shortest:
        told = f"a lease of {wanted.lease_ttl_sec} s is shorter than two heartbeats; {shortest} s or more would do"
        faults.append(FieldFault("lease_ttl_sec", told))
    if faults:
        raise InvalidRequest(faults)
