"""Limits: how many jobs may run at a time, and how many may start in a time, over all worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from dataloader.app.db.encoding import from_row, validate_texts
from dataloader.app.db.statements import Executor
from dataloader.app.errors import LimitInUse, LimitNotFound

MAX_NAMES = 1_000
MAX_EXACT_WAITING = 10_000
MAX_HOLDERS = 200
_WAKE_BATCH = 500  # limits


@dataclass(frozen=True, kw_only=True)
class LimitStatus:
    """A limit and its use. `setting` is the name of the row that applies: its own, a default such as `tenant:*`, or
    None. `concurrency` is what holds now: at most 0 or 1 while the circuit breaker of its task is open or half-open;
    `own_concurrency` is what was set. `used` is the weight of the running jobs. `waiting` is exact up to ten thousand
    (`waiting_exact`)."""

    name: str
    setting: str | None
    concurrency: int | None
    own_concurrency: int | None
    rate: int | None
    per_sec: float | None
    burst: int | None
    note: str | None
    changed_by: str | None
    changed_at: datetime | None
    used: int
    waiting: int
    waiting_exact: bool
    waiting_since: datetime | None
    next_start_in_sec: float | None  # of a rate


@dataclass(frozen=True)
class LimitHolder:
    """A running job that counts in a limit."""

    job_id: UUID
    queue: str
    task: str
    weight: int
    worker: str | None
    started_at: datetime | None


class WakeResult(NamedTuple):
    cursor: str  # the last limit that was looked at; "" after the last one
    repaired: int  # jobs that the end of a run should have woken
    next_start_in_sec: float | None  # of the rates that jobs wait for; None: there is none


class Limits:
    """Reads and changes limits."""

    def __init__(self, executor: Executor) -> None:
        self._execute = executor.execute

    def statuses(self) -> list[LimitStatus]:
        """Limits with a setting, and names that jobs wait for or hold, by name."""
        return self._statuses(None)

    def names(self, *, limit: int) -> list[str]:
        """Limits with a setting, by name."""
        return [row[0] for row in self._execute("limit_names", {"limit": limit})]

    def status(self, name: str) -> LimitStatus:
        """Raises LimitNotFound if the limit has no setting and no job uses it."""
        found = self._statuses(name)
        if not found:
            raise LimitNotFound(name)
        return found[0]

    def _statuses(self, name: str | None) -> list[LimitStatus]:
        parameters = {"name": name, "max_names": MAX_NAMES, "max_waiting": MAX_EXACT_WAITING}
        return [from_row(LimitStatus, row) for row in self._execute("limits", parameters)]

    def of_queue(self, queue: str) -> dict[str, int]:
        """The limits that jobs of a queue wait for, each with their number, at most ten thousand."""
        parameters = {"queue": queue, "max_names": MAX_NAMES, "max_waiting": MAX_EXACT_WAITING}
        return {row[0]: row[1] for row in self._execute("limits_of_queue", parameters)}

    def holders(self, name: str) -> list[LimitHolder]:
        """The running jobs that count in a limit, longest first."""
        return [from_row(LimitHolder, r) for r in self._execute("limit_holders", {"name": name, "limit": MAX_HOLDERS})]

    def set(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: int | None = None,
        per_sec: float | None = None,
        burst: int | None = None,
        note: str | None = None,
        changed_by: str | None = None,
    ) -> LimitStatus:
        """Create or replace the setting of a limit. It holds from the next claim of any worker process."""
        values = {"concurrency": concurrency, "rate": rate, "per_sec": per_sec, "burst": burst}
        texts = validate_texts({"name": name, "note": note, "changed_by": changed_by})
        self._execute("set_limit", texts | values)
        return self.status(name)

    def delete(self, name: str) -> None:
        """Delete a setting; jobs that wait for it may start. Raises LimitNotFound and LimitInUse."""
        if not self._execute("delete_limit", validate_texts({"name": name}))[0][0]:
            if name.startswith("backfill:") and self.status(name).concurrency is not None:
                raise LimitInUse(name)
            raise LimitNotFound(name)

    # Called by worker processes

    def wake(self, *, after: str = "") -> WakeResult:
        """Wake the jobs of the next limits that may start: those of rates, whose time has come, and those that the end
        of a run has missed."""
        rows = self._execute("wake_limited", {"after": after, "max_names": _WAKE_BATCH})
        repaired = sum(woken for _, woken, has_rate, _ in rows if not has_rate)
        waits_sec = [wait_sec for _, _, has_rate, wait_sec in rows if has_rate]
        cursor = rows[-1][0] if len(rows) >= _WAKE_BATCH else ""
        return WakeResult(cursor, repaired, min(waits_sec, default=None))

    def prune(self) -> None:
        """Delete what is known of starts that no longer delay anything."""
        self._execute("prune_limit_starts")

    def acquire(self, name: str, weight: int = 1) -> float:
        """Count calls in a rate; return 0.0 if they may be made now, else the seconds to wait before the next try. A
        name without a rate has no limit. Raises ValueError for more calls than the burst allows."""
        return seconds_to_wait(self._execute("acquire_limit", {"name": name, "weight": weight}), weight)


def seconds_to_wait(rows: Sequence[tuple[Any, ...]], weight: int) -> float:
    """What the statement `acquire_limit` answered: 0.0 if the calls were counted."""
    if not rows or rows[0][0]:
        return 0.0
    _, wait_sec, burst = rows[0]
    if weight > burst:
        raise ValueError(f"{weight} calls at once are more than the burst of {burst} that the rate allows")
    return float(max(0.001, wait_sec))
