"""Logs attempts that failed, were reaped or could not be settled, and keys that keep jobs from starting."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from dataloader.app import log
from dataloader.app.log import Alert
from dataloader.app.queue.job import ReapedJob, Released, ReleaseReason, Settlement, Status
from dataloader.app.queue.parameters import bounded_delay
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt
from dataloader.workers.outcome import Outcome
from dataloader.workers.reports.sentry import report_failure

_log = log.get(__name__)
_MAX_ERROR_LENGTH = 500  # of an error in a log line
_BACKOFF_INTERVAL_SEC = 60.0  # between two lines about one key
_MAX_REMEMBERED_KEYS = 10_000


def log_settled(attempt: Attempt, outcome: Outcome, status: Status) -> None:
    """Log an attempt of this process that is settled, if it failed: not if it was canceled or snoozed."""
    match outcome:
        case Released(ReleaseReason.LOCK_BUSY) if attempt.started_at is not None:
            reason, retry_in_sec = "key_lost", 0.0
            error: str | None = "the connection that held its key was lost, and another session has the key now"
        case Settlement(error=error, retry_in_sec=retry_in_sec) if status in (Status.FAILED, Status.QUEUED):
            event_fields = outcome.event_fields or {}
            if status is Status.QUEUED and outcome.refund_attempt and "code" not in event_fields:
                return
            reason = str(event_fields.get("code") or event_fields.get("stop_reason") or "error")
        case _:
            return
    job = attempt.job
    fields: dict[str, Any] = {
        "job": job.id_text, "run": job.run_text, "queue": job.queue, "task": job.task, "attempt": job.attempt,
        "max_attempts": job.max_attempts, "status": status.value, "reason": reason, "error": _first_line(error),
    }  # fmt: skip
    if status is Status.QUEUED:
        fields["retry_at"] = _format_time(datetime.now(UTC) + timedelta(seconds=bounded_delay(retry_in_sec)))
    _log_failure(status, fields, is_reported=attempt.is_failure_reported)


def log_reaped(reaped: ReapedJob, *, reason: str = "lease_expired", **session_fields: Any) -> None:
    """Log an attempt whose process vanished or lost its lease, with what became of its database sessions."""
    fields: dict[str, Any] = {
        "job": str(reaped.job_id), "run": reaped.run_id and str(reaped.run_id), "queue": reaped.queue,
        "task": reaped.task, "attempt": reaped.attempt, "max_attempts": reaped.max_attempts,
        "status": reaped.status.value, **session_fields,
    }  # fmt: skip
    if reaped.status is Status.CANCELED:  # as requested
        _log.info("reaper.canceled", **fields)
        return
    if reaped.status is Status.QUEUED:
        fields["retry_at"] = _format_time(reaped.available_at)
        _log.info(Alert.REAPER_REQUEUED, **fields)
    _log_failure(reaped.status, fields | {"reason": reason, "error": _first_line(reaped.error)})


def log_abandoned(attempt: Attempt, reason: str) -> None:
    """Log an attempt that was not settled: another run owns the job, or the lease cannot be trusted any more. The
    reaper logs the job's own line."""
    job = attempt.job
    _log.warning(
        "attempt.abandoned", job=job.id_text, run=job.run_text, queue=job.queue, task=job.task, attempt=job.attempt,
        reason=reason,
    )  # fmt: skip


def _log_failure(status: Status, fields: dict[str, Any], *, is_reported: bool = False) -> None:
    if status is not Status.QUEUED and not is_reported:
        report_failure(fields)
    write = _log.warning if status is Status.QUEUED else _log.error
    write(Alert.COMPLETE_FAILED, **fields)


def _first_line(error: str | None) -> str:
    line = (error or "").strip().partition("\n")[0]
    return line if len(line) <= _MAX_ERROR_LENGTH else line[: _MAX_ERROR_LENGTH - 1] + "…"


def _format_time(timestamp: datetime | None) -> str | None:
    return None if timestamp is None else timestamp.astimezone(UTC).isoformat(timespec="seconds")


class BlockedKeysLog:
    """Logs keys that block jobs, each once a minute. Used by the claiming thread alone."""

    def __init__(self) -> None:
        self._reported_at: dict[str, float] = {}

    def report(self, queue: str, lock_keys: Iterable[str]) -> None:
        now = clock()
        for key in lock_keys:
            if now - self._reported_at.get(key, -_BACKOFF_INTERVAL_SEC) < _BACKOFF_INTERVAL_SEC:
                continue
            if len(self._reported_at) >= _MAX_REMEMBERED_KEYS:
                self._reported_at = {k: at for k, at in self._reported_at.items() if now - at < _BACKOFF_INTERVAL_SEC}
            if len(self._reported_at) < _MAX_REMEMBERED_KEYS:
                self._reported_at[key] = now
                _log.info(Alert.CLAIM_BACKOFF, queue=queue, lock_key=key, reason="key_busy")
