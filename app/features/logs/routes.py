"""Logs of all jobs over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field

from dataloader.app.features.logs.rows import FoundLine, LineFilter, LogSearch
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import QueryModel, Timestamp
from dataloader.app.http.site import Site

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
DEFAULT_SPAN = timedelta(days=1)
MAX_TEXT_LENGTH = 200
_MAX_LINES = 500

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class LogLinesQuery(QueryModel):
    """Which lines to search for."""

    text: Annotated[
        str | None, Field(min_length=1, max_length=MAX_TEXT_LENGTH, description="Only lines that contain this text.")
    ] = None
    level: Annotated[Level | None, Field(description="Only lines of this level and above.")] = None
    task: Annotated[str | None, Field(max_length=1000, description="Only lines of jobs of this task.")] = None
    since: Annotated[Timestamp, Field(description="Only lines written then or later; by default of the last day.")] = (
        None
    )
    until: Annotated[Timestamp, Field(description="Only lines written before.")] = None
    before: Annotated[int | None, Field(ge=0, le=2**63 - 1, description="Continue after a page: its `next`.")] = None
    limit: Annotated[int, Field(ge=1, le=_MAX_LINES, description="The maximum number of lines.")] = 100


@dataclass(frozen=True)
class LogLines:
    """Lines, newest first. With `next` there may be more, even if this page is not full: a search stops after a moment,
    at lines written at `scanned_to`."""

    lines: list[FoundLine]
    next: int | None
    scanned: int
    scanned_to: datetime | None


def levels_from(level: str | None) -> tuple[str, ...] | None:
    """This level and those above it; None: all."""
    return LEVELS[LEVELS.index(level) :] if level else None


def create_logs_blueprint(site: Site) -> ApiBlueprint:
    blueprint = ApiBlueprint("logs", "/api/v1", problems=DATABASE_PROBLEMS)
    search = LogSearch(site.executor)

    @blueprint.get("/logs", query=LogLinesQuery, response=LogLines, scope=Scope.READ, standby=True)
    def search_logs(query: LogLinesQuery) -> LogLines:
        """Search the logs of all jobs, newest lines first.

        A page takes only a moment, however many lines there are: a longer search returns what it has found, and `next`
        continues it.
        """
        line_filter = LineFilter(
            since=query.since or datetime.now(UTC) - DEFAULT_SPAN,
            until=query.until,
            text=query.text,
            levels=levels_from(query.level),
            task=query.task,
        )
        page = search.page(line_filter, before=query.before, limit=query.limit)
        return LogLines(page.lines, page.next, page.scanned, page.scanned_to)

    return blueprint
