"""How a pool ends: after so many jobs, by the grace of each queue, and by a notice."""

from __future__ import annotations

import threading
import time

import pytest

from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Context, Stop
from tests.support import eventually
from tests.support.queue_fixture import BackgroundCall
from tests.support.worker_pool_fixture import WorkerPoolFixture


def test_pool_starts_as_many_jobs_as_it_may(worker_pools: WorkerPoolFixture):
    jobs = [worker_pools.add_job() for _ in range(6)]
    pool = worker_pools.pool({"q": 3}, max_jobs=2)

    eventually(lambda: pool.has_started_all_jobs and pool.idle_sec > 0)
    pool.stop_claiming()
    assert pool.stop(grace=5)

    statuses = [worker_pools.queue_fixture.job(job) for job in jobs]
    assert sorted(job.status for job in statuses) == [Status.QUEUED] * 4 + [Status.SUCCEEDED] * 2
    assert sum(job.attempt for job in statuses) == 2


def test_each_queue_has_its_own_grace(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool({"q": 1, "r": 1}, grace_by_queue={"q": 0.05})
    short, long = worker_pools.add_job("held", "a"), worker_pools.add_job("held", "b", queue="r")
    worker_pools.gate.wait_for_inside(2)

    stopping = BackgroundCall(pool.stop, 60.0)
    eventually(lambda: worker_pools.queue_fixture.status(short) is Status.QUEUED)
    still = worker_pools.queue_fixture.status(long)
    worker_pools.gate.open()

    assert stopping.result() is True
    assert still is Status.RUNNING
    assert worker_pools.queue_fixture.status(long) is Status.SUCCEEDED
    assert worker_pools.queue_fixture.job(short).attempt == 0


def test_notice_shortens_a_stop_in_progress(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool({"q": 1}, grace_by_queue={"q": 600})
    job = worker_pools.add_job("held")
    worker_pools.gate.wait_for_inside(1)
    stopping = BackgroundCall(pool.stop, 600.0)

    pool.stop_within(0.05)

    assert stopping.result() is True
    assert worker_pools.queue_fixture.job(job).status is Status.QUEUED


def test_context_knows_when_it_will_be_stopped(worker_pools: WorkerPoolFixture):
    seen: list[float | None] = []

    @worker_pools.pipelines.register("curious")
    def curious(args: dict[str, object], ctx: Context) -> None:
        seen.append(ctx.stopping_in)
        while ctx.stopping_in is None:  # without a safe point, which might raise Stop before it is known
            time.sleep(0.01)
        seen.append(ctx.stopping_in)
        try:
            ctx.sleep(60)
        except Stop:
            seen.append(ctx.stopping_in)
            raise

    pool = worker_pools.listening_pool({"q": 1})
    worker_pools.add_job("curious")
    eventually(lambda: seen == [None])

    assert pool.stop(grace=0.5) is True

    assert seen[1] == pytest.approx(0.5, abs=0.5)
    assert seen[2] == 0


def test_jobs_without_checkpoint_are_what_would_be_lost(worker_pools: WorkerPoolFixture):
    saved = threading.Event()

    @worker_pools.pipelines.register("saving")
    def saving(args: dict[str, object], ctx: Context) -> None:
        ctx.checkpoint({"done": 1})
        saved.set()
        worker_pools.gate.wait_inside("saving", ctx.check)

    pool = worker_pools.listening_pool({"q": 2})
    idle_sec = pool.would_lose_sec
    worker_pools.add_job("saving")
    assert saved.wait(30)
    with_checkpoint_sec = pool.would_lose_sec
    worker_pools.add_job("held")
    worker_pools.gate.wait_for_inside(2)

    assert idle_sec == with_checkpoint_sec == 0
    eventually(lambda: pool.would_lose_sec > 0.2)
    worker_pools.gate.open()
    eventually(lambda: pool.would_lose_sec == 0)
