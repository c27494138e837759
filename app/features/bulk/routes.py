"""Bulk operations over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from dataloader.app.features.bulk.rows import MAX_PER_MINUTE, BulkAction, BulkOperation, BulkOperations, Redrive
from dataloader.app.features.jobs.job_search import Filter, MatchCount
from dataloader.app.features.jobs.list_routes import JobFilter
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.jobs.trigger_request import validate_args
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.middleware import audit_action
from dataloader.app.http.problems import DATABASE_PROBLEMS, InvalidRequest, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import INT4_MAX, QueryModel
from dataloader.app.http.site import Site
from dataloader.app.log import mask_secret_fields
from dataloader.pipelines.contract import Pipelines

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


class BulkQuery(QueryModel):
    limit: Annotated[int, Field(ge=1, le=200, description="The maximum number of entries.")] = 50


@dataclass(frozen=True)
class BulkOperationList:
    operations: list[BulkOperation]


def create_bulk_blueprint(site: Site) -> ApiBlueprint:
    executor, pipelines = site.executor, site.pipelines
    blueprint = ApiBlueprint("bulk", "/api/v1", problems=DATABASE_PROBLEMS)
    operations = BulkOperations(executor)
    bulk_problems = (ProblemCode.BULK_NOT_FOUND,)

    @blueprint.post("/bulk/count", body=BulkCountRequest, response=MatchCount, scope=Scope.READ)
    def count_bulk_jobs(body: BulkCountRequest) -> MatchCount:
        """Count the jobs that a bulk operation would change: the dry run."""
        return operations.count(body.action, body.to_filter())

    @blueprint.post(
        "/bulk", body=BulkRequest, response=BulkOperation, problems=(ProblemCode.BULK_MISMATCH,), scope=Scope.OPERATE
    )
    def start_bulk_operation(body: BulkRequest) -> BulkOperation:
        """Start a bulk operation on all jobs that match a filter.

        A worker process runs it in the background, in batches; after a crash another one continues it. Jobs created
        later are not affected. `cancel` is for queued and running jobs, `retry` for failed, canceled and lost ones,
        `delete` for finished ones, `reprioritise` for queued ones.

        `redrive` is a retry at a rate: oldest jobs first, evenly, at most `per_minute` a minute. It leaves out jobs
        that fail after the request, and stops when the circuit breaker of a job's task is open.
        """
        job_filter, redrive = body.to_filter(), body.to_redrive()
        if redrive is not None and redrive.args_patch is not None:
            _check_patch(operations, pipelines, job_filter, redrive.args_patch)
        operation = operations.start(
            body.action,
            job_filter,
            expected=body.expected,
            priority=body.priority,
            redrive=redrive,
            requested_by=current_actor().name,
        )
        audit_action("bulk.started", bulk_id=operation.bulk_id, action=body.action, expected=body.expected)
        return _masked(operation)

    @blueprint.get("/bulk", query=BulkQuery, response=BulkOperationList, scope=Scope.READ, standby=True)
    def list_bulk_operations(query: BulkQuery) -> BulkOperationList:
        """List bulk operations, newest first."""
        return BulkOperationList([_masked(operation) for operation in operations.list(limit=query.limit)])

    @blueprint.get("/bulk/<uuid:bulk_id>", response=BulkOperation, problems=bulk_problems, scope=Scope.READ)
    def get_bulk_operation(bulk_id: UUID) -> BulkOperation:
        """Get a bulk operation and its progress."""
        return _masked(operations.get(bulk_id))

    @blueprint.post("/bulk/<uuid:bulk_id>/cancel", response=BulkOperation, problems=bulk_problems, scope=Scope.OPERATE)
    def cancel_bulk_operation(bulk_id: UUID) -> BulkOperation:
        """Stop a bulk operation after its current batch.

        Its changes stay. A finished operation is left as it is.
        """
        audit_action("bulk.canceled", bulk_id=bulk_id)
        return _masked(operations.cancel(bulk_id))

    return blueprint


def _check_patch(
    operations: BulkOperations, pipelines: Pipelines, job_filter: Filter, patch: Mapping[str, Any]
) -> None:
    """Raise InvalidRequest if the args of one of the first jobs would not fit its task."""
    for job_id, task, args in operations.patched_args(job_filter, patch):
        errors = validate_args(pipelines.get(task), args)
        if errors:
            raise InvalidRequest(
                [
                    FieldError("args_patch", f"the args of job {job_id} would not fit: {error.field}: {error.message}")
                    for error in errors
                ]
            )


def _masked(operation: BulkOperation) -> BulkOperation:
    return replace(operation, args_patch=mask_secret_fields(operation.args_patch))
