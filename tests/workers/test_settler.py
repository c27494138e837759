"""What becomes of a job's key when its attempt ends without a settlement of the settler."""

from __future__ import annotations

from typing import Any

from app.queue.job import new_run_ids
from pipelines.contract import Context
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture


def test_end_of_job_settled_by_its_task_unblocks_the_next(worker_pools: WorkerPoolFixture):
    def settle_then_wait(args: dict[str, Any], ctx: Context) -> None:
        with ctx.transaction(final=True):
            pass
        worker_pools.gate.wait_inside("")

    worker_pools.pipelines.register("final")(settle_then_wait)
    database = worker_pools.queue_fixture
    database.sql("SELECT pg_advisory_lock(1684828527, 5)")  # no process leads, and repairs blocked jobs
    worker_pools.listening_pool()
    worker_pools.add_job("final", "k")
    worker_pools.gate.wait_for_inside()
    blocked = database.enqueue("k", queue="other")
    assert database.new_queue().claim("other", ["t"], new_run_ids(1), "w", lock_keys=True)[0] == []
    assert database.wait_state(blocked) == "blocked"

    worker_pools.gate.open()

    eventually(lambda: database.wait_state(blocked) == "ready", 10)
