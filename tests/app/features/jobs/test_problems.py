"""The problems of running jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.features.jobs.feature import FEATURE
from dataloader.app.features.jobs.job_search import read_running_jobs, read_stalled_sec
from dataloader.app.state.statistics import RecentRun, read_recent_runs
from tests.support.problem_reads import JOB, NOW, read_problems, running_job

BEFORE = NOW - timedelta(seconds=2000)
RUNS = [RecentRun(JOB, "etl", NOW, "succeeded", 1, duration_sec) for duration_sec in (60.0, 120.0)]


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ({"heartbeat_at": BEFORE}, "no heartbeat", " runs on etl-01:7 without a heartbeat"),
        ({"cancel_requested": True}, "not canceled", " still runs on etl-01:7, although its cancel is requested"),
        ({"worker": None, "job_id": UUID(int=9)}, "stalled", " runs without progress"),
        ({"started_at": BEFORE}, "long run", " runs on etl-01:7; its last 2 runs took 2\u00a0min at most"),
    ],
)
def test_running_job_with_a_problem(values: dict[str, Any], kind: str, text: str):
    facts = {
        read_running_jobs: [running_job(**values)],
        read_stalled_sec: {UUID(int=9): 300.0},
        read_recent_runs: {"load": RUNS},
    }

    (problem,) = read_problems(facts, [FEATURE])

    assert (problem.kind, problem.after, problem.task, problem.state) == (kind, text, "load", "warning")
    acts = [("Job", problem.link)] + ([("Cancel", f"{problem.link}/cancel")] if kind != "not canceled" else [])
    assert [(act.label, act.path) for act in problem.acts] == acts


@pytest.mark.parametrize(
    "values", [{}, {"job_id": UUID(int=9)}, {"started_at": BEFORE, "attempt": 2}, {"started_at": BEFORE, "task": "new"}]
)
def test_running_job_without_a_problem(values: dict[str, Any]):
    facts = {
        read_running_jobs: [running_job(**values)],
        read_stalled_sec: {UUID(int=9): 299.0},
        read_recent_runs: {"load": RUNS},
    }

    assert read_problems(facts, [FEATURE]) == []


def test_more_than_twenty_running_jobs_with_problems_are_one_line_more():
    jobs = [running_job(job_id=UUID(int=100 + n), cancel_requested=True) for n in range(22)]

    *first, last = read_problems({read_running_jobs: jobs}, [FEATURE])

    assert len(first) == 20
    assert (last.before, [act.path for act in last.acts]) == (
        "More running jobs have problems",
        ["/jobs?status=running"],
    )
