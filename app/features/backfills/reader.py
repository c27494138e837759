"""Backfills as callers see them: those of visible tasks and queues, with their slices and the limits that bind them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from dataloader.app.db.statements import Executor
from dataloader.app.errors import BackfillNotFound, LimitNotFound
from dataloader.app.features.backfills.rows import Backfill, Backfills
from dataloader.app.features.backfills.template import definition_of, job_of
from dataloader.app.features.limits.rows import Limits
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.options import WebOptions
from dataloader.app.log.masking import mask_secret_fields
from dataloader.app.state.queues import Queues
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.partitions import Listed, Partitions, Slice, partitions_from_json
from dataloader.pipelines.schedule_definition import ScheduleDefinition


def visible_backfill(backfill: Backfill) -> Backfill:
    """A backfill as callers see it: secrets in the args of its jobs are masked."""
    return replace(backfill, template=mask_secret_fields(backfill.template))


class BackfillReader:
    def __init__(self, executor: Executor, pipelines: Pipelines, options: WebOptions) -> None:
        self.backfills = Backfills(executor)
        self._limits, self._queues = Limits(executor), Queues(executor)
        self._pipelines, self._options = pipelines, options

    def newest(self, *, task: str | None = None, is_open: bool = False, limit: int) -> list[Backfill]:
        can_see = current_actor().can_see
        found = self.backfills.newest(task=task, is_open=is_open, limit=limit)
        return [backfill for backfill in found if can_see(backfill.task, backfill.queue)]

    def get(self, backfill_id: UUID) -> Backfill:
        """Raises BackfillNotFound."""
        backfill = self.backfills.get(backfill_id)
        if not current_actor().can_see(backfill.task, backfill.queue):
            raise BackfillNotFound(backfill_id)
        return backfill

    def partitions_of(self, backfill: Backfill) -> Partitions | None:
        """The slices that it names; None: another program has written something else."""
        with suppress(ValueError):
            return partitions_from_json(backfill.slices)
        return None

    def partitions_of_task(self, task: str) -> Partitions | None:
        """The slices of a task that have ended by now; None: it declares none, or none has ended."""
        known = self._pipelines.get(task)
        declared = None if known is None else known.options.partitions
        if declared is None or isinstance(declared, Listed):
            return declared
        declared = declared.in_zone(self._options.timezone)
        last = declared.last_ended(datetime.now(UTC))
        return None if last is None else declared.between(last=last.key)

    def limits_of(self, backfill: Backfill) -> dict[str, int]:
        """The limits that let fewer jobs of a backfill run at a time than its concurrency, with how many."""
        partitions = self.partitions_of(backfill)
        first = None if partitions is None else next(partitions.slices(), None)
        if first is None:
            return {}
        try:
            job = self.job(definition_of(backfill), first)
        except (ValueError, TypeError):  # its task has changed since
            return {}
        return self.binding_limits(job, backfill.concurrency, backfill.queue)

    def job(self, definition: ScheduleDefinition, part: Slice) -> dict[str, Any]:
        """The request of the job of a slice, as far as it is the same in all backfills. Raises ValueError."""
        lease_sec = self._options.default_lease_ttl_sec
        return job_of(definition, part, self._pipelines, default_lease_sec=lease_sec, lock_key=part.key)

    def binding_limits(self, job: Mapping[str, Any], concurrency: int, queue: str) -> dict[str, int]:
        """The limits that let fewer jobs like this one run at a time."""
        weights = {**(job.get("limits") or {}), f"queue:{queue}": 1, f"task:{job['task']}": 1}
        binding: dict[str, int] = {}
        for name, weight in weights.items():
            try:
                allowed = self._limits.status(name).concurrency
            except LimitNotFound:
                continue
            if allowed is not None and allowed // weight < concurrency:
                binding[name] = allowed // weight
        (setting,) = self._queues.statuses(queue=queue) or (None,)
        if setting is not None and setting.concurrency is not None and setting.concurrency < concurrency:
            binding[f"queue:{queue}"] = setting.concurrency
        return binding
