"""A task ends its attempt until other jobs have ended, and continues in a later one."""

from __future__ import annotations

import pickle
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Context, Pipelines, Wait
from dataloader.pipelines.testing import FakeContext, run
from dataloader.workers.isolation.run import run_isolated
from dataloader.workers.testing import drain
from tests.support import eventually, wait_tasks
from tests.support.processes import Process
from tests.support.worker_pool_fixture import WorkerPoolFixture


def start(worker_pools: WorkerPoolFixture, *, threads: int = 2, isolated: tuple[str, ...] = ()) -> None:
    tasks = wait_tasks.register_all(Pipelines(), isolated=isolated)
    paths = {name: f"tests.support.wait_tasks:{wait_tasks.TASKS[name].__name__}" for name in isolated}
    worker_pools.pool({"q": threads}, pipelines=tasks, run_isolated=run_isolated, tasks=paths)


def requeues(worker_pools: WorkerPoolFixture, job_id: UUID) -> list[str]:
    return [payload["reason"] for payload in worker_pools.event_payloads(job_id, "requeue")]


@pytest.mark.parametrize("kind", ["function", "generator", "coroutine"])
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_task_continues_when_its_jobs_have_ended(worker_pools: WorkerPoolFixture, kind: str, isolation: str):
    task = f"wait.{kind}"
    start(worker_pools, isolated=(task,) if isolation == "process" else ())

    job_id = worker_pools.add_job(task, args={"parts": 4}, max_attempts=1)

    job = worker_pools.wait_for_status(job_id, Status.SUCCEEDED)
    assert job.result == {"attempt": 1, "resume": "parts", "statuses": ["succeeded"], "sum": 6}
    assert requeues(worker_pools, job_id) == ["waits"]
    worker_pools.queue_fixture.check_invariants()


def test_an_async_generator_waits(worker_pools: WorkerPoolFixture):
    start(worker_pools)

    job_id = worker_pools.add_job("wait.async_generator", args={"parts": 3})

    worker_pools.wait_for_status(job_id, Status.SUCCEEDED)
    assert requeues(worker_pools, job_id) == ["waits"]
    assert worker_pools.queue_fixture.fetch_row("SELECT args ->> 'n' FROM dl_jobs WHERE lock_key = 'sum'") == "3"


def test_a_wait_for_a_hundred_jobs_holds_no_thread(worker_pools: WorkerPoolFixture):
    start(worker_pools, threads=1)

    job_id = worker_pools.add_job("wait.function", args={"parts": 100})

    job = worker_pools.wait_for_status(job_id, Status.SUCCEEDED)
    assert job.result == {"attempt": 1, "resume": "parts", "statuses": ["succeeded"], "sum": 4950}


def test_without_jobs_the_task_continues_at_once(worker_pools: WorkerPoolFixture):
    start(worker_pools)

    job_id = worker_pools.add_job("wait.generator", args={"parts": 0})

    assert worker_pools.wait_for_status(job_id, Status.SUCCEEDED).result["sum"] == 0


def test_failed_jobs_end_the_wait(worker_pools: WorkerPoolFixture):
    start(worker_pools)

    job_id = worker_pools.add_job("wait.function", args={"parts": 2, "part": {"fails": True}})

    assert worker_pools.wait_for_status(job_id, Status.SUCCEEDED).result["statuses"] == ["failed"]


def test_waiting_does_not_count_against_the_time_limit(worker_pools: WorkerPoolFixture):
    start(worker_pools)
    worker_pools.queue_fixture.sql("INSERT INTO dl_limits (name, concurrency) VALUES ('task:wait.part', 0)")
    job_id = worker_pools.add_job("wait.function", args={"parts": 1}, time_limit_sec=60, max_attempts=1)
    eventually(lambda: requeues(worker_pools, job_id))
    worker_pools.queue_fixture.sql("UPDATE dl_jobs SET started_at = started_at - interval '1 h'")

    worker_pools.queue_fixture.sql("DELETE FROM dl_limits")
    worker_pools.queue_fixture.sql("SELECT dl_wake_limited(ARRAY['task:wait.part'])")

    assert worker_pools.wait_for_status(job_id, Status.SUCCEEDED).attempt == 1


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_circle_fails_the_job_without_a_retry(worker_pools: WorkerPoolFixture, isolation: str):
    start(worker_pools, isolated=("wait.for_itself",) if isolation == "process" else ())

    job_id = worker_pools.add_job("wait.for_itself")

    job = worker_pools.wait_for_status(job_id, Status.FAILED)
    name = f"wait.for_itself (job {job_id})"
    assert (job.error, job.attempt) == (f"the job would wait for itself: {name} → {name}", 1)


def test_a_wait_within_a_transaction_is_refused(worker_pools: WorkerPoolFixture):
    start(worker_pools)

    job_id = worker_pools.add_job("wait.in_transaction", args={"parts": 1})

    job = worker_pools.wait_for_status(job_id, Status.FAILED)
    assert "Wait within ctx.transaction()" in (job.error or "")
    assert worker_pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_jobs") == 1


def worker_process(worker_pools: WorkerPoolFixture, output: Path) -> Process:
    env = {
        "DL_DB_DSN": worker_pools.dsn, "DL_PIPELINES": "tests.support.wait_tasks", "DL_MEMORY_HIGH": "0",
        "DL_HEARTBEAT_SEC": "0.5", "DL_REAPER_PERIOD_SEC": "0.5", "WORKERS_JSON": '[{"queue":"q","concurrency":2}]',
    }  # fmt: skip
    return Process.dataloader("worker", env=env, output=output)


def test_a_worker_that_is_killed_before_the_wait_is_written(worker_pools: WorkerPoolFixture, tmp_path: Path):
    queue_db = worker_pools.queue_fixture
    queue_db.sql("INSERT INTO dl_limits (name, concurrency) VALUES ('task:wait.part', 0)")
    job_id = worker_pools.add_job("wait.function", args={"parts": 3})
    parts = "SELECT count(*) FROM dl_jobs WHERE task = 'wait.part'"
    with queue_db.open_transaction() as step, worker_process(worker_pools, tmp_path / "worker") as worker:
        step("LOCK TABLE dl_edges IN EXCLUSIVE MODE")  # the worker cannot write the edges
        eventually(lambda: queue_db.fetch_row(parts) == 3)
        queue_db.wait_for_lock_waiters()
        worker.kill()
        eventually(lambda: queue_db.lock_waiter_count() == 0, message="the server has ended the statement")
    assert queue_db.fetch_row("SELECT count(*) FROM dl_edges") == 0

    queue_db.expire_lease(job_id)
    queue_db.sql("DELETE FROM dl_limits")
    start(worker_pools)
    queue_db.sql("SELECT dl_wake_limited(ARRAY['task:wait.part'])")

    job = worker_pools.wait_for_status(job_id, Status.SUCCEEDED)
    assert job.result["sum"] == 3
    assert queue_db.fetch_row(parts) == 3, "the second attempt makes no second set"
    assert requeues(worker_pools, job_id)[-1] == "waits"
    queue_db.check_invariants()


def test_a_worker_that_is_killed_after_the_wait_is_written(worker_pools: WorkerPoolFixture, tmp_path: Path):
    queue_db = worker_pools.queue_fixture
    queue_db.sql("INSERT INTO dl_limits (name, concurrency) VALUES ('task:wait.part', 0)")
    job_id = worker_pools.add_job("wait.function", args={"parts": 3})
    with worker_process(worker_pools, tmp_path / "worker") as worker:
        eventually(lambda: queue_db.status(job_id) is Status.QUEUED and queue_db.wait_state(job_id) == "waiting")
        worker.kill()

    queue_db.sql("DELETE FROM dl_limits")
    start(worker_pools)
    queue_db.sql("SELECT dl_wake_limited(ARRAY['task:wait.part'])")

    assert worker_pools.wait_for_status(job_id, Status.SUCCEEDED).result["sum"] == 3
    assert requeues(worker_pools, job_id) == ["waits"]
    queue_db.check_invariants()


def test_drain_runs_a_waiting_job_to_its_end(worker_pools: WorkerPoolFixture):
    tasks = wait_tasks.register_all(Pipelines())
    job_id = worker_pools.add_job("wait.generator", args={"parts": 2})
    circle = worker_pools.add_job("wait.for_itself")

    drain(worker_pools.dsn, tasks, ["q"])

    assert worker_pools.queue_fixture.job(job_id).result["sum"] == 1
    assert worker_pools.queue_fixture.status(circle) is Status.FAILED


# ── without a queue ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("call", [wait_tasks.function, wait_tasks.generator])
def test_a_fake_context_records_what_was_waited_for(call):
    ctx = FakeContext()

    with pytest.raises(Wait):
        run(call, {"parts": 2}, ctx)

    assert ctx.waited == [tuple(follow_up.job_id for follow_up in ctx.follow_ups)]
    assert ctx.resume == "parts"
    assert run(call, {"parts": 2}, ctx)["resume"] == "parts"


def test_a_pipeline_that_catches_errors_does_not_catch_a_wait():
    def careful(args, ctx: Context):
        for _ in range(2):
            try:
                yield Wait([uuid4()])
            except Exception as error:
                raise AssertionError("it was caught") from error

    with pytest.raises(Wait):
        run(careful)


def test_what_is_no_list_of_jobs_is_refused():
    job_id = uuid4()
    assert Wait([str(job_id), job_id]).jobs == (job_id,)
    assert pickle.loads(pickle.dumps(Wait([job_id], cursor=1))).cursor == 1  # noqa: S301
    with pytest.raises(TypeError, match="as a list"):
        Wait(job_id)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 1,000 others, not 1,001"):
        Wait(uuid4() for _ in range(1001))
    with pytest.raises(ValueError, match="badly formed"):
        Wait(["extract"])
