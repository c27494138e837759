"""Schedules as callers see them: those of visible tasks, with what applies, and the jobs of their next times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from dataloader.app.db.statements import Executor
from dataloader.app.errors import ScheduleNotFound
from dataloader.app.features.schedules.rows import Schedule, Schedules, ScheduleSource
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.options import WebOptions
from dataloader.app.http.problems import InvalidRequest
from dataloader.app.http.schemas import field_errors
from dataloader.app.log.masking import mask_secret_fields
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.schedule_definition import ScheduleDefinition, definition_from, scheduled_job

_MAX_CACHED_DEFINITIONS = 2_000


@dataclass(frozen=True, kw_only=True)
class ScheduleDetail(Schedule):
    """A schedule with what applies, in words too, and the fields in which it differs from the code. Secrets in its args
    are masked."""

    definition: dict[str, Any]
    explanation: str | None
    differs_from_code: list[str]


@dataclass(frozen=True, kw_only=True)
class PreviewTime:
    """A nominal time. `note`: moved out of a gap that a clock change makes, or within what it repeats. `args` are those
    of the job; null, with the `problem`, if none can be made."""

    at: datetime
    local_time: str
    note: str | None
    starts_at: datetime
    interval_start: datetime | None
    interval_end: datetime | None
    partition: str | None
    args: dict[str, Any] | None
    problem: str | None


@dataclass(frozen=True)
class Preview:
    """The next times of a schedule."""

    explanation: str | None
    times: list[PreviewTime]


class ScheduleReader:
    """Reads schedules for a caller, who sees those of visible tasks."""

    def __init__(self, executor: Executor, pipelines: Pipelines, options: WebOptions) -> None:
        self.schedules = Schedules(executor)
        self._pipelines, self._options = pipelines, options

    def list_visible(self, *, task: str | None = None) -> list[Schedule]:
        can_see_task = current_actor().can_see_task
        return [schedule for schedule in self.schedules.list_by_name(task=task) if can_see_task(schedule.task)]

    def get(self, name: str) -> Schedule:
        """Raises ScheduleNotFound."""
        schedule = self.schedules.get(name)
        if not current_actor().can_see_task(schedule.task):
            raise ScheduleNotFound(name)
        return schedule

    def detail(self, schedule: Schedule) -> ScheduleDetail:
        try:
            explanation = explain(self.definition(schedule))
        except InvalidRequest:
            explanation = None
        changed = schedule.overrides if schedule.source is ScheduleSource.CODE else {}
        differs = sorted(name for name, value in changed.items() if schedule.declared.get(name) != value)
        fields = vars(schedule) | {"definition": schedule.effective_definition}
        fields |= {name: mask_secret_fields(fields[name]) for name in ("declared", "overrides", "definition")}
        return ScheduleDetail(**fields, explanation=explanation, differs_from_code=differs)

    def definition(self, schedule: Schedule) -> ScheduleDefinition:
        """What applies. Raises InvalidRequest if it does not hold any more."""
        values = self._with_slices({**schedule.effective_definition, "task": schedule.task})
        try:
            return _parse_stored(json.dumps(values), self._options.timezone)
        except ValidationError as error:
            raise InvalidRequest(list(field_errors(error))) from None

    def validate(self, values: Mapping[str, Any]) -> ScheduleDefinition:
        """The definition, with the slices that its task declares. Raises InvalidRequest."""
        try:
            return definition_from(self._with_slices(values), zone=self._options.timezone)
        except ValidationError as error:
            raise InvalidRequest(list(field_errors(error))) from None

    def _with_slices(self, values: Mapping[str, Any]) -> dict[str, Any]:
        task = self._pipelines.get(str(values.get("task")))
        if task is None or task.options.partitions is None or values.get("partitions") is not None:
            return dict(values)
        return {**values, "partitions": task.options.partitions.to_json()}

    def job(self, name: str, schedule_id: UUID, definition: ScheduleDefinition, fire_at: datetime) -> dict[str, Any]:
        """The request of the job of a nominal time. Raises ValueError."""
        return scheduled_job(
            name,
            str(schedule_id),
            definition,
            fire_at,
            self._pipelines.get(definition.task),
            default_lease_sec=self._options.default_lease_ttl_sec,
        )

    def preview(self, name: str, definition: ScheduleDefinition, begin: datetime | None, count: int) -> Preview:
        """The next times after `begin`, by default now, and their jobs."""
        following = () if definition.timing is None else definition.timing.after(begin or datetime.now(UTC))
        times = [self._preview_time(name, definition, time.at, time.note) for time in islice(following, count)]
        return Preview(explain(definition), times)

    def _preview_time(self, name: str, definition: ScheduleDefinition, at: datetime, note: str | None) -> PreviewTime:
        job: dict[str, Any] = {}
        problem = None
        try:
            job = self.job(name, UUID(int=0), definition, at)
        except (ValueError, TypeError) as error:
            problem = str(error)
        start, end = job.get("interval_start"), job.get("interval_end")
        return PreviewTime(
            at=at.astimezone(UTC),
            local_time=at.isoformat(),
            note=note,
            starts_at=(at + definition.jitter(name, at)).astimezone(UTC),
            interval_start=start and datetime.fromisoformat(start).astimezone(UTC),
            interval_end=end and datetime.fromisoformat(end).astimezone(UTC),
            partition=job.get("partition_key"),
            args=mask_secret_fields(job.get("args")),
            problem=problem,
        )


@lru_cache(maxsize=_MAX_CACHED_DEFINITIONS)
def _parse_stored(raw: str, zone: str) -> ScheduleDefinition:
    """The definition of a schedule. Pages read all of them, and to check one takes 0.1 ms."""
    return definition_from(json.loads(raw), zone=zone)


def explain(definition: ScheduleDefinition) -> str:
    """When it fires, as a sentence."""
    if definition.timing is not None:
        return definition.timing.explain()
    quantity = "all of" if definition.need == "all" else "one of"
    return f"When {quantity} {', '.join(definition.after)} {'are' if len(definition.after) > 1 else 'is'} updated"
