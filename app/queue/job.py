"""A job, what it may become, and how an attempt at it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    LOST = "lost"

    @property
    def final(self) -> bool:
        return self not in (Status.QUEUED, Status.RUNNING)


class Move(StrEnum):
    """What takes a job from one status to another."""

    CLAIM = "claim"
    SETTLE = "settle"
    RELEASE = "release"
    CANCEL = "cancel"
    REAP = "reap"
    RETRY = "retry"


# The whole machine: which move may lead from which status to which.
# A cancel of a running job only raises its flag, so it is not a transition.
TRANSITIONS: Mapping[tuple[Status, Move], frozenset[Status]] = {
    (Status.QUEUED, Move.CLAIM): frozenset({Status.RUNNING}),
    (Status.QUEUED, Move.CANCEL): frozenset({Status.CANCELED}),
    (Status.RUNNING, Move.SETTLE): frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.QUEUED}),
    (Status.RUNNING, Move.RELEASE): frozenset({Status.QUEUED, Status.CANCELED}),
    (Status.RUNNING, Move.REAP): frozenset({Status.QUEUED, Status.LOST, Status.CANCELED}),
    (Status.FAILED, Move.RETRY): frozenset({Status.QUEUED}),
    (Status.CANCELED, Move.RETRY): frozenset({Status.QUEUED}),
    (Status.LOST, Move.RETRY): frozenset({Status.QUEUED}),
}


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A request for a job. `None` where the database's default shall stand."""

    queue: str
    task: str
    lock_key: str
    args: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    partition_key: str = ""
    priority: int = 100
    available_at: datetime | None = None  # None: at once
    max_attempts: int = 5
    lease_ttl_sec: int = 60
    producer: str | None = None
    consumer_group: str | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A row of dl_jobs as it was when it was read."""

    id: UUID
    queue: str
    task: str
    args: dict[str, Any]
    idempotency_key: str | None
    lock_key: str
    partition_key: str
    priority: int
    available_at: datetime
    status: Status
    attempt: int
    max_attempts: int
    lease_ttl_sec: int
    lease_expires_at: datetime | None
    heartbeat_at: datetime | None
    cancel_requested: bool
    progress: dict[str, Any]
    error: str | None
    producer: str | None
    consumer_group: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    run_id: UUID | None = None
    worker: str | None = None
    result: Any = None
    traceback: str | None = None


@dataclass(frozen=True)
class Enqueued:
    """The answer to an enqueue: the job that now stands for the request."""

    job_id: UUID
    status: Status
    created: bool  # False: the idempotency key had a job already


@dataclass(frozen=True)
class Event:
    """A line of the journal."""

    id: int
    job_id: UUID
    queue: str
    at: datetime
    kind: str
    payload: dict[str, Any]
