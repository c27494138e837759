"""Injects what was planned, a thread a lane, and remembers what was really done."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.chaos.clock import clock
from tests.chaos.environment import Environment
from tests.chaos.fault import Fault
from tests.chaos.faults import FAULTS
from tests.chaos.schedule import PlannedFault


@dataclass(frozen=True)
class InjectedFault:
    fault: str
    started_at: float  # by the clock of all processes
    ended_at: float
    detail: str
    failed: str = ""  # why it could not be injected or undone


class FaultRunner:
    def __init__(
        self, environment: Environment, planned: Sequence[PlannedFault], *, log: Callable[[str], None]
    ) -> None:
        self._environment, self._planned, self._log = environment, planned, log
        self._lock = threading.Lock()
        self._injected: list[InjectedFault] = []  # under the lock
        self._started_at = 0.0

    def run(self) -> list[InjectedFault]:
        """Returns when the last fault has been undone."""
        self._started_at = time.monotonic()
        lanes = {step.lane for step in self._planned}
        threads = [
            threading.Thread(target=self._run_lane, args=(lane,), name=f"lane-{lane}", daemon=True)
            for lane in sorted(lanes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(self._injected, key=lambda injected: injected.started_at)

    def _run_lane(self, lane: str) -> None:
        for step in self._planned:
            if step.lane == lane:
                # A fault that took longer than planned puts off the next; its order and its choices stay.
                time.sleep(max(0.0, self._started_at + step.starts_at_sec - time.monotonic()))
                self._inject(step)

    def _inject(self, step: PlannedFault) -> None:
        fault, began, failed = FAULTS[step.fault](self._environment, random.Random(step.seed)), clock(), ""
        try:
            fault.begin()
            time.sleep(step.duration_sec)
        except Exception as error:  # the fault of the other lane may interfere: report the error
            failed = f"{type(error).__name__}: {error}".strip()
        try:
            fault.end()
        except Exception as error:
            failed = failed or f"{type(error).__name__}: {error}".strip()
        self._record(step, fault, began, failed)

    def _record(self, step: PlannedFault, fault: Fault, started_at: float, failed: str) -> None:
        injected = InjectedFault(step.fault, started_at, clock(), fault.detail.strip(), failed)
        with self._lock:
            self._injected.append(injected)
        result = f" ({injected.detail})" if injected.detail else ""
        result += f", {injected.ended_at - started_at:.1f} s" + (f"  NOT DONE: {failed}" if failed else "")
        self._log(f"{time.monotonic() - self._started_at:7.1f} s  {step.fault}{result}")
