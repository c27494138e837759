"""Operators of a campaign: they change settings through the product's own statements, until each is confirmed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from typing import TypeVar

from dataloader.app.db.connection import Session
from dataloader.app.errors import DataloaderError

CHANGE_TIMEOUT_SEC = 60.0
_PAUSE_SEC = (3.0, 8.0)
_NOW = "SELECT clock_timestamp()"
_LAST_EVENT = "SELECT last_value FROM dl_job_events_event_id_seq"
T = TypeVar("T")


class Operator:
    """Calls `turn` every few seconds in a thread of its own. A subclass records what it changes."""

    def __init__(
        self, seed: int, dsn: Callable[[], str], kind: str, *, pause_sec: tuple[float, float] = _PAUSE_SEC
    ) -> None:
        self._dsn, self.random, self._pause_sec = dsn, random.Random(f"{kind} {seed}"), pause_sec
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{kind}-operator", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Make no more changes but the last ones."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(CHANGE_TIMEOUT_SEC + 30)
            self.finish()

    def turn(self, number: int) -> None:
        """One round of changes."""
        raise NotImplementedError

    def finish(self) -> None:
        """What lets every job end."""

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(self.random.uniform(*self._pause_sec)):
            self.turn(number)
            number += 1

    def confirm(self, action: Callable[[Session], T]) -> T | None:
        """Repeat the action until it is answered; None: not in time. It may have been done several times then."""
        until = time.monotonic() + CHANGE_TIMEOUT_SEC
        while time.monotonic() < until:
            try:
                with closing(Session(self._dsn(), application_name="chaos-operator")) as session:
                    return action(session)
            except DataloaderError:
                time.sleep(0.3)
        return None


def now(session: Session) -> datetime:
    ((moment,),) = session.execute_raw(_NOW)
    assert isinstance(moment, datetime)
    return moment


def last_event(session: Session) -> int:
    ((number,),) = session.execute_raw(_LAST_EVENT)
    return int(number)
