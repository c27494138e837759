"""What is done when comes from the seed alone."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.chaos.__main__ import FULL_SEC, faults_for
from tests.chaos.faults import FAULTS
from tests.chaos.job_requests import Mix, RequestGenerator
from tests.chaos.schedule import plan_faults, unplanned_faults


def test_the_same_seed_plans_the_same():
    assert plan_faults(7, 300) == plan_faults(7, 300)
    assert plan_faults(7, 300) != plan_faults(8, 300)


def test_a_longer_run_begins_as_a_shorter_one():
    short, longer = ({(step.fault, step.starts_at_sec) for step in plan_faults(3, sec)} for sec in (60, 300))

    assert short < longer
    assert any(step.lane == "transactions" for step in plan_faults(3, 60))


@pytest.mark.parametrize("seed", range(1, 11))
def test_the_full_length_meets_every_kind_of_fault(seed):
    assert unplanned_faults(plan_faults(seed, faults_for(FULL_SEC))) == []


def test_faults_of_a_lane_are_bounded_and_do_not_overlap():
    plan = plan_faults(1, 500)
    for lane in ("processes", "database", "transactions", "targets"):
        for before, after in pairwise(step for step in plan if step.lane == lane):
            assert before.starts_at_sec + before.duration_sec <= after.starts_at_sec
    for step in plan:
        low, high = FAULTS[step.fault].duration_sec
        assert low - 0.01 <= step.duration_sec <= high + 0.01
        assert step.starts_at_sec + step.duration_sec <= 500.1


def test_the_same_seed_asks_for_the_same_jobs():
    one, other = (RequestGenerator("5.0", Mix()) for _ in range(2))
    asked = [one.next() for _ in range(1500)]

    assert asked == [other.next() for _ in range(1500)]
    assert {kind for kind, _, _ in asked} == set(Mix().weights())
    assert len({key for _, key, _ in asked}) == 1500
