"""Who did what: a page of the audit, the newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from app.queue.audit import Audit, Entry
from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.web.models import LONGEST_LIST, read_moment
from app.web.operations import Subject
from app.web.options import WebOptions
from app.web.problems import Code

_INT8_MAX = 2**63 - 1
Text = Annotated[str | None, Field(max_length=1000)]
Moment = Annotated[datetime | None, BeforeValidator(read_moment)]


class AuditQuery(BaseModel):
    """Which lines of the audit. From the address, where everything is a text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: Annotated[Text, Field(description="Only this action: the name of an operation, or of a command.")] = None
    actor: Annotated[Text, Field(description="Only what this key did, by its name.")] = None
    key_id: Annotated[Text, Field(description="Only what this key did, by its id.")] = None
    subject: Annotated[Text, Field(description="Only what was done to things of this kind: job, key, session.")] = None
    subject_id: Annotated[Text, Field(description="Only what was done to this one, such as a job's id.")] = None
    request_id: Annotated[Text, Field(description="Only what this request did.")] = None
    since: Annotated[Moment, Field(description="Not before this time (RFC 3339 with a zone).")] = None
    until: Annotated[Moment, Field(description="Before this time (RFC 3339 with a zone).")] = None
    before: Annotated[
        int | None, Field(ge=1, le=_INT8_MAX, description="Only lines older than this one: `next` of the page before.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=LONGEST_LIST, description="How many at most.")] = 100


@dataclass(frozen=True, kw_only=True)
class AuditLine:
    """Something that somebody did. `before` and `after` hold what an edit changed, and of args only the names."""

    audit_id: int
    at: datetime
    action: str
    actor: str
    key_id: str | None
    via: str
    address: str | None
    request_id: str | None
    subject: str
    subject_id: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    db_user: str

    @classmethod
    def of(cls, entry: Entry) -> AuditLine:
        told = dict(entry.__dict__)
        return cls(audit_id=told.pop("id"), **told)


@dataclass(frozen=True)
class AuditPage:
    """Lines, the newest first. `next`: what to send as `before` for the page after this one; null: there is none."""

    lines: list[AuditLine]
    next: int | None


def audit(source: Source, options: WebOptions) -> Subject:
    subject = Subject("audit", "/api/v1", options.max_json_depth)
    kept = Audit(source)

    @subject.get(
        "/audit",
        query=AuditQuery,
        answer=AuditPage,
        problems=(Code.DATABASE_UNAVAILABLE, Code.SCHEMA_MISMATCH),
        scope=Scope.OPERATE,
    )
    def audit_list(wanted: AuditQuery) -> AuditPage:
        """Read who did what, when, from where, and what it changed.

        The newest first. Jobs put in, canceled, retried and changed, keys made and revoked, sessions begun and ended.
        """
        found = kept.entries(**wanted.__dict__)
        full = len(found) == wanted.limit
        return AuditPage([AuditLine.of(entry) for entry in found], found[-1].id if full else None)

    return subject
