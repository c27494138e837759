"""Fires schedules at a time of one's own, for `dataloader.testing.drain`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from dataloader.app.db.connection import Session
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.schedules.duty import SchedulesDuty
from dataloader.app.features.schedules.rows import Schedule, Schedules, Times, Updates
from dataloader.pipelines.contract import Pipelines

_MAX_FIRED = 100  # schedules at a time


class ScheduleClock:
    """Fires schedules up to a time of one's own, one time after the other."""

    def __init__(self, session: Session, tasks: Pipelines) -> None:
        self._schedules = Schedules(session)
        self._duty = SchedulesDuty(session, tasks, zone="UTC", default_lease_sec=60, record_firing=lambda *_: None)
        known = {schedule.name for schedule in self._schedules.list_by_name()}
        begin = self._schedules.now()
        for declared in tasks.declared_schedules():
            if declared["name"] in known:
                continue
            definition = dict(declared["definition"])
            is_off = definition.pop("off", False)
            times = Times(begin, None if definition["kind"] == "dataset" else begin)
            self._schedules.create(declared["name"], declared["task"], definition, times, is_paused=is_off)

    def advance(self, until: datetime) -> bool:
        """Fire the schedules of the next time that is not later; False: there is none."""
        due = self._schedules.due(limit=_MAX_FIRED)
        if due.updates:
            self._fire(
                [schedule for schedule in due.schedules if schedule.schedule_id in due.updates], due.now, due.updates
            )
            return True
        live = [s for s in self._schedules.list_by_name() if s.paused_at is None and s.orphaned_at is None]
        times = [schedule.next_at for schedule in live if schedule.next_at is not None]
        if not times or min(times) > until:
            return False
        self._fire([schedule for schedule in live if schedule.next_at == min(times)], min(times), {})
        return True

    def _fire(self, schedules: list[Schedule], now: datetime, updates: Mapping[UUID, Updates]) -> None:
        items = [self._duty.plan(schedule, now, updates.get(schedule.schedule_id)) for schedule in schedules]
        for firing in (firing for item in items for firing in item["firings"]):
            firing.get("job", {}).pop("available_at", None)
        _, errors = self._duty.fire(items)
        if errors:
            raise DatabaseUnavailable(next(iter(errors.values())))
