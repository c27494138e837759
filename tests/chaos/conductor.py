"""Injects what was planned, a thread a lane, and remembers what was really done."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.chaos.faults import FAULTS, Fault
from tests.chaos.moments import clock
from tests.chaos.schedule import Planned
from tests.chaos.world import World


@dataclass(frozen=True)
class Injected:
    fault: str
    began: float  # by the clock of all processes
    ended: float
    told: str
    failed: str = ""  # why it could not be injected or undone


class Conductor:
    def __init__(self, world: World, planned: Sequence[Planned], *, say: Callable[[str], None]) -> None:
        self._world, self._planned, self._say = world, planned, say
        self._lock = threading.Lock()
        self._done: list[Injected] = []  # under the lock
        self._began = 0.0

    def play(self) -> list[Injected]:
        """Returns when the last fault has been undone."""
        self._began = time.monotonic()
        lanes = {step.lane for step in self._planned}
        threads = [
            threading.Thread(target=self._lane, args=(lane,), name=f"lane-{lane}", daemon=True)
            for lane in sorted(lanes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(self._done, key=lambda injected: injected.began)

    def _lane(self, lane: str) -> None:
        for step in self._planned:
            if step.lane == lane:
                # A fault that took longer than planned puts off the next; its order and its choices stay.
                time.sleep(max(0.0, self._began + step.at - time.monotonic()))
                self._inject(step)

    def _inject(self, step: Planned) -> None:
        fault, began, failed = FAULTS[step.fault](self._world, random.Random(step.draw)), clock(), ""
        try:
            fault.begin()
            time.sleep(step.lasts)
        except Exception as error:  # the other lane's fault may be in its way: it is told, not hidden
            failed = f"{type(error).__name__}: {error}".strip()
        try:
            fault.end()
        except Exception as error:
            failed = failed or f"{type(error).__name__}: {error}".strip()
        self._keep(step, fault, began, failed)

    def _keep(self, step: Planned, fault: Fault, began: float, failed: str) -> None:
        injected = Injected(step.fault, began, clock(), fault.told.strip(), failed)
        with self._lock:
            self._done.append(injected)
        told = f" ({injected.told})" if injected.told else ""
        self._say(
            f"{time.monotonic() - self._began:7.1f} s  {step.fault}{told}, {injected.ended - began:.1f} s"
            + (f"  NOT DONE: {failed}" if failed else "")
        )
