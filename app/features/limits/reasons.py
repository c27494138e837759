"""What limits and circuit breakers keep from starting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from dataloader.app.acts.reasons import (
    MAX_LISTED,
    ExplanationReason,
    ReasonCode,
    Reasons,
    WaitingJob,
    format_elapsed,
)
from dataloader.app.db.encoding import array
from dataloader.app.db.statements import Executor
from dataloader.app.errors import BreakerNotFound, LimitNotFound
from dataloader.app.features.limits.breakers import Breakers, BreakerState, BreakerStatus
from dataloader.app.features.limits.rows import LimitHolder, Limits, LimitStatus
from dataloader.app.wording import format_count, format_duration, format_utc

_MAX_LIMITED_JOBS = 1_000  # of each limit


class LimitReasons(Reasons):
    def __init__(self, executor: Executor, options: Any = None) -> None:
        super().__init__(executor, options)
        self._limits, self._breakers = Limits(executor), Breakers(executor)

    def of_job(self, waiting: WaitingJob) -> Iterator[ExplanationReason]:
        if waiting.wait_state != "limited":
            return
        name, task = waiting.waits_on or "", waiting.job.task
        if name == f"task:{task}" and (breaker := self._open_breaker(task)) is not None:
            yield breaker_reason(breaker)
            return
        with suppress(LimitNotFound):  # it has just been deleted
            limit = self._limits.status(name)
            yield limit_reason(waiting, limit, waiting.weight or 1, self._limits.holders(name)[:MAX_LISTED])

    def of_task(self, task: str) -> Iterator[ExplanationReason]:
        """An open breaker, and limits at 0; those of breakers and backfills have reasons of their own."""
        breaker = self._open_breaker(task)
        if breaker is not None:
            yield breaker_reason(breaker)
        own = f"task:{task}"
        closed = {limit.name: limit for limit in self._limits.statuses() if limit.concurrency == 0}
        names = [name for name in closed if not name.startswith("backfill:") and (name != own or breaker is None)]
        parameters = {"task": task, "names": array(names), "max_jobs": _MAX_LIMITED_JOBS}
        waited = {row[0] for row in self.executor.execute("limits_of_task", parameters)}
        yield from (closed_limit_reason(closed[name]) for name in names if name in waited or name == own)

    def of_queue(self, queue: str) -> Iterator[ExplanationReason]:
        waiting = self._limits.of_queue(queue)
        limits = {limit.name: limit for limit in self._limits.statuses() if limit.name in {*waiting, f"queue:{queue}"}}
        for limit in limits.values():
            kind, _, task = limit.name.partition(":")
            breaker = self._open_breaker(task) if kind == "task" else None
            if breaker is not None:
                yield breaker_reason(breaker)
            elif limit.concurrency == 0:
                yield closed_limit_reason(limit)
        full = (
            full_limit_reason(limit, waiting.get(name, 0)) for name, limit in limits.items() if limit.concurrency != 0
        )
        yield from [reason for reason in full if reason is not None][:MAX_LISTED]

    def _open_breaker(self, task: str) -> BreakerStatus | None:
        with suppress(BreakerNotFound):
            breaker = self._breakers.status(task)
            if breaker.state is not BreakerState.CLOSED:
                return breaker
        return None


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


def closed_since(limit: LimitStatus) -> str:
    by = f" by {limit.changed_by}" if limit.changed_by else ""
    note = f": {limit.note}" if limit.note else ""
    return f"has been closed since {format_utc(limit.changed_at)}{by}{note}"


def closed_limit_reason(limit: LimitStatus) -> ExplanationReason:
    details = {"limit": limit.name, "waiting": limit.waiting, "by": limit.changed_by, "note": limit.note}
    waiting = f" Waiting for it: {format_count(limit.waiting, 'job')}." if limit.waiting else ""
    message = f"The limit {limit.name!r} {closed_since(limit)}.{waiting}"
    return ExplanationReason(ReasonCode.LIMIT_CLOSED, message, details)


def full_limit_reason(limit: LimitStatus, waiting: int) -> ExplanationReason | None:
    """That jobs wait for a limit with running jobs; None if it has room."""
    details = {"limit": limit.name, "used": limit.used, "waiting": waiting, "concurrency": limit.concurrency}
    jobs = format_count(waiting, "job")
    if limit.concurrency is not None and limit.used >= limit.concurrency:
        message = f"Waiting for the limit {limit.name!r}: {jobs}; {limit.used} of {limit.concurrency} in use."
        return ExplanationReason(ReasonCode.LIMIT_FULL, message, details)
    if limit.next_start_in_sec:
        message = f"Waiting for the rate of the limit {limit.name!r}: {jobs}."
        return ExplanationReason(ReasonCode.RATE_LIMITED, message, details)
    return None


def limit_reason(waiting: WaitingJob, limit: LimitStatus, weight: int, holders: list[LimitHolder]) -> ExplanationReason:
    name = f"the limit {limit.name!r}"
    details: dict[str, Any] = {"limit": limit.name, "weight": weight, "concurrency": limit.concurrency}
    details |= {"used": limit.used, "holders": [{"job_id": h.job_id, "task": h.task} for h in holders]}
    if limit.concurrency == 0:
        message = f"It waits for {name}, which {closed_since(limit)}."
        return ExplanationReason(ReasonCode.LIMIT_CLOSED, message, details)
    if limit.concurrency is not None and limit.used + weight > limit.concurrency:
        needs = f"; the job needs {weight}" if weight > 1 else ""
        held = "".join(
            f" {'Held by' if n == 0 else 'and'} job {holder.job_id} ({holder.task}, running for "
            f"{format_elapsed(waiting.now, holder.started_at or waiting.now)})"
            for n, holder in enumerate(holders[:2])
        )
        message = f"It waits for {name}: {limit.used} of {limit.concurrency} in use{needs}.{held}{'.' if held else ''}"
        return ExplanationReason(ReasonCode.LIMIT_FULL, message, details)
    if limit.next_start_in_sec is not None:
        starts = f"{limit.rate} in {format_duration(limit.per_sec or 1)}"
        message = f"The rate of {name} ({starts}) allows the next start in {format_duration(limit.next_start_in_sec)}."
        details |= {"rate": limit.rate, "per_sec": limit.per_sec, "next_start_in_sec": limit.next_start_in_sec}
        return ExplanationReason(ReasonCode.RATE_LIMITED, message, details)
    message = f"It waits for {name}, which has room now; it is woken within a second."
    return ExplanationReason(ReasonCode.LIMIT_FULL, message, details)
