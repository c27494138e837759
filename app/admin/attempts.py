"""The attempts of a job, from its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from app.queue.job import JobEvent

_ATTEMPT_EVENT_FIELDS = {"status", "attempt", "run_id", "error", "reason", "pause_sec"}


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """An attempt of a job, from its events. `outcome` is the kind of the event that ended it; null while it runs."""

    attempt: int
    run_id: UUID | None
    worker: str | None
    started_at: datetime
    finished_at: datetime | None
    outcome: str | None
    reason: str | None
    error: str | None
    retry_in_sec: float | None
    event_fields: dict[str, Any]


def attempts_from_events(events: Iterable[JobEvent]) -> list[AttemptRecord]:
    """Pair each `picked` event with the event that ended the attempt."""
    attempts: list[AttemptRecord] = []
    is_running = False
    for event in events:
        payload = event.payload
        if event.kind == "picked":
            attempts.append(_started_attempt(event))
            is_running = True
        elif is_running and event.kind not in ("cancel_requested", "stop_pending"):
            attempts[-1] = replace(
                attempts[-1],
                finished_at=event.ts,
                outcome=event.kind,
                reason=payload.get("reason"),
                error=payload.get("error"),
                retry_in_sec=payload.get("pause_sec"),
                event_fields={name: value for name, value in payload.items() if name not in _ATTEMPT_EVENT_FIELDS},
            )
            is_running = False
    return attempts


def _started_attempt(event: JobEvent) -> AttemptRecord:
    payload = event.payload
    return AttemptRecord(
        attempt=int(payload.get("attempt", 0)),
        run_id=UUID(payload["run_id"]) if payload.get("run_id") else None,
        worker=payload.get("worker"),
        started_at=event.ts,
        finished_at=None,
        outcome=None,
        reason=None,
        error=None,
        retry_in_sec=None,
        event_fields={},
    )
