"""Bulk operations over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from pydantic import Field

from dataloader.app.acts.act import acts_of
from dataloader.app.acts.web import add_routes
from dataloader.app.features.bulk import acts
from dataloader.app.features.bulk.rows import BulkOperation, BulkOperations
from dataloader.app.features.jobs.job_search import MatchCount
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import QueryModel
from dataloader.app.http.site import Site


class BulkQuery(QueryModel):
    limit: Annotated[int, Field(ge=1, le=200, description="The maximum number of entries.")] = 50


@dataclass(frozen=True)
class BulkOperationList:
    operations: list[BulkOperation]


def create_bulk_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("bulk", "/api/v1", problems=DATABASE_PROBLEMS)
    operations = BulkOperations(site.executor)

    @blueprint.post("/bulk/count", body=acts.BulkCountRequest, response=MatchCount, scope=Scope.READ)
    def count_bulk_jobs(body: acts.BulkCountRequest) -> MatchCount:
        """Count the jobs that a bulk operation would change: the dry run."""
        return operations.count(body.action, body.to_filter())

    @blueprint.get("/bulk", query=BulkQuery, response=BulkOperationList, scope=Scope.READ, standby=True)
    def list_bulk_operations(query: BulkQuery) -> BulkOperationList:
        """List bulk operations, newest first."""
        return BulkOperationList([acts.masked(operation) for operation in operations.list(limit=query.limit)])

    @blueprint.get(
        "/bulk/<uuid:bulk_id>", response=BulkOperation, problems=(ProblemCode.BULK_NOT_FOUND,), scope=Scope.READ
    )
    def get_bulk_operation(bulk_id: UUID) -> BulkOperation:
        """Get a bulk operation and its progress."""
        return acts.masked(operations.get(bulk_id))

    add_routes(blueprint, acts_of(acts), site.runner)
    return blueprint
