"""The problems of schedules."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dataloader.app.features.schedules.feature import FEATURE
from dataloader.app.features.schedules.rows import read_not_firing
from tests.support.problem_reads import NOW, read_problems, schedule

BEFORE = NOW - timedelta(hours=1)


@pytest.mark.parametrize(
    ("values", "kind", "state", "text"),
    [
        ({"next_at": BEFORE}, "late", "alert", " has not fired load"),
        ({"error": "no such day", "changed_at": BEFORE}, "stopped", "alert", " makes no jobs: no such day"),
        (
            {"orphaned_at": BEFORE},
            "orphaned",
            "warning",
            " is in the code of no live worker and does not fire",
        ),
        (
            {"paused_at": BEFORE, "paused_by": "ann", "paused_reason": "moved"},
            "paused",
            "warning",
            " is paused by ann: moved",
        ),
    ],
)
def test_schedule_that_does_not_fire(values: dict[str, Any], kind: str, state: str, text: str):
    (problem,) = read_problems({read_not_firing: [schedule(name="a/b", **values)]}, [FEATURE])

    assert (problem.kind, problem.state, problem.before, problem.after) == (kind, state, "Schedule ", text)
    assert problem.since == BEFORE
    assert [(act.label, act.path) for act in problem.acts] == [("Schedule", "/schedules/a%2Fb")]


def test_many_paused_schedules_are_one_problem():
    paused = [schedule(name=f"s{n}", paused_at=NOW - timedelta(hours=n)) for n in range(3)]

    few = read_problems({read_not_firing: paused[:2]}, [FEATURE])
    late, many = read_problems({read_not_firing: [*paused, schedule()]}, [FEATURE])

    assert [problem.subject for problem in few] == [("schedule", "s0"), ("schedule", "s1")]
    assert late.subject == ("schedule", "nightly")
    assert many.before == "3 schedules are paused: s0, s1 and 1 more"
    assert many.since == NOW - timedelta(hours=2)
