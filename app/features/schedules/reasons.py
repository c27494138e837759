"""Why schedules of a task make no jobs, and when they make the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dataloader.app.acts.reasons import ExplanationReason, ReasonCode, Reasons
from dataloader.app.features.schedules.rows import Schedule, Schedules
from dataloader.app.wording import format_utc


class ScheduleReasons(Reasons):
    def of_task(self, task: str) -> Iterator[ExplanationReason]:
        yield from map(schedule_reason, Schedules(self.executor).list_by_name(task=task))

    def queues_of_task(self, task: str, default_queue: str) -> set[str]:
        schedules = Schedules(self.executor).list_by_name(task=task)
        return {schedule.effective_definition.get("queue") or default_queue for schedule in schedules}


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
