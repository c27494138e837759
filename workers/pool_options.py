"""The options of a worker pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dataloader.app.db.statements import Executor
from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.jobs import JobLimits
from dataloader.app.queue.labels import Labels
from dataloader.app.tracing import Tracer
from dataloader.pipelines.executors import Engines
from dataloader.pipelines.retry import Policy
from dataloader.workers.attempt import AttemptSettings
from dataloader.workers.duties import MaintenanceOptions
from dataloader.workers.listener import ListenMode
from dataloader.workers.logs.writer import JobLogLimits


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """The options of a worker process. `queues` has the number of jobs of each queue that run at once."""

    dsn: str
    queues: Mapping[str, int]
    schema: str = "public"
    heartbeat_sec: float = 10.0
    reaper_period_sec: float = 10.0
    claim_backoff_sec: float = 15.0
    polls: Mapping[str, Policy] = field(default_factory=dict)  # of queues that do not poll at that interval
    reaps: bool = True  # take the jobs of other processes that are dead or have lost their leases
    listen: ListenMode = ListenMode.PROCESS
    connect_timeout_sec: float = 5.0
    command_timeout_sec: float = 30.0
    max_jobs: int | None = None  # that the process starts, in all
    grace_by_queue: Mapping[str, float] = field(default_factory=dict)  # seconds at shutdown, where they differ
    stop_wait_sec: float = 10.0  # for jobs that were asked to stop at shutdown
    memory_high_percent: float = 0.0  # of used memory, above which one job runs at a time; 0: it is not watched
    version: str = "0"
    code_release: str | None = None  # of the pipelines' code
    worker_name: str | None = None  # that at most one process has
    labels: Labels | None = field(default_factory=dict)  # None: it serves tasks whatever they require
    targets: Mapping[str, str] = field(default_factory=dict)
    wrap_drivers: bool = True  # stop the connections that tasks open themselves, too
    limits: JobLimits = field(default_factory=JobLimits)
    attempts: AttemptSettings = field(default_factory=AttemptSettings)  # the pool adds what it makes itself
    log_limits: JobLogLimits = field(default_factory=JobLogLimits)  # of captured output
    maintenance: MaintenanceOptions = field(default_factory=MaintenanceOptions)
    tracer: Tracer | None = None
    executor: Executor | None = None  # for statements that need no session of their own, instead of a connection
    engines: Engines = field(default_factory=Engines)

    def connection_settings(self) -> ConnectionSettings:
        """Where the attempts of the pool may write."""
        return ConnectionSettings(
            dsn=self.dsn,
            schema=self.schema,
            targets=dict(self.targets),
            connect_timeout_sec=self.connect_timeout_sec,
            wrap_drivers=self.wrap_drivers,
        )
