"""What keeps jobs of a task from being made, or from starting."""

from __future__ import annotations

from typing import Any

from dataloader.app.features.backfills.rows import Backfill
from dataloader.app.features.limits.breakers import BreakerState, BreakerStatus
from dataloader.app.features.schedules.rows import Schedule
from dataloader.app.features.why.reasons import ExplanationReason, ReasonCode
from dataloader.app.wording import format_utc


def breaker_reason(breaker: BreakerStatus) -> ExplanationReason:
    details: dict[str, Any] = {"task": breaker.task, "state": breaker.state, "opened_at": breaker.opened_at}
    details |= {"probe_at": breaker.probe_at, "reason": breaker.reason, "by": breaker.changed_by}
    reason = f": {breaker.reason}" if breaker.reason else ""
    if breaker.state is BreakerState.HALF_OPEN:
        message = f"The circuit breaker of task {breaker.task!r} is half-open{reason}. One job at a time is tried."
        return ExplanationReason(ReasonCode.BREAKER_OPEN, message, details)
    since = f"since {format_utc(breaker.opened_at)}"
    if breaker.probe_at is None:
        by = f" by {breaker.changed_by}" if breaker.changed_by else ""
        message = f"The task {breaker.task!r} has been paused {since}{by}{reason}."
        return ExplanationReason(ReasonCode.TASK_PAUSED, message, details)
    probe = f"one job is tried at {format_utc(breaker.probe_at)}"
    message = f"The circuit breaker of task {breaker.task!r} has been open {since}{reason}; {probe}."
    return ExplanationReason(ReasonCode.BREAKER_OPEN, message, details)


def schedule_reason(schedule: Schedule) -> ExplanationReason:
    details: dict[str, Any] = {"schedule": schedule.name}
    name = f"The schedule {schedule.name!r}"
    if schedule.paused_at is not None:
        by = f" by {schedule.paused_by}" if schedule.paused_by else ""
        reason = f": {schedule.paused_reason}" if schedule.paused_reason else ""
        message = f"{name} has been paused since {format_utc(schedule.paused_at)}{by}{reason}. It makes no jobs."
        details |= {"since": schedule.paused_at, "by": schedule.paused_by, "reason": schedule.paused_reason}
        return ExplanationReason(ReasonCode.SCHEDULE_PAUSED, message, details)
    if schedule.orphaned_at is not None:
        since = f"since {format_utc(schedule.orphaned_at)}"
        message = f"{name} makes no jobs: {since} no live worker has had it in its code."
        details["since"] = schedule.orphaned_at
        return ExplanationReason(ReasonCode.SCHEDULE_ORPHANED, message, details)
    if schedule.error is not None:
        message = f"{name} makes no jobs: {schedule.error}."
        return ExplanationReason(ReasonCode.SCHEDULE_STOPPED, message, details | {"error": schedule.error})
    after = schedule.effective_definition.get("after")
    if schedule.next_at is not None:
        when = f"its next job at {format_utc(schedule.next_at)}"
    else:
        when = f"a job when these datasets are updated: {', '.join(after)}" if after else "no further job: it has ended"
    details["next_at"] = schedule.next_at
    return ExplanationReason(ReasonCode.SCHEDULE_NEXT, f"{name} makes {when}.", details)


def is_next(reason: ExplanationReason) -> bool:
    return reason.code is ReasonCode.SCHEDULE_NEXT


def backfill_reason(backfill: Backfill) -> ExplanationReason:
    by = f" by {backfill.changed_by}" if backfill.changed_by else ""
    reason = f": {backfill.reason}" if backfill.reason else ""
    message = f"The backfill {backfill.backfill_id} has been paused{by}{reason}."
    details = {"backfill_id": backfill.backfill_id, "by": backfill.changed_by, "reason": backfill.reason}
    return ExplanationReason(ReasonCode.BACKFILL_PAUSED, message, details)
