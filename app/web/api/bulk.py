"""Bulk operations over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self
from uuid import UUID

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from app.admin.api_keys import Scope
from app.admin.bulk import BulkAction, BulkOperation, BulkOperations
from app.admin.job_search import MatchCount
from app.db.statements import Executor
from app.web.api.job_list import JobFilter
from app.web.auth.guard import current_actor
from app.web.middleware import audit_action
from app.web.problems import DATABASE_PROBLEMS, ProblemCode
from app.web.routing import ApiBlueprint
from app.web.schemas import INT4_MAX, QueryModel

_MAX_EXPECTED = 2**53


class BulkCountRequest(QueryModel):
    """An action, and the jobs to apply it to."""

    action: BulkAction = Field(description="The action to apply to each job.")
    filter: JobFilter = Field(description="The jobs; those whose status does not allow the action are left out.")


class BulkRequest(BulkCountRequest):
    """An action, the jobs to apply it to, and the number of jobs that the caller expects."""

    expected: Annotated[int, Field(ge=0, le=_MAX_EXPECTED)] = Field(
        description="The number of matching jobs, from the dry run. With another number nothing is changed; if there "
        "are too many to count, the operation stops once it finds more."
    )
    priority: Annotated[int, Field(ge=0, le=INT4_MAX)] | None = Field(
        None, description="The new priority; required for reprioritise, and only for it."
    )

    @model_validator(mode="after")
    def _check_priority(self) -> Self:
        if (self.priority is not None) != (self.action is BulkAction.REPRIORITISE):
            raise PydanticCustomError("priority", "priority is required for reprioritise, and only for it")
        return self


class BulkQuery(QueryModel):
    limit: Annotated[int, Field(ge=1, le=200, description="The maximum number of entries.")] = 50


@dataclass(frozen=True)
class BulkOperationList:
    operations: list[BulkOperation]


def create_bulk_blueprint(executor: Executor) -> ApiBlueprint:
    blueprint = ApiBlueprint("bulk", "/api/v1", problems=DATABASE_PROBLEMS)
    operations = BulkOperations(executor)
    bulk_problems = (ProblemCode.BULK_NOT_FOUND,)

    @blueprint.post("/bulk/count", body=BulkCountRequest, response=MatchCount, scope=Scope.READ)
    def count_bulk_jobs(body: BulkCountRequest) -> MatchCount:
        """Count the jobs that a bulk operation would change: the dry run."""
        return operations.count(body.action, body.filter.to_filter())

    @blueprint.post(
        "/bulk", body=BulkRequest, response=BulkOperation, problems=(ProblemCode.BULK_MISMATCH,), scope=Scope.OPERATE
    )
    def start_bulk_operation(body: BulkRequest) -> BulkOperation:
        """Start a bulk operation on all jobs that match a filter.

        A worker process runs it in the background, in batches; after a crash another one continues it. Jobs created
        later are not affected. `cancel` is for queued and running jobs, `retry` for failed, canceled and lost ones,
        `delete` for finished ones, `reprioritise` for queued ones.
        """
        operation = operations.start(
            body.action,
            body.filter.to_filter(),
            expected=body.expected,
            priority=body.priority,
            requested_by=current_actor().name,
        )
        audit_action("bulk.started", bulk_id=operation.bulk_id, action=body.action, expected=body.expected)
        return operation

    @blueprint.get("/bulk", query=BulkQuery, response=BulkOperationList, scope=Scope.READ)
    def list_bulk_operations(query: BulkQuery) -> BulkOperationList:
        """List bulk operations, newest first."""
        return BulkOperationList(operations.list(limit=query.limit))

    @blueprint.get("/bulk/<uuid:bulk_id>", response=BulkOperation, problems=bulk_problems, scope=Scope.READ)
    def get_bulk_operation(bulk_id: UUID) -> BulkOperation:
        """Get a bulk operation and its progress."""
        return operations.get(bulk_id)

    @blueprint.post("/bulk/<uuid:bulk_id>/cancel", response=BulkOperation, problems=bulk_problems, scope=Scope.OPERATE)
    def cancel_bulk_operation(bulk_id: UUID) -> BulkOperation:
        """Stop a bulk operation after its current batch.

        Its changes stay. A finished operation is left as it is.
        """
        audit_action("bulk.canceled", bulk_id=bulk_id)
        return operations.cancel(bulk_id)

    return blueprint
