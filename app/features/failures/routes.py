"""Groups of failures over HTTP."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dataloader.app.features.failures.rows import FailureGroups, Failures
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import MAX_PAGE_SIZE, QueryModel, Timestamp
from dataloader.app.http.site import Site


class FailuresQuery(QueryModel):
    task: Annotated[str | None, Field(description="Only jobs of this task.")] = None
    queue: Annotated[str | None, Field(description="Only jobs of this queue.")] = None
    since: Annotated[Timestamp, Field(description="Only jobs that ended at this time or later.")] = None
    until: Annotated[Timestamp, Field(description="Only jobs that ended before this time.")] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE, description="The maximum number of entries.")] = 50


def create_failures_blueprint(site: Site) -> ApiBlueprint:
    executor = site.executor
    blueprint = ApiBlueprint("failures", "/api/v1", problems=DATABASE_PROBLEMS)
    failures = Failures(executor)

    @blueprint.get("/failures", query=FailuresQuery, response=FailureGroups, scope=Scope.READ, standby=True)
    def list_failures(query: FailuresQuery) -> FailureGroups:
        """List failed and lost jobs, grouped by task and fingerprint of the error, largest group first.

        Of the newest ten thousand unsuccessful jobs, or of those created before `until`; with `scanned_to` there are
        older ones.
        """
        return failures.groups(**vars(query))

    return blueprint
