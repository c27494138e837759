"""The whole log of a job: a page at a time, with a word, from a level on."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlencode

from flask import Response
from pydantic import Field

from app.errors import JobNotFound
from app.queue.jobqueue import JobQueue
from app.queue.keys import Scope
from app.queue.said import Said
from app.web.operations import HTML, Subject
from app.web.pages.frame import FormModel, Frame, Unreadable, job_id_of
from app.web.problems import Code

LINES = 500
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_Place = Annotated[int | None, Field(ge=0, le=2**63 - 1)]


class LogQuery(FormModel):
    """Which lines; empty: any. Without a place: the last ones."""

    find: Annotated[str, Field(max_length=200, description="Only lines with this text.")] = ""
    level: Annotated[Literal["", "INFO", "WARNING", "ERROR"], Field(description="Only lines from this level on.")] = ""
    after: Annotated[_Place, Field(description="Lines behind this one, from the link of the page before.")] = None
    before: Annotated[_Place, Field(description="Lines before this one, likewise.")] = None


def log(queue: JobQueue, frame: Frame) -> Subject:
    subject = Subject("log_page", "", frame.options.max_json_depth)
    said = Said(queue.source)

    @subject.get(
        "/jobs/<job:job_id>/log",
        query=LogQuery,
        answer=str,
        media_type=HTML,
        problems=(Code.JOB_NOT_FOUND,),
        scope=Scope.READ,
    )
    def log_page(wanted: LogQuery, job_id: str) -> Response:
        """Read and search the whole log of a job."""
        job_id_asked = job_id_of(job_id)
        try:
            job = queue.get(job_id_asked)
            if job is None:
                raise JobNotFound(job_id_asked)
            page = said.page(
                job.id,
                find=wanted.find or None,
                levels=_LEVELS[_LEVELS.index(wanted.level) :] if wanted.level else None,
                after=wanted.after,
                before=wanted.before,
                limit=LINES,
            )
        except Unreadable as error:
            return frame.away("The log", error)
        kept = {name: told for name, told in (("find", wanted.find), ("level", wanted.level)) if told}
        return frame.show(
            "log.html",
            job=job,
            wanted=wanted,
            page=page,
            narrowed=bool(kept),
            earlier=None if page.earlier is None else urlencode(kept | {"before": page.earlier}),
            later=None if page.later is None else urlencode(kept | {"after": page.later}),
            first=urlencode(kept | {"after": 0}),
            last=urlencode(kept),
            live=wanted.after is None and wanted.before is None,
        )

    return subject
