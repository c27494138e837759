"""A worker declares the failure handlers of its tasks, and runs their jobs."""

from __future__ import annotations

from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Pipelines
from tests.support import eventually, graph_tasks
from tests.support.worker_pool_fixture import WorkerPoolFixture


def test_failed_attempt_is_followed_by_its_handler(worker_pools: WorkerPoolFixture):
    tasks = Pipelines()
    tasks.register("load", on_failed="notify")(graph_tasks.breaks)
    tasks.register("notify", queue="q")(graph_tasks.returns)
    queue_db = worker_pools.queue_fixture
    job_id = queue_db.enqueue("k", task="load", args={"shop": 7}, max_attempts=1)

    worker_pools.pool(pipelines=tasks)

    eventually(lambda: queue_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE result ->> 'job_id' = %s", str(job_id)))
    assert queue_db.status(job_id) is Status.FAILED
    ((error, args),) = queue_db.sql("SELECT result ->> 'error', result -> 'args' FROM dl_jobs WHERE task = 'notify'")
    assert (error, args) == ("ValueError: broken", {"shop": 7})
