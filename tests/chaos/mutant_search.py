"""Mutants in their scenes: short campaigns, each with the load and the faults that its mutant's harm needs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import psycopg2

from tests.chaos import process_faults, server_faults
from tests.chaos.campaign import conclude
from tests.chaos.environment import CampaignSize, Environment, make_environment
from tests.chaos.fault import Fault
from tests.chaos.fault_runner import FaultRunner
from tests.chaos.job_requests import QUEUE, Mix
from tests.chaos.mutant import Mutant
from tests.chaos.mutants import MUTANTS
from tests.chaos.report import Report
from tests.chaos.schedule import PlannedFault

_DRAIN_SEC = 25.0
_MAX_PLAYS = 4  # of a scene, until its mutant is convicted
_NO_MIX = replace(Mix(), schedules=False, **dict.fromkeys(Mix().weights(), 0.0))  # type: ignore[arg-type]  # weights are numbers


@dataclass(frozen=True)
class Scene:
    mix: Mix
    seconds: float  # of load
    steps: Sequence[tuple[float, float, type[Fault]]] = ()  # at, for how long, what
    workers: int = 2
    threads: int = 4
    per_sec: float = 12.0
    changes_limits: bool = False  # an operator pauses and resumes a task, and changes a limit
    drain_sec: float = _DRAIN_SEC
    holds_row_lock: bool = False  # a session locks the first job until all others have ended

    def plan(self) -> list[PlannedFault]:
        return [PlannedFault(at, lasts, fault.name, "processes", n) for n, (at, lasts, fault) in enumerate(self.steps)]


SCENES = {
    "stubborn runs": Scene(
        replace(
            _NO_MIX,
            zombie=5,
            long=2,
            lease_sec=(2,),
            zombie_sec=(5.0, 7.0),
            zombie_holds=3.0,
            tombs=0.0,
            long_sec=(5.0, 7.0),
        ),
        6.0,
        [(3.0, 4.6, process_faults.WorkerFrozenKeysEnded)],
        per_sec=4.0,
        threads=24,
    ),
    "frozen stubborn runs": Scene(
        replace(_NO_MIX, zombie=5, lease_sec=(2,), zombie_sec=(8.0, 9.0), zombie_holds=1.0, tombs=0.0),
        5.0,
        [(3.0, 4.0, process_faults.WorkerFrozen)],
        per_sec=3.0,
        threads=24,
    ),
    "stubborn target loads": Scene(
        replace(_NO_MIX, target_zombie=5, target=2, lease_sec=(2,), zombie_sec=(5.0, 7.0), zombie_holds=1.0),
        6.0,
        [(3.0, 4.6, process_faults.WorkerFrozenKeysEnded)],
        per_sec=4.0,
        threads=24,
    ),
    "hot": Scene(replace(_NO_MIX, hot=10, long=1), 8.0, per_sec=30.0),
    "key freed during a claim": Scene(
        replace(_NO_MIX, pair=10), 14.0, [(1.0, 13.0, server_faults.DatabaseSlow)], per_sec=40.0, workers=3
    ),
    "concurrent claims": Scene(replace(_NO_MIX, hot=30, short=30, bulk=1), 12.0, workers=3, per_sec=60.0),
    "killed workers": Scene(
        replace(_NO_MIX, long=5, short=5, max_attempts=1, long_sec=(2.0, 4.0)),
        10.0,
        [(2.5, 1.0, process_faults.WorkerKilled), (6.0, 1.0, process_faults.WorkerKilled)],
        per_sec=5.0,
    ),
    "cancels": Scene(
        replace(_NO_MIX, canceled=10, short=2, long_sec=(5.0, 6.0)),
        12.0,
        [(4.0, 4.0, process_faults.WorkerFrozen), (9.0, 1.0, process_faults.WorkerTerminated)],
        per_sec=4.0,
    ),
    "killed workers with SQL": Scene(
        replace(_NO_MIX, sql=6, sql_apart=2, legacy=2, lease_sec=(2,), sql_sec=(6.0, 8.0), max_attempts=20),
        6.0,
        [(3.0, 0.5, process_faults.WorkerKilled), (5.0, 5.0, process_faults.WorkerFrozenSessionsEnded)],
        per_sec=4.0,
        threads=24,
    ),
    "containers": Scene(
        replace(_NO_MIX, long=6, short=4, long_sec=(3.0, 5.0)),
        8.0,
        [(4.0, 1.0, process_faults.WorkerKilled)],
        per_sec=5.0,
    ),
    "failing parents": Scene(replace(_NO_MIX, parent=10), 5.0, per_sec=5.0),
    "crashes": Scene(
        replace(_NO_MIX, short=10, delayed=10), 8.0, [(3.0, 0.1, server_faults.ImmediateRestart)], per_sec=30.0
    ),
    "limits": Scene(
        replace(_NO_MIX, warehouse=10, tenant=4, bulk=0.2, limited_long=0.1, limited_sec=(0.2, 0.5)),
        10.0,
        workers=3,
        per_sec=30.0,
    ),
    "graphs": Scene(
        replace(_NO_MIX, graph=10, canceled=1),
        10.0,
        [(4.0, 1.0, process_faults.WorkerKilled)],
        workers=3,
        threads=8,
        per_sec=6.0,
    ),
    "graphs over many processes": Scene(replace(_NO_MIX, graph=10), 12.0, workers=4, threads=2, per_sec=6.0),
    "paused task": Scene(replace(_NO_MIX, fragile=10, short=2), 24.0, per_sec=12.0, changes_limits=True),
    "failing task": Scene(replace(_NO_MIX, fragile=10, short=2), 10.0, per_sec=12.0),
    "schedules": Scene(
        replace(_NO_MIX, schedules=True, load=3, slice=6),
        24.0,
        [(6.0, 4.0, process_faults.WorkerKilled), (14.0, 1.0, process_faults.WorkerKilled)],
        workers=3,
        per_sec=4.0,
    ),
    "backfills": Scene(
        replace(_NO_MIX, schedules=True, slice=6, short=2),
        24.0,
        [(10.0, 2.0, process_faults.WorkerKilled)],
        workers=3,
        per_sec=6.0,
    ),
    "offloads": Scene(
        replace(_NO_MIX, offload=8, short=2, canceled=3, offload_sec=(1.0, 5.0), max_attempts=20),
        12.0,
        [
            (3.0, 1.0, process_faults.WorkerKilled),
            (6.0, 1.0, process_faults.WorkerKilled),
            (9.0, 1.0, process_faults.EngineDown),
        ],
        per_sec=5.0,
        threads=8,
        drain_sec=90.0,  # a poll that a killed worker had claimed is claimed again after a minute
    ),
    "rates": Scene(replace(_NO_MIX, partner=1, short=5), 8.0, per_sec=3.0),
    "long runs": Scene(replace(_NO_MIX, steady=10, lease_sec=(2,)), 4.0, per_sec=2.0, threads=8, drain_sec=60.0),
    "database away": Scene(
        replace(_NO_MIX, long=6, short=2, lease_sec=(2,), long_sec=(4.0, 6.0), max_attempts=20),
        10.0,
        [(3.0, 2.5, server_faults.FastRestart)],
        per_sec=6.0,
        threads=8,
    ),
    "held row": Scene(replace(_NO_MIX, short=10), 6.0, per_sec=20.0, holds_row_lock=True),
}


@dataclass(frozen=True)
class TriedMutant:
    mutant: str
    scene: str
    caught: bool
    rules: Sequence[str] = field(default_factory=tuple)
    expected: bool = True  # it was caught by a rule that it was meant to be caught by
    seconds: float = 0.0
    first_violation: str = ""
    plays: int = 1  # how often the scene was played


def run_scene(scene: Scene, mutant: Mutant | None, *, keep: bool = False) -> Report:
    """A scene from its first job to its report."""
    shape = CampaignSize(
        workers=scene.workers,
        threads=scene.threads,
        api=False,
        changes_limits=scene.changes_limits,
        per_sec=scene.per_sec,
        mix=scene.mix,
        mutant=mutant.name if mutant else "",
        server=dict(mutant.server) if mutant else {},
    )
    with make_environment(1, shape, log=lambda line: None, keep=keep) as made:
        for change in mutant.schema_changes if mutant else ():
            made.primary.query(change)
        for edit in mutant.functions if mutant else ():
            made.primary.query(edit.statement())
        holding = _lock_first_row(made) if scene.holds_row_lock else None
        made.start()
        over = threading.Timer(scene.seconds, made.load.stop)
        over.start()
        injected = FaultRunner(made, scene.plan(), log=lambda line: None).run()
        over.join()
        if holding is None:
            return conclude(made, injected, seconds=scene.seconds, drain_sec=scene.drain_sec)
        with closing(holding):
            made.wait_until_quiet(scene.drain_sec, except_jobs=1)
            return _without_locked_job(conclude(made, injected, seconds=scene.seconds, drain_sec=0.0))


def _lock_first_row(environment: Environment) -> psycopg2.extensions.connection:
    """Enqueue the first job in claim order before any worker runs, and lock its row."""
    environment.primary.query(
        "INSERT INTO dl_jobs (queue, task, lock_key, priority, wait_state)"
        " VALUES (%s, 'chaos.short', 'held', 0, 'ready')",
        QUEUE,
    )
    holding: psycopg2.extensions.connection = environment.primary.connect(name="chaos-holder")
    holding.autocommit = False
    with holding.cursor() as cursor:
        cursor.execute("SELECT 1 FROM dl_jobs WHERE lock_key = 'held' FOR UPDATE")
    return holding


def _without_locked_job(report: Report) -> Report:
    """The job whose row is held cannot end; every other one can."""
    left = [violation for violation in report.violations if violation.rule == "job not finished"]
    if len(left) != 1:
        return report
    return replace(report, violations=[violation for violation in report.violations if violation is not left[0]])


def search_all(names: Sequence[str], *, log: Callable[[str], None], report: Path, keep: bool) -> bool:
    began, outcomes = time.monotonic(), []
    for scene in dict.fromkeys(MUTANTS[name].scene for name in names):
        outcomes.append(_try_mutant(None, scene, log=log, keep=keep))
    for name in names:
        outcomes.append(_try_mutant(MUTANTS[name], MUTANTS[name].scene, log=log, keep=keep))
    _write_outcomes(report, outcomes)
    good = [outcome for outcome in outcomes if _is_as_expected(outcome)]
    log("")
    log(outcome_table(outcomes))
    log(f"{len(good)} of {len(outcomes)} as expected, {time.monotonic() - began:.0f} s; as JSON in {report}")
    return len(good) == len(outcomes)


def _try_mutant(mutant: Mutant | None, scene: str, *, log: Callable[[str], None], keep: bool) -> TriedMutant:
    began, plays = time.monotonic(), 0
    wanted = set(mutant.expects) if mutant else set()
    while True:
        report, plays = run_scene(SCENES[scene], mutant, keep=keep), plays + 1
        rules = tuple(dict.fromkeys(violation.rule for violation in report.violations))
        if not wanted or wanted & set(rules) or plays == _MAX_PLAYS:
            break  # what is missing does harm where moves meet, and on a quick machine fewer of them do
    first = str(report.violations[0]) if report.violations else "; ".join(report.complaints)
    outcome = TriedMutant(
        mutant=mutant.name if mutant else "(unbroken)",
        scene=scene,
        caught=not report.passed,
        rules=rules,
        expected=bool(wanted & set(rules)) if wanted else report.passed,
        seconds=round(time.monotonic() - began, 1),
        first_violation=first,
        plays=plays,
    )
    log(f"{outcome.mutant:<28} {outcome.scene:<16} {'caught by ' + ', '.join(rules) if rules else 'nothing found'}"
        f", {outcome.seconds:.0f} s")  # fmt: skip
    if not _is_as_expected(outcome):
        log(f"    UNEXPECTED: {report.text()}")
    return outcome


def _is_as_expected(outcome: TriedMutant) -> bool:
    return outcome.expected and outcome.caught == (outcome.mutant in MUTANTS and bool(MUTANTS[outcome.mutant].expects))


def outcome_table(outcomes: Sequence[TriedMutant]) -> str:
    """As Markdown, for the docs."""
    lines = ["| mutant | what is missing | scene | caught by | plays | after |", "|---|---|---|---|---|---|"]
    for outcome in outcomes:
        broken = MUTANTS[outcome.mutant].description if outcome.mutant in MUTANTS else "nothing"
        rules = ", ".join(outcome.rules) or "-"
        lines.append(
            f"| {outcome.mutant} | {broken} | {outcome.scene} | {rules} | {outcome.plays} | {outcome.seconds:.0f} s |"
        )
    return "\n".join(lines)


def _write_outcomes(file: Path, outcomes: Sequence[TriedMutant]) -> None:
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2) + "\n", encoding="utf-8")
