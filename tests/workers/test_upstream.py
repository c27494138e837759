"""A job reads what its parents returned."""

from __future__ import annotations

from app.queue.job import Status
from pipelines.context import Upstream
from pipelines.contract import Context, Pipelines
from pipelines.testing import FakeContext
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


def test_a_fake_context_has_upstream_jobs():
    parent = Upstream(FakeContext().job_id, "succeeded", {"rows": 3})
    context: Context = FakeContext(upstream={"orders": parent})

    assert context.upstream["orders"].result == {"rows": 3}
