"""Job logs over HTTP: a page, the end, or the next lines as they are written."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from itertools import islice
from typing import Annotated, Literal
from uuid import UUID

from flask import Response
from pydantic import Field

from dataloader.app.errors import DatabaseUnavailable, JobNotFound
from dataloader.app.features.jobs.job_detail import AttemptRecord, JobReader, run_at
from dataloader.app.features.jobs.log_search import JobLogSearch, LogFilter
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.http.problems import DATABASE_PROBLEMS, ProblemCode, RequestRejected
from dataloader.app.http.routing import ApiBlueprint
from dataloader.app.http.schemas import INT4_MAX, MAX_PAGE_SIZE, QueryModel, parse_job_id
from dataloader.app.http.site import Site
from dataloader.app.queue.job_records import JobLogLine, LogPage
from dataloader.app.wording import format_attempt

TEXT = "text/plain"
MAX_WAIT_SEC = 10  # a shutdown waits for pending requests
MAX_DOWNLOADS = 4  # at a time: each takes a thread until it ends
MAX_DOWNLOADED_LINES = 1_000_000
_CHUNK_LINES = 1_000
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
Stream = Literal["log", "stdout", "stderr", "note"]


class LogsQuery(QueryModel):
    """Which lines of a job's log to read."""

    tail: Annotated[
        int | None, Field(ge=1, le=MAX_PAGE_SIZE, description="Only the last so many lines, instead of the first.")
    ] = None
    after: Annotated[
        int, Field(ge=0, le=2**63 - 1, description="Only lines after this one: `next` of the last response.")
    ] = 0
    level: Annotated[Level | None, Field(description="Only lines of this level and above.")] = None
    attempt: Annotated[int | None, Field(ge=0, le=INT4_MAX, description="Only lines of this attempt.")] = None
    stream: Annotated[Stream | None, Field(description="Only lines of this stream.")] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE, description="The maximum number of lines.")] = MAX_PAGE_SIZE
    wait: Annotated[
        float, Field(ge=0, le=MAX_WAIT_SEC, description="How many seconds to wait for a line if there is none yet.")
    ] = 0


class LogTextQuery(QueryModel):
    """Which lines of a job's log to download."""

    level: Annotated[Level | None, Field(description="Only lines of this level and above.")] = None
    attempt: Annotated[int | None, Field(ge=0, le=INT4_MAX, description="Only lines of this attempt.")] = None
    stream: Annotated[Stream | None, Field(description="Only lines of this stream.")] = None
    search: Annotated[str | None, Field(max_length=200, description="Only lines that contain this text.")] = None

    def to_filter(self) -> LogFilter:
        return LogFilter(
            text=self.search or None, levels=levels_from(self.level), attempt=self.attempt, stream=self.stream
        )


@dataclass(frozen=True)
class RunLogLine(JobLogLine):
    """A line of a job's log. `run` counts the attempts of this number: a release, or a retry by hand, uses it again."""

    run: int


@dataclass(frozen=True)
class JobLogs:
    """Lines, the oldest first. `complete`: the job has ended, and nothing comes after the last line that is there."""

    job_id: UUID
    lines: list[RunLogLine]
    next: int  # what to send as `after` for the lines that follow
    complete: bool


def levels_from(level: str | None) -> tuple[str, ...] | None:
    """This level and those above it; None: all."""
    return LEVELS[LEVELS.index(level) :] if level else None


def create_job_logs_blueprint(site: Site) -> ApiBlueprint:
    queue, watcher = site.queue, site.watcher
    blueprint = ApiBlueprint("job_logs", "/api/v1", problems=DATABASE_PROBLEMS)
    search, reader = JobLogSearch(queue.executor), JobReader(queue.executor)
    downloads = threading.BoundedSemaphore(MAX_DOWNLOADS)

    @blueprint.get(
        "/jobs/<job:job_id>/logs",
        query=LogsQuery,
        response=JobLogs,
        problems=(ProblemCode.JOB_NOT_FOUND, ProblemCode.TOO_MANY_WAITING),
        scope=Scope.READ,
        standby=True,
    )
    def get_job_logs(query: LogsQuery, job_id: str) -> JobLogs:
        """Read a job's log: what its pipeline logs and prints, and what its command writes, in all attempts.

        To follow it, repeat the request with `after` set to the last `next`, and with `wait`, until a response is
        `complete` and has no lines.
        """
        job, levels = parse_job_id(job_id), levels_from(query.level)

        def fetch_page() -> LogPage:
            return queue.logs(
                job,
                after=query.after,
                tail=query.tail is not None,
                levels=levels,
                attempt=query.attempt,
                stream=query.stream,
                limit=query.tail or query.limit,
            )

        page = watcher.wait(fetch_page, lambda page: bool(page.lines) or page.complete, query.wait)
        attempts = reader.attempts(job) if page.lines else []
        lines = [RunLogLine(**vars(line), run=run_at(attempts, line.attempt, line.ts)) for line in page.lines]
        return JobLogs(job, lines, lines[-1].log_id if lines else query.after, page.complete)

    @blueprint.get(
        "/jobs/<job:job_id>/log.txt",
        query=LogTextQuery,
        response=str,
        media_type=TEXT,
        problems=(ProblemCode.JOB_NOT_FOUND, ProblemCode.TOO_MANY_WAITING),
        scope=Scope.READ,
    )
    def download_job_log(query: LogTextQuery, job_id: str) -> Response:
        """Download a job's log as text: time in UTC, level or stream, attempt and text of each line.

        The response is sent as it is read, at most a million lines; its last line says so if it ends before the log.
        """
        job = parse_job_id(job_id)
        if queue.get(job) is None:
            raise JobNotFound(job)
        if not downloads.acquire(blocking=False):
            raise RequestRejected(ProblemCode.TOO_MANY_WAITING, headers={"Retry-After": "1"})
        lines = _text_lines(search, job, query.to_filter(), reader.attempts(job))
        response = Response(lines, content_type=f"{TEXT}; charset=utf-8")
        response.headers["Content-Disposition"] = f'attachment; filename="{job}.log.txt"'
        response.call_on_close(downloads.release)
        return response

    return blueprint


def _text_lines(
    search: JobLogSearch, job_id: UUID, log_filter: LogFilter, attempts: Sequence[AttemptRecord]
) -> Iterator[str]:
    """The lines as text, a page at a time: a chunk for each line would be a packet for each line."""
    lines = search.lines(job_id, log_filter)
    try:
        for _ in range(MAX_DOWNLOADED_LINES // _CHUNK_LINES):
            chunk = [format_line(line, run_at(attempts, line.attempt, line.ts)) for line in islice(lines, _CHUNK_LINES)]
            if not chunk:
                return
            yield "".join(chunk)
        if next(lines, None) is not None:
            yield f"… only the first {MAX_DOWNLOADED_LINES:,} lines …\n"
    except DatabaseUnavailable:
        yield "… the database went away: the log is incomplete …\n"


def format_line(line: JobLogLine, run: int = 1) -> str:
    at = line.ts.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    kind = line.level if line.stream == "log" else line.stream
    return f"{at} {kind:<8} {format_attempt(line.attempt, run):>3} {line.line}\n"
