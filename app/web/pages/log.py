"""The full log of a job, by pages, with search and level filter."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlencode

from flask import Response
from pydantic import Field

from app.admin.job_search import JobSearch
from app.queue.job_logs import JobLogSearch
from app.queue.jobs import Executor
from app.web.api.jobs import parse_job_id
from app.web.pages.base import FormModel, PageRenderer
from app.web.problems import ProblemCode
from app.web.routing import ApiBlueprint

PAGE_LINES = 500
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LineId = Annotated[int | None, Field(ge=0, le=2**63 - 1)]


class LogPageQuery(FormModel):
    """The filter of the log page. Without `after` and `before` it shows the last lines."""

    search: Annotated[str, Field(max_length=200, description="Only lines that contain this text.")] = ""
    level: Annotated[Literal["", "INFO", "WARNING", "ERROR"], Field(description="The lowest level to show.")] = ""
    after: Annotated[_LineId, Field(description="Lines after this one, from the link of the page before.")] = None
    before: Annotated[_LineId, Field(description="Lines before this one, likewise.")] = None


def create_log_page(executor: Executor, renderer: PageRenderer) -> ApiBlueprint:
    blueprint = renderer.blueprint("log_page")
    search, log_search = JobSearch(executor), JobLogSearch(executor)

    @renderer.page(blueprint, "/jobs/<job:job_id>/log", query=LogPageQuery, problems=(ProblemCode.JOB_NOT_FOUND,))
    def show_job_log(query: LogPageQuery, job_id: str) -> Response:
        """Show and search the full log of a job."""
        job = search.get_with_version(parse_job_id(job_id)).job
        page = log_search.page(
            job.id,
            text=query.search or None,
            levels=_LEVELS[_LEVELS.index(query.level) :] if query.level else None,
            after=query.after,
            before=query.before,
            limit=PAGE_LINES,
        )
        filters = {name: value for name, value in (("search", query.search), ("level", query.level)) if value}
        return renderer.render(
            "log.html",
            job=job,
            query=query,
            page=page,
            has_filter=bool(filters),
            previous=None if page.previous is None else urlencode(filters | {"before": page.previous}),
            next=None if page.next is None else urlencode(filters | {"after": page.next}),
            first=urlencode(filters | {"after": 0}),
            last=urlencode(filters),
            is_last_page=query.after is None and query.before is None,
        )

    return blueprint
