"""The problems of worker processes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.features.workers.feature import FEATURE
from dataloader.app.state.queues import RunningJob, read_worker_statuses
from tests.support.problem_reads import NOW, read_problems, worker

RUN = RunningJob(job_id=UUID(int=9), queue="etl", task="load", attempt=1, started_at=NOW, heartbeat_at=NOW)
SETTLED = NOW + timedelta(seconds=21)


@pytest.mark.parametrize(
    ("values", "kind", "state", "text"),
    [
        ({"alive": False, "running": (RUN,)}, "worker lost", "alert", " sends no heartbeat; it ran 1 job"),
        ({"alive": False}, "worker lost", "warning", " sends no heartbeat"),
        (
            {"listener": "refused", "last_beat_at": SETTLED},
            "polling",
            "warning",
            " is not receiving notifications (refused), polling",
        ),
    ],
)
def test_worker_with_a_problem(values: dict[str, Any], kind: str, state: str, text: str):
    workers = [worker(), worker(name="etl-02:8", **values)]

    (problem,) = read_problems({read_worker_statuses: workers}, [FEATURE])

    assert (problem.kind, problem.state, problem.before, problem.after) == (kind, state, "Worker ", text)
    assert (problem.subject, problem.link) == (("worker", "etl-02:8"), "/workers")


def test_worker_that_has_just_started_may_still_connect():
    assert read_problems({read_worker_statuses: [worker(listener="refused")]}, [FEATURE]) == []


def test_service_without_a_live_worker_has_a_problem():
    gone = [worker(name=f"etl-0{n}:7", alive=False, last_beat_at=NOW - timedelta(hours=n)) for n in (2, 1)]

    none, *lost = read_problems({read_worker_statuses: gone}, [FEATURE])

    assert (none.before, none.state, none.since) == (
        "No live worker: no job will run.",
        "alert",
        NOW - timedelta(hours=1),
    )
    assert [problem.kind for problem in lost] == ["worker lost"] * 2
