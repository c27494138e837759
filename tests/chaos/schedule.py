"""Which fault begins when, for how long: all of it from the seed, before anything has begun."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.connection_faults import CONNECTION_FAULTS
from tests.chaos.fault import Fault
from tests.chaos.faults import FAULTS
from tests.chaos.process_faults import PROCESS_FAULTS
from tests.chaos.server_faults import SERVER_FAULTS
from tests.chaos.target_faults import TARGET_FAULTS
from tests.chaos.transaction_faults import TRANSACTION_FAULTS

_GAP_SEC = (1.5, 5.0)  # seconds of peace between two faults of a lane


@dataclass(frozen=True)
class PlannedFault:
    starts_at_sec: float  # seconds after the load began
    duration_sec: float
    fault: str
    lane: str
    seed: int  # what its own choices are made from

    def __str__(self) -> str:
        return f"{self.starts_at_sec:7.2f} s  {self.lane:<12} {self.fault}, {self.duration_sec:.2f} s"


def plan_faults(seed: int, seconds: float) -> list[PlannedFault]:
    """Four lanes at a time: processes die in one while the database and the network fail in another, transactions stay
    open in the third, and the target fails in the fourth.

    Each lane goes round all its kinds, in another order each time, so that a long run has met each of them.
    """
    lanes: dict[str, Sequence[type[Fault]]] = {
        "processes": PROCESS_FAULTS,
        "database": (*SERVER_FAULTS, *CONNECTION_FAULTS),
        "transactions": TRANSACTION_FAULTS,
        "targets": TARGET_FAULTS,
    }
    planned = [step for lane, kinds in lanes.items() for step in _plan_lane(seed, lane, kinds, seconds)]
    return sorted(planned, key=lambda step: (step.starts_at_sec, step.lane))


def _plan_lane(seed: int, lane: str, kinds: Sequence[type[Fault]], seconds: float) -> list[PlannedFault]:
    chance = random.Random(f"{seed} {lane}")
    at = chance.uniform(0.5, 3.0)
    found: list[PlannedFault] = []
    left: list[type[Fault]] = []
    while True:
        if not left:
            left = chance.sample(kinds, len(kinds))
        kind = left.pop()
        lasts = chance.uniform(*kind.duration_sec)
        if not found and kind.duration_sec[0] < seconds - at < lasts:
            lasts = seconds - at  # so that a short campaign has one, too
        if at + lasts > seconds:
            return found
        found.append(PlannedFault(round(at, 2), round(lasts, 2), kind.name, lane, chance.randrange(1 << 30)))
        at += lasts + chance.uniform(*_GAP_SEC)


def unplanned_faults(planned: Sequence[PlannedFault]) -> list[str]:
    """Kinds that no step of the plan is of."""
    return [name for name in FAULTS if name not in {step.fault for step in planned}]
