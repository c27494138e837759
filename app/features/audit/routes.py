"""The audit over HTTP."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dataloader.app.acts.audit_log import AuditLog, AuditPage, Triggers
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import MAX_PAGE_SIZE, QueryModel, Timestamp
from dataloader.app.http.site import Site

_INT8_MAX = 2**63 - 1
Text = Annotated[str | None, Field(max_length=1000)]


class AuditQuery(QueryModel):
    """Which audit entries to list."""

    action: Annotated[Text, Field(description="Only this action: the name of an operation or a command.")] = None
    actor: Annotated[Text, Field(description="Only actions of this key, by name.")] = None
    key_id: Annotated[Text, Field(description="Only actions of this key, by id.")] = None
    subject: Annotated[Text, Field(description="Only actions on this type of resource: job, key, session …")] = None
    subject_id: Annotated[Text, Field(description="Only actions on the resource with this id.")] = None
    request_id: Annotated[Text, Field(description="Only actions of this request.")] = None
    since: Annotated[Timestamp, Field(description="Not before this time (RFC 3339 with a zone).")] = None
    until: Annotated[Timestamp, Field(description="Before this time (RFC 3339 with a zone).")] = None
    triggers: Annotated[
        Triggers,
        Field(
            description="all; folded: the triggers of an actor, action and hour are one entry with their `count`; "
            "none: without them."
        ),
    ] = Triggers.ALL
    before: Annotated[
        int | None,
        Field(ge=1, le=_INT8_MAX, description="Only entries older than this one: `next` of the previous page."),
    ] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE, description="The maximum number of entries.")] = 100


def create_audit_blueprint(site: Site) -> ApiBlueprint:
    executor = site.executor
    blueprint = ApiBlueprint("audit", "/api/v1", problems=DATABASE_PROBLEMS)
    audit_log = AuditLog(executor)

    @blueprint.get("/audit", query=AuditQuery, response=AuditPage, scope=Scope.OPERATE, standby=True)
    def list_audit_entries(query: AuditQuery) -> AuditPage:
        """List audit entries: which actor did what, when, from where, and what it changed.

        Newest first; a folded entry has the newest of its triggers, their `count` and `first_at`. Actions are the names
        of operations and commands; entries written by 0.2.0 keep its names.
        """
        return audit_log.page(**vars(query))

    return blueprint
