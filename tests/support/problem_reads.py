"""What the problems of the overview are found in, as values: a service without problems, and rows of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from dataloader.app.acts.feature import Feature
from dataloader.app.acts.service_problems import Problem
from dataloader.app.acts.shared_reads import SharedReads
from dataloader.app.db.statements import Executor
from dataloader.app.features.alerts.rows import AlertRule, FiredAlert, RuleKind, read_firing_alerts, read_rules
from dataloader.app.features.doctor.problems import read_findings
from dataloader.app.features.jobs.job_search import JobSummary, read_running_jobs, read_stalled_sec
from dataloader.app.features.limits.breakers import BreakerState, BreakerStatus, read_open_breakers
from dataloader.app.features.overview.problems import ProblemReader
from dataloader.app.features.registry import FEATURES
from dataloader.app.features.schedules.checks import read_findings as read_schedule_findings
from dataloader.app.features.schedules.rows import Schedule, ScheduleSource, read_not_firing
from dataloader.app.queue.job import Status
from dataloader.app.state.queues import QueueStatus, WorkerStatus, read_queue_statuses, read_worker_statuses
from dataloader.app.state.statistics import PeriodStatistics, read_last_hour, read_recent_runs

Row = TypeVar("Row")
Read = Callable[[Executor], Any]

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
RULE, ALERT, JOB = UUID(int=1), UUID(int=2), UUID(int=4)


class _NoExecutor:
    schema = "public"

    def execute(self, name: str, parameters: object = None) -> list[tuple[Any, ...]]:
        raise AssertionError(f"{name} is executed, although its value is known")


def reads_of(values: Mapping[Any, Any]) -> SharedReads:
    """Those of a service with one live worker and nothing else, but for these values."""
    calm: dict[Read, Any] = {
        read_running_jobs: [], read_stalled_sec: {}, read_recent_runs: {}, read_queue_statuses: [],
        read_worker_statuses: [worker()], read_open_breakers: [], read_not_firing: [], read_last_hour: {},
        read_firing_alerts: [], read_rules: [], read_findings: [], read_schedule_findings: [],
    }  # fmt: skip
    return SharedReads(_NoExecutor(), {**calm, **values}, at=NOW)


def read_problems(values: Mapping[Any, Any], features: Iterable[Feature] = FEATURES) -> list[Problem]:
    return ProblemReader(tuple(features)).read(reads_of(values))


def _row(row_type: type[Row], known: dict[str, Any], values: dict[str, Any]) -> Row:
    """A row whose other fields have their defaults, or are None."""
    names = [
        field.name
        for field in fields(row_type)  # type: ignore[arg-type]
        if field.default is MISSING and field.default_factory is MISSING
    ]
    return row_type(**dict.fromkeys(names) | known | values)


def worker(**values: Any) -> WorkerStatus:
    known: dict[str, Any] = {
        "worker_id": UUID(int=3), "name": "etl-01:7", "version": "1", "queues": ("etl",), "tasks": ("load",),
        "threads": 2, "busy": 0, "started_at": NOW, "last_beat_at": NOW, "alive": True, "draining": False,
        "listener": "listening", "running": (), "pid": 7, "queue_threads": {}, "stopping": False,
    }  # fmt: skip
    return _row(WorkerStatus, known, values)


def breaker(**values: Any) -> BreakerStatus:
    known: dict[str, Any] = {
        "task": "load", "state": BreakerState.OPEN, "failures": 5, "window_sec": 60, "resume_sec": 60,
        "failed_in_row": 5, "opened_at": NOW, "probe_at": NOW, "reason": "5 failures in a row", "is_declared": True,
        "changed_at": NOW, "waiting": 3, "waiting_exact": True,
    }  # fmt: skip
    return _row(BreakerStatus, known, values)


def queue_status(**values: Any) -> QueueStatus:
    known: dict[str, Any] = {
        "queue": "etl", "is_drained": False, "ready": 0, "ready_exact": True, "scheduled": 0, "blocked": 0,
        "limited": 0, "waiting": 0, "running": 0, "workers": 1, "oldest_ready_sec": None, "scanned_at": NOW,
        "last_hour": PeriodStatistics(),
    }  # fmt: skip
    return QueueStatus(**known | values)


def schedule(**values: Any) -> Schedule:
    known: dict[str, Any] = {
        "schedule_id": UUID(int=5), "name": "nightly", "source": ScheduleSource.CODE, "task": "load", "declared": {},
        "overrides": {}, "version": 1, "next_at": NOW, "created_at": NOW, "changed_at": NOW,
    }  # fmt: skip
    return _row(Schedule, known, values)


def running_job(**values: Any) -> JobSummary:
    known: dict[str, Any] = {
        "job_id": JOB, "queue": "etl", "task": "load", "status": Status.RUNNING, "lock_key": "k", "partition_key": "p",
        "priority": 0, "attempt": 1, "max_attempts": 3, "cancel_requested": False, "available_at": NOW,
        "created_at": NOW, "started_at": NOW, "heartbeat_at": NOW, "worker": "etl-01:7", "wait_state": "ready",
        "unknown_task": False,
    }  # fmt: skip
    return _row(JobSummary, known, values)


def alert(**values: Any) -> FiredAlert:
    known: dict[str, Any] = {
        "alert_id": ALERT, "rule_id": RULE, "kind": "failure_rate", "name": "failing", "subject": "load",
        "task": "load", "value": 0.5, "detail": "5 of 10 runs of load failed within 3600 s", "started_at": NOW,
        "last_checked_at": NOW, "sent_at": NOW,
    }  # fmt: skip
    return _row(FiredAlert, known, values)


def rule(**values: Any) -> AlertRule:
    known: dict[str, Any] = {
        "rule_id": RULE, "name": "failing", "kind": RuleKind.FAILURE_RATE, "threshold": 0.2, "window_sec": 3600,
        "min_runs": 1, "active": True, "created_at": NOW,
    }  # fmt: skip
    return _row(AlertRule, known, values)
