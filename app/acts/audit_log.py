"""The audit: the table dl_audit, with who did what, when, from where, and what it changed.

    with acting_as(AuditContext(action="edit_job", actor="etl-team", via="key", address="10.0.0.7", request_id=…)):
        editor.edit(…)

Inside the block every statement of this thread carries the context, and triggers on dl_jobs, dl_api_keys and others
write an entry for each changed row, with the columns that differ, in the transaction of the change. Of args and results
only the names are recorded. Claims, heartbeats and settlements have no context, and write nothing.

`app/http/routing.py` does so around each request that may change something. To audit another table, give it a trigger
like that of dl_api_keys. `AuditLog.record` is for what changes no row, such as a login.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from dataloader.app.db.encoding import from_row
from dataloader.app.db.statements import AuditContext

if TYPE_CHECKING:
    from dataloader.app.db.statements import Executor


MAX_FOLDED_ENTRIES = 20_000  # that one page of folded triggers reads
_MAX_VALUES_SCANNED = 5_000


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """An entry of the audit. `before` and `after` have the changed columns, of args only the names."""

    audit_id: int
    at: datetime
    action: str
    actor: str
    key_id: str | None
    via: str
    address: str | None
    request_id: str | None
    subject: str  # the type of resource: job, key, queue, session …
    subject_id: str | None
    before: Any
    after: Any
    db_user: str
    count: int = 1  # of a row of folded triggers their number
    first_at: datetime | None = None  # of such a row the time of the oldest one


class Triggers(StrEnum):
    """What a list does with entries of jobs that were triggered."""

    ALL = "all"
    FOLDED = "folded"  # those of an actor, action and hour are one row
    NONE = "none"


@dataclass(frozen=True)
class AuditPage:
    """A page of entries, newest first. `next`: the `before` of the next page; None: there is none."""

    entries: list[AuditEntry]
    next: int | None


@dataclass(frozen=True)
class AuditValues:
    """The values that filters may have, of the newest entries."""

    actors: list[str]
    actions: list[str]
    subjects: list[str]


class AuditCriteria(TypedDict, total=False):
    """Which entries to list; None, or left out, matches any. `before` and `after` are ids of entries."""

    action: str | None
    actor: str | None
    key_id: str | None
    subject: str | None
    subject_id: str | None
    request_id: str | None
    since: datetime | None
    until: datetime | None
    before: int | None
    after: int | None


class AuditLog:
    """Reads and writes the audit."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def record(self, context: AuditContext, subject: str, subject_id: str | None = None) -> None:
        """Record an action that changes no audited row."""
        self._execute("record_audit", context.to_dict() | {"subject": subject, "subject_id": subject_id})

    def entries(self, *, limit: int = 100, **criteria: Unpack[AuditCriteria]) -> list[AuditEntry]:
        """Matching entries, newest first."""
        parameters: dict[str, Any] = {**dict.fromkeys(AuditCriteria.__annotations__), **criteria, "limit": limit}
        rows = self._execute("audit_entries", parameters)
        return [from_row(AuditEntry, row, count=1, first_at=None) for row in rows]

    def page(
        self, *, triggers: Triggers = Triggers.ALL, limit: int = 100, **criteria: Unpack[AuditCriteria]
    ) -> AuditPage:
        """Matching entries, newest first, with triggers as asked for."""
        parameters: dict[str, Any] = {**dict.fromkeys(AuditCriteria.__annotations__), **criteria, "limit": limit}
        if triggers is Triggers.FOLDED:
            rows = self._execute("folded_audit_entries", parameters | {"max_scanned": MAX_FOLDED_ENTRIES})
            return AuditPage([from_row(AuditEntry, row[:-1]) for row in rows], rows[0][-1] if rows else None)
        if triggers is Triggers.NONE:
            found = self._execute("audit_changes", parameters)
            entries = [from_row(AuditEntry, row, count=1, first_at=None) for row in found]
        else:
            entries = self.entries(limit=limit, **criteria)
        return AuditPage(entries, entries[-1].audit_id if len(entries) == limit else None)

    def values(self) -> AuditValues:
        return from_row(AuditValues, self._execute("audit_values", {"max_scanned": _MAX_VALUES_SCANNED})[0])

    def newest_id(self) -> int:
        """The id of the newest entry, or 0."""
        return int(self._execute("newest_audit_id")[0][0])
