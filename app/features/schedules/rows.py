"""Schedules: what makes jobs at nominal times, and what became of each time."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from dataloader.app.db.encoding import array, as_uuid, from_row, validate_json, validate_texts
from dataloader.app.db.statements import Executor
from dataloader.app.errors import InvalidJob, ScheduleChanged, ScheduleExists, ScheduleNotFound, TimeHasFired

Row = TypeVar("Row")
MAX_SCHEDULES = 10_000
ORPHAN_AFTER_SEC = 600.0  # no live worker has had it in its code for so long
_LATE_AFTER_SEC, _MAX_NOT_FIRING_READ = 60.0, 20  # where problems are counted


class ScheduleSource(StrEnum):
    CODE = "code"  # a task declares it
    PEOPLE = "people"


class FiringOutcome(StrEnum):
    MADE = "made"  # a job
    EXISTS = "exists"  # another job serves it, such as one that loads the same slice
    LATE_SKIPPED = "late_skipped"  # no process fired it in time, and catch_up leaves it out
    OVERLAP_SKIPPED = "overlap_skipped"  # an earlier job had not ended
    PAUSED_SKIPPED = "paused_skipped"
    REFUSED = "refused"  # no job can be made of its template


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule. What applies is `declared`, by the code of its task, with what people changed, `overrides`, on top.
    `orphaned_at`: no live worker has it in its code any more, so it does not fire. `error`: why its next time is
    unknown."""

    schedule_id: UUID
    name: str
    source: ScheduleSource
    task: str
    declared: dict[str, Any]
    overrides: dict[str, Any]
    seen_at: datetime | None
    orphaned_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    version: int
    last_at: datetime | None
    next_at: datetime | None
    error: str | None
    created_at: datetime
    changed_by: str | None
    changed_at: datetime

    @property
    def effective_definition(self) -> dict[str, Any]:
        return {**self.declared, **self.overrides}


@dataclass(frozen=True, kw_only=True)
class Firing:
    """What became of a nominal time, or of a range of them that ends with `until`."""

    fire_at: datetime
    due_at: datetime
    outcome: FiringOutcome
    until: datetime | None
    job_id: UUID | None
    job_status: str | None
    made_by: str
    detail: str | None
    made_at: datetime


@dataclass(frozen=True, kw_only=True)
class CalendarFiring(Firing):
    schedule: str


class Updates(NamedTuple):
    """Datasets that were updated since the schedule fired last; `ids` are the rows that say so."""

    datasets: list[str]
    ids: list[int]


class DueSchedules(NamedTuple):
    """The updates are those of the schedules by dataset that are due."""

    now: datetime
    next_in_sec: float | None
    schedules: list[Schedule]
    updates: Mapping[UUID, Updates]


class FiredTime(NamedTuple):
    schedule_id: UUID
    fire_at: datetime
    outcome: FiringOutcome
    job_id: UUID | None
    detail: str | None


class Times(NamedTuple):
    """The state of a schedule: times up to `last_at` are accounted for."""

    last_at: datetime | None
    next_at: datetime | None
    error: str | None = None


class Schedules:
    """Reads and changes schedules."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def list_by_name(
        self, *, name: str | None = None, task: str | None = None, limit: int = MAX_SCHEDULES
    ) -> list[Schedule]:
        return self._read(Schedule, "schedules", **validate_texts({"name": name, "task": task}), limit=limit)

    def get(self, name: str) -> Schedule:
        """Raises ScheduleNotFound."""
        found = self.list_by_name(name=name)
        if not found:
            raise ScheduleNotFound(name)
        return found[0]

    def _read(self, row_type: type[Row], statement: str, **parameters: Any) -> list[Row]:
        return [from_row(row_type, row) for row in self._execute(statement, parameters)]

    def due_next(self, *, limit: int) -> list[Schedule]:
        """Those that fire next, by time."""
        return self._read(Schedule, "schedules_due_next", limit=limit)

    def not_firing(self, *, late_sec: float, limit: int) -> list[Schedule]:
        """Those that are paused, orphaned or in error, or more than `late_sec` late."""
        return self._read(Schedule, "schedules_not_firing", late_sec=late_sec, limit=limit)

    def now(self) -> datetime:
        """The database's clock."""
        now: datetime = self._execute("database_time")[0][0]
        return now

    def create(
        self,
        name: str,
        task: str,
        definition: Mapping[str, Any],
        times: Times,
        *,
        is_paused: bool = False,
        changed_by: str | None = None,
    ) -> Schedule:
        """Create a schedule of people. Raises ScheduleExists."""
        texts = validate_texts({"name": name, "task": task, "changed_by": changed_by, "paused_reason": None})
        parameters = {"overrides": validate_json("schedule", dict(definition)), "is_paused": is_paused}
        if not self._execute("create_schedule", {**texts, **parameters, **times._asdict()}):
            raise ScheduleExists(name)
        return self.get(name)

    def change(
        self,
        schedule: Schedule,
        overrides: Mapping[str, Any],
        times: Times,
        *,
        task: str,
        source: ScheduleSource | None = None,
        changed_by: str | None = None,
    ) -> Schedule:
        """Replace what people changed; `source` makes an orphaned one theirs. Raises ScheduleChanged."""
        texts = validate_texts({"name": schedule.name, "task": task, "changed_by": changed_by})
        parameters = {
            **texts,
            "overrides": validate_json("schedule", dict(overrides)),
            "version": schedule.version,
            "read_last_at": schedule.last_at,
            "source": (source or schedule.source).value,
        }
        if not self._execute("change_schedule", {**parameters, **times._asdict()}):
            raise ScheduleChanged(schedule.name)
        return self.get(schedule.name)

    def pause(self, name: str, *, reason: str | None = None, changed_by: str | None = None) -> Schedule:
        """Raises ScheduleNotFound."""
        parameters = validate_texts({"name": name, "reason": reason, "changed_by": changed_by})
        if not self._execute("pause_schedule", parameters):
            raise ScheduleNotFound(name)
        return self.get(name)

    def resume(
        self,
        schedule: Schedule,
        times: Times,
        *,
        skipped: tuple[datetime, datetime] | None = None,
        keep_updates: bool = False,
        changed_by: str | None = None,
    ) -> Schedule:
        """Let it fire again; `skipped` is the first and the last nominal time that did not fire. Updates of datasets
        during the pause are dropped, unless they are kept. Raises ScheduleChanged."""
        texts = validate_texts({"name": schedule.name, "changed_by": changed_by, "detail": _pause_detail(schedule)})
        first, last = skipped or (None, None)
        skips = {
            "version": schedule.version,
            "skipped_from": first,
            "skipped_until": last,
            "keep_updates": keep_updates,
        }
        if not self._execute("resume_schedule", {**texts, **skips, **times._asdict()}):
            raise ScheduleChanged(schedule.name)
        return self.get(schedule.name)

    def delete(self, name: str) -> None:
        """Delete a schedule and its firings; its jobs stay. Raises ScheduleNotFound."""
        if not self._execute("delete_schedule", validate_texts({"name": name})):
            raise ScheduleNotFound(name)

    def firings(self, schedule: Schedule, *, before: datetime | None = None, limit: int = 50) -> list[Firing]:
        """The newest first."""
        return self._read(Firing, "firings", schedule_id=str(schedule.schedule_id), before=before, limit=limit)

    def last_firings_of(self, schedule_ids: Sequence[UUID], *, limit: int) -> dict[str, list[Firing]]:
        """The latest firings of each of these schedules, by name, the newest first."""
        rows = self._execute("last_firings_of", {"ids": array(map(str, schedule_ids)), "limit": limit})
        found: dict[str, list[Firing]] = {}
        for name, *row in rows:
            found.setdefault(name, []).append(from_row(Firing, row))
        return found

    def firings_between(
        self, ranges: Sequence[tuple[datetime, datetime]], *, ids: Iterable[UUID] | None = None, limit: int
    ) -> list[CalendarFiring]:
        """Those of all schedules or of these, the oldest first, `limit` of each range at most."""
        firsts, lasts = (array(moment.isoformat() for moment in moments) for moments in zip(*ranges, strict=True))
        parameters: dict[str, Any] = {"firsts": firsts, "lasts": lasts, "limit": limit}
        if ids is None:
            rows = self._execute("firings_between", parameters)
        else:
            rows = self._execute("firings_of_schedules_between", parameters | {"ids": array(map(str, ids))})
        return [from_row(CalendarFiring, row[1:], schedule=row[0]) for row in rows]

    def run(
        self, schedule: Schedule, fire_at: datetime, job: Mapping[str, Any], *, again: bool, detail: str
    ) -> tuple[UUID, bool]:
        """Make the job of a nominal time now; return it, and whether it is new. Raises TimeHasFired and InvalidJob."""
        parameters = {"schedule_id": str(schedule.schedule_id), "fire_at": fire_at, "again": again}
        parameters |= {"job": validate_json("schedule", dict(job)), **validate_texts({"detail": detail})}
        rows = self._execute("record_firing", parameters)
        if not rows:
            raise TimeHasFired(schedule.name, fire_at)
        outcome, job_id, field, problem = rows[0]
        if outcome == "invalid":
            raise InvalidJob.at_field(field, problem)
        return as_uuid(job_id), outcome == "created"

    # Called by the process that fires

    def due(self, *, limit: int, late_by_sec: float = 0.0, without: Collection[UUID] = ()) -> DueSchedules:
        """The schedules whose next time has passed by `late_by_sec`, the longest overdue first, and those
        whose datasets were updated that long ago; `without` some."""
        parameters = {"limit": limit, "late_by_sec": late_by_sec, "without": array(without)}
        rows = self._execute("due_schedules", parameters)
        due = [(from_row(Schedule, row[2:-2]), *map(json.loads, row[-2:])) for row in rows if row[2] is not None]
        updates = {schedule.schedule_id: Updates(datasets, ids) for schedule, datasets, ids in due if ids}
        return DueSchedules(rows[0][0], rows[0][1], [schedule for schedule, _, _ in due], updates)

    def live_jobs(self, schedule: Schedule, before: datetime) -> list[UUID]:
        """Jobs of earlier nominal times that have not ended."""
        parameters = {"schedule_id": str(schedule.schedule_id), "before": before}
        return [as_uuid(job_id) for (job_id,) in self._execute("live_jobs_of_schedule", parameters)]

    def fire(self, batch: Sequence[Mapping[str, Any]]) -> list[FiredTime]:
        """Account for nominal times and make their jobs, all or none; those that another process fired are left out."""
        return self._read(FiredTime, "fire_schedules", batch=validate_json("schedules", list(batch)))

    def declare(self, declared: Sequence[Mapping[str, Any]], worker_id: UUID) -> list[str]:
        """Create or update the schedules in the code of this process; return names that a schedule of people has."""
        if not declared:
            return []
        parameters = {"schedules": json.dumps(list(declared)), "worker_id": str(worker_id)}
        return [name for (name,) in self._execute("declare_schedules", parameters)]

    def record_error(self, schedule: Schedule, error: str | None) -> None:
        """Record why a schedule in code makes no jobs, or that nothing keeps it from making them."""
        parameters = {"schedule_id": str(schedule.schedule_id), "version": schedule.version, "error": error}
        self._execute("record_schedule_error", parameters)

    def see(self) -> list[str]:
        """Record which schedules live workers have in their code; return those that none has any more."""
        return [name for (name,) in self._execute("see_schedules", {"orphan_after_sec": ORPHAN_AFTER_SEC})]

    def prune(self, *, keep_sec: float, limit: int) -> int:
        """Delete old firings; return how many."""
        return int(self._execute("prune_firings", {"keep_sec": keep_sec, "limit": limit})[0][0])


def _pause_detail(schedule: Schedule) -> str:
    by = f" by {schedule.paused_by}" if schedule.paused_by else ""
    return f"paused{by}{f': {schedule.paused_reason}' if schedule.paused_reason else ''}"


def read_not_firing(executor: Executor) -> list[Schedule]:
    """The first of those that are paused, orphaned, in error or late."""
    return Schedules(executor).not_firing(late_sec=_LATE_AFTER_SEC, limit=_MAX_NOT_FIRING_READ)
