"""Loads into the target that contradict the rules are found."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.chaos.history_builder import HistoryBuilder
from tests.target_proof.site import Commit, TargetEvidence


class TargetLoad:
    """A load of two parts, the second one by a second run."""

    def __init__(self, tale: HistoryBuilder, task: str = "chaos.target", shape: str = "checkpoint") -> None:
        self.tale, self.job = tale, tale.job(task, args={"shape": shape, "parts": 2})
        self.first = tale.claim(self.job)
        tale.reap(self.job, self.first)
        self.second = tale.claim(self.job, 2)
        tale.succeed(self.job, self.second, 2, result=2)
        self.commits: list[Commit] = []
        self.write(self.first, 0, position=1)
        self.write(self.second, 1, position=2)

    def write(self, run: UUID, part: int, *, position: int) -> None:
        n = len(self.commits)
        self.commits += [
            Commit(n, n, run, "part", part, None, None),
            Commit(n + 1, n, run, "row", None, position, False),
        ]

    def violated_rules(self) -> set[str]:
        parts = [commit.part for commit in self.commits if commit.part is not None]
        return self.tale.violated_rules(target_loads={self.job: TargetEvidence(self.commits, parts, True, 2)})


@pytest.fixture
def load(tale: HistoryBuilder) -> TargetLoad:
    return TargetLoad(tale)


def test_load_that_another_run_took_over_is_lawful(load: TargetLoad):
    assert load.violated_rules() == set()


def test_part_that_is_in_the_target_twice_is_found(load: TargetLoad):
    load.write(load.second, 1, position=2)

    assert load.violated_rules() == {"target part written twice"}


def test_load_without_a_part_in_the_target_is_found(load: TargetLoad):
    load.commits = load.commits[:2]

    assert load.violated_rules() == {"incomplete target load"}


def test_commit_of_a_run_that_was_replaced_is_found(load: TargetLoad):
    load.write(load.first, 2, position=3)

    assert load.violated_rules() == {"target commit after successor"}


def test_position_that_is_not_that_of_the_parts_is_found(load: TargetLoad):
    load.commits = load.commits[:2]
    load.write(load.second, 1, position=3)

    assert load.violated_rules() == {"target position differs"}


def test_result_of_another_load_is_found(load: TargetLoad):
    load.tale.row(load.job, result=3)

    assert load.violated_rules() == {"wrong target result"}


@pytest.mark.parametrize("parts", [0, 1])
def test_zombie_may_write_as_many_parts_as_it_can(tale: HistoryBuilder, parts: int):
    load = TargetLoad(tale, "chaos.target_zombie")
    load.commits = load.commits[: 2 * parts]

    assert load.violated_rules() == set()


def test_load_with_a_table_of_its_own_has_no_position(tale: HistoryBuilder):
    load = TargetLoad(tale, shape="own table")
    load.commits = [commit for commit in load.commits if commit.kind == "part"]

    assert load.violated_rules() == set()


def test_target_without_anything_of_a_load_is_found(tale: HistoryBuilder):
    load: Any = TargetLoad(tale)
    load.commits = []

    assert load.violated_rules() == {"incomplete target load"}
