"""Loads that contradict a rule of the proof are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.target_proof.loads import HOME
from tests.target_proof.rules import RULES, LoadEvidence, check
from tests.target_proof.site import Commit, JobEvidence, TargetEvidence

FIRST, SECOND = uuid4(), uuid4()


class Load:
    """A load of two parts that has succeeded, the first part by a run that died."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.xid = 0
        self.claim(FIRST)
        self.write(FIRST, 0, position=1)
        self.claim(SECOND, position=1)
        self.write(SECOND, 1, position=2)
        self.job: JobEvidence | None = JobEvidence("succeeded", {"parts": 2}, [FIRST, SECOND])
        self.more: dict[str, Any] = {}

    def claim(self, run: UUID, position: Any = None) -> None:
        self.xid += 1
        self.row(run, position)

    def row(self, run: UUID, position: Any, *, is_done: bool = False) -> None:
        self.add(run, "row", None, position, is_done=is_done)

    def write(self, run: UUID, part: int, position: Any = None, *, is_done: bool = False) -> None:
        """A transaction with a part, and a position unless it has none."""
        self.xid += 1
        self.add(run, "part", part, None)
        if position is not None or is_done:
            self.row(run, position, is_done=is_done)

    def add(self, run: UUID, kind: str, part: int | None, position: Any, *, is_done: bool = False) -> None:
        self.commits.append(Commit(len(self.commits), self.xid, run, kind, part, position, is_done))

    def violated_rules(self) -> set[str]:
        parts = [commit.part for commit in self.commits if commit.part is not None]
        load = LoadEvidence(
            job_id=uuid4(),
            shape="checkpoint",
            parts={HOME: range(2)},
            with_position=frozenset({HOME}),
            result={"parts": 2},
            job=self.job,
            targets={HOME: TargetEvidence(self.commits, parts, has_row=True)},
        )
        return {violation.rule for violation in check(replace(load, **self.more))}


@pytest.fixture
def load() -> Load:
    return Load()


def test_load_that_was_taken_over_is_lawful(load: Load):
    assert load.violated_rules() == set()


def test_final_transaction_has_no_position(load: Load):
    load.commits = [commit for commit in load.commits if commit.xid < load.xid]
    load.write(SECOND, 1, position=1, is_done=True)

    assert load.violated_rules() == set()


def test_position_of_each_counts_its_keys(load: Load):
    load.commits = load.commits[:1]
    for part in range(2):
        load.write(FIRST, part, position={"each": [{"done": part + 1}]})

    assert load.violated_rules() == set()


def test_load_without_position_may_write_parts_alone(load: Load):
    load.commits = []
    load.write(FIRST, 0)
    load.write(SECOND, 1)
    load.more = {"with_position": frozenset()}

    assert load.violated_rules() == set()


def test_part_that_is_there_twice_is_found(load: Load):
    load.write(SECOND, 1, position=2)

    assert "part written twice" in load.violated_rules()


def test_part_that_is_missing_is_found(load: Load):
    load.commits = load.commits[:-2]

    assert load.violated_rules() == {"part lost"}


@pytest.mark.parametrize("kind", ["part", "row"])
def test_commit_after_that_of_a_later_run_is_found(load: Load, kind: str):
    load.xid += 1
    load.add(FIRST, kind, 7 if kind == "part" else None, 2)

    assert "commit after successor" in load.violated_rules()


def test_commit_of_an_unknown_run_is_found(load: Load):
    load.claim(uuid4(), position=2)

    assert load.violated_rules() == {"commit after successor"}


def test_commit_after_the_deletion_of_the_row_is_found(load: Load):
    load.xid += 1
    load.add(SECOND, "deleted", None, 2)
    assert load.violated_rules() == set()

    load.claim(SECOND)
    assert load.violated_rules() == {"commit after successor"}


@pytest.mark.parametrize("position", [0, 1, 3, None])
def test_position_other_than_the_parts_is_found(load: Load, position: Any):
    load.commits = load.commits[:-2]
    load.write(SECOND, 1, position=position)

    assert load.violated_rules() == {"position differs"}


@pytest.mark.parametrize(
    ("job", "rules"),
    [
        (JobEvidence("succeeded", {"parts": 3}, [FIRST, SECOND]), {"wrong result"}),
        (JobEvidence("succeeded", None, [FIRST, SECOND]), {"wrong result"}),
        (JobEvidence("queued", None, [FIRST, SECOND]), {"job stuck"}),
        (JobEvidence("lost", None, [FIRST, SECOND]), {"job stuck"}),
        (None, {"job stuck"}),
    ],
)
def test_job_that_did_not_succeed_with_its_result_is_found(load: Load, job: JobEvidence | None, rules: set[str]):
    load.job = job

    assert load.violated_rules() == rules


@pytest.mark.parametrize(
    ("more", "rule"), [({"refused_owners": [SECOND]}, "owner refused"), ({"problems": ["it hangs"]}, "job stuck")]
)
def test_what_the_conductor_saw_is_found(load: Load, more: dict[str, Any], rule: str):
    load.more = more

    assert load.violated_rules() == {rule}


def test_every_rule_is_tested():
    tested = {"part written twice", "part lost", "commit after successor", "position differs", "wrong result"}

    assert {rule.__name__.replace("_", " ") for rule in RULES} == tested | {"job stuck", "owner refused"}
