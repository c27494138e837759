"""A job, its statuses and transitions, and how an attempt at it ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, Unpack
from uuid import UUID

from dataloader._job_fields import DEFAULTS, REQUIRED_FIELDS, NewJobFields

WAIT_STATES = ("scheduled", "ready", "blocked", "limited", "waiting")  # of queued jobs: the type dl_wait_state


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


class Transition(StrEnum):
    CLAIM = "claim"
    SETTLE = "settle"
    RELEASE = "release"
    CANCEL = "cancel"
    REAP = "reap"
    RETRY = "retry"
    REFUSE = "refuse"


# The whole state machine. A cancel of a running job only sets its flag, so it is not a transition.
TRANSITIONS: Mapping[tuple[Status, Transition], frozenset[Status]] = {
    (Status.QUEUED, Transition.CLAIM): frozenset({Status.RUNNING}),
    (Status.QUEUED, Transition.CANCEL): frozenset({Status.CANCELED}),
    (Status.QUEUED, Transition.REFUSE): frozenset({Status.FAILED}),
    (Status.RUNNING, Transition.SETTLE): frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.QUEUED}),
    (Status.RUNNING, Transition.RELEASE): frozenset({Status.QUEUED, Status.CANCELED}),
    (Status.RUNNING, Transition.REAP): frozenset({Status.QUEUED, Status.LOST, Status.CANCELED}),
    (Status.FAILED, Transition.RETRY): frozenset({Status.QUEUED}),
    (Status.CANCELED, Transition.RETRY): frozenset({Status.QUEUED}),
    (Status.LOST, Transition.RETRY): frozenset({Status.QUEUED}),
}


class NewJob(SimpleNamespace):
    """A request for a job: the fields that are declared in `dataloader/_job_fields.py`, with their defaults."""

    def __init__(self, **fields: Unpack[NewJobFields]) -> None:
        if unknown := fields.keys() - DEFAULTS.keys():
            raise TypeError(f"NewJob() got an unexpected keyword argument {min(unknown)!r}")
        if missing := REQUIRED_FIELDS - fields.keys():
            raise TypeError(f"NewJob() missing the keyword argument {min(missing)!r}")
        super().__init__(**{**DEFAULTS, "args": {}, **fields})

    @property
    def unique_keys(self) -> tuple[str, ...]:
        """The keys by which an earlier job may serve the request."""
        rules = [rule["key"] for rule in (self.throttle, self.debounce) if rule]
        return tuple(key for key in (self.idempotency_key, self.live_key, *rules) if key)


def encode_request(job: NewJob) -> dict[str, Any]:
    """The fields that differ from their defaults, as JSON has them."""
    return {name: _encode_value(value) for name, value in vars(job).items() if value != DEFAULTS[name]}


def _encode_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, UUID) else value


@dataclass(frozen=True, kw_only=True)
class Job:
    """A row of dl_jobs; the statement `get_job` selects its columns in the order of the fields."""

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
    progress: Any  # an object, unless another service has written it
    error: str | None
    producer: str | None
    consumer_group: str | None  # who uses its result; a label
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    run_id: UUID | None = None
    worker: str | None = None
    result: Any = None
    traceback: str | None = None
    live_key: str | None = None
    time_limit_sec: int | None = None
    retry: dict[str, Any] | None = None
    checkpoint: Any = None
    crashes: int = 0
    parent_id: UUID | None = None
    webhook: dict[str, Any] | None = None
    traceparent: str | None = None
    limits: dict[str, int] | None = None
    waits_on: str | None = None  # the limit that it waits for, or that has woken it
    graph_id: UUID | None = None
    graph_key: str | None = None  # its name within the graph
    need: str | None = None  # 'any': of its parents, the first that ends as required; None: all
    skipped: bool | None = None  # canceled because a parent did not end as required
    fair_key: str | None = None
    debounce_key: str | None = None
    throttle_key: str | None = None
    expires_at: datetime | None = None
    error_fingerprint: str | None = None
    schedule_id: UUID | None = None
    backfill_id: UUID | None = None
    logical_at: datetime | None = None
    interval_start: datetime | None = None
    interval_end: datetime | None = None
    warnings: int | None = None  # data checks that did not pass in the attempt that succeeded
    tags: list[str] | None = None


@dataclass(frozen=True)
class ExpiredRuns:
    """The runs whose lease has expired, and the server that found them."""

    runs: list[tuple[UUID, UUID | None, str]]  # job, run, lock_key
    server_uptime_sec: float
    server: str  # changes with a restart, a promotion and a new connection
    lease_ends: Mapping[tuple[UUID, UUID | None], str] = field(default_factory=dict)  # by job and run; only compared


@dataclass(frozen=True)
class Enqueued:
    """The job that serves a request."""

    job_id: UUID
    status: Status
    created: bool  # False: it existed already, by one of its keys
    debounced: bool = False  # the request changed a queued job


_TIMES_OF_JOB = ("logical_at", "interval_start", "interval_end")


class ClaimedJob(NamedTuple):
    """A job claimed for one attempt: its queue, and then the columns that the function `dl_claim` returns.

    JSON is not decoded yet: what cannot be decoded must fail the job, not the claim. Ids stay text: usually they are
    only sent back.
    """

    queue: str
    id_text: str
    run_text: str
    task: str
    args_text: str
    lock_key: str
    key_hash: int
    priority: int
    attempt: int
    max_attempts: int
    lease_ttl_sec: int
    producer: str | None
    progress_text: str
    checkpoint_text: str | None
    time_limit_sec: int | None
    retry_text: str | None
    crashes: int
    traceparent: str | None = None
    waited_sec: float = 0.0  # between its due time and the claim
    partition_key: str = ""
    logical_at: datetime | None = None
    interval_start: datetime | None = None
    interval_end: datetime | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ClaimedJob:
        times = {name: values[name] and datetime.fromisoformat(values[name]) for name in _TIMES_OF_JOB}
        return cls(**{**values, **times})

    def to_json(self) -> dict[str, Any]:
        values = self._asdict()
        return values | {name: values[name] and values[name].isoformat() for name in _TIMES_OF_JOB}

    @property
    def id(self) -> UUID:
        return UUID(self.id_text)

    @property
    def run_id(self) -> UUID:
        return UUID(self.run_text)


@dataclass(frozen=True)
class Reports:
    """What an attempt reported in addition to its outcome: columns of dl_checks, and of dl_dataset_events."""

    checks: tuple[Mapping[str, Any], ...] = ()
    datasets: tuple[Mapping[str, Any], ...] = ()  # count only if the attempt succeeds

    def __bool__(self) -> bool:
        return bool(self.checks or self.datasets)


@dataclass(frozen=True)
class Settlement:
    """How an attempt ended, as the run that owns the job writes it."""

    status: Status  # QUEUED: retry after `retry_in_sec`
    error: str | None = None
    traceback: str | None = None
    result: Any = None
    progress: Mapping[str, Any] | None = None  # None: as the last heartbeat left it
    checkpoint: Any = None  # None: as the last heartbeat left it
    retry_in_sec: float = 0.0
    refund_attempt: bool = False  # the attempt does not count
    crashed: bool = False  # its child process died
    event_fields: Mapping[str, Any] | None = None  # for the event: stop step, peak memory …
    error_fingerprint: str | None = None
    reports: Reports | None = None


SUCCEEDED = Settlement(Status.SUCCEEDED)  # the usual settlement, without any value


class ReleaseReason(StrEnum):
    """Why a run is released: it does not count as an attempt."""

    SHUTDOWN = "shutdown"
    LOCK_BUSY = "lock_busy"
    NOT_STARTED = "not_started"
    WAITS = "waits"  # for other jobs or engines, as its task asked


@dataclass(frozen=True)
class Released:
    """The attempt ends and does not count: its job is queued again, or waits."""

    reason: ReleaseReason
    progress: Mapping[str, Any] | None = None  # None: as the last heartbeat left it
    checkpoint: Any = None  # None: as the last heartbeat left it
    event_fields: Mapping[str, Any] | None = None
    awaited: Sequence[UUID] = ()  # with the reason WAITS: jobs that must end before the next attempt
    reports: Reports | None = None
    offloads: Sequence[str] = ()  # with the reason WAITS: names on other engines, whose work must end before it


class BeatAnswer(NamedTuple):
    """What a heartbeat has found of one run."""

    run_id: UUID
    is_owned: bool
    cancel_requested: bool
    is_lease_short: bool  # an UPDATE has changed it


class RunRef(NamedTuple):
    """A run of this process."""

    job_id: UUID | str
    run_id: UUID | str


class RenewalRequest(NamedTuple):
    """A run whose row is to be renewed, with what the row does not have yet, and the time until it is renewed again."""

    job_id: UUID | str
    run_id: UUID | str
    progress: Mapping[str, Any] | None = None
    checkpoint: Any = None
    next_sec: float = 0.0


@dataclass(frozen=True)
class SettleResult:
    outcome: Literal["applied", "already", "not ours"]
    status: Status | None  # of the job, if the run owned it


@dataclass(frozen=True)
class ReapedJob:
    """A job whose run was reaped."""

    job_id: UUID
    queue: str
    task: str
    status: Status
    attempt: int
    run_id: UUID | None = None
    max_attempts: int = 0
    error: str | None = None
    available_at: datetime | None = None  # of a requeued job: when it may run again


def new_run_ids(count: int) -> list[str]:
    """Draw random UUIDs (version 4) in one batch: each system call may hand the GIL to another thread."""
    digits = os.urandom(16 * count).hex()
    return [
        f"{digits[n : n + 12]}4{digits[n + 13 : n + 16]}a{digits[n + 17 : n + 32]}" for n in range(0, 32 * count, 32)
    ]
