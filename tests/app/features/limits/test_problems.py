"""The problems of tasks whose breaker is not closed."""

from __future__ import annotations

from typing import Any

import pytest

from dataloader.app.features.limits.breakers import BreakerState, read_open_breakers
from dataloader.app.features.limits.feature import FEATURE
from tests.support.problem_reads import NOW, breaker, read_problems


@pytest.mark.parametrize(
    ("values", "kind", "state", "text"),
    [
        ({}, "breaker open", "alert", ": its circuit breaker is open: 5 failures in a row; 3 jobs waiting"),
        (
            {"state": BreakerState.HALF_OPEN, "reason": None, "waiting": 1},
            "breaker open",
            "alert",
            ": its circuit breaker is half-open; 1 job waiting",
        ),
        (
            {"probe_at": None, "changed_by": "ann", "reason": "moved", "waiting": 0},
            "paused",
            "warning",
            " is paused by ann: moved",
        ),
    ],
)
def test_task_with_a_breaker_that_is_not_closed(values: dict[str, Any], kind: str, state: str, text: str):
    (problem,) = read_problems({read_open_breakers: [breaker(task="load a", **values)]}, [FEATURE])

    assert (problem.kind, problem.state, problem.after, problem.since) == (kind, state, text, NOW)
    failures, resume = problem.acts
    assert failures.path == "/failures?task=load+a"
    assert (resume.path, resume.fields) == ("/breakers", {"task": "load a", "action": "resume"})
