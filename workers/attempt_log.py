"""Log lines about attempts that end badly and about jobs that a busy key holds back.

Each attempt that ends badly has exactly one line `worker.complete.failed`, written by the process that ran it, or by
the reaper for a process that vanished.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from app import log
from app.log import Alert
from app.queue.job import SUCCEEDED, Reaped, Release, Settlement, Status
from workers.attempt import Attempt
from workers.outcome import Ending, HandedBack
from workers.threads import clock

_log = log.get(__name__)
_MAX_ERROR_CHARS = 500
_BACKOFF_INTERVAL_SEC = 60.0  # between two lines about one key
_MAX_KEYS = 10_000  # remembered for that


def log_settled(attempt: Attempt, end: Ending, status: Status) -> None:
    """Report an attempt of this process whose end is written, if it was a bad one."""
    reason = None if end is SUCCEEDED else _reason(attempt, end, status)
    if reason is None:
        return
    job = attempt.job
    retry_in = end.retry_in if isinstance(end, Settlement) else 0.0
    facts: dict[str, Any] = {
        "job": job.id_text, "run": job.run_text, "queue": job.queue, "task": job.task, "attempt": job.attempt,
        "max_attempts": job.max_attempts, "status": status.value, "reason": reason, "error": _error_of(end),
    }  # fmt: skip
    if status is Status.QUEUED:
        facts["retry_at"] = _text_of(datetime.now(UTC) + timedelta(seconds=retry_in))
    _write(status, facts)


def log_reaped(reaped: Reaped, *, reason: str = "lease_expired", **sessions: Any) -> None:
    """Report an attempt whose process vanished or lost its lease, with what became of its database sessions."""
    facts: dict[str, Any] = {
        "job": str(reaped.job_id), "run": reaped.run_id and str(reaped.run_id), "queue": reaped.queue,
        "task": reaped.task, "attempt": reaped.attempt, "max_attempts": reaped.max_attempts,
        "status": reaped.status.value, **sessions,
    }  # fmt: skip
    if reaped.status is Status.CANCELED:  # as was wished
        _log.info("reaper.canceled", **facts)
        return
    if reaped.status is Status.QUEUED:
        facts["retry_at"] = _text_of(reaped.available_at)
        _log.info(Alert.REAPER_REQUEUED, **facts)
    _write(reaped.status, facts | {"reason": reason, "error": _first_line(reaped.error)})


def log_abandoned(attempt: Attempt, reason: str) -> None:
    """Report an attempt whose end was not written: the job is another run's, or its lease cannot be trusted any more.

    The job's own line is the reaper's.
    """
    job = attempt.job
    _log.warning(
        "attempt.abandoned", job=job.id_text, run=job.run_text, queue=job.queue, task=job.task, attempt=job.attempt,
        reason=reason,
    )  # fmt: skip


def _write(status: Status, facts: dict[str, Any]) -> None:
    write = _log.warning if status is Status.QUEUED else _log.error
    write(Alert.COMPLETE_FAILED, **facts)


def _reason(attempt: Attempt, end: Ending, status: Status) -> str | None:
    """Why the attempt counts as a bad one; None if it went well, was canceled, or comes again as its task asked."""
    if isinstance(end, HandedBack):
        return "key_lost" if end.why is Release.LOCK_BUSY and attempt.started else None
    if not isinstance(end, Settlement):
        return None
    notes = end.notes or {}
    if status is Status.FAILED or (status is Status.QUEUED and not (end.refund and "code" not in notes)):
        return str(notes.get("code") or notes.get("stop_reason") or "error")
    return None


def _error_of(end: Ending) -> str:
    if isinstance(end, Settlement):
        return _first_line(end.error)
    return "the connection that held its key was lost, and another session has the key now"


def _first_line(error: str | None) -> str:
    line = (error or "").strip().partition("\n")[0]
    return line if len(line) <= _MAX_ERROR_CHARS else line[: _MAX_ERROR_CHARS - 1] + "…"


def _text_of(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


class BackoffLog:
    """Reports keys that hold jobs back, each once a minute. Used by one claimer at a time."""

    def __init__(self) -> None:
        self._reported_at: dict[str, float] = {}

    def report(self, queue: str, lock_keys: Iterable[str]) -> None:
        now = clock()
        for key in lock_keys:
            if now - self._reported_at.get(key, -_BACKOFF_INTERVAL_SEC) < _BACKOFF_INTERVAL_SEC:
                continue
            if len(self._reported_at) >= _MAX_KEYS:
                self._reported_at = {k: at for k, at in self._reported_at.items() if now - at < _BACKOFF_INTERVAL_SEC}
            if len(self._reported_at) < _MAX_KEYS:
                self._reported_at[key] = now
                _log.info(Alert.CLAIM_BACKOFF, queue=queue, lock_key=key, reason="key_busy")
