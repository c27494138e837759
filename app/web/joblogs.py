"""What jobs said: a page of it, its end, or the next lines as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from app.queue.job import LogLine, LogPage
from app.queue.jobqueue import JobQueue
from app.queue.keys import Scope
from app.web.jobs import NoSuchId
from app.web.models import INT4_MAX, LONGEST_LIST
from app.web.operations import Subject
from app.web.options import WebOptions
from app.web.problems import Code, TooManyWaiting

LONGEST_WAIT_SEC = 10  # a stop of the service waits for whoever waits here
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LOOK_EVERY = 0.5  # seconds
_UUID_LENGTH = 36

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
Stream = Literal["log", "stdout", "stderr", "note"]


class LogsQuery(BaseModel):
    """Which lines of a job's log. From the address, where everything is a text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tail: Annotated[
        int | None, Field(ge=1, le=LONGEST_LIST, description="Only the last so many lines, instead of the first.")
    ] = None
    after: Annotated[
        int, Field(ge=0, le=2**63 - 1, description="Only lines after this one: `next` of the answer before.")
    ] = 0
    level: Annotated[Level | None, Field(description="Only lines of this level and above.")] = None
    attempt: Annotated[int | None, Field(ge=0, le=INT4_MAX, description="Only lines of this try.")] = None
    stream: Annotated[Stream | None, Field(description="Only lines that came this way.")] = None
    limit: Annotated[int, Field(ge=1, le=LONGEST_LIST, description="How many at most.")] = LONGEST_LIST
    wait: Annotated[
        float, Field(ge=0, le=LONGEST_WAIT_SEC, description="How many seconds to wait for a line if there is none yet.")
    ] = 0


@dataclass(frozen=True)
class JobLogLine:
    """A line that a job said. `note` lines are dataloader's own, about lines that were left out."""

    log_id: int
    ts: datetime
    attempt: int
    level: str
    stream: str
    line: str

    @classmethod
    def of(cls, line: LogLine) -> JobLogLine:
        return cls(line.id, line.at, line.attempt, line.level, line.stream, line.line)


@dataclass(frozen=True)
class JobLogs:
    """Lines, the oldest first. `complete`: the job has ended, and nothing comes after the last line that is there."""

    job_id: UUID
    lines: list[JobLogLine]
    next: int  # what to send as `after` for the lines that follow
    complete: bool


def joblogs(queue: JobQueue, options: WebOptions) -> Subject:
    subject = Subject("logs", "/api/v1", options.max_json_depth)
    room = Room(options.most_waiting_for_logs)

    @subject.get(
        "/jobs/<job:job_id>/logs",
        query=LogsQuery,
        answer=JobLogs,
        problems=(Code.JOB_NOT_FOUND, Code.TOO_MANY_WAITING, Code.DATABASE_UNAVAILABLE, Code.SCHEMA_MISMATCH),
        scope=Scope.READ,
    )
    def job_logs(wanted: LogsQuery, job_id: str) -> JobLogs:
        """Read what a job said.

        What its pipeline logs, prints and its command writes, of all its tries. To follow it, ask again with `after`
        set to the `next` of the answer before, and with `wait`, until an answer is `complete` and has no lines.
        """
        job = _id(job_id)
        page = room.wait(lambda: _page(queue, job, wanted), wanted.wait)
        lines = [JobLogLine.of(line) for line in page.lines]
        return JobLogs(job, lines, lines[-1].log_id if lines else wanted.after, page.complete)

    return subject


def _id(told: str) -> UUID:
    try:
        if len(told) == _UUID_LENGTH:
            return UUID(told)
    except ValueError:
        pass
    raise NoSuchId(told)


def _page(queue: JobQueue, job_id: UUID, wanted: LogsQuery) -> LogPage:
    return queue.logs(
        job_id,
        after=wanted.after,
        tail=wanted.tail is not None,
        levels=None if wanted.level is None else _LEVELS[_LEVELS.index(wanted.level) :],
        attempt=wanted.attempt,
        stream=wanted.stream,
        limit=wanted.tail or wanted.limit,
    )


class Room:
    """Where requests wait for lines. It is small: they must not take up all the threads that answer."""

    def __init__(self, places: int) -> None:
        self._places = threading.BoundedSemaphore(places)
        self._never = threading.Event()

    def wait(self, look: Callable[[], LogPage], seconds: float) -> LogPage:
        """Look until there are lines, or can be none any more, or the time is over."""
        page = look()
        left = seconds
        if left <= 0 or page.lines or page.complete:
            return page
        with self._place():
            while left > 0 and not (page.lines or page.complete):
                self._never.wait(min(_LOOK_EVERY, left))
                left -= _LOOK_EVERY
                page = look()
        return page

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise TooManyWaiting
        try:
            yield
        finally:
            self._places.release()
