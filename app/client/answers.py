"""A request for a job, and the answers of the service as values; `said` is always the whole answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from app.queue.job import Status


@dataclass(frozen=True, kw_only=True)
class Request:
    """A job to trigger. `None` leaves the choice to the service."""

    task: str
    queue: str | None = None  # the service knows one for tasks that have a default; likewise the next
    lock_key: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None  # without one, a trigger whose answer is lost is not sent again
    partition_key: str | None = None
    priority: int | None = None
    available_at: datetime | None = None
    max_attempts: int | None = None
    lease_ttl_sec: int | None = None
    producer: str | None = None
    consumer_group: str | None = None
    live_key: str | None = None  # unique among waiting and running jobs
    time_limit_sec: int | None = None
    retry: Mapping[str, Any] | None = None

    def body(self) -> dict[str, Any]:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if self.available_at is not None:
            given["available_at"] = self.available_at.astimezone(UTC).isoformat()
        return given


@dataclass(frozen=True)
class Triggered:
    """The job that now stands for the request, new or as the idempotency key found it."""

    job_id: UUID
    status: Status
    said: dict[str, Any] = field(repr=False)

    @property
    def warnings(self) -> list[str]:
        """Why the job may never run; empty if there is no reason to doubt it."""
        return [str(text) for text in self.said.get("warnings") or ()]


@dataclass(frozen=True, kw_only=True)
class JobState:
    """How a job does. `said` is the whole answer, for fields that are not named here."""

    job_id: UUID
    status: Status
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    heartbeat_at: datetime | None
    error: str | None
    progress: dict[str, Any]
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class JobLine:
    """A job in a list of jobs."""

    job_id: UUID
    status: Status
    queue: str
    task: str
    attempt: int
    max_attempts: int
    created_at: datetime
    error: str | None
    progress: dict[str, Any]
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class JobLogLine:
    """A line that a job said."""

    log_id: int
    at: datetime
    attempt: int
    level: str
    stream: str
    line: str
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class JobLogs:
    """Lines of a job's log, oldest first."""

    lines: list[JobLogLine]
    next: int  # `after` for the lines that follow
    complete: bool  # nothing follows
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """A line of a job's journal."""

    at: datetime
    kind: str
    payload: dict[str, Any]
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class AuditLine:
    """Something that somebody did."""

    audit_id: int
    at: datetime
    action: str
    actor: str
    via: str
    address: str | None
    request_id: str | None
    subject: str
    subject_id: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    said: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class AuditPage:
    """Lines of the audit, newest first."""

    lines: list[AuditLine]
    next: int | None  # `before` for the page after this one
    said: dict[str, Any] = field(repr=False)


def read_state(said: dict[str, Any]) -> JobState:
    return JobState(
        job_id=UUID(said["job_id"]),
        status=Status(said["status"]),
        attempt=int(said["attempt"]),
        started_at=_time(said["started_at"]),
        finished_at=_time(said["finished_at"]),
        heartbeat_at=_time(said["heartbeat_at"]),
        error=said["error"],
        progress=dict(said["progress"]),
        said=said,
    )


def read_line(said: dict[str, Any]) -> JobLine:
    return JobLine(
        job_id=UUID(said["job_id"]),
        status=Status(said["status"]),
        queue=str(said["queue"]),
        task=str(said["task"]),
        attempt=int(said["attempt"]),
        max_attempts=int(said["max_attempts"]),
        created_at=datetime.fromisoformat(said["created_at"]),
        error=said["error"],
        progress=dict(said["progress"]),
        said=said,
    )


def read_event(said: dict[str, Any]) -> JobEvent:
    return JobEvent(
        at=datetime.fromisoformat(said["ts"]), kind=str(said["kind"]), payload=dict(said["payload"]), said=said
    )


def read_audit_line(said: dict[str, Any]) -> AuditLine:
    names = [name for name in AuditLine.__dataclass_fields__ if name not in ("at", "said")]
    return AuditLine(at=datetime.fromisoformat(said["at"]), said=said, **{name: said[name] for name in names})


def read_log_line(said: dict[str, Any]) -> JobLogLine:
    return JobLogLine(
        log_id=int(said["log_id"]),
        at=datetime.fromisoformat(said["ts"]),
        attempt=int(said["attempt"]),
        level=str(said["level"]),
        stream=str(said["stream"]),
        line=str(said["line"]),
        said=said,
    )


def _time(told: str | None) -> datetime | None:
    return None if told is None else datetime.fromisoformat(told)
