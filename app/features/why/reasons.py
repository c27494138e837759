"""Reasons: a code for programs and a message for people. Times in messages are those of `app.wording.format_utc`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

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
    RUNNING = "running"
    SCHEDULE_PAUSED = "schedule_paused"
    SCHEDULE_ORPHANED = "schedule_orphaned"
    SCHEDULE_STOPPED = "schedule_stopped"
    SCHEDULE_NEXT = "schedule_next"
    BACKFILL_PAUSED = "backfill_paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    LOST = "lost"


@dataclass(frozen=True)
class ExplanationReason:
    """One reason why a job waits, still runs, or ended."""

    code: ReasonCode
    message: str
    details: dict[str, Any] = field(default_factory=dict)


def format_elapsed(now: datetime, since: datetime) -> str:
    return format_duration(max(0.0, (now - since).total_seconds()))
