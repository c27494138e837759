"""What must be true of every load, checked in the databases alone, whatever has died and in whatever order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID

from tests.target_proof.site import Commit, JobEvidence, TargetEvidence

Findings = Iterator[str]


@dataclass(frozen=True)
class LoadEvidence:
    """A load that has ended, or that should have."""

    job_id: UUID
    shape: str
    parts: Mapping[str, Sequence[int]]  # that it writes, by target
    with_position: frozenset[str]  # the targets in which each transaction has a position
    result: Any
    job: JobEvidence | None
    targets: Mapping[str, TargetEvidence]
    refused_owners: Sequence[UUID] = ()
    problems: Sequence[str] = ()


@dataclass(frozen=True)
class Violation:
    rule: str
    job_id: UUID
    shape: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: job {self.job_id} ({self.shape}): {self.message}"


def check(load: LoadEvidence) -> list[Violation]:
    return [
        Violation(rule.__name__.replace("_", " "), load.job_id, load.shape, message)
        for rule in RULES
        for message in rule(load)
    ]


def part_written_twice(load: LoadEvidence) -> Findings:
    """A part is in a target more than once."""
    for target, evidence in load.targets.items():
        for part, count in Counter(evidence.parts).items():
            if count > 1:
                runs = [str(commit.run_id)[:8] for commit in evidence.commits if commit.part == part]
                yield f"part {part} is in {target} {count} times, by {' and '.join(runs)}"


def part_lost(load: LoadEvidence) -> Findings:
    """The job has succeeded, and a part is not in its target."""
    if load.job is None or load.job.status != "succeeded":
        return
    for target, parts in load.parts.items():
        if missing := sorted(set(parts) - set(load.targets[target].parts)):
            yield f"{target} has no part {', '.join(map(str, missing))}"


def commit_after_successor(load: LoadEvidence) -> Findings:
    """A run has committed in a target after a later run of the job had committed there."""
    if load.job is None:
        return
    order = {run: number for number, run in enumerate(load.job.runs)}
    for target, evidence in load.targets.items():
        last = -1
        for commit in evidence.commits:
            number = order.get(commit.run_id, -1)
            if number < 0:
                yield f"run {commit.run_id} has committed in {target}, and no claim of it is recorded"
            elif commit.kind == "deleted":
                last = len(order)
            elif number < last:
                by = "the deletion of the row" if last == len(order) else f"run {load.job.runs[last]}"
                yield f"run {commit.run_id} has committed a {commit.kind} in {target} after {by}"
            else:
                last = number


def position_differs(load: LoadEvidence) -> Findings:
    """After some transaction the position in a target was not that of the parts which were there."""
    for target in load.with_position:
        parts: Counter[int] = Counter()
        for _, commits in groupby(load.targets[target].commits, lambda commit: commit.xid):
            transaction = list(commits)
            if any(commit.kind == "deleted" for commit in transaction):
                break
            rows = [commit for commit in transaction if commit.kind == "row"]
            written = [commit.part for commit in transaction if commit.part is not None]
            if not (rows and rows[-1].is_done):  # the final transaction has no position
                parts.update(written)
            if (rows or written) and (problem := _position_problem(transaction, rows, len(parts))):
                yield f"in {target}: {problem}"
                break


def _position_problem(transaction: Sequence[Commit], rows: Sequence[Commit], count: int) -> str | None:
    run = str(transaction[0].run_id)[:8]
    if not rows:
        return f"run {run} has committed a part without the job's row"
    position = _position_count(rows[-1].position)
    return None if position == count else f"run {run} has committed the position {position} with {count} parts there"


def _position_count(position: Any) -> int:
    """The number of parts that it stands for."""
    if isinstance(position, dict):
        return int(position["each"][0]["done"])
    return int(position or 0)


def wrong_result(load: LoadEvidence) -> Findings:
    """The job has succeeded with another result than its load has."""
    if load.job is not None and load.job.status == "succeeded" and load.job.result != load.result:
        yield f"its result is {load.job.result}, not {load.result}"


def job_stuck(load: LoadEvidence) -> Findings:
    """The job has not succeeded although nothing was left that would break it."""
    if load.job is None:
        yield "there is no such job"
    elif load.job.status != "succeeded":
        yield f"it is {load.job.status} after {len(load.job.runs)} attempts"
    yield from load.problems


def owner_refused(load: LoadEvidence) -> Findings:
    """An attempt that owned the job was refused by a target, as if it had lost it."""
    for run in load.refused_owners:
        yield f"run {run} was refused although it owned the job"


RULES: Sequence[Callable[[LoadEvidence], Findings]] = (
    part_written_twice,
    part_lost,
    commit_after_successor,
    position_differs,
    wrong_result,
    job_stuck,
    owner_refused,
)
