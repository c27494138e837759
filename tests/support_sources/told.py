"""A pipeline's context without a service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from pipelines.contract import Stop, StopReason


@dataclass
class _Told:
    """Remembers what it is told; does not wait in `sleep`, unless a test says how. Stops when `stop_when` says so."""

    attempt: int = 1
    job_id: UUID = field(default_factory=uuid4)
    stop_when: Callable[[], bool] = lambda: False
    on_check: Callable[[], object] = lambda: None
    on_sleep: Callable[[float], object] = lambda _: None
    naps: list[float] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def check(self) -> None:
        self.on_check()
        if self.stop_when():
            raise Stop(StopReason.CANCEL)

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.on_sleep(seconds)
        self.check()

    def progress(self, done: int | None = None, total: int | None = None, unit: str | None = None, **more: Any) -> None:
        self.notes.append({"done": done, "total": total, "unit": unit, **more})


Told: Any = _Told  # stands for a Context, of which it has what the shipped pipelines use
