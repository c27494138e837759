"""Limits in a whole worker pool: the maintenance leader wakes rates, and calls within a job wait for theirs."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.features.limits.rows import Limits
from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Context, Pipelines, registry
from tests.support import eventually, isolated_tasks
from tests.support.worker_pool_fixture import WorkerPoolFixture


def set_limit(pools: WorkerPoolFixture, name: str, **values: Any) -> Limits:
    limits = Limits(pools.queue_fixture.session)
    limits.set(name, **values)
    return limits


def finished(pools: WorkerPoolFixture) -> int:
    return int(pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_jobs WHERE status = 'succeeded'"))


def test_two_pools_share_a_limit(worker_pools: WorkerPoolFixture):
    set_limit(worker_pools, "warehouse", concurrency=2)
    for n in range(6):
        worker_pools.queue_fixture.enqueue(f"k{n}", task="held", args={"n": n}, limits={"warehouse": 1})

    worker_pools.pool({"q": 3})
    worker_pools.pool({"q": 3})

    states = (
        "SELECT coalesce(nullif(status::text, 'queued'), wait_state::text), count(*) FROM dl_jobs GROUP BY 1 ORDER BY 1"
    )
    eventually(lambda: worker_pools.queue_fixture.sql(states) == [("limited", 4), ("running", 2)])
    worker_pools.gate.open()
    eventually(lambda: finished(worker_pools) == 6)


def test_jobs_of_a_rate_start_when_their_time_comes(worker_pools: WorkerPoolFixture):
    set_limit(worker_pools, "partner", rate=20, per_sec=2)
    for n in range(6):
        worker_pools.queue_fixture.enqueue(f"k{n}", task="quick", args={"n": n}, limits={"partner": 1})

    worker_pools.pool({"q": 3})

    eventually(lambda: finished(worker_pools) == 6)
    starts = "SELECT extract(epoch FROM max(ts) - min(ts))::float8 FROM dl_job_events WHERE kind = 'picked'"
    assert worker_pools.queue_fixture.fetch_row(starts) >= 0.49, "six starts are five times a tenth of a second apart"


def test_calls_of_jobs_share_a_rate(worker_pools: WorkerPoolFixture):
    set_limit(worker_pools, "api", rate=20, per_sec=1)
    calls: list[float] = []
    tasks = Pipelines()

    @tasks.register("fetch")
    def fetch(args: dict[str, Any], ctx: Context) -> None:
        for _ in range(3):
            ctx.acquire("api")
            calls.append(time.monotonic())

    for n in range(2):
        worker_pools.queue_fixture.enqueue(f"k{n}", task="fetch")
    worker_pools.pool({"q": 2}, pipelines=tasks)

    eventually(lambda: finished(worker_pools) == 2)
    assert max(calls) - min(calls) >= 0.24, "six calls are five times a twentieth of a second apart"


def isolated_pipelines() -> Pipelines:
    """Tasks that run in a process, and the same in a thread."""
    tasks = Pipelines()
    for name in ("apart.calls", "apart.follows", "apart.limited"):
        task = registry.get(name)
        assert task is not None
        tasks.add(task)
    tasks.register("thread.calls")(isolated_tasks.count_call)
    tasks.register("thread.follows")(isolated_tasks.enqueue_follow_up)
    return tasks


def run_until_it_waits(pools: WorkerPoolFixture, task: str, **options: Any) -> UUID:
    """Start a job that waits an hour for its call."""
    limits = set_limit(pools, "api", rate=1, per_sec=3600)
    assert limits.acquire("api") == 0
    job_id = pools.add_job(task, max_attempts=1, **options)
    pools.pool(pipelines=isolated_pipelines(), packages=("tests.support.isolated_tasks",))
    eventually(lambda: "begun" in [entry.line for entry in pools.queue_fixture.queue.logs(job_id).lines])
    return job_id


@pytest.mark.parametrize("task", ["thread.calls", "apart.calls"])
def test_a_cancel_ends_the_wait_for_a_rate(worker_pools: WorkerPoolFixture, task: str):
    job_id = run_until_it_waits(worker_pools, task)

    worker_pools.queue_fixture.queue.cancel(job_id)

    worker_pools.wait_for_status(job_id, Status.CANCELED)


@pytest.mark.parametrize("task", ["thread.calls", "apart.calls"])
def test_a_shutdown_ends_the_wait_for_a_rate(worker_pools: WorkerPoolFixture, task: str):
    job_id = run_until_it_waits(worker_pools, task)

    assert worker_pools.pools[0].stop(grace=0)

    assert worker_pools.queue_fixture.status(job_id) is Status.QUEUED


def test_a_time_limit_ends_the_wait_for_a_rate(worker_pools: WorkerPoolFixture):
    job_id = run_until_it_waits(worker_pools, "thread.calls", time_limit_sec=1)

    job = worker_pools.wait_for_status(job_id, Status.FAILED)

    assert "time limit" in str(job.error)


@pytest.mark.parametrize("task", ["thread.follows", "apart.follows"])
def test_follow_up_job_has_limits_and_lock_key_of_its_task(worker_pools: WorkerPoolFixture, task: str):
    job_id = worker_pools.add_job(task, max_attempts=1)
    worker_pools.pool(pipelines=isolated_pipelines(), packages=("tests.support.isolated_tasks",))

    follow_up = UUID(worker_pools.wait_for_status(job_id, Status.SUCCEEDED).result)

    job = worker_pools.queue_fixture.job(follow_up)
    assert (job.limits, job.lock_key) == ({"tenant:acme": 1}, "shop:acme:1")
