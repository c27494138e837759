"""Limits and pauses of a campaign: set before its first job, and changed meanwhile as an operator does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

from dataloader.app.db.connection import Session
from dataloader.app.features.limits.breakers import Breakers, BreakerState
from dataloader.app.features.limits.rows import Limits
from tests.chaos.history import LimitChange, Pause
from tests.chaos.operator import Operator, last_event, now

CHANGED_LIMIT = "warehouse"
MAX_WEIGHT = 2  # of a job in that limit
LAST_CONCURRENCY = 4
_CONCURRENCIES = (1, 4, 2, 3, 1, 5)  # in turn; jobs of weight 2 wait while it is 1
_INITIAL: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHANGED_LIMIT, {"concurrency": 3}),
    ("tenant:*", {"concurrency": 2}),
    ("partner", {"rate": 5, "per_sec": 1.0}),
)
PAUSED_TASK = "chaos.fragile"


class LimitOperator(Operator):
    """Sets limits, and records each change with the events around it; pauses and resumes a task."""

    def __init__(self, seed: int, dsn: Callable[[], str]) -> None:
        super().__init__(seed, dsn, "limits")
        self.changes: list[LimitChange] = []  # one thread at a time
        self.pauses: list[Pause] = []
        self._paused_at: datetime | None = None

    def set_all(self) -> None:
        for name, setting in _INITIAL:
            self._set(name, setting)

    def turn(self, number: int) -> None:
        self._set(CHANGED_LIMIT, {"concurrency": _CONCURRENCIES[number % len(_CONCURRENCIES)]})
        self._pause(is_paused=number % 2 == 0)

    def finish(self) -> None:
        self._set(CHANGED_LIMIT, {"concurrency": LAST_CONCURRENCY})
        self._pause(is_paused=False)

    def _set(self, name: str, setting: dict[str, Any]) -> None:
        change = change_limit(
            self, name, setting, lambda session: Limits(session).set(name, **setting, changed_by="chaos")
        )
        self.changes += [] if change is None else [change]

    def _pause(self, *, is_paused: bool) -> None:
        """Pause or resume a task."""

        def change(session: Session) -> None:
            before = now(session)
            if self._paused_at is not None:
                self.pauses.append(Pause(PAUSED_TASK, self._paused_at, before))
                self._paused_at = None
            state = BreakerState.OPEN if is_paused else BreakerState.CLOSED
            Breakers(session).set(PAUSED_TASK, state=state, changed_by="chaos")
            self._paused_at = now(session) if is_paused else None

        self.confirm(change)


def change_limit(
    operator: Operator, name: str, setting: dict[str, Any], action: Callable[[Session], object]
) -> LimitChange | None:
    """Do what changes a limit until it is confirmed. Without a confirmation it may be in force from the first try on;
    None: it was never tried."""
    before: int | None = None

    def change(session: Session) -> int:
        nonlocal before
        before = last_event(session) if before is None else before
        action(session)
        return last_event(session)

    after = operator.confirm(change)
    if before is None:
        return None
    return LimitChange(name=name, event_before=before, event_after=sys.maxsize if after is None else after, **setting)
