"""Circuit breakers: tasks that stop after too many failures in a row, or that a person has paused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from dataloader.app.db.encoding import from_row, validate_texts
from dataloader.app.db.statements import Executor
from dataloader.app.errors import BreakerNotFound

MAX_BREAKERS = 1_000
MAX_EXACT_WAITING = 10_000


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"  # no job of the task starts
    HALF_OPEN = "half_open"  # one at a time may; its outcome closes or opens the breaker


@dataclass(frozen=True, kw_only=True)
class BreakerStatus:
    """The breaker of a task. It opens after `failures` attempts in a row that ended with an error (null: only a person
    opens it), and at `probe_at` lets one job start (null while open: when a person closes it). `waiting` is exact up to
    ten thousand (`waiting_exact`)."""

    task: str
    state: BreakerState
    failures: int | None
    window_sec: int | None
    resume_sec: int
    failed_in_row: int
    opened_at: datetime | None
    probe_at: datetime | None
    reason: str | None
    is_declared: bool
    changed_by: str | None
    changed_at: datetime
    waiting: int
    waiting_exact: bool


class ProbeResult(NamedTuple):
    tasks: list[str]  # whose breaker is half-open now
    next_probe_in_sec: float | None


class Breakers:
    """Reads and changes the breakers of tasks."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def statuses(self) -> list[BreakerStatus]:
        """Those that are not closed first."""
        return self._statuses(None)

    def status(self, task: str) -> BreakerStatus:
        """Raises BreakerNotFound."""
        found = self._statuses(task)
        if not found:
            raise BreakerNotFound(task)
        return found[0]

    def _statuses(self, task: str | None) -> list[BreakerStatus]:
        parameters = {"task": task, "max_rows": MAX_BREAKERS, "max_waiting": MAX_EXACT_WAITING}
        return [from_row(BreakerStatus, row) for row in self._execute("breakers", parameters)]

    def set(
        self,
        task: str,
        *,
        failures: int | None = None,
        window_sec: int | None = None,
        resume_sec: int | None = None,
        state: BreakerState | None = None,
        probe_at: str | None = None,
        reason: str | None = None,
        changed_by: str | None = None,
    ) -> BreakerStatus:
        """Create or change a breaker; None leaves a value as it is. `window_sec` is set with `failures`, `reason` and
        `probe_at` with `state`."""
        texts = validate_texts({"task": task, "probe_at": probe_at, "reason": reason, "changed_by": changed_by})
        numbers = {"failures": failures, "window_sec": window_sec, "resume_sec": resume_sec}
        self._execute("set_breaker", texts | numbers | {"state": state and state.value})
        return self.status(task)

    def delete(self, task: str) -> None:
        """Delete a breaker; jobs that wait for it may start. Raises BreakerNotFound."""
        if not self._execute("delete_breaker", validate_texts({"task": task}))[0][0]:
            raise BreakerNotFound(task)

    # Called by worker processes

    def declare(self, declared: Sequence[Mapping[str, Any]]) -> None:
        """Create or update the breakers that tasks declare, each with task, failures, window_sec and resume_sec."""
        if declared:
            self._execute("declare_breakers", {"breakers": json.dumps(declared)})

    def probe(self) -> ProbeResult:
        """Let one job start of each task whose pause is over."""
        *rows, (_, next_sec) = self._execute("probe_breakers")
        return ProbeResult([row[0] for row in rows], next_sec)


def read_open_breakers(executor: Executor) -> list[BreakerStatus]:
    """Those that are not closed."""
    return [breaker for breaker in Breakers(executor).statuses() if breaker.state is not BreakerState.CLOSED]
