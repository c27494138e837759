"""The options and the state of a worker pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from app.queue.jobs import JobLimits
from app.tracing import Tracer
from workers.attempt import AttemptSettings
from workers.logs.writer import JobLogLimits
from workers.maintenance import MaintenanceOptions
from workers.webhook_sender import WebhookOptions


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """The options of a worker process. `queues` has the number of jobs of each queue that run at once."""

    dsn: str
    queues: Mapping[str, int]
    schema: str = "public"
    heartbeat_sec: float = 10.0
    reaper_period_sec: float = 10.0
    claim_backoff_sec: float = 15.0
    connect_timeout_sec: float = 5.0
    command_timeout_sec: float = 30.0
    stop_wait_sec: float = 10.0  # for jobs that were asked to stop at shutdown
    version: str = "0"
    worker_name: str | None = None  # that at most one process has
    targets: Mapping[str, str] = field(default_factory=dict)
    limits: JobLimits = field(default_factory=JobLimits)
    attempts: AttemptSettings = field(default_factory=AttemptSettings)  # the pool adds what it makes itself
    log_limits: JobLogLimits = field(default_factory=JobLogLimits)  # of captured output
    maintenance: MaintenanceOptions = field(default_factory=MaintenanceOptions)
    webhooks: WebhookOptions = field(default_factory=WebhookOptions)
    tracer: Tracer | None = None


@dataclass(frozen=True)
class PoolState:
    """The state of a pool, read without a query."""

    ready: bool
    worker_id: UUID
    name: str
    listener: str
    self_test_age_sec: float | None
    claim_age_sec: float
    dispatch_age_sec: float
    consuming: bool
    heartbeat_age_sec: float
    reaper_age_sec: float
    threads: int
    busy: int
    queues: Mapping[str, Mapping[str, int]]
    running: Sequence[Mapping[str, Any]]
    crashed_threads: Sequence[str]
