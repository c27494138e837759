"""What a campaign has shown, for people and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any
from uuid import UUID

from tests.chaos.checker import STUBBORN, Violation
from tests.chaos.fault_runner import InjectedFault
from tests.chaos.history import History
from tests.chaos.services import Death
from tests.chaos.target_rules import target_takeovers
from tests.support.event_replay import Event

_MAX_LISTED = 20  # violations of one rule
_DOUBLED = ("two jobs for one key", "part written twice", "target part written twice", "wrong follow ups")


@dataclass(frozen=True)
class Recovery:
    """From the death of a process to the next that happened to a job it was running."""

    job_id: str
    by: str
    given_back_sec: float  # until the job was queued again
    started_sec: float | None  # the next run began; None: there was none to come
    undisturbed: bool  # nothing was wrong with the database meanwhile


@dataclass(frozen=True, kw_only=True)
class Report:
    seed: int
    server: str
    seconds: float
    drained_sec: float  # from the last fault's end to the last job's; -1: not in time
    faults: Mapping[str, int]
    not_injected: Sequence[str]
    jobs: Mapping[str, int]
    runs: Mapping[str, int]
    recovery: Mapping[str, Any]
    violations: Sequence[Violation]
    evidence: Sequence[Any] = field(default_factory=list)  # all that is known of the first jobs with a violation
    complaints: Sequence[str] = field(default_factory=list)  # unexpected responses, reported in addition to the rules
    trace: Mapping[str, Any] = field(default_factory=dict)  # how many steps of each kind the model has allowed

    @property
    def passed(self) -> bool:
        return not self.violations and not self.complaints

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        result = asdict(self) | {"passed": self.passed}
        file.write_text(json.dumps(result, indent=2, default=str) + "\n", encoding="utf-8")
        file.with_suffix(".txt").write_text(self.text() + "\n", encoding="utf-8")

    def text(self) -> str:
        lines = [f"Chaos campaign, seed {self.seed}, {self.seconds:.0f} s, on {self.server}", ""]
        lines += [f"Faults injected: {sum(self.faults.values())} of {len(self.faults)} kinds"]
        lines += [f"  {count:4}  {name}" for name, count in sorted(self.faults.items())]
        lines += [f"  not done: {output}" for output in self.not_injected]
        for title, numbers in (
            ("Jobs", self.jobs),
            ("Runs", self.runs),
            ("Recovery", self.recovery),
            ("Trace", self.trace),
        ):
            lines += ["", title, *(f"  {value!s:>8}  {name}" for name, value in numbers.items())]
        lines += ["", f"Drained within {self.drained_sec:.1f} s" if self.drained_sec >= 0 else "NOT drained in time"]
        lines += [f"COMPLAINT: {output}" for output in self.complaints]
        for rule, count in Counter(violation.rule for violation in self.violations).items():
            lines += [f"VIOLATED {count} times: {rule}"]
            lines += [f"  {v.job_id}: {v.message}" for v in self.violations if v.rule == rule][:_MAX_LISTED]
        verdict = "PASSED: nothing lost, nothing doubled, no rule violated" if self.passed else "FAILED"
        return "\n".join([*lines, "", verdict])


def make_report(
    history: History,
    violations: Sequence[Violation],
    injected: Sequence[InjectedFault],
    deaths: Sequence[Death],
    *,
    seed: int,
    server: str,
    seconds: float,
    drained_sec: float,
    complaints: Sequence[str],
    wall: float,  # what is to be added to the clock of all processes to get the time of day
    bound: Mapping[str, float],
    trace: Mapping[str, Any] | None = None,
) -> Report:
    rules = Counter(violation.rule for violation in violations)
    return Report(
        seed=seed,
        server=server,
        seconds=seconds,
        drained_sec=drained_sec,
        faults=dict(sorted(Counter(done.fault for done in injected if not done.failed).items())),
        not_injected=[f"{done.fault}: {done.failed}" for done in injected if done.failed],
        jobs=_job_counts(history, rules),
        runs=_run_counts(history, wall),
        recovery=_recovery_summary(recoveries(history, injected, deaths, wall), history, bound),
        violations=violations,
        evidence=_collect_evidence(history, violations),
        complaints=complaints,
        trace=trace or {},
    )


def _collect_evidence(history: History, violations: Sequence[Violation]) -> list[Any]:
    jobs = list(dict.fromkeys(violation.job_id for violation in violations))[:_MAX_LISTED]
    return [
        {
            "row": asdict(row),
            "journal": [asdict(line) for line in history.events.get(row.job_id, ())],
            "words": [asdict(word) for word in history.run_reports if word.job_id == row.job_id],
            "target": [asdict(written) for written in history.target if written.job_id == row.job_id],
            "responses": [asdict(result) for result in history.responses if result.job_id == str(row.job_id)],
        }
        for row in history.rows.values()
        if str(row.job_id) in jobs
    ]


def _job_counts(history: History, rules: Mapping[str, int]) -> dict[str, int]:
    result = Counter(result.what for result in history.responses)
    statuses = Counter(row.status for row in history.rows.values())
    return {
        "accepted": result["accepted"],
        "of unknown fate to their caller": result["unsure"],
        "in the table, follow-ups included": len(history.rows),
        **{f"ended {status}": count for status, count in sorted(statuses.items())},
        "cancels answered": result["canceled"],
        "retried by a person": result["retried"],
        "lost": rules.get("job missing after acceptance", 0)
        + rules.get("job not finished", 0)
        + rules.get("incomplete target load", 0),
        "doubled": sum(rules.get(rule, 0) for rule in _DOUBLED),
    }


def _run_counts(history: History, wall: float) -> dict[str, int]:
    lines = [line for lines in history.events.values() for line in lines]
    reasons = Counter(str(line.payload.get("reason")) for line in lines)
    return {
        "claimed": sum(line.kind == "picked" for line in lines),
        "begun, as their witness saw them": len({word.run_id for word in history.run_reports}),
        "tried again after an error": reasons["error"],
        "recovered from the dead": reasons["lease_expired"] + reasons["process_died"],
        "handed back at a shutdown": reasons["shutdown"],
        "handed back for their key": reasons["lock_busy"],
        "handed back unstarted": reasons["not_started"],
        "stubborn ones that acted on after their job had been taken from them": zombie_runs(history, wall),
        "times a job became limited": sum(line.kind == "limited" for line in lines),
        "changes of a limit": len(history.limit_changes),
        **{
            f"times of schedules {outcome}": count
            for outcome, count in sorted(Counter(firing.outcome for firing in history.firings).items())
        },
        **{
            f"backfills {state}": count
            for state, count in sorted(Counter(backfill.state for backfill in history.backfills).items())
        },
        "slices loaded": len(history.slices),
        "programs started on the engine": sum(execution.starts for execution in history.executions),
        "of them taken over by another run": len(offload_takeovers(history)),
        "that lasted over ten leases": len(long_runs(history)),
        "looks at rows of running jobs": len(history.looks),
        "rows of progress": len(history.progress),
        "parts written into the target": len(history.target),
        "loads into the target": len(history.target_loads),
        "loads into the target taken over by another run": len(target_takeovers(history)),
        "rows written by statements in autocommit": len(history.effects),
        "attempts taken from a worker that had written such rows": len(takeovers_with_effects(history)),
    }


def takeovers_with_effects(history: History) -> set[UUID]:
    """Attempts that were given on by another process, and had a statement in a server: without them the rule about
    effects proves nothing."""
    wrote = {effect.run_id for effect in history.effects}
    return wrote & {
        UUID(line.payload["run_id"])
        for lines in history.events.values()
        for line in lines
        if line.payload.get("reason") in ("lease_expired", "process_died") and line.payload.get("run_id")
    }


def long_runs(history: History) -> set[UUID]:
    """Runs that trusted their lease ten leases after they had begun: their rows are renewed more seldom than that."""
    return {
        run_id
        for run_id, words in history.reports_by_run().items()
        if (row := history.rows.get(words[0].job_id)) is not None
        and max(word.at for word in words if word.what in ("began", "acted")) - words[0].at > 10 * row.lease_ttl_sec
    }


def offload_takeovers(history: History) -> set[str]:
    """Work that one run submitted, and whose result another one took."""
    return {
        offload.name
        for offload in history.offloads
        if offload.outcome == "succeeded" and (row := history.rows.get(offload.job_id)) is not None
        and row.status == "succeeded" and row.run_id not in (None, offload.run_id)
    }  # fmt: skip


def zombie_runs(history: History, wall: float) -> int:
    """Return the runs that wrote after the reaper had released their job; without them the fence is not tested."""
    taken = {
        UUID(line.payload["run_id"]): line.at.timestamp()
        for lines in history.events.values()
        for line in lines
        if line.payload.get("reason") == "lease_expired" and line.payload.get("run_id")
    }
    last = {
        word.run_id: word.at + wall for word in history.run_reports if word.task == STUBBORN and word.what == "wrote"
    }
    return sum(run in taken and at > taken[run] for run, at in last.items())


def recoveries(
    history: History, injected: Sequence[InjectedFault], deaths: Sequence[Death], wall: float
) -> list[Recovery]:
    """What became of the jobs that were running in a process when it was killed."""
    by_pid = {death.pid: death for death in deaths}
    found = []
    for job_id, lines in history.events.items():
        for n, line in enumerate(lines[:-1]):
            death = by_pid.get(_pid_of(line) or 0)
            after = next((later for later in lines[n + 1 :] if later.kind not in ("heartbeat", "stop_pending")), None)
            if death is None or after is None or after.payload.get("reason") not in _REAPED:
                continue
            died = death.at + wall
            if not line.at.timestamp() < died < after.at.timestamp():
                continue  # frozen earlier, or another process that had this number
            noticed = after.at.timestamp() - died
            again = next((later.at.timestamp() - died for later in lines[n + 1 :] if later.kind == "picked"), None)
            disturbed = any(
                done.started_at < death.at + max(noticed, again or 0.0)
                and done.ended_at > death.at - _FAULT_AFTERMATH_SEC
                for done in injected
                if not done.fault.startswith(("worker SIG", "gunicorn"))
            )
            found.append(Recovery(str(job_id), death.name, noticed, again, undisturbed=not disturbed))
    return found


_FAULT_AFTERMATH_SEC = 2.0  # seconds for which a fault of the database is still felt when it is over
_REAPED = ("lease_expired", "process_died")


def _pid_of(event: Event) -> int | None:
    if event.kind != "picked":
        return None
    _, _, pid = str(event.payload.get("worker", "")).rpartition(":")
    return int(pid) if pid.isdigit() else None


def _recovery_summary(
    recoveries_seen: Sequence[Recovery], history: History, bound: Mapping[str, float]
) -> dict[str, Any]:
    calm = [recovery for recovery in recoveries_seen if recovery.undisturbed]
    figures: dict[str, Any] = {"jobs of killed processes taken back": len(recoveries_seen)}
    for which, some in (("all", recoveries_seen), ("while the database was well", calm)):
        noticed = sorted(recovery.given_back_sec for recovery in some)
        started = sorted(recovery.started_sec for recovery in some if recovery.started_sec is not None)
        figures[f"s until given back, median and worst ({which})"] = _median_and_worst(noticed)
        figures[f"s until started again, median and worst ({which})"] = _median_and_worst(started)
    longest = max((row.lease_ttl_sec for row in history.rows.values()), default=0)
    figures["s: longest lease + two looks of the reaper"] = round(longest + bound["heartbeat"] + 2 * bound["reaper"], 1)
    return figures


def _median_and_worst(values: Sequence[float]) -> str:
    if not values:
        return "-"
    middle = quantiles(values, n=2)[0] if len(values) > 1 else values[0]
    return f"{middle:.2f} {values[-1]:.2f}"
