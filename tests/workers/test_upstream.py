"""A job reads what its parents returned."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from dataloader.app.queue.job import Job, Settlement, Status
from dataloader.pipelines.context import Upstream
from dataloader.pipelines.contract import Context, Fail, Isolation, Pipelines
from dataloader.pipelines.testing import FakeContext, run
from dataloader.workers.isolation.run import run_isolated
from tests.support import eventually, graph_tasks
from tests.support.worker_pool_fixture import WorkerPoolFixture


def test_results_of_parents_are_passed_on(worker_pools: WorkerPoolFixture):
    tasks = Pipelines()
    tasks.register("extract")(graph_tasks.extract)
    tasks.register("report")(graph_tasks.report)
    queue_db = worker_pools.queue_fixture
    jobs = (
        '{"jobs": [{"key": "orders", "queue": "q", "task": "extract", "lock_key": "a", "args": {"rows": 3}},'
        ' {"key": "stock", "queue": "q", "task": "extract", "lock_key": "b", "args": {"rows": 4}},'
        ' {"key": "report", "queue": "q", "task": "report", "lock_key": "c",'
        '  "after": [{"job": "orders"}, {"job": "stock"}]}]}'
    )
    ids = dict(queue_db.sql("SELECT key, job_id FROM dl_enqueue_graph(%s)", jobs))

    worker_pools.pool(pipelines=tasks)

    eventually(lambda: queue_db.status(ids["report"]).final)
    job = queue_db.job(ids["report"])
    assert (job.status, job.result) == (Status.SUCCEEDED, {"rows": 7, "from": ["orders", "stock"]}), job.error


def run_with_args(worker_pools: WorkerPoolFixture, args: dict[str, Any], *, isolation: Isolation = "thread") -> Job:
    """A job with these args after `extract` and `load.v2`; return it as it ended."""
    tasks = Pipelines()
    tasks.register("lists_files")(graph_tasks.lists_files)
    tasks.register("returns")(graph_tasks.returns)
    tasks.register("echo", isolation=isolation)(graph_tasks.returns)
    tasks.register("breaks")(graph_tasks.breaks)
    queue_db = worker_pools.queue_fixture
    job = {"queue": "q", "task": "returns"}
    graph = {
        "on_failure": "continue",
        "jobs": [
            {**job, "key": "extract", "lock_key": "a", "task": "lists_files"},
            {**job, "key": "load.v2", "lock_key": "b", "args": {"rows": 7}},
            {**job, "key": "broken", "lock_key": "c", "task": "breaks", "max_attempts": 1},
            {**job, "key": "echo", "lock_key": "d", "task": "echo", "args": args,
             "after": [{"job": "extract"}, {"job": "load.v2"}, {"job": "broken", "on": "ended"}]},
        ],
    }  # fmt: skip
    ids = dict(queue_db.sql("SELECT key, job_id FROM dl_enqueue_graph(%s)", json.dumps(graph)))
    worker_pools.pool(pipelines=tasks, run_isolated=run_isolated, tasks={"echo": "tests.support.graph_tasks:returns"})
    eventually(lambda: queue_db.status(ids["echo"]).final)
    return queue_db.job(ids["echo"])


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_results_are_filled_into_args(worker_pools: WorkerPoolFixture, isolation: Isolation):
    args = {
        "rows": {"$result": "extract.rows"},
        "nested": [{"file": {"$result": "extract.files.0"}}, {"$result": "load.v2.rows"}],
        "whole": {"$result": "load.v2"},
    }

    job = run_with_args(worker_pools, args, isolation=isolation)

    assert (job.status, job.result) == (
        Status.SUCCEEDED, {"rows": 3, "nested": [{"file": "x"}, 7], "whole": {"rows": 7}},
    ), job.error  # fmt: skip
    assert job.args == args  # the row keeps the references


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("extract.columns", "the result of extract (job"),
        ("extract.files.2", "has no such path"),
        ("extract.rows.0", "has no such path"),
        ("extrac.rows", "names no parent of this job (it has "),
        ("broken", "has not succeeded; it is failed"),
    ],
)
def test_a_result_that_is_not_there_fails_the_job_without_a_retry(
    worker_pools: WorkerPoolFixture, name: str, problem: str
):
    job = run_with_args(worker_pools, {"x": {"$result": name}})

    assert (job.status, job.attempt) == (Status.FAILED, 1)
    assert problem in (job.error or "")
    assert f'{{"$result": "{name}"}}' in (job.error or "")


def test_a_value_that_is_filled_in_is_no_reference(worker_pools: WorkerPoolFixture):
    job = run_with_args(worker_pools, {"x": {"$result": "extract.files.1"}})

    assert (job.status, job.result) == (Status.SUCCEEDED, {"x": {"$secret": "bank"}})


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_job_fails_when_deleted_parent_had_a_result(worker_pools: WorkerPoolFixture, isolation: Isolation):
    tasks = Pipelines()
    tasks.register("report", isolation=isolation)(graph_tasks.report)
    queue_db = worker_pools.queue_fixture
    parents = [queue_db.enqueue(key, task="extract") for key in "abc"]
    report = queue_db.enqueue("report", task="report", after=[{"job_id": str(parent)} for parent in parents])
    ended = Settlement(Status.SUCCEEDED, result={"rows": 1})
    queue_db.queue.settle([(claimed, ended) for claimed in queue_db.claim(3, tasks=["extract"])])
    queue_db.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(parents[1]))

    worker_pools.pool(pipelines=tasks, run_isolated=run_isolated, tasks={"report": "tests.support.graph_tasks:report"})

    eventually(lambda: queue_db.status(report).final)
    job = queue_db.job(report)
    assert (job.status, job.attempt, job.result) == (Status.FAILED, 1, None)
    assert f"it waited for job {parents[1]}, which was deleted" in (job.error or "")


def test_types_of_results_are_checked_when_the_attempt_starts(worker_pools: WorkerPoolFixture):
    class Rows(BaseModel):
        rows: int

    tasks = Pipelines()
    tasks.register("extract", args=None)(graph_tasks.returns)
    tasks.register("typed", args=Rows)(graph_tasks.returns)
    (typed,) = (task for task in tasks if task.name == "typed")
    assert typed.check_args({"rows": {"$result": "extract.name"}}) == []
    queue_db = worker_pools.queue_fixture
    parent = queue_db.enqueue("a", task="extract", args={"name": "x"})
    edges = [{"job_id": str(parent)}]
    child = queue_db.enqueue("b", task="typed", args={"rows": {"$result": f"{parent}.name"}}, after=edges)

    worker_pools.pool(pipelines=tasks)

    eventually(lambda: queue_db.status(child).final)
    job = queue_db.job(child)
    assert (job.status, job.attempt) == (Status.FAILED, 1)
    assert "the args do not fit: rows" in (job.error or "")


def test_a_local_run_fills_in_results():
    ctx = FakeContext(upstream={"extract": Upstream(FakeContext().job_id, "succeeded", {"rows": 3})})

    assert run(graph_tasks.returns, {"x": [{"$result": "extract.rows"}]}, ctx) == {"x": [3]}
    with pytest.raises(Fail, match="no such path"):
        run(graph_tasks.returns, {"x": {"$result": "extract.columns"}}, ctx)


def test_a_fake_context_has_upstream_jobs():
    parent = Upstream(FakeContext().job_id, "succeeded", {"rows": 3})
    context: Context = FakeContext(upstream={"orders": parent})

    assert context.upstream["orders"].result == {"rows": 3}
