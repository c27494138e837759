"""Schedules of a queue, and the duty that fires them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dataloader.app.features.schedules.duty import SchedulesDuty
from dataloader.app.features.schedules.rows import Schedule, Schedules, Times
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.schedule_definition import definition_from
from dataloader.workers.metrics import PoolCounters
from tests.support.queue_fixture import QueueFixture

HOURLY = {"expression": "0 * * * *", "queue": "q", "zone": "UTC"}


class ScheduleFixture:
    def __init__(self, queue: QueueFixture) -> None:
        self.queue = queue
        self.schedules = Schedules(queue.session)
        self.tasks = Pipelines()
        self.counters = PoolCounters()
        self.duty = SchedulesDuty(
            queue.session, self.tasks, zone="UTC", default_lease_sec=60, record_firing=self.counters.record_firing
        )

    def create(self, name: str = "s", *, last: str = "now()", task: str = "t", **definition: Any) -> Schedule:
        """A schedule whose times after `last` are to be fired."""
        values = definition_from({**HOURLY, **definition, "task": task}, zone="UTC").to_json()
        last_at = self.queue.fetch_row(f"SELECT {last}")
        return self.schedules.create(name, task, values, Times(last_at, self.queue.fetch_row("SELECT now()")))

    def fire(self) -> None:
        while self.duty.run() == 0.0:
            pass

    def rows(self, columns: str = "fire_at, outcome") -> list[tuple[Any, ...]]:
        return self.queue.sql(f"SELECT {columns} FROM dl_firings ORDER BY fire_at")

    def counted(self) -> dict[tuple[str, str], float]:
        samples = [sample for metric in self.counters.collect() for sample in metric.samples]
        found = [sample for sample in samples if sample.name == "dataloader_schedule_firings_total"]
        return {(sample.labels["schedule"], sample.labels["outcome"]): sample.value for sample in found}

    def hour(self, ago: int = 0) -> datetime:
        """The last full hour, or one before it."""
        hour: datetime = self.queue.fetch_row(f"SELECT date_trunc('hour', now()) - interval '{ago} hours'")
        return hour
