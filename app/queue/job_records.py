"""The status, events and logs of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from dataloader.app.db.encoding import array, from_row
from dataloader.app.errors import JobNotFound
from dataloader.app.queue.job import Status


@dataclass(frozen=True)
class JobStatus:
    """What changes while a job waits and runs; the statement `get_job_status` selects it in the order of the fields."""

    id: UUID
    queue: str
    task: str
    status: Status
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    heartbeat_at: datetime | None
    error: str | None
    progress: Any  # an object, unless another service has written it


@dataclass(frozen=True)
class JobEvent:
    """An event of a job."""

    event_id: int
    job_id: UUID
    queue: str
    ts: datetime
    kind: str
    payload: dict[str, Any]


class LogEntry(NamedTuple):
    """A line to be written to a job's log."""

    job_id: UUID
    attempt: int
    age_sec: float  # the database's clock makes a time of it
    level: str
    stream: str
    line: str
    dropped: int = 0  # of a note: how many lines were left out before it


class LogPosition(NamedTuple):
    """How far an attempt has read the log of its work on an engine."""

    offload: str
    run_id: str
    position: str


@dataclass(frozen=True)
class JobLogLine:
    """A line of a job's log."""

    log_id: int
    attempt: int
    ts: datetime
    level: str
    stream: str
    line: str


@dataclass(frozen=True)
class LogPage:
    lines: list[JobLogLine]  # oldest first
    complete: bool  # the job has ended, and its last lines have arrived


class JobRecords:
    """The part of `JobQueue` that reads the status of jobs, and reads and writes events and logs."""

    _execute: Callable[..., list[tuple[Any, ...]]]

    def status(self, job_id: UUID) -> JobStatus | None:
        rows = self._execute("get_job_status", {"job_id": str(job_id)})
        return from_row(JobStatus, rows[0]) if rows else None

    def events(self, job_id: UUID, *, after: int = 0, limit: int = 1000) -> list[JobEvent]:
        """List the job's events after the given one, oldest first."""
        rows = self._execute("job_events", {"job_id": str(job_id), "after": after, "limit": limit})
        return [from_row(JobEvent, row) for row in rows]

    def logs(
        self,
        job_id: UUID,
        *,
        after: int = 0,
        tail: bool = False,
        levels: Iterable[str] | None = None,
        attempt: int | None = None,
        stream: str | None = None,
        limit: int = 1000,
    ) -> LogPage:
        """The first lines of a job's log after `after`, or the last ones with `tail`; oldest first."""
        parameters = {"job_id": str(job_id), "after": after, "tail": tail, "attempt": attempt, "stream": stream}
        parameters |= {"levels": None if levels is None else array(levels), "limit": limit}
        rows = self._execute("job_logs", parameters)
        if not rows:
            raise JobNotFound(job_id)
        return LogPage([JobLogLine(*row[1:]) for row in rows if row[1] is not None], rows[0][0])

    def write_logs(self, lines: Sequence[LogEntry], positions: Sequence[LogPosition] = ()) -> None:
        """Add lines to jobs' logs, with the positions behind them in logs of engines. After an error the lines may have
        been written all the same."""
        columns = ("job_ids", "attempts", "ages", "levels", "streams", "lines", "dropped")
        values = {name: array(line[n] for line in lines) for n, name in enumerate(columns)}
        if not positions:
            self._execute("write_logs", values)
            return
        for n, name in enumerate(("offloads", "runs", "positions")):
            values[name] = array(position[n] for position in positions)
        self._execute("write_logs_of_offloads", values)
