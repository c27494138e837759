"""The template of the jobs of a backfill: what is the same in all of them, as a definition without times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataloader.app.features.backfills.rows import Backfill
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.partitions import Slice
from dataloader.pipelines.schedule_definition import ScheduleDefinition, definition_from, fill_job, times_of_listed

_RULE = {"kind": "interval", "expression": "60"}  # of no meaning: the slices are the times
_NOT_STORED = ("task", "queue", *_RULE)


def new_definition(values: Mapping[str, Any], *, zone: str) -> ScheduleDefinition:
    """Raises pydantic's ValidationError."""
    return definition_from({**values, **_RULE}, zone=zone)


def stored_template(definition: ScheduleDefinition) -> dict[str, Any]:
    return {name: value for name, value in definition.to_json().items() if name not in _NOT_STORED}


def definition_of(backfill: Backfill) -> ScheduleDefinition:
    """Raises ValueError if it does not hold any more."""
    return ScheduleDefinition.model_validate(
        {**backfill.template, **_RULE, "task": backfill.task, "queue": backfill.queue}
    )


def job_of(
    definition: ScheduleDefinition, part: Slice, tasks: Pipelines, *, default_lease_sec: int, lock_key: str
) -> dict[str, Any]:
    """The request of the job of a slice. `lock_key` is for tasks that have none. Raises ValueError."""
    return fill_job(
        definition,
        times_of_listed(definition, part),
        tasks.get(definition.task),
        default_lease_sec=default_lease_sec,
        lock_key=lock_key,
    )
