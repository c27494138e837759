"""An attempt that a stop of its worker released resumes at its checkpoint."""

from __future__ import annotations

import pytest

from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import registry
from tests.support import eventually, hostile_tasks  # noqa: F401 - registers its tasks


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_released_attempt_resumes_at_its_checkpoint(worker_pools, isolation):
    task = f"hostile.resumes.{isolation}"
    apart = {"pipelines": registry, "packages": ("tests.support.hostile_tasks",)}
    pool = worker_pools.pool(**apart)
    job_id = worker_pools.add_job(task, lease_ttl_sec=20)
    eventually(
        lambda: worker_pools.queue_fixture.job(job_id).checkpoint == {"page": 3}
    )  # by a heartbeat: a kill would not undo it
    eventually(lambda: worker_pools.queue_fixture.job(job_id).progress == {"processed": 3})

    assert pool.stop(grace=0)
    worker_pools.pool(**apart)
    job = worker_pools.wait_for_status(job_id, Status.SUCCEEDED)

    assert job.result == {"began_at": {"page": 3}}
    assert (job.attempt, job.checkpoint) == (1, None)
