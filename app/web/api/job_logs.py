"""Job logs over HTTP: a page, the end, or the next lines as they are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from app.admin.api_keys import Scope
from app.queue.job import JobLogLine, LogPage
from app.queue.jobs import JobQueue
from app.web.api.jobs import JobWatcher, parse_job_id
from app.web.problems import DATABASE_PROBLEMS, ProblemCode
from app.web.routing import ApiBlueprint
from app.web.schemas import INT4_MAX, MAX_PAGE_SIZE, QueryModel

MAX_WAIT_SEC = 10  # a shutdown waits for pending requests
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


@dataclass(frozen=True)
class JobLogs:
    """Lines, the oldest first. `complete`: the job has ended, and nothing comes after the last line that is there."""

    job_id: UUID
    lines: list[JobLogLine]
    next: int  # what to send as `after` for the lines that follow
    complete: bool


def create_job_logs_blueprint(queue: JobQueue, watcher: JobWatcher) -> ApiBlueprint:
    blueprint = ApiBlueprint("job_logs", "/api/v1", problems=DATABASE_PROBLEMS)

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
        job, levels = parse_job_id(job_id), None if query.level is None else LEVELS[LEVELS.index(query.level) :]

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
        return JobLogs(job, page.lines, page.lines[-1].log_id if page.lines else query.after, page.complete)

    return blueprint
