"""Fires schedules: makes the jobs of nominal times that have come, each time once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from dataloader.app import log
from dataloader.app.db.statements import Executor
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.schedules.rows import (
    ORPHAN_AFTER_SEC,
    FiredTime,
    FiringOutcome,
    Schedule,
    Schedules,
    Updates,
)
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.portable import clock
from dataloader.pipelines.schedule_definition import ScheduleDefinition, definition_from, first_error, scheduled_job
from dataloader.pipelines.schedule_plan import plan_firings
from dataloader.workers.duties import LATE_SEC, PRUNE_BATCH, PRUNE_INTERVAL_SEC, Duty, DutyContext, MaintenanceOptions
from dataloader.workers.threads import Backoff

_log = log.get(__name__)
_INTERVAL_SEC = 30.0  # at the latest; a step returns when the next time comes
_LATE_INTERVAL_SEC = 5.0
_SEEN_INTERVAL_SEC = 60.0
_BATCH = 50  # schedules
_MAX_CLOCK_JUMP_SEC = 60.0
_CLOCK_CHECK_SEC = 10.0  # a clock that has jumped ahead may jump back
# A deadlock, a lock that was not had in time, a statement that was canceled.
_CONTENTION_CODES = ("40", "55", "57014")


class SchedulesDuty:
    """Fires what is due, in batches of one transaction each."""

    def __init__(
        self,
        session: Executor,
        tasks: Pipelines,
        *,
        zone: str,
        default_lease_sec: int,
        record_firing: Callable[[str, str], None],
    ) -> None:
        self._schedules, self._queue = Schedules(session), JobQueue(session)
        self._record_firing = record_firing
        self._tasks, self._zone, self._default_lease_sec = tasks, zone, default_lease_sec
        self._clocks: tuple[datetime, float] | None = None  # the database's and our own, at the last look
        self._delayed: frozenset[UUID] = frozenset()  # schedules whose firings could not be written
        self._retry_delayed_at, self._backoff = 0.0, Backoff()

    def run(self, *, late_by_sec: float = 0.0) -> float | None:
        """Fire one batch; return the seconds until the next time, None if there is none."""
        is_retry = clock() >= self._retry_delayed_at
        due = self._schedules.due(limit=_BATCH, late_by_sec=late_by_sec, without=() if is_retry else self._delayed)
        if self._has_clock_jumped(due.now):
            _log.warning("schedules.clock_jumped", now=due.now.isoformat())
            return _CLOCK_CHECK_SEC
        errors: dict[UUID, str] = {}
        if due.schedules:
            items = [self.plan(schedule, due.now, due.updates.get(schedule.schedule_id)) for schedule in due.schedules]
            fired, errors = self.fire(items)
            self._log_fired(due.schedules, fired)
            for schedule, item in zip(due.schedules, items, strict=True):
                if any(firing.get("overlap") == "cancel" for firing in item["firings"]):
                    self._cancel_earlier(schedule, [time for time in fired if time.schedule_id == schedule.schedule_id])
        self._record_delayed(errors, is_retry=is_retry)
        if due.schedules:
            return 0.0
        waits_sec = [] if due.next_in_sec is None else [due.next_in_sec]
        waits_sec += [self._retry_delayed_at - clock()] if self._delayed else []
        return max(0.0, min(waits_sec)) if waits_sec else None

    def _record_delayed(self, errors: Mapping[UUID, str], *, is_retry: bool) -> None:
        """Try again those that could not be written after a pause that doubles. Log the first, and the end of all."""
        if errors and not self._delayed:
            _log.warning("schedules.delayed", schedules=len(errors), error=next(iter(errors.values())))
        if not is_retry:
            self._delayed |= errors.keys()
            return
        if errors:
            self._retry_delayed_at = clock() + self._backoff.next_sec()
        elif self._delayed:
            _log.info("schedules.resumed")
            self._backoff = Backoff()
        self._delayed = frozenset(errors)

    def _has_clock_jumped(self, now: datetime) -> bool:
        before, self._clocks = self._clocks, (now, clock())
        if before is None:
            return False
        return (now - before[0]).total_seconds() - (self._clocks[1] - before[1]) > _MAX_CLOCK_JUMP_SEC

    def plan(self, schedule: Schedule, now: datetime, updates: Updates | None = None) -> dict[str, Any]:
        """What is to be written of a schedule. A definition that does not hold any more stops it, with an error."""
        item: dict[str, Any] = {
            "schedule_id": str(schedule.schedule_id),
            "version": schedule.version,
            "read_last_at": schedule.last_at and schedule.last_at.isoformat(),
        }
        try:
            definition = definition_from({**schedule.effective_definition, "task": schedule.task}, zone=self._zone)
        except ValidationError as error:
            fire_at = (schedule.next_at or now).isoformat()
            refused = {"fire_at": fire_at, "due_at": fire_at, "outcome": "refused", "detail": first_error(error)}
            return item | {"last_at": fire_at, "next_at": None, "error": first_error(error), "firings": [refused]}
        if definition.timing is None:
            return item | self._plan_by_updates(schedule, definition, now, updates)
        plan = plan_firings(
            definition.timing,
            last_at=schedule.last_at or schedule.created_at,
            now=now,
            grace_sec=definition.grace_sec,
            catch_up=definition.catch_up,
            catch_up_max=definition.catch_up_max,
            catch_up_window_sec=definition.catch_up_window_sec,
        )
        firings = []
        if plan.skipped is not None:
            first, last = (time.isoformat() for time in plan.skipped)
            firings.append({"fire_at": first, "due_at": first, "until": last, "outcome": "late_skipped"})
        firings += [self._firing(schedule, definition, fire_at) for fire_at in plan.fire_at]
        if plan.fire_at:  # else what a declaration has found still holds
            item["error"] = firings[-1]["detail"] if firings[-1]["outcome"] == "refused" else None
        return item | {
            "last_at": plan.last_at.isoformat(),
            "next_at": plan.next_at and plan.next_at.isoformat(),
            "firings": firings,
        }

    def _plan_by_updates(
        self, schedule: Schedule, definition: ScheduleDefinition, now: datetime, updates: Updates | None
    ) -> dict[str, Any]:
        """Updates before `starts_at` and after `ends_at` make no job."""
        last_at = schedule.last_at or schedule.created_at
        plan: dict[str, Any] = {"last_at": last_at.isoformat(), "next_at": None, "firings": []}
        if updates is None:  # it was declared or changed
            return plan
        plan["updates"] = updates.ids
        if not definition.is_within_bounds(now):
            return plan
        fire_at = max(now, last_at + timedelta(microseconds=1))  # a clock that was set back
        firing = {"detail": f"updated: {', '.join(updates.datasets)}"[:2_000]}
        firing |= self._firing(schedule, definition, fire_at) | {"made_by": "dataset"}
        return plan | {"last_at": fire_at.isoformat(), "firings": [firing]}

    def _firing(self, schedule: Schedule, definition: ScheduleDefinition, fire_at: datetime) -> dict[str, Any]:
        due_at = (fire_at + definition.jitter(str(schedule.schedule_id), fire_at)).isoformat()
        firing: dict[str, Any] = {"fire_at": fire_at.isoformat(), "due_at": due_at, "overlap": definition.overlap}
        try:
            job = scheduled_job(
                schedule.name,
                str(schedule.schedule_id),
                definition,
                fire_at,
                self._tasks.get(definition.task),
                default_lease_sec=self._default_lease_sec,
            )
        except (ValueError, TypeError) as error:
            return firing | {"outcome": "refused", "detail": str(error)[:2_000]}
        return firing | {"outcome": "due", "job": job | {"available_at": due_at}}

    def _cancel_earlier(self, schedule: Schedule, fired: Sequence[FiredTime]) -> None:
        """Only once the job of a later time is written: a time that is refused or delayed ends no run."""
        later = {time.job_id: time.fire_at for time in fired if time.job_id is not None}
        if not later:
            return
        live = self._schedules.live_jobs(schedule, before=max(later.values()))
        job_ids = [job_id for job_id in live if job_id not in later]
        self._queue.cancel_all(job_ids)
        for job_id in job_ids:
            _log.info("schedule.canceled_earlier_job", schedule=schedule.name, job_id=str(job_id))

    def fire(self, items: Sequence[Mapping[str, Any]]) -> tuple[list[FiredTime], dict[UUID, str]]:
        """All in one transaction; if a transaction of others holds what one of them needs, one by one. Return what was
        fired, and the errors of the schedules that were not."""
        try:
            return self._schedules.fire(items), {}
        except DatabaseUnavailable as error:
            if not str(getattr(error.__cause__, "pgcode", None)).startswith(_CONTENTION_CODES):
                raise  # nothing can be written
            if len(items) == 1:
                return [], {UUID(items[0]["schedule_id"]): str(error)}
        fired: list[FiredTime] = []
        errors: dict[UUID, str] = {}
        for item in items:
            fired_of_item, error_of_item = self.fire([item])
            fired += fired_of_item
            errors |= error_of_item
        return fired, errors

    def _log_fired(self, schedules: list[Schedule], fired: list[FiredTime]) -> None:
        names: dict[UUID, str] = {schedule.schedule_id: schedule.name for schedule in schedules}
        for time in fired:
            self._record_firing(names[time.schedule_id], time.outcome.value)
            write = _log.warning if time.outcome is FiringOutcome.REFUSED else _log.info
            write(
                "schedule.fired",
                schedule=names[time.schedule_id],
                fire_at=time.fire_at.isoformat(),
                outcome=time.outcome.value,
                job_id=time.job_id and str(time.job_id),
                detail=time.detail,
            )


def create_duties(context: DutyContext) -> list[Duty]:
    schedules = Schedules(context.executor)
    return [
        Duty("schedules", _INTERVAL_SEC, schedules_duty(context).run),
        Duty("schedules-seen", _SEEN_INTERVAL_SEC, lambda: _see_schedules(schedules), first_delay_sec=ORPHAN_AFTER_SEC),
        Duty("firings-prune", PRUNE_INTERVAL_SEC, lambda: _prune_firings(schedules, context.options)),
    ]


def create_follower_duties(context: DutyContext) -> list[Duty]:
    """Fire schedules that are late: the maintenance leader may be frozen."""
    schedules = schedules_duty(context)
    return [Duty("late-schedules", _LATE_INTERVAL_SEC, lambda: schedules.run(late_by_sec=LATE_SEC))]


def schedules_duty(context: DutyContext) -> SchedulesDuty:
    return SchedulesDuty(
        context.executor,
        context.tasks,
        zone=context.options.zone,
        default_lease_sec=context.options.default_lease_sec,
        record_firing=context.counters.record_firing,
    )


def _see_schedules(schedules: Schedules) -> None:
    for name in schedules.see():
        _log.warning("schedule.orphaned", schedule=name)


def _prune_firings(schedules: Schedules, options: MaintenanceOptions) -> float | None:
    if not options.deletion_enabled:
        return None
    pruned = schedules.prune(keep_sec=options.periods.succeeded, limit=PRUNE_BATCH)
    return 1.0 if pruned >= PRUNE_BATCH else None
