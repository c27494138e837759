"""Limits and pauses of a campaign: set before its first job, and changed meanwhile as an operator does."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from typing import Any

from app.admin.breakers import Breakers, BreakerState
from app.admin.limits import Limits
from app.db.connection import Session
from app.errors import DataloaderError
from tests.chaos.history import LimitChange, Pause

CHANGED_LIMIT = "warehouse"
MAX_WEIGHT = 2  # of a job in that limit
LAST_CONCURRENCY = 4
_CONCURRENCIES = (1, 4, 2, 3, 1, 5)  # in turn; jobs of weight 2 wait while it is 1
_INITIAL: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHANGED_LIMIT, {"concurrency": 3}),
    ("tenant:*", {"concurrency": 2}),
    ("partner", {"rate": 5, "per_sec": 1.0}),
)
_PAUSE_SEC = (3.0, 8.0)
_CHANGE_TIMEOUT_SEC = 60.0
PAUSED_TASK = "chaos.fragile"
_NOW = "SELECT clock_timestamp()"
_LAST_EVENT = "SELECT last_value FROM dl_job_events_event_id_seq"


class LimitOperator:
    """Sets limits through the product's own statements, and records each change with the events around it."""

    def __init__(self, seed: int, dsn: Callable[[], str]) -> None:
        self.changes: list[LimitChange] = []  # one thread at a time
        self.pauses: list[Pause] = []
        self._paused_at: datetime | None = None
        self._dsn, self._random = dsn, random.Random(f"limits {seed}")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="limit-operator", daemon=True)

    def set_all(self) -> None:
        for name, setting in _INITIAL:
            self._set(name, setting)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Make no more changes; the last one leaves room for every job."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_CHANGE_TIMEOUT_SEC + 30)
            self._set(CHANGED_LIMIT, {"concurrency": LAST_CONCURRENCY})
            self._pause(is_paused=False)

    def _run(self) -> None:
        turn = 0
        while not self._stopping.wait(self._random.uniform(*_PAUSE_SEC)):
            self._set(CHANGED_LIMIT, {"concurrency": _CONCURRENCIES[turn % len(_CONCURRENCIES)]})
            self._pause(is_paused=turn % 2 == 0)
            turn += 1

    def _set(self, name: str, setting: dict[str, Any]) -> None:
        """Send the change until it is confirmed. Without a confirmation it may be in force from the first try on."""
        until = time.monotonic() + _CHANGE_TIMEOUT_SEC
        before = None
        while time.monotonic() < until:
            try:
                with closing(Session(self._dsn(), application_name="chaos-operator")) as session:
                    before = _last_event(session) if before is None else before
                    Limits(session).set(name, **setting, changed_by="chaos")
                    after = _last_event(session)
            except DataloaderError:
                time.sleep(0.3)
                continue
            self.changes.append(LimitChange(name=name, event_before=before, event_after=after, **setting))
            return
        if before is not None:
            self.changes.append(LimitChange(name=name, event_before=before, event_after=sys.maxsize, **setting))

    def _pause(self, *, is_paused: bool) -> None:
        """Pause a task, or let it run again; try until it is confirmed."""
        until = time.monotonic() + _CHANGE_TIMEOUT_SEC
        while time.monotonic() < until:
            try:
                with closing(Session(self._dsn(), application_name="chaos-operator")) as session:
                    before = _now(session)
                    if self._paused_at is not None:
                        self.pauses.append(Pause(PAUSED_TASK, self._paused_at, before))
                        self._paused_at = None
                    state = BreakerState.OPEN if is_paused else BreakerState.CLOSED
                    Breakers(session).set(PAUSED_TASK, state=state, changed_by="chaos")
                    self._paused_at = _now(session) if is_paused else None
            except DataloaderError:
                time.sleep(0.3)
                continue
            return


def _now(session: Session) -> datetime:
    ((moment,),) = session.execute_raw(_NOW)
    assert isinstance(moment, datetime)
    return moment


def _last_event(session: Session) -> int:
    ((number,),) = session.execute_raw(_LAST_EVENT)
    return int(number)
