"""Rules of loads into a target: what is there, in the order of its commits. They are those of tests/target_proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

from tests.chaos.history import Findings, History, Row
from tests.target_proof import rules
from tests.target_proof.site import JobEvidence, TargetEvidence

TARGET_LOADS = ("chaos.target", "chaos.target_apart")
STUBBORN_TARGET_LOAD = "chaos.target_zombie"


def target_part_written_twice(history: History) -> Findings:
    """A part is in the target twice."""
    return _findings(history, rules.part_written_twice)


def incomplete_target_load(history: History) -> Findings:
    """A load has succeeded, and not all its parts are in the target."""
    return _findings(history, rules.part_lost)


def target_commit_after_successor(history: History) -> Findings:
    """A run committed in the target after a later run of its job had committed there."""
    return _findings(history, rules.commit_after_successor)


def target_position_differs(history: History) -> Findings:
    """After a transaction the position in the target was not that of the parts there."""
    return _findings(history, rules.position_differs)


def wrong_target_result(history: History) -> Findings:
    """A load has succeeded with another result than it has."""
    return _findings(history, rules.wrong_result)


def _findings(history: History, rule: Callable[[rules.LoadEvidence], Iterator[str]]) -> Findings:
    for row in history.rows.values():
        if row.task in (*TARGET_LOADS, STUBBORN_TARGET_LOAD):
            load = _evidence(history, row)
            yield from ((row.job_id, message) for message in rule(load))


def _evidence(history: History, row: Row) -> rules.LoadEvidence:
    runs = [
        UUID(str(event.payload["run_id"])) for event in history.events.get(row.job_id, ()) if event.kind == "picked"
    ]
    shape = str(row.args.get("shape", ""))
    is_stubborn = row.task == STUBBORN_TARGET_LOAD
    return rules.LoadEvidence(
        job_id=row.job_id,
        shape=shape,
        parts={"warehouse": () if is_stubborn else range(row.args["parts"])},
        with_position=frozenset() if shape == "own table" else frozenset({"warehouse"}),
        result=row.result if is_stubborn else row.args["parts"],
        job=JobEvidence(row.status, row.result, runs),
        targets={"warehouse": history.target_loads.get(row.job_id, TargetEvidence())},
    )


def target_takeovers(history: History) -> set[UUID]:
    """Loads in which more than one run has committed a part."""
    return {
        job_id
        for job_id, evidence in history.target_loads.items()
        if len({commit.run_id for commit in evidence.commits if commit.kind == "part"}) > 1
    }


TARGET_RULES: Sequence[Callable[[History], Findings]] = (
    target_part_written_twice,
    incomplete_target_load,
    target_commit_after_successor,
    target_position_differs,
    wrong_target_result,
)
