"""Who did what."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from flask import Response
from pydantic import Field

from app.queue.audit import Audit
from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.web.operations import HTML, Subject
from app.web.pages.frame import FormModel, Frame, Unreadable, given

LIMIT = 100
_REACH = 100_000  # lines that are looked at for one page, where no index leads to those that fit
_Text = Annotated[str, Field(max_length=1000)]


class AuditPageQuery(FormModel):
    """Which lines; empty: any."""

    actor: _Text = Field("", description="Who.")
    action: _Text = Field("", description="What was done.")
    subject: _Text = Field("", description="What kind of thing it was done to, such as job or queue.")
    subject_id: _Text = Field("", description="Which one.")
    before: Annotated[int | None, Field(ge=1, le=2**63 - 1, description="Only older lines than this one.")] = None


def trail(source: Source, frame: Frame) -> Subject:
    subject = Subject("audit_pages", "", frame.options.max_json_depth)
    audit = Audit(source)

    @subject.get("/audit", query=AuditPageQuery, answer=str, media_type=HTML, scope=Scope.OPERATE)
    def audit_page(wanted: AuditPageQuery) -> Response:
        """See who did what, to what, and when."""
        asked = given(wanted)
        try:
            edge = _edge(audit, wanted)
            entries = audit.entries(**asked, after=edge, limit=LIMIT)
        except Unreadable as error:
            return frame.away("The audit", error)
        goes_on = entries[-1].id if len(entries) == LIMIT else edge + 1 if edge else None
        older = None if goes_on is None else urlencode(asked | {"before": goes_on})
        return frame.show("audit.html", wanted=wanted, entries=entries, older=older, full=len(entries) == LIMIT)

    return subject


def _edge(audit: Audit, wanted: AuditPageQuery) -> int | None:
    """How far back one look reaches; None: as far as there are lines."""
    if wanted.subject_id or not (wanted.actor or wanted.action or wanted.subject):
        return None
    top = wanted.before if wanted.before is not None else audit.top() + 1
    return max(0, top - _REACH) or None
