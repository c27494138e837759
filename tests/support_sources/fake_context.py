"""A pipeline's context without a service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg2

from dataloader.pipelines import targets
from dataloader.pipelines.contract import Args, Stop, StopReason, registry
from dataloader.pipelines.reports import Check, DatasetUse, parse_check, parse_dataset


@dataclass
class _RecordingContext:
    """Records calls; `sleep` does not wait unless a test replaces it. Stops when `stop_when` returns true."""

    attempt: int = 1
    job_id: UUID = field(default_factory=uuid4)
    stop_when: Callable[[], bool] = lambda: False
    on_check: Callable[[], object] = lambda: None
    on_sleep: Callable[[float], object] = lambda _: None
    sleeps: list[float] = field(default_factory=list)
    progress_reports: list[dict[str, Any]] = field(default_factory=list)

    checks: list[Check] = field(default_factory=list)
    datasets: list[DatasetUse] = field(default_factory=list)
    result: Any = None  # of a final transaction

    def check(self, name: str | None = None, value: float | None = None, **limits: Any) -> None:
        self.on_check()
        if self.stop_when():
            raise Stop(StopReason.CANCEL)
        if name is not None:
            rule = {"vs": None, "tolerance": None, "severity": "fail", **limits}
            low, high = rule.pop("min", None), rule.pop("max", None)
            self.checks.append(parse_check(name, value, low=low, high=high, **rule).evaluate(()))

    def produced(self, dataset: str, **more: Any) -> None:
        self.datasets.append(parse_dataset("produced", dataset, **more))

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.on_sleep(seconds)
        self.check()

    @contextmanager
    def transaction(self, *, target: str, final: bool = False, result: Any = None) -> Iterator[Any]:
        """In the target of the settings, without a fence."""
        self.check()
        with closing(psycopg2.connect(targets.target(target))) as connection, connection:
            yield connection
        if final:
            self.result = result

    def progress(self, done: int | None = None, total: int | None = None, unit: str | None = None, **more: Any) -> None:
        self.progress_reports.append({"done": done, "total": total, "unit": unit, **more})


RecordingContext: Any = _RecordingContext  # stands for a Context, of which it has what the shipped pipelines use


def start_task(name: str, args: Args, ctx: Any = None) -> Any:
    """Call a registered task as a worker does: with its args checked and converted."""
    task = registry.get(name)
    assert task is not None
    return task.start(args, ctx or RecordingContext())
