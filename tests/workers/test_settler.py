"""How the settler ends attempts: their keys, and values that cannot be written."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.queue.job import Settlement, Status, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Context
from dataloader.workers.settler import Settler
from tests.support.recording import record_calls
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture


@pytest.fixture
def settled_by_task(worker_pools: WorkerPoolFixture) -> WorkerPoolFixture:
    """Has the task `final`, which waits after its final transaction. No process leads, and repairs blocked jobs."""

    def settle_then_wait(args: dict[str, Any], ctx: Context) -> None:
        with ctx.transaction(final=True):
            pass
        worker_pools.gate.wait_inside("")

    worker_pools.pipelines.register("final")(settle_then_wait)
    worker_pools.queue_fixture.sql("SELECT pg_advisory_lock(1684828527, 5)")
    return worker_pools


def test_end_of_job_settled_by_its_task_unblocks_the_next(settled_by_task: WorkerPoolFixture):
    worker_pools, database = settled_by_task, settled_by_task.queue_fixture
    worker_pools.listening_pool()
    worker_pools.add_job("final", "k")
    worker_pools.gate.wait_for_inside()
    blocked = database.enqueue("k", queue="other")
    assert database.new_queue().claim("other", ["t"], new_run_ids(1), "w", lock_keys=True)[0] == []
    assert database.wait_state(blocked) == "blocked"

    worker_pools.gate.open()

    eventually(lambda: database.wait_state(blocked) == "ready", 10)


def job_ids(submitted: list[tuple[Any, ...]]) -> list[UUID]:
    return [attempt.job.id for _, attempt, _ in submitted]


def test_job_released_after_the_end_of_its_keys_holder_is_unblocked(settled_by_task: WorkerPoolFixture, monkeypatch):
    worker_pools, database = settled_by_task, settled_by_task.queue_fixture
    may_end = threading.Event()
    worker_pools.pipelines.register("slow")(lambda args: may_end.wait(60))
    submitted = record_calls(monkeypatch, Settler, "submit")
    worker_pools.listening_pool({"q": 3})
    first = worker_pools.add_job("final", "k")
    worker_pools.gate.wait_for_inside()
    slow = worker_pools.add_job("slow")
    worker_pools.wait_for_status(slow, Status.RUNNING)

    with database.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(slow))
        may_end.set()
        database.wait_for_lock_waiters()  # the settler, which then writes what follows in one batch
        next_job = worker_pools.add_job("quick", "k")  # the session has the key already, so this process claims it
        eventually(lambda: job_ids(submitted) == [slow, next_job], message="its release")
        worker_pools.gate.open()
        eventually(lambda: job_ids(submitted) == [slow, next_job, first], message="the end of the key's first job")

    worker_pools.wait_for_status(next_job, Status.SUCCEEDED, 10)


@pytest.mark.parametrize(
    "odd",
    [
        Settlement(Status.FAILED, error="refused", traceback={"a": 1}),  # type: ignore[arg-type]
        Settlement(Status.QUEUED, error="refused", retry_in_sec=float("nan")),
        Settlement(Status.QUEUED, error="refused", retry_in_sec="soon"),  # type: ignore[arg-type]
        Settlement(Status.FAILED, error=b"refused"),  # type: ignore[arg-type]
    ],
    ids=lambda odd: repr(odd)[:80],
)
def test_odd_value_of_one_job_harms_no_other(worker_pools: WorkerPoolFixture, odd: Settlement):
    @worker_pools.pipelines.register("odd")
    def end_oddly(args: dict[str, Any], ctx: Context) -> None:
        ctx.complete = lambda outcome: odd  # type: ignore[attr-defined]

    worker_pools.listening_pool({"q": 2})
    odd_job, other = worker_pools.add_job("odd", "a"), worker_pools.add_job("quick", "b")

    database = worker_pools.queue_fixture
    eventually(lambda: database.status(other) is Status.SUCCEEDED)
    eventually(lambda: worker_pools.crashes or database.job(odd_job).error is not None)
    assert worker_pools.crashes == []


def test_outage_after_some_of_a_refused_batch_counts_none_twice(worker_pools: WorkerPoolFixture, monkeypatch, logged):
    """Of three jobs in one batch, which is refused, two are settled before the connection is lost for a moment."""
    settle, sizes, are_ended = JobQueue.settle, list[int](), threading.Event()

    def settle_with_faults(queue: JobQueue, settlements: Sequence[Any], **options: Any) -> list[Any]:
        are_ended.wait(10)
        sizes.append(len(settlements))
        if len(settlements) > 1:
            raise ValueError("one of them is refused")
        if len(sizes) == 5:  # the first job, the batch, two of it
            raise DatabaseUnavailable("the connection is lost")
        return settle(queue, settlements, **options)

    monkeypatch.setattr(JobQueue, "settle", settle_with_faults)
    submitted = record_calls(monkeypatch, Settler, "submit")
    pool = worker_pools.listening_pool({"q": 4})
    first = worker_pools.add_job("quick", "first")
    eventually(lambda: len(submitted) == 1)
    jobs = [worker_pools.add_job("quick", key) for key in "abc"]
    eventually(lambda: len(submitted) == 4)
    are_ended.set()
    for job in (first, *jobs):
        worker_pools.wait_for_status(job, Status.SUCCEEDED)
    assert pool.stop(10) is True

    assert sizes == [1, 3, 1, 1, 1, 1]
    # Each end has a line in the log, in that of metrics and in that of the audit.
    assert Counter(fields["job"] for fields in logged("job.ended")) == {str(job): 3 for job in (first, *jobs)}


def test_jobs_are_settled_where_arrays_have_no_nulls(worker_pools: WorkerPoolFixture):
    database = worker_pools.queue_fixture
    database.sql("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET array_nulls = off', current_database()); END $$")
    worker_pools.listening_pool({"q": 2})
    failing, other = worker_pools.add_job("broken", "a"), worker_pools.add_job("quick", "b")

    eventually(lambda: database.status(other) is Status.SUCCEEDED)
    eventually(lambda: worker_pools.crashes or database.job(failing).error is not None)
    assert worker_pools.crashes == []
