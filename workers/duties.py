"""What features give to a worker process: duties of the maintenance leader, and threads of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from dataloader.app.acts.feature import Feature, load_all
from dataloader.app.db.statements import Executor
from dataloader.app.queue.retention_periods import RetentionPeriods
from dataloader.app.queue.workers import HeartbeatResult
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.executors import Engines
from dataloader.workers.metrics import PoolCounters
from dataloader.workers.running_attempts import RunningAttempts
from dataloader.workers.threads import BackgroundThread

LATE_SEC = 5.0  # other processes than the maintenance leader fire schedules that are later than this
PRUNE_BATCH = 1000  # rows
PRUNE_INTERVAL_SEC = 600.0
HOURLY_SEC = 3600.0


@dataclass(frozen=True)
class Duty:
    """A periodic duty: `run` does one bounded slice and returns the seconds until the next one, None: the interval.

    `has_work` names a statement that says whether there is anything to do. Those of all duties are asked in one, and a
    duty without work is not run. `is_paced`: it may wait longer than its interval where it takes long.
    """

    name: str
    interval_sec: float
    run: Callable[[], float | None]
    first_delay_sec: float = 0.0
    has_work: str | None = None
    is_paced: bool = False


@dataclass(frozen=True, kw_only=True)
class MaintenanceOptions:
    """What the duties delete, and how often alert rules are checked."""

    periods: RetentionPeriods = field(default_factory=RetentionPeriods)
    deletion_enabled: bool = True
    is_retention_requested: bool = False  # then also from tables that were upgraded from version 0
    alert_interval_sec: float = 15.0
    keep_deliveries_sec: float = 14 * 86_400.0
    zone: str = "UTC"  # of schedules that name none
    default_lease_sec: int = 60  # of their jobs
    features: Mapping[str, Any] = field(default_factory=dict)  # options of features, by the feature's name


@dataclass(frozen=True, kw_only=True)
class DutyContext:
    """What duties work with. `executor` is the session of the maintenance leader, or one that a process has anyway."""

    executor: Executor
    options: MaintenanceOptions
    tasks: Pipelines
    counters: PoolCounters = field(default_factory=PoolCounters)
    engines: Engines = field(default_factory=Engines)


@dataclass(frozen=True, kw_only=True)
class ThreadContext:
    """What a feature's thread works with."""

    executor: Executor
    options: Mapping[str, Any]  # by the feature's name
    on_crash: Callable[[str], None]
    counters: PoolCounters
    is_notified: Callable[[], bool]  # whether notifications of the database arrive
    attempts: RunningAttempts


class FeatureThread(Protocol):
    """A thread that each worker process has while a feature is there."""

    thread: BackgroundThread
    control: str  # the control message that wakes it

    def on_heartbeat(self, heartbeat: HeartbeatResult) -> None: ...

    def wake(self, argument: str = "") -> None:
        """Called when its control message arrives, with what follows its first word; by the thread that listens."""

    def drain(self, timeout_sec: float) -> None:
        """Wait for what it does now, once its thread was stopped."""


@dataclass(frozen=True)
class Declaration:
    """What a process declares to the database of its tasks when it starts."""

    executor: Executor
    pipelines: Pipelines
    worker_id: UUID
    options: MaintenanceOptions


def declare_all(features: Iterable[Feature], declaration: Declaration) -> None:
    for declare in load_all(features, "declare"):
        declare(declaration)


def create_threads(features: Iterable[Feature], context: ThreadContext) -> list[FeatureThread]:
    return [create(context) for create in load_all(features, "threads")]
