"""What an operator does with one job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Self
from uuid import UUID

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from dataloader.app.acts.act import Call, Undo, act, undone_by
from dataloader.app.features.jobs.edits import JobEditor
from dataloader.app.features.jobs.job_detail import JobDetail, JobReader, VersionedJob, masked_detail
from dataloader.app.http.jobs.trigger_request import TriggerResponse, short_lease_message, validate_args
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.problems import InvalidRequest, ProblemCode
from dataloader.app.http.schemas import (
    BodyModel,
    IndexedText,
    Name,
    PositiveInt,
    Priority,
    RetryPolicy,
    Timestamp,
    parse_job_id,
    require_one_field,
)
from dataloader.app.log.masking import unmask
from dataloader.app.queue.job import Job, NewJob
from dataloader.app.ui.base import InvalidForm

_MAX_EVENTS = 20  # in which the edit to undo is looked for


@dataclass(frozen=True)
class JobDeleted:
    job_id: UUID
    deleted: bool


class JobClone(BodyModel):
    """Fields of the new job; those left out are copied."""

    queue: Name | None = Field(None, description="The queue whose workers run the job.")
    lock_key: Name | None = Field(None, description="Jobs with one key never run at the same time.")
    args: dict[str, Any] | None = Field(None, description="All arguments of the pipeline.")
    priority: Priority | None = Field(None, description="Smaller runs first.")
    available_at: Timestamp = Field(None, description="The earliest start; by default at once.")
    max_attempts: PositiveInt | None = Field(None, description="The maximum number of attempts.")
    idempotency_key: Name | None = Field(
        None, description="Makes the request safe to repeat. The original's is not copied."
    )


@act(
    "job.cloned",
    "POST",
    "/jobs/<job:job_id>/clone",
    problems=(
        ProblemCode.JOB_NOT_FOUND,
        ProblemCode.IDEMPOTENCY_CONFLICT,
        ProblemCode.OUTSIDE_KEY_LIMITS,
        ProblemCode.QUEUE_DRAINING,
    ),
    unaudited=set(JobClone.model_fields),
)
def clone_job(call: Call, job_id: str, body: JobClone) -> TriggerResponse:
    """Create a job like this one, with other args if given.

    Its idempotency key, its live key and its parent are not copied; of a task with `unique_by` the live job with
    these args is returned, if there is one. A value of `args` that is sent masked, as it
    was shown, is copied. A queue that is draining takes no clone.
    """
    original = JobReader(call.executor).get_with_version(parse_job_id(job_id)).job
    changes = {name: value for name, value in vars(body).items() if value is not None}
    if "args" in changes:
        changes["args"] = unmask(changes["args"], original.args)
    values = JobEditor(call.executor).copied_fields(original.id) | changes
    call.jobs.check(task=values["task"], queue=values["queue"], args=values["args"])
    task = call.pipelines.get(values["task"])
    new_job = NewJob(**values, live_key=None if task is None else task.unique_live_key(values["args"]))
    clone = call.jobs.enqueue(new_job)
    call.audit(job_id=clone.job_id, cloned_from=original.id, queue=new_job.queue, task=new_job.task)
    return TriggerResponse(clone.job_id, clone.status)


class JobEditRequest(BodyModel):
    """Fields of a queued job to change; those left out stay as they are. Null in `time_limit_sec` and `retry` selects
    the task's default."""

    model_config = ConfigDict(json_schema_extra=require_one_field(null_is_change=True))

    priority: Priority | None = Field(None, description="Smaller runs first.")
    available_at: Timestamp = Field(None, description="The earliest start (RFC 3339 with a zone).")
    args: dict[str, Any] | None = Field(None, description="All arguments of the pipeline.")
    max_attempts: PositiveInt | None = Field(None, description="The maximum number of attempts, including past ones.")
    lease_ttl_sec: PositiveInt | None = Field(None, description="How long the lease lasts without a heartbeat.")
    time_limit_sec: PositiveInt | None = Field(None, description="The time limit of an attempt.")
    retry: RetryPolicy | None = Field(None, description="The delay between attempts.")
    partition_key: IndexedText | None = Field(None, description="The part of the work, such as a day.")

    @model_validator(mode="after")
    def _require_change(self) -> Self:
        if not self.model_fields_set:
            raise PydanticCustomError("change", "there is no change; send at least one field")
        return self


class EditUndo(Undo):
    """Of args the audit has only the names, so the values are those of the job's last event of an edit."""

    subject, fields = "job", frozenset({"priority", "available_at", "max_attempts"})

    @classmethod
    def can_undo(cls, before: dict[str, Any] | None, after: dict[str, Any] | None, name: str) -> bool:
        return before is not None and after is not None and not before.keys() & {"status", "cancel_requested"}

    def lock(self) -> None:
        """Nothing: the version of a job shows a change."""

    @cached_property
    def _found(self) -> VersionedJob:
        return JobReader(self.call.executor).get_with_version(UUID(self.name))

    @cached_property
    def _edit(self) -> dict[str, dict[str, Any]]:
        """The values before and after. Raises InvalidForm if there is a later edit."""
        events = JobReader(self.call.executor).last_events(UUID(self.name), limit=_MAX_EVENTS)
        edits = [event for event in events if event.kind == "edited"]
        if not edits:
            raise InvalidForm("Nothing was undone: the old values are not known any more.")
        if edits[-1].ts > self.at:  # an edit writes its event before its entry
            raise InvalidForm(f"Nothing was undone: job {self.name} has changed since.")
        return edits[-1].payload

    def current(self) -> Job:
        return self._found.job

    def written(self) -> Mapping[str, Any]:
        return self._edit["after"]

    def restore(self) -> None:
        values = dict(self._edit["before"])
        if values.get("available_at") is not None:
            values["available_at"] = datetime.fromisoformat(values["available_at"])
        JobEditor(self.call.executor).edit(UUID(self.name), values, if_version=self._found.version)


@undone_by(EditUndo)
@act(
    "job.edited",
    "PATCH",
    "/jobs/<job:job_id>",
    problems=(ProblemCode.JOB_NOT_FOUND, ProblemCode.NOT_EDITABLE, ProblemCode.CHANGED),
    unaudited=set(JobEditRequest.model_fields),
    if_match=True,
    has_version=True,
)
def edit_job(call: Call, job_id: str, body: JobEditRequest) -> JobDetail:
    """Edit a queued job.

    With `If-Match`, the job's `ETag`, nothing is changed if the job has changed since. An `edited` event records
    the values before and after. A repeated trigger with the job's idempotency key still finds it. A value of `args`
    that is sent masked, as it was shown, keeps what the job has.
    """
    reader = JobReader(call.executor)
    job = reader.get_with_version(parse_job_id(job_id)).job
    changes = {name: vars(body)[name] for name in body.model_fields_set}
    errors = []
    if changes.get("args") is not None:
        changes["args"] = unmask(changes["args"], job.args)
        parents = () if job.graph_id is None else None
        errors += validate_args(call.pipelines.get(job.task), changes["args"], parents=parents)
    min_lease_sec = call.options.min_lease_ttl_sec
    if body.lease_ttl_sec is not None and body.lease_ttl_sec < min_lease_sec:
        errors.append(FieldError("lease_ttl_sec", short_lease_message(body.lease_ttl_sec, min_lease_sec)))
    if errors:
        raise InvalidRequest(errors)
    JobEditor(call.executor).edit(job.id, changes, if_version=call.if_version)
    call.audit(job_id=job.id, fields=sorted(changes))
    return masked_detail(reader.detail(job.id))


@act(
    "job.deleted",
    "DELETE",
    "/jobs/<job:job_id>",
    problems=(ProblemCode.JOB_NOT_FOUND, ProblemCode.NOT_DELETABLE, ProblemCode.CHANGED),
    if_match=True,
)
def delete_job(call: Call, job_id: str) -> JobDeleted:
    """Delete a finished job with its events and its log. Its idempotency key can be used again."""
    parsed_id = parse_job_id(job_id)
    JobEditor(call.executor).delete(parsed_id, if_version=call.if_version)
    call.audit(job_id=parsed_id)
    return JobDeleted(parsed_id, True)
