"""What an operator does with all jobs that match a filter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from dataloader.app.acts.act import Call, act
from dataloader.app.features.bulk.rows import MAX_PER_MINUTE, BulkAction, BulkOperation, BulkOperations, Redrive
from dataloader.app.features.jobs.job_search import Filter
from dataloader.app.features.jobs.list_routes import JobFilter
from dataloader.app.http.jobs.trigger_request import validate_args
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.problems import InvalidRequest, ProblemCode
from dataloader.app.http.schemas import INT4_MAX, QueryModel
from dataloader.app.log import mask_secret_fields

_MAX_EXPECTED = 2**53
_MAX_PATCH_BYTES = 65_536
_REDRIVE_ONLY = "is only for redrive"


class BulkCountRequest(QueryModel):
    """An action, and the jobs to apply it to."""

    action: BulkAction = Field(description="The action to apply to each job.")
    filter: JobFilter = Field(description="The jobs; those whose status does not allow the action are left out.")
    only_error: str | None = Field(
        None,
        description="Only jobs whose last error has this fingerprint; only for redrive. As `fingerprint` in filter.",
    )

    def to_filter(self) -> Filter:
        """Raises InvalidRequest."""
        if self.only_error is None:
            return self.filter.to_filter()
        if self.action is not BulkAction.REDRIVE:
            raise InvalidRequest([FieldError("only_error", _REDRIVE_ONLY)])
        if self.filter.fingerprint not in (None, self.only_error):
            raise InvalidRequest([FieldError("only_error", "differs from the fingerprint in filter; send one of them")])
        return replace(self.filter.to_filter(), fingerprint=self.only_error)


class BulkRequest(BulkCountRequest):
    """An action, the jobs to apply it to, and the number of jobs that the caller expects."""

    expected: Annotated[int, Field(ge=0, le=_MAX_EXPECTED)] = Field(
        description="The number of matching jobs, from the dry run. Fewer may match by now, and up to twice as many "
        "and a hundred more (of delete: none more). With more nothing is changed; if there are too many to count, the "
        "operation stops once it finds more."
    )
    priority: Annotated[int, Field(ge=0, le=INT4_MAX)] | None = Field(
        None, description="The new priority; required for reprioritise, and only for it."
    )

    per_minute: Annotated[int, Field(ge=1, le=MAX_PER_MINUTE)] | None = Field(
        None, description="At most so many jobs a minute, evenly; required for redrive, and only for it."
    )
    args_patch: Annotated[dict[str, Any], Field(min_length=1)] | None = Field(
        None,
        description="Merged into the args of each job, key by key at the top level; only for redrive. Checked with the "
        "args of the first twenty jobs.",
    )
    max: Annotated[int, Field(ge=1, le=_MAX_EXPECTED)] | None = Field(
        None, description="At most so many jobs in all, the oldest; only for redrive."
    )

    def to_redrive(self) -> Redrive | None:
        """Raises InvalidRequest."""
        if self.action is not BulkAction.REDRIVE:
            sent = [name for name in ("per_minute", "args_patch", "max") if getattr(self, name) is not None]
            if sent:
                raise InvalidRequest([FieldError(name, _REDRIVE_ONLY) for name in sent])
            return None
        if self.per_minute is None:
            raise InvalidRequest([FieldError("per_minute", "is required for redrive")])
        if self.args_patch is not None and len(json.dumps(self.args_patch).encode()) > _MAX_PATCH_BYTES:
            raise InvalidRequest([FieldError("args_patch", f"has more than {_MAX_PATCH_BYTES} bytes of JSON")])
        return Redrive(per_minute=self.per_minute, max_jobs=self.max, args_patch=self.args_patch)

    @model_validator(mode="after")
    def _check_priority(self) -> Self:
        if (self.priority is not None) != (self.action is BulkAction.REPRIORITISE):
            raise PydanticCustomError(
                "priority", "is required for reprioritise, and only for it", {"field": "priority"}
            )
        return self


@act(
    "bulk.started",
    "POST",
    "/bulk",
    problems=(ProblemCode.BULK_MISMATCH,),
    unaudited=set(BulkRequest.model_fields) - {"action", "expected"},
)
def start_bulk_operation(call: Call, body: BulkRequest) -> BulkOperation:
    """Start a bulk operation on all jobs that match a filter.

    A worker process runs it in the background, in batches; after a crash another one continues it. Jobs created
    later are not affected. `cancel` is for queued and running jobs, `retry` for failed, canceled and lost ones,
    `delete` for finished ones, `reprioritise` for queued ones.

    `redrive` is a retry at a rate: oldest jobs first, evenly, at most `per_minute` a minute. It leaves out jobs
    that fail after the request, and stops when the circuit breaker of a job's task is open.
    """
    job_filter, redrive = body.to_filter(), body.to_redrive()
    operations = BulkOperations(call.executor)
    if redrive is not None and redrive.args_patch is not None:
        _check_patch(call, job_filter, redrive.args_patch)
    operation = operations.start(
        body.action,
        job_filter,
        expected=body.expected,
        priority=body.priority,
        redrive=redrive,
        requested_by=call.actor,
    )
    call.audit(bulk_id=operation.bulk_id)
    return masked(operation)


@act("bulk.canceled", "POST", "/bulk/<uuid:bulk_id>/cancel", problems=(ProblemCode.BULK_NOT_FOUND,))
def cancel_bulk_operation(call: Call, bulk_id: UUID) -> BulkOperation:
    """Stop a bulk operation after its current batch.

    Its changes stay. A finished operation is left as it is.
    """
    return masked(BulkOperations(call.executor).cancel(bulk_id))


def _check_patch(call: Call, job_filter: Filter, patch: Mapping[str, Any]) -> None:
    """Raise InvalidRequest if the args of one of the first jobs would not fit its task."""
    for job_id, task, args in BulkOperations(call.executor).patched_args(job_filter, patch):
        errors = validate_args(call.pipelines.get(task), args)
        if errors:
            raise InvalidRequest(
                [
                    FieldError("args_patch", f"the args of job {job_id} would not fit: {error.field}: {error.message}")
                    for error in errors
                ]
            )


def masked(operation: BulkOperation) -> BulkOperation:
    return replace(operation, args_patch=mask_secret_fields(operation.args_patch))
