"""Which load dies where, and what its zombie does: every place first, then whatever the seed draws."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, islice

from tests.target_proof.loads import SHAPES
from tests.target_proof.messages import Exchange, Side, step_name

SYSTEMATIC_PARTS, MAX_PARTS = 3, 6


class FaultKind(StrEnum):
    KILLED = "worker killed"
    LEFT_OPEN = "worker frozen for good"
    THAWED_EARLY = "frozen, thawed when its successor waits or has committed"
    THAWED_LATE = "frozen, thawed after the job's end"
    WITHOUT_QUEUE = "frozen, thawed without the queue"
    CUT = "connection cut"
    HALF_CUT = "connection cut, the session stays"
    TERMINATED = "session terminated"
    CHILD_KILLED = "process of the load killed"
    SERVER_KILLED = "server killed and restarted"


WIRE_KINDS = tuple(kind for kind in FaultKind if kind not in (FaultKind.CHILD_KILLED, FaultKind.SERVER_KILLED))

ZOMBIES = (FaultKind.LEFT_OPEN, FaultKind.THAWED_EARLY, FaultKind.THAWED_LATE, FaultKind.WITHOUT_QUEUE)
LEFT_SESSIONS = (FaultKind.LEFT_OPEN, FaultKind.HALF_CUT)  # at the servers, with nothing that uses them
_ALL_SIDES = tuple(Side)
_RANDOM_INTERVAL = 8
_OFTEN = ("target: COMMIT", "target: rows", "target: write the position", "queue: settle", "queue: draw the fence")
_FIRST_RANDOM = 1_000_000  # number of a plan: those of places come before
_SETTLES_OVER_WIRE = 0.25  # of random loads
_TWO_SIDES = (Side.REQUEST_HELD, Side.RESPONSE_HELD)
# A frozen worker does not differ by how much of a response it has not read yet.
_SIDES = {
    kind: _TWO_SIDES if kind in (*ZOMBIES, FaultKind.HALF_CUT, FaultKind.TERMINATED) else _ALL_SIDES
    for kind in FaultKind
}


@dataclass(frozen=True)
class Place:
    """Of the messages of an attempt."""

    exchange: int
    side: Side

    def is_at(self, exchange: Exchange, side: Side) -> bool:
        return (exchange.number, side) == (self.exchange, self.side)


@dataclass(frozen=True)
class PlannedFault:
    attempt: int  # of the load, from 0
    kind: FaultKind
    place: Place
    is_released: bool = False  # the job is given back uncounted, as at a shutdown; else its lease runs out
    ends_sessions: bool = True  # by their name, as what takes the job does where it reaches the servers
    outlasts_wait: bool = False  # the successor's wait for a lock is not ended for it
    thaws_at: Place | None = None  # of the messages of its successor
    deletes_row: bool = False  # the rows of the job are deleted before the zombie is thawed


@dataclass(frozen=True)
class LoadPlan:
    number: int
    shape: str
    parts: int
    faults: Sequence[PlannedFault] = ()
    settles_over_wire: bool = True  # a worker settles where faults are, else past them: a connection costs much


def systematic_loads(
    seed: int, exchanges: Mapping[str, Sequence[Exchange]], kinds: Sequence[FaultKind] = WIRE_KINDS
) -> list[LoadPlan]:
    """Every message of a load of each shape, each side of it, every kind of fault. `exchanges`: of a load that meets
    none."""
    places = [
        (shape, kind, Place(exchange.number, side))
        for shape, all_of_shape in exchanges.items()
        for exchange in all_of_shape
        for kind in kinds
        for side in _SIDES[kind]
    ]
    chance = random.Random(f"places {seed}")
    chance.shuffle(places)
    settles_from = {shape: _first_of_settlement(of_shape) for shape, of_shape in exchanges.items()}
    return [
        LoadPlan(
            number,
            shape,
            SYSTEMATIC_PARTS,
            [_fault(chance, 0, kind, place, len(exchanges[shape]))],
            settles_over_wire=place.exchange >= settles_from[shape],
        )
        for number, (shape, kind, place) in enumerate(places)
    ]


def _first_of_settlement(exchanges: Sequence[Exchange]) -> int:
    """The number of the last connect."""
    return max(exchange.number for exchange in exchanges if exchange.text == "connect")


def random_loads(seed: int, exchanges: Mapping[str, Sequence[Exchange]]) -> Iterator[LoadPlan]:
    """With one to four faults, in the first attempts."""
    chance = random.Random(f"loads {seed}")
    for number in count(_FIRST_RANDOM):
        shape = chance.choice(list(SHAPES))
        message_count = len(exchanges[shape])
        faults = []
        for attempt in range(chance.choice((1, 2, 2, 3, 4))):
            kind = chance.choice(WIRE_KINDS)
            place = Place(chance.randrange(message_count), chance.choice(_SIDES[kind]))
            faults.append(_fault(chance, attempt, kind, place, message_count))
        parts = chance.randint(SYSTEMATIC_PARTS, MAX_PARTS)
        yield LoadPlan(number, shape, parts, faults, settles_over_wire=chance.random() < _SETTLES_OVER_WIRE)


def plan_loads(
    seed: int, exchanges: Mapping[str, Sequence[Exchange]], loads: int, kinds: Sequence[FaultKind] = WIRE_KINDS
) -> list[LoadPlan]:
    """So many, of which one in eight is random, and all when no place is left. With other kinds than all, none is."""
    systematic, at_random = iter(systematic_loads(seed, exchanges, kinds)), random_loads(seed, exchanges)
    if tuple(kinds) != WIRE_KINDS:
        return list(islice(systematic, loads))
    return [
        next(at_random) if n % _RANDOM_INTERVAL == 0 else next(systematic, None) or next(at_random)
        for n in range(1, loads + 1)
    ]


def sample_places(plans: Sequence[LoadPlan], exchanges: Mapping[str, Sequence[Exchange]], loads: int) -> list[LoadPlan]:
    """Two of three at statements that write, commit or settle."""
    often: list[LoadPlan] = []
    others: list[LoadPlan] = []
    for plan in plans:
        step = step_name(exchanges[plan.shape][plan.faults[0].place.exchange])
        (often if step in _OFTEN else others).append(plan)
    return [*often[: loads - loads // 3], *others[: loads // 3]]


def _fault(chance: random.Random, attempt: int, kind: FaultKind, place: Place, message_count: int) -> PlannedFault:
    return PlannedFault(
        attempt,
        kind,
        place,
        is_released=kind in ZOMBIES and chance.random() < 0.3,
        ends_sessions=chance.random() < 0.3,
        outlasts_wait=chance.random() < 0.1,
        thaws_at=Place(chance.randrange(message_count), Side.REQUEST_HELD) if kind is FaultKind.WITHOUT_QUEUE else None,
        deletes_row=kind is FaultKind.THAWED_LATE and chance.random() < 0.5,
    )
