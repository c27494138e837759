"""A counterexample as a text: each line is a step and the state after it; the line before has the state before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.model.rows import GONE, NO_PROCESS, Row
from tests.model.state import Configuration, Run, State, Step, Target

MAX_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Story:
    problem: str
    lines: Sequence[str]  # the first state, then the steps

    def __str__(self) -> str:
        lines = list(self.lines)
        if len(lines) > MAX_LINES - 1:
            left_out = len(lines) - (MAX_LINES - 3)
            lines = [lines[0], f"    … {left_out} steps", *lines[left_out + 1 :]]
        return "\n".join([f"broken: {self.problem}", *lines])


def first_line(config: Configuration, state: State) -> str:
    return f"    {describe(config, state)}"


def step_line(config: Configuration, number: int, step: Step) -> str:
    return f"{number:>2}. {step.label} → {describe(config, step.state)}"


def describe(config: Configuration, state: State) -> str:
    parts = [_row(job, row) for job, row in enumerate(state.rows)]
    for number, process in enumerate(state.processes):
        runs = [_run(run) for run in process.runs] or ([] if process.is_up else ["no run"])
        if runs:
            parts.append(f"P{number}{'' if process.is_up else ' (frozen)'} has {', '.join(runs)}")
    parts += [f"P{each.process} is about to write job {each.job}" for each in state.open]
    parts += [f"a statement of run {run} of job {job} executes" for job, run in state.statements]
    if "backfill" in config.groups:
        parts.append(f"the backfill is at slice {state.backfill[0]} and has asked for {state.backfill[1]}")
    if state.allowed is not None and state.allowed != config.allowed:
        parts.append(f"the limit allows {state.allowed}")
    if state.copy and state.copy != state.rows:
        parts.append("the copy has " + ", ".join(_row(job, row) for job, row in enumerate(state.copy)))
    if "target" in config.groups and state.target != Target():
        target = state.target
        row = f"fence {target.fence} of run {target.run}, position {target.position}"
        parts.append(f"the target has {row}, parts {target.written}")
    return "; ".join(parts)


def _row(job: int, row: Row) -> str:
    if row.status != "running":
        wait = f" {row.wait}" if row.status == "queued" and row.wait != "ready" else ""
        return f"job {job} {row.status}{wait} (attempt {row.attempt})"
    owner = {NO_PROCESS: "no process", GONE: "a dead process"}.get(row.owner, f"P{row.owner}")
    flags = [f", {text}" for text, is_so in (
        ("cancel requested", row.cancel), ("lease expired", row.silent), ("row's lease over", row.lapsed)
    ) if is_so]  # fmt: skip
    return f"job {job} running as run {row.run} of {owner}{''.join(flags)}"


def _run(run: Run) -> str:
    flags = [text for text, is_so in (
        (run.phase, run.phase != "acting"), ("not trusted", not run.trusted), ("key not locked", not run.locked),
        ("to stop", run.stop), ("transaction open", run.writing),
    ) if is_so]  # fmt: skip
    return f"run {run.id} of job {run.job}" + (f" ({', '.join(flags)})" if flags else "")
