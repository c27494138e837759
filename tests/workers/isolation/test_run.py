"""Pipelines in a process of their own: what they can do, and how they end."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import registry
from dataloader.workers.pool import WorkerPool
from tests.support import (
    eventually,
    isolated_tasks,  # noqa: F401 - registers its tasks
)
from tests.support.worker_pool_fixture import WorkerPoolFixture

pytestmark = pytest.mark.usefixtures("start_method")


def apart(worker_pools: WorkerPoolFixture, **options) -> WorkerPool:
    pool = worker_pools.pool(pipelines=registry, packages=("tests.support.isolated_tasks",), start=False, **options)
    pool.start()
    return pool


def test_isolated_task_behaves_as_in_a_thread(worker_pools):
    apart(worker_pools)
    job = worker_pools.wait_for_status(worker_pools.add_job("apart.works", args={"n": 1}), Status.SUCCEEDED)

    assert job.result["args"] == {"n": 1}
    assert job.result["attempt"] == 1
    assert job.progress == {"processed": 3, "total": 10, "unit": "rows", "counts": {"read": 7}}
    (done,) = worker_pools.event_payloads(job.id, "done")
    assert done["exit_code"] == 0
    assert done["peak_kb"] > 1000


def test_times_and_slice_of_the_job_are_those_of_its_request(worker_pools):
    apart(worker_pools)
    start, end = datetime(2030, 1, 31, tzinfo=UTC), datetime(2030, 2, 1, tzinfo=UTC)
    times = {"logical_at": end, "interval_start": start, "interval_end": end}
    sliced = worker_pools.add_job("apart.times", partition_key="2030-01-31", **times)
    plain = worker_pools.add_job("apart.times")

    result = worker_pools.wait_for_status(sliced, Status.SUCCEEDED).result
    assert result[0] == "2030-01-31"
    assert [datetime.fromisoformat(text) for text in result[1:]] == [end, start, end]
    assert worker_pools.wait_for_status(plain, Status.SUCCEEDED).result == [None] * 4


def test_retry_resumes_at_the_checkpoint(worker_pools):
    apart(worker_pools)
    job = worker_pools.wait_for_status(worker_pools.add_job("apart.steps"), Status.SUCCEEDED)

    assert job.result == {"began_at": 2}
    assert job.attempt == 2
    assert worker_pools.event_payloads(job.id, "requeue")[0]["error"] == "ValueError: stumbled at 1"


def test_child_knows_when_it_will_be_stopped(worker_pools):
    pool = apart(worker_pools)
    job_id = worker_pools.add_job("apart.curious")
    eventually(lambda: worker_pools.queue_fixture.job(job_id).progress, 20)

    assert pool.stop(grace=60) is True

    before, left_sec = worker_pools.queue_fixture.job(job_id).result
    assert before is None
    assert 50 < left_sec <= 60


@pytest.mark.parametrize(
    ("args", "status", "error"),
    [
        ({"what": "fail"}, Status.FAILED, "Fail: no use"),
        ({"what": "value"}, Status.FAILED, "ValueError: no good"),
        ({"what": "exit", "code": 3}, Status.FAILED, "SystemExit: 3"),
        ({"what": "exit", "code": 0}, Status.SUCCEEDED, None),
    ],
)
def test_errors_are_reported_by_the_child(worker_pools, args, status, error):
    apart(worker_pools)
    job = worker_pools.wait_for_status(worker_pools.add_job("apart.raises", args=args, max_attempts=1), status)

    assert job.error == error
    assert (job.traceback is None) == (error is None)


def test_snooze_costs_no_attempt(worker_pools):
    apart(worker_pools)
    job_id = worker_pools.add_job("apart.raises", args={"what": "snooze"}, max_attempts=1)

    worker_pools.wait_for_all([job_id], Status.QUEUED)
    assert [payload["attempt"] for payload in _until(worker_pools, job_id, "requeue")] == [0]


@pytest.mark.parametrize(
    ("args", "output"),
    [
        ({"how": "segfault"}, "killed by SIGSEGV"),
        ({"how": "kill"}, "killed by SIGKILL"),
        ({"how": "exit", "code": 7}, "exited with code 7"),
    ],
)
def test_job_that_kills_its_process_twice_fails_as_poison(worker_pools, args, output):
    apart(worker_pools)
    job = worker_pools.wait_for_status(worker_pools.add_job("apart.dies", args=args, max_attempts=10), Status.FAILED)

    assert job.error is not None
    assert job.error.startswith("poison: its process died 2 times")
    assert output in job.error
    assert (job.attempt, job.crashes) == (2, 2)
    assert worker_pools.event_payloads(job.id, "requeue")[0]["code"] == "crash"
    assert worker_pools.event_payloads(job.id, "failed")[0]["code"] == "poison"


def test_memory_limit_fails_the_job_alone(worker_pools):
    apart(worker_pools)
    job = worker_pools.wait_for_status(worker_pools.add_job("apart.hoards", max_attempts=1), Status.FAILED)

    assert job.error == "MemoryError"


def test_processor_time_limit_is_named(worker_pools):
    apart(worker_pools)
    job = worker_pools.wait_for_status(worker_pools.add_job("apart.burns", max_attempts=1), Status.FAILED)

    assert job.error is not None
    assert "SIGXCPU (its limit of processor time)" in job.error


def test_isolated_task_commits_with_its_job(worker_pools):
    worker_pools.queue_fixture.sql("CREATE TABLE witness (said text)")
    apart(worker_pools)
    job = worker_pools.wait_for_status(worker_pools.add_job("apart.seals"), Status.SUCCEEDED)

    assert job.result == {"sealed": True}
    assert [row[0] for row in worker_pools.queue_fixture.sql("SELECT said FROM witness ORDER BY 1")] == [
        "first",
        "last",
    ]


def test_unknown_task_in_the_child_is_named(worker_pools):
    pool = worker_pools.pool(pipelines=registry, packages=("tests.support.job_gate",), start=False)
    pool.start()
    job = worker_pools.wait_for_status(worker_pools.add_job("apart.works"), Status.FAILED)

    assert job.error is not None
    assert "does not know the task 'apart.works'" in job.error


def _until(worker_pools: WorkerPoolFixture, job_id, kind: str):
    from tests.support.waiting import eventually

    return eventually(lambda: worker_pools.event_payloads(job_id, kind))
