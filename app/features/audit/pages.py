"""The audit page: who changed what, and when; triggers are folded. It exports what its filter matches."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

from flask import Response
from pydantic import Field

from dataloader.app.acts.audit_log import AuditEntry, AuditLog, Triggers
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.json_io import FieldError
from dataloader.app.http.links import page_of
from dataloader.app.http.problems import InvalidRequest
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.site import Site
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, PageRenderer, parse_time

PAGE_SIZE = 100
_MAX_EXPORTED = 10_000
_MAX_SCANNED_ENTRIES = 100_000  # for one page, where no index serves the filter
_CSV = "text/csv"
_FORMULA_STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_LINE_BREAKS = re.compile(r"[\r\n\v\f\x85\u2028\u2029\t]+")  # a formula may begin in the next line
_CSV_FIELDS = (
    "audit_id", "at", "action", "actor", "key_id", "via", "address", "request_id", "subject", "subject_id", "before",
    "after", "db_user", "count", "first_at",
)  # fmt: skip


class AuditPageQuery(FormModel):
    """The filter of the audit page; an empty field matches everything."""

    actor: FormText = Field("", description="The name of the actor.")
    action: FormText = Field("", description="The action.")
    subject: FormText = Field("", description="The type of the changed resource, such as job or queue.")
    subject_id: FormText = Field("", description="The ID of the changed resource.")
    since: FormText = Field("", description="Not before this time, in the zone of the pages.")
    until: FormText = Field("", description="Before this time.")
    triggers: Triggers = Field(Triggers.FOLDED, description="folded: one row for those of an actor, action and hour.")
    before: Annotated[int | None, Field(ge=1, le=2**63 - 1, description="Only entries older than this one.")] = None


def create_audit_page(site: Site) -> ApiBlueprint:
    source, options = site.executor, site.options
    pages = PageRenderer("audit_page", options)
    audit = AuditLog(source)

    @pages.page("/audit", query=AuditPageQuery, scope=Scope.OPERATE)
    def show_audit(query: AuditPageQuery) -> Response:
        """Show the audit log, filtered."""
        error, entries, older = None, [], None
        is_full = True
        try:
            cursor = _page_cursor(audit, query)
            found = audit.page(**_criteria(query, options.timezone), after=cursor, limit=PAGE_SIZE)
            entries, is_full = found.entries, found.next is not None
            next_before = found.next or (cursor + 1 if cursor else None)
            older = None if next_before is None else _address(query, before=next_before)
        except InvalidForm as refused:
            error = str(refused)
        return pages.render(
            "audit.html",
            query=query,
            values=audit.values(),
            entries=entries,
            older=older,
            is_full=is_full,
            error=error,
            export_query=_address(query, before=None),
            page_of=partial(page_of, site.features),
            unfolded_url=unfolded_url,
            differences=differences,
        )

    @pages.blueprint.get("/audit/export", query=AuditPageQuery, response=str, media_type=_CSV, scope=Scope.OPERATE)
    def export_audit(query: AuditPageQuery) -> Response:
        """Export matching audit entries as CSV, the newest ten thousand."""
        try:
            criteria = _criteria(query, options.timezone)
        except InvalidForm as error:
            raise InvalidRequest(list(error.errors) or [FieldError("", str(error))]) from None
        found = audit.page(**criteria, after=_page_cursor(audit, query), limit=_MAX_EXPORTED)
        headers = {"Content-Disposition": 'attachment; filename="audit.csv"'}
        return Response(to_csv(found.entries), content_type=f"{_CSV}; charset=utf-8", headers=headers)

    return pages.blueprint


def _criteria(query: AuditPageQuery, zone: str) -> dict[str, Any]:
    """Raises InvalidForm."""
    texts = {name: getattr(query, name).strip() or None for name in ("actor", "action", "subject", "subject_id")}
    times = {name: parse_time(name, getattr(query, name), zone) for name in ("since", "until")}
    return {**texts, **times, "triggers": query.triggers, "before": query.before}


def _address(query: AuditPageQuery, *, before: int | None) -> str:
    """The filter as in an address."""
    values = query.model_dump(mode="json") | {"before": before}
    return urlencode({name: value for name, value in values.items() if value not in (None, "")})


def _page_cursor(audit: AuditLog, query: AuditPageQuery) -> int | None:
    """Return the oldest entry that one page may scan, or None when an index bounds the scan."""
    if query.subject_id or query.triggers is Triggers.NONE:
        return None
    if not (query.actor or query.action or query.subject or query.since or query.until):
        return None
    newest = query.before if query.before is not None else audit.newest_id() + 1
    return max(0, newest - _MAX_SCANNED_ENTRIES) or None


def unfolded_url(entry: AuditEntry) -> str:
    """The page with each trigger of a folded row."""
    first: datetime = entry.first_at or entry.at
    fields = {
        "actor": entry.actor,
        "action": entry.action,
        "since": first.isoformat(),
        "before": entry.audit_id + 1,
        "triggers": Triggers.ALL.value,
    }
    return f"/audit?{urlencode(fields)}"


def differences(entry: AuditEntry) -> list[tuple[str, Any, Any]]:
    """The changed fields with their values before and after."""
    before = entry.before if isinstance(entry.before, dict) else {}
    after = entry.after if isinstance(entry.after, dict) else {}
    return [(name, before.get(name), after.get(name)) for name in {**before, **after}]


def to_csv(entries: Iterable[AuditEntry]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_CSV_FIELDS)
    for entry in entries:
        writer.writerow([_cell(getattr(entry, name)) for name in _CSV_FIELDS])
    return text.getvalue()


def _cell(value: Any) -> str:
    """A cell that a spreadsheet does not take for a formula, and of one line."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    text = _LINE_BREAKS.sub(" ", str(value))
    return f"'{text}" if text.lstrip().startswith(_FORMULA_STARTS) else text
