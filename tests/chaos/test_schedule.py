"""What is done when comes from the seed alone."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.chaos.__main__ import FULL_SEC, faults_for
from tests.chaos.faults import FAULTS
from tests.chaos.load import Asking, Mix
from tests.chaos.schedule import schedule, unmet


def test_the_same_seed_plans_the_same():
    assert schedule(7, 300) == schedule(7, 300)
    assert schedule(7, 300) != schedule(8, 300)


def test_a_longer_run_begins_as_a_shorter_one():
    short = schedule(3, 60)

    assert schedule(3, 300)[: len(short) // 2] == short[: len(short) // 2]


@pytest.mark.parametrize("seed", range(1, 11))
def test_the_full_length_meets_every_kind_of_fault(seed):
    assert unmet(schedule(seed, faults_for(FULL_SEC))) == []


def test_faults_are_bounded_and_those_of_a_lane_do_not_overlap():
    plan = schedule(1, 500)
    for lane in ("processes", "database"):
        for before, after in pairwise(step for step in plan if step.lane == lane):
            assert before.at + before.lasts <= after.at
    for step in plan:
        low, high = FAULTS[step.fault].lasts
        assert low - 0.01 <= step.lasts <= high + 0.01
        assert step.at + step.lasts <= 500.1


def test_the_same_seed_asks_for_the_same_jobs():
    one, other = (Asking("5.0", Mix()) for _ in range(2))
    asked = [one.next() for _ in range(500)]

    assert asked == [other.next() for _ in range(500)]
    assert {kind for kind, _, _ in asked} == set(Mix().weights())
    assert len({key for _, key, _ in asked}) == 500
