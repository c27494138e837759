"""One campaign from its seed to its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from uuid import UUID

from tests.chaos.checker import STUBBORN, check, trace_violations
from tests.chaos.client_log import read_client_log
from tests.chaos.clock import clock
from tests.chaos.environment import CampaignSize, Environment, make_environment
from tests.chaos.fault_runner import FaultRunner, InjectedFault
from tests.chaos.faults import FAULTS
from tests.chaos.history import History, read_history
from tests.chaos.report import (
    Report,
    long_runs,
    make_report,
    offload_takeovers,
    takeovers_with_effects,
    zombie_runs,
)
from tests.chaos.schedule import plan_faults
from tests.chaos.services import HEARTBEAT_SEC, REAPER_INTERVAL_SEC
from tests.chaos.target_rules import target_takeovers
from tests.model.record import read_record
from tests.model.trace import check_trace
from tests.target_proof.site import Site, TargetEvidence

DRAIN_SEC = 150.0  # for what is left when all is well again; on a busy machine too
_MIN_STUBBORN_RUNS = 5
_UNEXPECTED_EXIT_CODES = (70,)  # a keeper met a bug


def run_campaign(
    seed: int,
    seconds: float,
    size: CampaignSize,
    *,
    log: Callable[[str], None],
    keep: bool = False,
    is_full_length: bool = False,
) -> Report:
    """Load and faults for so many seconds, then quiet, then judgement. `whole`: each kind must have been met."""
    planned = plan_faults(seed, seconds)
    log(f"seed {seed}: {len(planned)} faults of {len({step.fault for step in planned})} kinds in {seconds:.0f} s")
    with make_environment(seed, size, log=log, keep=keep) as made:
        made.start()
        injected = FaultRunner(made, planned, log=log).run()
        return conclude(made, injected, seconds=seconds, is_full_length=is_full_length)


def conclude(
    environment: Environment,
    injected: Sequence[InjectedFault],
    *,
    seconds: float,
    is_full_length: bool = False,
    drain_sec: float = DRAIN_SEC,
) -> Report:
    """Quiet, the end of the services, and the judgement."""
    environment.heal()
    environment.log("quiet: nothing is asked for any more, nothing is broken any more")
    drained = environment.wait_until_quiet(drain_sec)
    environment.stop()
    history = collect_history(environment, injected)
    trace = check_trace(read_record(environment.primary.query, history))
    deaths = [death for service in environment.services for death in service.deaths]
    return make_report(
        history,
        [*check(history), *trace_violations(trace)],
        injected,
        deaths,
        seed=environment.seed,
        server=environment.primary.describe(),
        seconds=seconds,
        drained_sec=drained,
        complaints=_complaints(environment, injected, is_full_length=is_full_length)
        + _missing_coverage(history, is_full_length=is_full_length),
        wall=time.time() - clock(),
        bound={"heartbeat": HEARTBEAT_SEC, "reaper": REAPER_INTERVAL_SEC},
        trace=trace.counts(),
    )


def collect_history(environment: Environment, injected: Sequence[InjectedFault]) -> History:
    return read_history(
        environment.primary.query,
        environment.observer.query,
        read_client_log(environment.client_log.file),
        heartbeat_sec=HEARTBEAT_SEC,
        wall=time.time() - clock(),
        sessions_unbroken=not any(FAULTS[done.fault].breaks_sessions for done in injected),
        limit_changes=[*environment.operator.changes, *environment.schedules.limit_changes],
        pauses=[*environment.operator.pauses, *environment.schedules.pauses],
        stopped_schedules=environment.schedules.stopped_at,
        looks=environment.monitor.looks,
        executions=environment.engine.executions() if environment.engine is not None else (),
        target_loads=_read_target(environment),
        backfill_keys={created.backfill_id: created.keys for created in environment.schedules.created},
    )


def _read_target(environment: Environment) -> Mapping[UUID, TargetEvidence]:
    """What the target has of each load into it."""
    ((found,),) = environment.target.query("SELECT array_agg(DISTINCT job_id::text) FROM proof_commits")
    with closing(Site(environment.primary.dsn, [environment.target.dsn])) as site:
        return site.effects(environment.target.dsn, [UUID(job_id) for job_id in found or ()])


def _complaints(environment: Environment, injected: Sequence[InjectedFault], *, is_full_length: bool) -> list[str]:
    complaints = [f"a caller was answered {result}" for result in environment.load.failures[:20]]
    for service in environment.services:
        complaints += [f"{service.name} ended by itself with {code}: {_last_error_line(service.text())}"
                       for code in service.exit_codes if code in _UNEXPECTED_EXIT_CODES]  # fmt: skip
    if is_full_length:
        met = {done.fault for done in injected if not done.failed}
        complaints += [f"never injected: {name}" for name in FAULTS if name not in met]
    return complaints


def _missing_coverage(history: History, *, is_full_length: bool) -> list[str]:
    """Stubborn runs that do no harm prove nothing: a fence that is missing is not noticed then. Neither does a campaign
    in which no job waited for a limit, or no statement ran in a server when its attempt was taken from a worker."""
    stubborn = {row.job_id for row in history.rows.values() if row.task == STUBBORN and row.attempt}
    wrote = {written.job_id for written in history.target} & stubborn
    complaints = ["no stubborn run has written anything"] if len(stubborn) > _MIN_STUBBORN_RUNS and not wrote else []
    if is_full_length:
        awaited = {event.payload["waits_on"] for _, event in history.event_log if event.kind == "limited"}
        complaints += [
            f"no job has waited for the limit {name!r}"
            for name in ("warehouse", "partner", "task:chaos.fragile")
            if name not in awaited
        ]
        outcomes = {firing.outcome for firing in history.firings}
        complaints += [
            f"no time of a schedule was {outcome!r}"
            for outcome in ("made", "exists", "late_skipped", "overlap_skipped", "paused_skipped")
            if outcome not in outcomes
        ]
        states = {backfill.state for backfill in history.backfills}
        complaints += [f"no backfill is {state}" for state in ("done", "canceled") if state not in states]
    if is_full_length and not any(row.skipped for row in history.rows.values()):
        complaints.append("no job of a graph was skipped")
    if is_full_length and not offload_takeovers(history):
        complaints.append("no work on the engine was taken over by another run")
    if is_full_length and not target_takeovers(history):
        complaints.append("no load into the target was taken over by another run")
    if is_full_length and not zombie_runs(history, time.time() - clock()):
        complaints.append("no stubborn run acted after its job had been taken from it")
    if is_full_length and not long_runs(history):
        complaints.append("no run lasted so long that its row was renewed more seldom than its lease is long")
    if is_full_length and not takeovers_with_effects(history):
        complaints.append("no attempt was taken from a worker while a statement of it ran in a server")
    return complaints


def _last_error_line(text: str) -> str:
    """What its log says of it."""
    lines = [line for line in text.splitlines() if "died" in line or "broken" in line or '"traceback"' in line]
    return " | ".join(line[:1500] for line in lines[-2:])
