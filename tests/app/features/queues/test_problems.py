"""The problems of queues."""

from __future__ import annotations

from typing import Any

import pytest

from dataloader.app.features.queues.feature import FEATURE
from dataloader.app.queue.queues import QueueState
from dataloader.app.state.queues import read_queue_statuses
from tests.support.problem_reads import queue_status, read_problems

PAUSED = {"state": QueueState.PAUSED, "changed_by": "ann", "note": "disk"}


@pytest.mark.parametrize(
    ("values", "kind", "state", "sentence"),
    [
        (
            {"ready": 2000, "ready_exact": False, **PAUSED},
            "paused",
            "warning",
            "Queue etl is paused by ann: disk; about 2,000 ready jobs",
        ),
        (
            {"workers": 0, "ready": 1},
            "no worker",
            "alert",
            "No live worker serves queue etl: 1 ready job",
        ),
        (
            {"workers": 0, "scheduled": 1},
            "no worker",
            "warning",
            "No live worker serves queue etl: 0 ready jobs",
        ),
        (
            {"ready": 1, "oldest_ready_sec": 360.0},
            "long wait",
            "warning",
            "The oldest job of queue etl is ready for 6\u00a0min; 1 ready job",
        ),
    ],
)
def test_queue_with_a_problem(values: dict[str, Any], kind: str, state: str, sentence: str):
    (problem,) = read_problems({read_queue_statuses: [queue_status(**values)]}, [FEATURE])

    assert (problem.kind, problem.state) == (kind, state)
    assert f"{problem.before}etl{problem.after}" == sentence
    labels = {"paused": ["Jobs", "Resume"]}.get(kind, ["Jobs", "Workers"])
    assert [act.label for act in problem.acts] == labels


@pytest.mark.parametrize("values", [{"workers": 0}, {"ready": 9, "oldest_ready_sec": 300.0}])
def test_queue_without_a_problem(values: dict[str, Any]):
    assert read_problems({read_queue_statuses: [queue_status(**values)]}, [FEATURE]) == []
