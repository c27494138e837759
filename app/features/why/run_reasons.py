"""Why a job still runs, or ended as it did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dataloader.app.acts.reasons import ExplanationReason, ReasonCode, format_elapsed
from dataloader.app.features.jobs.job_detail import AttemptRecord
from dataloader.app.queue.job import Job, Status
from dataloader.app.state.statistics import PeriodStatistics
from dataloader.app.wording import format_duration, format_utc

_STALLED_AFTER_SEC = 300.0  # without a change of the progress
_MAX_ERROR_LINE_LENGTH = 300


@dataclass(frozen=True)
class RunningFacts:
    """A row of `running_facts`: the attempt of a running job."""

    now: datetime
    task: str
    attempt: int
    max_attempts: int
    worker: str | None
    heartbeat_at: datetime | None
    lease_expires_at: datetime | None
    cancel_requested: bool
    started_at: datetime | None
    stop_requested_at: datetime | None
    worker_id: UUID | None
    worker_seen_at: datetime | None
    worker_alive: bool | None
    stop_step: str | None
    stop_reason: str | None
    progress_age_sec: float | None


def running_reasons(running: RunningFacts, typical: PeriodStatistics) -> Iterator[ExplanationReason]:
    details: dict[str, Any] = {"worker": running.worker, "lease_expires_at": running.lease_expires_at}
    if running.lease_expires_at is not None and running.lease_expires_at < running.now:
        expired = format_elapsed(running.now, running.lease_expires_at)
        message = f"Its lease expired {expired} ago; the reaper will soon take it from {running.worker}."
        yield ExplanationReason(ReasonCode.LEASE_EXPIRED, message, details)
    elif not running.worker_alive:
        seen = f" since {format_utc(running.worker_seen_at)}" if running.worker_seen_at else ""
        lost = f"the job is taken from it when the lease expires at {format_utc(running.lease_expires_at)}"
        message = f"Its worker {running.worker} has sent no heartbeat{seen}; {lost}."
        yield ExplanationReason(ReasonCode.WORKER_SILENT, message, details | {"seen_at": running.worker_seen_at})
    if running.cancel_requested or running.stop_reason:
        requested = format_elapsed(running.now, running.stop_requested_at or running.now)
        stop_reason = "cancel" if running.cancel_requested else running.stop_reason
        last_step = f"; the last stop step was {running.stop_step!r}" if running.stop_step else ""
        since_text = f"Its stop ({stop_reason}) was requested {requested} ago"
        message = f"{since_text}, but it has not reached a safe point{last_step}."
        details = {"requested_at": running.stop_requested_at, "stop_step": running.stop_step or "request"}
        yield ExplanationReason(ReasonCode.STOP_NOT_OBEYED, message, details | {"reason": stop_reason})
    if running.progress_age_sec is not None and running.progress_age_sec > _STALLED_AFTER_SEC:
        message = f"Its progress has not changed for {format_duration(running.progress_age_sec)}."
        details = {"progress_age_sec": round(running.progress_age_sec, 1)}
        yield ExplanationReason(ReasonCode.PROGRESS_OLD, message, details)
    yield _duration_reason(running, typical)


def _duration_reason(running: RunningFacts, typical: PeriodStatistics) -> ExplanationReason:
    started_at = running.started_at or running.now
    running_sec = (running.now - started_at).total_seconds()
    p50, p95 = typical.run_time.p50, typical.run_time.p95
    attempt = f"Attempt {running.attempt} of {running.max_attempts}"
    message = f"{attempt} has been running on {running.worker} for {format_duration(running_sec)}"
    if p95 is not None and running_sec > p95:
        message += f", longer than 95 % of the jobs of {running.task!r} ({format_duration(p95)})"
    elif p50 is not None:
        message += f"; half of the jobs of {running.task!r} take {format_duration(p50)} or less"
    heartbeat_age_sec = None
    if running.heartbeat_at is not None:
        heartbeat_age_sec = round(max(0.0, (running.now - running.heartbeat_at).total_seconds()), 1)
        message += f"; its last heartbeat was {format_duration(heartbeat_age_sec)} ago"
    details = {
        "attempt": running.attempt,
        "worker": running.worker,
        "worker_id": running.worker_id,
        "started_at": started_at,
        "running_sec": round(running_sec, 1),
        "heartbeat_age_sec": heartbeat_age_sec,
        "progress_age_sec": None if running.progress_age_sec is None else round(running.progress_age_sec, 1),
        "typical_p50_sec": p50,
        "typical_p95_sec": p95,
    }
    return ExplanationReason(ReasonCode.RUNNING, message + ".", details)


def ended_reason(job: Job, attempts: list[AttemptRecord]) -> ExplanationReason:
    details = {
        "finished_at": job.finished_at,
        "attempts": job.attempt,
        "max_attempts": job.max_attempts,
        "worker": job.worker,
        "error": job.error,
        "last_outcome": attempts[-1].outcome if attempts else None,
    }
    at, attempt = format_utc(job.finished_at), f"attempt {job.attempt} of {job.max_attempts}"
    match job.status:
        case Status.SUCCEEDED:
            message = f"It succeeded at {at} in attempt {job.attempt}."
        case Status.FAILED:
            retried = "which was the last" if job.attempt >= job.max_attempts else "and was not retried"
            message = f"It failed at {at} in {attempt}, {retried}: {_first_line(job.error)}"
        case Status.LOST:
            message = f"It was lost at {at}: its worker disappeared during {attempt}, which was the last."
        case _ if job.skipped:
            message = f"It was skipped at {at}: {_first_line(job.error)}"
            return ExplanationReason(ReasonCode.SKIPPED, message, details | {"graph_id": job.graph_id})
        case _:
            during = f"during attempt {job.attempt}" if attempts else "before its first attempt"
            message = f"It was canceled at {at} {during}."
    return ExplanationReason(ReasonCode(job.status.value), message, details)


def _first_line(error: str | None) -> str:
    line = (error or "no error was recorded").strip().partition("\n")[0]
    line = line if len(line) <= _MAX_ERROR_LINE_LENGTH else line[: _MAX_ERROR_LINE_LENGTH - 1] + "…"
    return line if line.endswith(".") else line + "."
