"""The rows that explain.sql returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True)
class WaitingFacts:
    """A row of `waiting_facts`: why a job is not running yet."""

    now: datetime
    wait_state: str
    unknown_task: bool
    available_at: datetime
    created_at: datetime
    queue: str
    task: str
    lock_key: str
    attempt: int
    holder_job_id: str | UUID | None
    holder_worker: str | None
    holder_since: datetime | None
    session_pid: int | None
    session_name: str | None
    session_since: datetime | None
    queue_state: str
    note: str | None
    changed_by: str | None
    changed_at: datetime | None
    concurrency: int | None
    per_worker: int | None
    running: int
    workers: int
    knowing_workers: int
    stopping_workers: int  # that know the task
    eligible_workers: int  # that know the task and claim
    threads: int  # of eligible workers for this queue, within its per-worker limit
    busy_threads: int
    workers_at_limit: int  # eligible workers that have reached the per-worker limit
    ready_ahead: int
    blocked_ahead: int
    workers_anywhere: int


@dataclass(frozen=True)
class RunningFacts:
    """A row of `running_facts`: the attempt of a running job."""

    now: datetime
    queue: str
    task: str
    attempt: int
    max_attempts: int
    worker: str | None
    heartbeat_at: datetime | None
    lease_expires_at: datetime | None
    lease_ttl_sec: int
    cancel_requested: bool
    time_limit_sec: int | None
    error: str | None
    started_at: datetime | None
    stop_requested_at: datetime | None
    worker_id: str | UUID | None
    worker_seen_at: datetime | None
    worker_alive: bool | None
    stop_step: str | None
    stop_reason: str | None
    progress_age_sec: float | None
