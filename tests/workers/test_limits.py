"""Limits in a whole worker pool: the maintenance leader wakes rates, and calls within a job wait for theirs."""

from __future__ import annotations

import time
from typing import Any

from app.admin.limits import Limits
from app.queue.job import Status
from pipelines.contract import Context, Pipelines
from tests.support import eventually
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


def test_a_cancel_ends_the_wait_for_a_rate(worker_pools: WorkerPoolFixture):
    limits = set_limit(worker_pools, "api", rate=1, per_sec=3600)
    assert limits.acquire("api") == 0
    tasks, begun = Pipelines(), []

    @tasks.register("fetch")
    def fetch(args: dict[str, Any], ctx: Context) -> None:
        begun.append(1)
        ctx.acquire("api")

    job_id = worker_pools.queue_fixture.enqueue(task="fetch")
    worker_pools.pool(pipelines=tasks)
    eventually(lambda: begun)

    worker_pools.queue_fixture.queue.cancel(job_id)

    eventually(lambda: worker_pools.queue_fixture.status(job_id) is Status.CANCELED)
