"""What the settings say of a worker pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataloader._distribution import version
from dataloader.app.config import Settings
from dataloader.app.config.values import ExponentialPoll, FixedPoll, LinearPoll, QueuePoll, TablePoll
from dataloader.app.db.statements import Executor
from dataloader.app.features.registry import FEATURES
from dataloader.app.queue.retention_periods import DAY_SEC, RetentionPeriods
from dataloader.app.runtime.code_release import find_release
from dataloader.app.tracing import Tracer
from dataloader.pipelines.executors import Engines
from dataloader.pipelines.retry import Exponential, Fixed, Linear, Policy, Table
from dataloader.workers.attempt import AttemptSettings
from dataloader.workers.duties import MaintenanceOptions
from dataloader.workers.isolation.fork_server import ForkServer
from dataloader.workers.listener import ListenMode
from dataloader.workers.pool_options import PoolOptions
from dataloader.workers.reports.secrets import SecretStore

_MAX_STOP_SEC = 10.0  # for jobs that were asked to stop; less with a shorter grace


def pool_options(
    settings: Settings,
    queues: Mapping[str, int],
    *,
    dsn: str,
    secret_store: SecretStore,
    executor: Executor | None,
    tracer: Tracer | None,
    max_jobs: int | None,
) -> PoolOptions:
    """Return the options of a worker pool for these queues."""
    endpoints, targets, tokens = settings.pipeline_connections()
    return PoolOptions(
        dsn=dsn,
        queues=queues,
        schema=settings.schema,
        heartbeat_sec=settings.heartbeat_sec,
        reaper_period_sec=settings.reaper_period_sec,
        listen=ListenMode(settings.listen),
        claim_backoff_sec=settings.claim_backoff_sec,
        polls={w.queue: _poll_policy(w.poll) for w in settings.workers if w.poll is not None},
        reaps=settings.reaper,
        connect_timeout_sec=settings.pg_connect_timeout,
        wrap_drivers=settings.wrap_drivers,
        command_timeout_sec=settings.pg_command_timeout,
        max_jobs=max_jobs,
        grace_by_queue=settings.grace_by_queue,
        stop_wait_sec=min(_MAX_STOP_SEC, max(2.0, settings.shutdown_grace_sec)),
        memory_high_percent=settings.memory_high,
        version=version(),
        code_release=find_release(settings.release, settings.pipelines),
        worker_name=settings.worker_name,
        labels=settings.worker_labels,
        targets=targets,
        attempts=AttemptSettings(
            stop_step_sec=settings.stop_step_sec,
            follow_up_lease_sec=settings.default_lease_ttl_sec,
            packages=tuple(settings.pipelines),
            tasks=dict(settings.tasks),
            endpoints=endpoints,
            tokens=tokens,
            secret_store=secret_store,
            fork_server=ForkServer(
                settings.preload, wrap_drivers=settings.wrap_drivers, is_enabled=settings.preload != ("off",)
            ),
        ),
        tracer=tracer,
        executor=executor,
        engines=Engines(settings.executors, read_secret=secret_store.read),
        maintenance=MaintenanceOptions(
            periods=retention_periods(settings),
            deletion_enabled=settings.retention_enabled,
            is_retention_requested=settings.is_retention_requested,
            zone=settings.timezone,
            default_lease_sec=settings.default_lease_ttl_sec,
            features=feature_options(settings, secret_store),
        ),
    )


def feature_options(settings: Settings, secret_store: SecretStore) -> dict[str, Any]:
    """Return the options of the features that have some, by the feature's name."""
    return {
        feature.name: feature.load(feature.options)(settings, secret_store)
        for feature in FEATURES
        if feature.options is not None
    }


def _poll_policy(poll: QueuePoll) -> Policy:
    """Return the pauses between the polls of an idle queue."""
    match poll:
        case FixedPoll():
            return Fixed(poll.sec)
        case LinearPoll():
            return Linear(step=poll.step_sec, cap=poll.max_sec)
        case ExponentialPoll():
            return Exponential(base=poll.min_sec, cap=poll.max_sec, jitter=poll.jitter)
        case TablePoll():
            return Table(poll.sec)


def retention_periods(settings: Settings) -> RetentionPeriods:
    """Return the retention periods of the settings, in seconds."""
    return RetentionPeriods(
        **{status: days * DAY_SEC for status, days in settings.keep_jobs_days.items()},
        tasks={
            task: {status: days * DAY_SEC for status, days in ages.items()}
            for task, ages in settings.keep_tasks.items()
        },
        events=settings.keep_events_days * DAY_SEC,
        logs=settings.job_log_keep_days * DAY_SEC,
        audit=settings.keep_history_days * DAY_SEC,
    )
