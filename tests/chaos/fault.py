"""One fault: a beginning and an end, for a bounded time, and it undoes itself."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from tests.chaos.environment import Environment

BEYOND_LEASE_SEC = (4.0, 8.0)  # the longest lease has three seconds
BRIEF_SEC = (0.2, 1.0)


class Fault:
    """One injection of a fault; `chance` selects its victim."""

    name: ClassVar[str]
    duration_sec: ClassVar[tuple[float, float]] = BRIEF_SEC
    breaks_sessions: ClassVar[bool] = True  # a connection may end that its client had not closed

    def __init__(self, environment: Environment, random_source: random.Random) -> None:
        self.environment, self.random = environment, random_source
        self.detail = ""  # what it did, for the report

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Nothing is left to undo, unless a fault says so."""


def pick_one(candidates: Sequence[Any], random_source: random.Random) -> Any:
    return random_source.choice(list(candidates))


def signal_all(pids: Sequence[int], signal_number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal_number)
