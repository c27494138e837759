"""Who did what."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from flask import Response
from pydantic import Field

from app.errors import DataloaderError
from app.queue.audit import Audit
from app.queue.jobqueue import Source
from app.queue.keys import Scope
from app.web.operations import HTML, Subject
from app.web.pages.frame import FormModel, Frame, given

LIMIT = 100
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
            entries = audit.entries(**asked, limit=LIMIT)
        except DataloaderError as error:
            return frame.show("away.html", why=f"The audit cannot be read ({type(error).__name__}).")
        older = urlencode(asked | {"before": entries[-1].id}) if len(entries) == LIMIT else None
        return frame.show("audit.html", wanted=wanted, entries=entries, older=older)

    return subject
