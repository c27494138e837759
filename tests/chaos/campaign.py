"""One campaign from its seed to its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.chaos.checker import STUBBORN, check
from tests.chaos.conductor import Conductor, Injected
from tests.chaos.faults import FAULTS
from tests.chaos.history import History, read_history
from tests.chaos.moments import clock
from tests.chaos.record import read_record
from tests.chaos.report import Report, make_report, taken_with_effects
from tests.chaos.schedule import schedule
from tests.chaos.services import HEARTBEAT_SEC, REAPER_SEC
from tests.chaos.world import Shape, World, world

DRAIN_SEC = 150.0  # for what is left when all is well again; on a busy machine too
_SOME = 5
_BAD_CODES = (70,)  # a keeper met a bug


def run_campaign(
    seed: int, seconds: float, shape: Shape, *, say: Callable[[str], None], keep: bool = False, whole: bool = False
) -> Report:
    """Load and faults for so many seconds, then quiet, then judgement. `whole`: each kind must have been met."""
    planned = schedule(seed, seconds)
    say(f"seed {seed}: {len(planned)} faults of {len({step.fault for step in planned})} kinds in {seconds:.0f} s")
    with world(seed, shape, say=say, keep=keep) as made:
        made.start()
        injected = Conductor(made, planned, say=say).play()
        return conclude(made, injected, seconds=seconds, whole=whole)


def conclude(
    made: World, injected: Sequence[Injected], *, seconds: float, whole: bool = False, drain_sec: float = DRAIN_SEC
) -> Report:
    """Quiet, the end of the services, and the judgement."""
    made.heal()
    made.say("quiet: nothing is asked for any more, nothing is broken any more")
    drained = made.quiet(drain_sec)
    made.end()
    history = read(made, injected)
    deaths = [death for service in made.services for death in service.deaths]
    return make_report(
        history,
        check(history),
        injected,
        deaths,
        seed=made.seed,
        server=made.primary.describe(),
        seconds=seconds,
        drained_sec=drained,
        complaints=_complaints(made, injected, whole=whole) + _too_tame(history, whole=whole),
        wall=time.time() - clock(),
        bound={"heartbeat": HEARTBEAT_SEC, "reaper": REAPER_SEC},
    )


def read(made: World, injected: Sequence[Injected]) -> History:
    return read_history(
        made.primary.ask,
        made.witness.ask,
        read_record(made.record.file),
        heartbeat_sec=HEARTBEAT_SEC,
        wall=time.time() - clock(),
        sessions_unbroken=not any(FAULTS[done.fault].breaks_sessions for done in injected),
    )


def _complaints(made: World, injected: Sequence[Injected], *, whole: bool) -> list[str]:
    complaints = [f"a caller was answered {said}" for said in made.load.failures[:20]]
    for service in made.services:
        complaints += [f"{service.name} ended by itself with {code}: {_last_trouble(service.text())}"
                       for code in service.codes if code in _BAD_CODES]  # fmt: skip
    if whole:
        met = {done.fault for done in injected if not done.failed}
        complaints += [f"never injected: {name}" for name in FAULTS if name not in met]
    return complaints


def _too_tame(history: History, *, whole: bool) -> list[str]:
    """Stubborn runs that do no harm prove nothing: a fence that is missing is not noticed then. Neither does a campaign
    in which no statement ran in a server when its attempt was taken from a worker."""
    stubborn = {row.job_id for row in history.rows.values() if row.task == STUBBORN and row.attempt}
    wrote = {written.job_id for written in history.target} & stubborn
    complaints = ["no stubborn run has written anything"] if len(stubborn) > _SOME and not wrote else []
    if whole and not taken_with_effects(history):
        complaints.append("no attempt was taken from a worker while a statement of it ran in a server")
    return complaints


def _last_trouble(text: str) -> str:
    """What its log says of it."""
    lines = [line for line in text.splitlines() if "died" in line or "broken" in line or '"exception"' in line]
    return " | ".join(line[:1500] for line in lines[-2:])
