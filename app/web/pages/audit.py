"""The audit page: who changed what, and when."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from flask import Response
from pydantic import Field

from app.admin.api_keys import Scope
from app.admin.audit import AuditLog
from app.db.statements import Executor
from app.web.options import WebOptions
from app.web.pages.base import FormModel, FormText, PageRenderer
from app.web.routing import ApiBlueprint

PAGE_SIZE = 100
_MAX_SCANNED_ENTRIES = 100_000  # for one page, where no index serves the filter


class AuditPageQuery(FormModel):
    """The filter of the audit page; an empty field matches everything."""

    actor: FormText = Field("", description="The name of the actor.")
    action: FormText = Field("", description="The action.")
    subject: FormText = Field("", description="The type of the changed resource, such as job or queue.")
    subject_id: FormText = Field("", description="The ID of the changed resource.")
    before: Annotated[int | None, Field(ge=1, le=2**63 - 1, description="Only entries older than this one.")] = None


def create_audit_page(source: Executor, options: WebOptions) -> ApiBlueprint:
    pages = PageRenderer("audit_page", options)
    audit = AuditLog(source)

    @pages.page("/audit", query=AuditPageQuery, scope=Scope.OPERATE)
    def show_audit(query: AuditPageQuery) -> Response:
        """Show the audit log, filtered."""
        parameters = {name: value for name, value in query.model_dump().items() if value not in (None, "")}
        cursor = _page_cursor(audit, query)
        entries = audit.entries(**parameters, after=cursor, limit=PAGE_SIZE)
        is_full = len(entries) == PAGE_SIZE
        next_before = entries[-1].audit_id if is_full else cursor + 1 if cursor else None
        older = None if next_before is None else urlencode(parameters | {"before": next_before})
        return pages.render("audit.html", query=query, entries=entries, older=older, is_full=is_full)

    return pages.blueprint


def _page_cursor(audit: AuditLog, query: AuditPageQuery) -> int | None:
    """Return the oldest entry that one page may scan, or None when an index bounds the scan."""
    if query.subject_id or not (query.actor or query.action or query.subject):
        return None
    newest = query.before if query.before is not None else audit.newest_id() + 1
    return max(0, newest - _MAX_SCANNED_ENTRIES) or None
