"""Which fault begins when, for how long: all of it from the seed, before anything has begun."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.faults import FAULTS, PROCESS_FAULTS, SERVER_FAULTS, Fault

_GAP = (1.5, 5.0)  # seconds of peace between two faults of a lane


@dataclass(frozen=True)
class Planned:
    at: float  # seconds after the load began
    lasts: float
    fault: str
    lane: str
    draw: int  # what its own choices are made from

    def __str__(self) -> str:
        return f"{self.at:7.2f} s  {self.lane:<9} {self.fault}, {self.lasts:.2f} s"


def schedule(seed: int, seconds: float) -> list[Planned]:
    """Two lanes at a time: processes die in one while the database and the network fail in the other.

    Each lane goes round all its kinds, in another order each time, so that a long run has met each of them.
    """
    lanes = {"processes": PROCESS_FAULTS, "database": SERVER_FAULTS}
    planned = [step for lane, kinds in lanes.items() for step in _lane(seed, lane, kinds, seconds)]
    return sorted(planned, key=lambda step: (step.at, step.lane))


def _lane(seed: int, lane: str, kinds: Sequence[type[Fault]], seconds: float) -> list[Planned]:
    chance = random.Random(f"{seed} {lane}")
    at = chance.uniform(0.5, 3.0)
    found: list[Planned] = []
    left: list[type[Fault]] = []
    while True:
        if not left:
            left = chance.sample(kinds, len(kinds))
        kind = left.pop()
        lasts = chance.uniform(*kind.lasts)
        if at + lasts > seconds:
            return found
        found.append(Planned(round(at, 2), round(lasts, 2), kind.name, lane, chance.randrange(1 << 30)))
        at += lasts + chance.uniform(*_GAP)


def unmet(planned: Sequence[Planned]) -> list[str]:
    """Kinds that no step of the plan is of."""
    return [name for name in FAULTS if name not in {step.fault for step in planned}]
