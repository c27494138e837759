"""A job, what it may become, and how an attempt at it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple
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


class Transition(StrEnum):
    """What takes a job from one status to another."""

    CLAIM = "claim"
    SETTLE = "settle"
    RELEASE = "release"
    CANCEL = "cancel"
    REAP = "reap"
    RETRY = "retry"
    REFUSE = "refuse"


# The whole machine: which move may lead from which status to which.
# A cancel of a running job only raises its flag, so it is not a transition.
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
    live_key: str | None = None  # unique among waiting and running jobs
    time_limit_sec: int | None = None
    retry: Mapping[str, Any] | None = None  # a retry policy of its own
    parent_id: UUID | None = None
    webhook: Mapping[str, Any] | None = None  # where its end is to be told: url, events
    traceparent: str | None = None  # W3C trace context of whoever asks


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
    live_key: str | None = None
    time_limit_sec: int | None = None
    retry: dict[str, Any] | None = None
    checkpoint: Any = None
    crashes: int = 0
    parent_id: UUID | None = None
    webhook: dict[str, Any] | None = None
    traceparent: str | None = None


@dataclass(frozen=True)
class ExpiredRuns:
    """The runs whose lease has run out, and the server that answered."""

    runs: list[tuple[UUID, UUID | None, str]]  # job, run, lock_key
    server_uptime_sec: float  # how long the server has been up
    server: str  # another one after a restart, a promotion, or on a new connection


@dataclass(frozen=True)
class Enqueued:
    """The answer to an enqueue: the job that now stands for the request."""

    job_id: UUID
    status: Status
    created: bool  # False: the idempotency key had a job already


@dataclass(frozen=True)
class Claim:
    """One claim's hold on a job."""

    job_id: UUID
    run_id: UUID
    key_hash: int  # of the lock_key, as the database hashes it


class ClaimedJob(NamedTuple):
    """A job in the hands of a worker, for one attempt. `args` and `progress` are not decoded yet: what cannot be
    decoded must fail the job, not the claim. Nor are the ids: most of them are only handed back as they came."""

    id_text: str
    run_text: str
    queue: str
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
    waited_sec: float = 0.0  # since it was last due

    @property
    def id(self) -> UUID:
        return UUID(self.id_text)

    @property
    def run_id(self) -> UUID:
        return UUID(self.run_text)

    @property
    def claim(self) -> Claim:
        return Claim(self.id, self.run_id, self.key_hash)


@dataclass(frozen=True)
class ClaimHint:
    """When a claimer should look again."""

    skipped: int  # ready jobs looked at in vain, their key being busy: others may stand behind them, look at once
    next_due_sec: float | None  # seconds until the next timed job; None: there is none
    cursor: Sequence[str] | None = None  # the place of the last job taken; None: none was
    blocked_keys: Sequence[str] | None = None  # keys for which jobs were parked


@dataclass(frozen=True)
class Settlement:
    """How an attempt ended: what is written down, in one stroke, by the run that owns the job."""

    status: Status  # QUEUED: try again, after `retry_in` seconds
    error: str | None = None
    traceback: str | None = None
    result: Any = None
    progress: Mapping[str, Any] | None = None  # None: as the last heartbeat left it
    checkpoint: Any = None  # likewise
    retry_in_sec: float = 0.0
    refund_attempt: bool = False  # the try is not counted
    crashed: bool = False  # a process of its own died under the job
    event_fields: Mapping[str, Any] | None = None  # for the journal: which rung stopped it, its peak of memory …


SUCCEEDED = Settlement(Status.SUCCEEDED)  # of a run that leaves nothing behind: most of them


class ReleaseReason(StrEnum):
    """Why a run is handed back without costing an attempt."""

    SHUTDOWN = "shutdown"
    LOCK_BUSY = "lock_busy"
    NOT_STARTED = "not_started"


@dataclass(frozen=True)
class Renewal:
    """What became of a run's lease. Not renewed but owned: somebody has the row locked; ask again."""

    run_id: UUID
    renewed: bool
    owned: bool
    cancel_requested: bool


class ReleaseRequest(NamedTuple):
    """What a run that is handed back leaves for the next one. None: as the last heartbeat left it."""

    job: ClaimedJob
    reason: ReleaseReason
    progress: Mapping[str, Any] | None = None
    checkpoint: Any = None
    event_fields: Mapping[str, Any] | None = None


class RenewalRequest(NamedTuple):
    """What a heartbeat brings down: of one run, what has changed since the last one."""

    job_id: UUID
    run_id: UUID
    progress: Mapping[str, Any] | None = None
    checkpoint: Any = None


@dataclass(frozen=True)
class SettleResult:
    """What became of a settlement or a release."""

    outcome: Literal["applied", "already", "not ours"]
    status: Status | None  # what the job is now, if it was ours


@dataclass(frozen=True)
class ReapedJob:
    """A job that was taken from a dead run."""

    job_id: UUID
    queue: str
    task: str
    status: Status
    attempt: int
    run_id: UUID | None = None
    max_attempts: int = 0
    error: str | None = None
    available_at: datetime | None = None  # of one that was given back: when it may run again


@dataclass(frozen=True)
class RepairResult:
    cursor: str  # the last key looked at; "" when there was none
    unblocked: tuple[str, ...]  # keys whose job had to be woken


@dataclass(frozen=True)
class StatusCount:
    """Jobs of a queue with a status."""

    queue: str
    status: Status
    jobs: int
    exact: bool = True  # False: there are many, and this is an estimate


@dataclass(frozen=True)
class WorkerInfo:
    """A worker process as it registered itself."""

    id: UUID
    name: str
    version: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    threads: int
    started_at: datetime | None = None
    seen_at: datetime | None = None
    alive: bool = True
    queue_threads: Mapping[str, int] = field(default_factory=dict)  # how many of its threads run jobs of each queue


@dataclass(frozen=True)
class HostFacts:
    """What a worker process records about itself so that others can prove its death. None: not known."""

    boot_id: str | None = None
    pid_namespace: str | None = None
    time_namespace: str | None = None
    pid: int | None = None
    start_time: int | None = None
    lock_file: str | None = None
    child_tasks: tuple[str, ...] = ()  # tasks that run in a process of their own
    worker_name: str | None = None  # the name that at most one process has


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
    """A line on its way into a job's log."""

    job_id: UUID
    attempt: int
    age_sec: float  # how long ago it was said; the database's clock makes a time of it
    level: str
    stream: str
    line: str


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
    """Some lines of a job's log, oldest first."""

    lines: list[JobLogLine]
    complete: bool  # the job has ended, and its last lines have had the time to arrive
