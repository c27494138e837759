"""Reasons: a code for programs and a message for people, and what a feature adds to them.

Times in messages are those of `app.wording.format_utc`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol
from uuid import UUID

from dataloader.app.acts.feature import Feature, load_all
from dataloader.app.db.statements import Executor
from dataloader.app.queue.job import Job, Status
from dataloader.app.wording import format_duration

MAX_LISTED = 5  # jobs or engines that one message names


class ReasonCode(StrEnum):
    """Stable codes of reasons."""

    QUEUE_PAUSED = "queue_paused"
    QUEUE_DRAINING = "queue_draining"
    QUEUE_AT_LIMIT = "queue_at_limit"
    NO_WORKER = "no_worker"
    TASK_UNKNOWN = "task_unknown"
    LABELS_MISSING = "labels_missing"
    WORKERS_DRAINING = "workers_draining"
    NOT_DUE = "not_due"
    KEY_BUSY = "key_busy"
    KEY_LOCKED_ELSEWHERE = "key_locked_elsewhere"
    KEY_FREED = "key_freed"
    LIMIT_FULL = "limit_full"
    LIMIT_CLOSED = "limit_closed"
    BREAKER_OPEN = "breaker_open"
    TASK_PAUSED = "task_paused"
    RATE_LIMITED = "rate_limited"
    WAITS_FOR_JOBS = "waits_for_jobs"
    WAITS_FOR_ENGINE = "waits_for_engine"
    TARGET_BUSY = "target_busy"
    SKIPPED = "skipped"
    MEMORY_HIGH = "memory_high"
    PER_WORKER_LIMIT = "per_worker_limit"
    THREADS_BUSY = "threads_busy"
    JOBS_AHEAD = "jobs_ahead"
    TENANTS_IN_TURN = "tenants_in_turn"
    NEXT = "next"
    LEASE_EXPIRED = "lease_expired"
    WORKER_SILENT = "worker_silent"
    STOP_NOT_OBEYED = "stop_not_obeyed"
    PROGRESS_OLD = "progress_old"
    SQL_BLOCKED = "sql_blocked"
    SLOWER_THAN_USUAL = "slower_than_usual"
    RUNNING = "running"
    TARGET_NOT_FENCED = "target_not_fenced"
    SCHEDULE_PAUSED = "schedule_paused"
    SCHEDULE_ORPHANED = "schedule_orphaned"
    SCHEDULE_STOPPED = "schedule_stopped"
    SCHEDULE_NEXT = "schedule_next"
    BACKFILL_PAUSED = "backfill_paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    LOST = "lost"


# They end without an operator: a job with no other reason has an estimate of its start.
TRANSIENT_REASONS = frozenset({
    ReasonCode.KEY_BUSY,
    ReasonCode.JOBS_AHEAD,
    ReasonCode.THREADS_BUSY,
    ReasonCode.PER_WORKER_LIMIT,
    ReasonCode.QUEUE_AT_LIMIT,
    ReasonCode.LIMIT_FULL,
    ReasonCode.RATE_LIMITED,
})  # fmt: skip
# A job with one of these cannot run until a person changes something: its page says so in red, and has no "Run now".
ERROR_REASONS = frozenset({ReasonCode.NO_WORKER, ReasonCode.TASK_UNKNOWN, ReasonCode.LABELS_MISSING})


@dataclass(frozen=True)
class ExplanationReason:
    """One reason why a job waits, still runs, or ended."""

    code: ReasonCode
    message: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StartEstimate:
    """When a waiting job may start, and what the estimate is based on."""

    start_in_sec: float
    basis: str


@dataclass(frozen=True)
class JobExplanation:
    """Why a job waits, runs or ended. The first reason is the main one. `position` is its place among waiting jobs."""

    job_id: UUID
    status: Status
    reasons: list[ExplanationReason]
    position: int | None
    position_exact: bool
    estimate: StartEstimate | None


@dataclass(frozen=True)
class WaitingJob:
    """A queued job, and what it waits for."""

    job: Job
    now: datetime
    wait_state: str
    waits_on: str | None  # the limit of a limited job
    weight: int | None  # of the job in it


class Reasons:
    """What a feature says of what waits. `reasons` of its Feature names a class like this; it has what applies."""

    def __init__(self, executor: Executor, options: Any = None) -> None:
        """`options` are those of the feature, if the process has some."""
        self.executor = executor

    def of_job(self, waiting: WaitingJob) -> Iterable[ExplanationReason]:
        """Why a queued job waits."""
        return ()

    def of_running(self, job: Job) -> Iterable[ExplanationReason]:
        """What is wrong with a running job."""
        return ()

    def of_ended(self, job: Job) -> Iterable[ExplanationReason]:
        """What is worth a word about a job that has ended."""
        return ()

    def of_task(self, task: str) -> Iterable[ExplanationReason]:
        """What keeps jobs of a task from being made and from starting, and what makes the next."""
        return ()

    def of_queue(self, queue: str) -> Iterable[ExplanationReason]:
        """What keeps jobs of a queue from starting."""
        return ()

    def queues_of_task(self, task: str, default_queue: str) -> Collection[str]:
        """Where its next jobs go."""
        return ()


class Explainer(Protocol):
    def explain(self, job_id: UUID) -> JobExplanation:
        """Raises JobNotFound."""


def load_explainer(
    features: Iterable[Feature], executor: Executor, options: Mapping[str, Any] = MappingProxyType({})
) -> Explainer | None:
    """What explains jobs to the pages of other features; None: no feature does. `options` are by the feature's name."""
    makers = load_all(features, "explainer")
    explainer: Explainer | None = next((make(executor, features, options) for make in makers), None)
    return explainer


def format_elapsed(now: datetime, since: datetime) -> str:
    return format_duration(max(0.0, (now - since).total_seconds()))
