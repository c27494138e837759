"""Starts above a limit or a rate are found, and lawful ones are not."""

from __future__ import annotations

from uuid import uuid4

import pytest

# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def limited_runs(tale, count: int, *, weight: int = 1, name: str = "warehouse", after: float = 1.0):
    """So many jobs of a limit, all running."""
    jobs = [tale.job(key=f"{name} {n} {tale.now}", limits={name: weight}) for n in range(count)]
    return [(job, tale.claim(job, after=after)) for job in jobs]


def end_all(tale, runs) -> None:
    for job, run in runs:
        tale.succeed(job, run)


@pytest.mark.parametrize(
    ("running", "weight", "rules"), [(2, 1, set()), (3, 1, {"limit exceeded"}), (2, 2, {"limit exceeded"})]
)
def test_weight_above_the_limit_is_found(tale, running, weight, rules):
    tale.set_limit("warehouse", concurrency=2)
    end_all(tale, limited_runs(tale, running, weight=weight))

    assert tale.violated_rules() == rules


def test_each_end_of_a_run_frees_its_place(tale):
    tale.set_limit("warehouse", concurrency=1)
    job = tale.job(limits={"warehouse": 1}, task="chaos.failing")
    run = tale.claim(job)
    tale.event(job, "requeue", "queued", 1, run, reason="error", error="x")
    tale.reap(job, tale.claim(job, 2), 2)
    tale.event(job, "done", "succeeded", 3, run := tale.claim(job, 3))
    tale.row(job, result={"run": str(run)})
    end_all(tale, limited_runs(tale, 1))

    assert tale.violated_rules() == set()


@pytest.mark.parametrize(("pending", "rules"), [(0, {"limit exceeded"}), (10, set())])
def test_only_starts_after_a_lowered_limit_count(tale, pending, rules):
    tale.set_limit("warehouse", concurrency=3)
    runs = limited_runs(tale, 2)
    tale.set_limit("warehouse", concurrency=1, pending=pending)  # with 10, nothing is confirmed before the next start
    assert tale.violated_rules() == {"job not finished"}

    end_all(tale, [*runs, *limited_runs(tale, 1)])

    assert tale.violated_rules() == rules


@pytest.mark.parametrize("pending", [0, 10])
def test_starts_under_a_raised_limit_are_allowed(tale, pending):
    tale.set_limit("warehouse", concurrency=1)
    runs = limited_runs(tale, 1)
    tale.set_limit("warehouse", concurrency=2, pending=pending)
    end_all(tale, [*runs, *limited_runs(tale, 1)])

    assert tale.violated_rules() == set()


@pytest.mark.parametrize(("name", "rules"), [("tenant:b", {"limit exceeded"}), ("tenant:big", set()), ("other", set())])
def test_a_default_applies_to_names_without_a_setting(tale, name, rules):
    tale.set_limit("tenant:*", concurrency=1)
    tale.set_limit("tenant:big", concurrency=2)
    end_all(tale, [*limited_runs(tale, 2, name=name), *limited_runs(tale, 1, name="tenant:a")])

    assert tale.violated_rules() == rules


@pytest.mark.parametrize("name", ["queue:chaos", "task:chaos.short"])
def test_limits_of_a_queue_and_a_task_count_all_its_jobs(tale, name):
    tale.set_limit(name, concurrency=1)
    runs = [(job, tale.claim(job)) for job in (tale.job(key="a"), tale.job(key="b"))]
    end_all(tale, runs)

    assert tale.violated_rules() == {"limit exceeded"}


@pytest.mark.parametrize(
    ("count", "after", "rules"),
    [
        pytest.param(7, 0.15, {"rate exceeded"}, id="seven in 0.9 s"),
        pytest.param(6, 0.01, set(), id="the first one was decided before the period"),
        pytest.param(20, 0.2, set(), id="evenly"),
    ],
)
def test_starts_above_the_rate_are_found(tale, count, after, rules):
    tale.set_limit("partner", rate=5, per_sec=1.0)
    jobs = [tale.job(key=f"p{n}", limits={"partner": 1}) for n in range(count)]
    runs = []
    for job in jobs:
        run = uuid4()
        tale.event(job, "picked", "running", 1, run, after=after)
        runs.append((job, run))
    for job, run in runs:
        tale.report(job, run, "began")
    end_all(tale, runs)

    assert tale.violated_rules() == rules


def test_a_job_that_still_waits_for_a_limit_is_found(tale):
    tale.set_limit("warehouse", concurrency=1)
    job = tale.job(limits={"warehouse": 1})
    tale.event(job, "limited", "queued", 0, waits_on="warehouse")
    tale.row(job, wait_state="limited", waits_on="warehouse")
    assert tale.violated_rules() == {"job left limited", "job not finished"}

    tale.event(job, "released", "queued", 0, limit="warehouse")
    tale.row(job, wait_state="scheduled", waits_on=None)
    tale.succeed(job, tale.claim(job))

    assert tale.violated_rules() == set()
