"""Data checks, datasets and links of a run: when they are recorded, and when not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import Job, NewJob, Status
from dataloader.pipelines.contract import Context, Isolation, Pipelines, Wait
from dataloader.workers.isolation.run import run_isolated
from tests.support import eventually, report_tasks
from tests.support.worker_pool_fixture import WorkerPoolFixture

CHECKS = "SELECT name, value, low, high, median, outcome, attempt, partition_key FROM dl_checks ORDER BY check_id"
DATASETS = "SELECT kind, dataset, task, partition_key, rows, schema FROM dl_dataset_events ORDER BY event_id"
ISOLATIONS: list[Isolation] = ["thread", "process"]


def run_task(
    worker_pools: WorkerPoolFixture,
    call: Callable[..., Any],
    args: dict[str, Any] | None = None,
    *,
    isolation: Isolation = "thread",
    **more: Any,
) -> Job:
    """Run a job of this task to its end."""
    queue_db = worker_pools.queue_fixture
    if not worker_pools.pools:
        tasks = Pipelines()
        tasks.register("load", isolation=isolation)(call)
        worker_pools.pool(
            pipelines=tasks,
            run_isolated=run_isolated,
            tasks={"load": f"{call.__module__}:{call.__qualname__}"},
            connection_settings=ConnectionSettings(dsn=queue_db.dsn, schema="public", targets={}),
        )
    new = NewJob(queue="q", task="load", lock_key="k", args=args or {}, **more)
    job_id = queue_db.queue.enqueue(new).job_id
    eventually(lambda: queue_db.status(job_id).final)
    return queue_db.job(job_id)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_reports_of_a_success_are_recorded(worker_pools: WorkerPoolFixture, isolation: Isolation):
    queue_db = worker_pools.queue_fixture

    job = run_task(worker_pools, report_tasks.load, {"rows": 12}, isolation=isolation, partition_key="2030-01-31")

    assert job.status is Status.SUCCEEDED, job.error
    assert queue_db.sql(CHECKS) == [
        ("rows", 12.0, 1.0, None, None, "passed", 1, "2030-01-31"),
        ("refused", 3.0, None, 0.0, None, "warned", 1, "2030-01-31"),
    ]
    assert queue_db.sql(DATASETS) == [
        ("consumed", "s3://raw/orders", "load", "2030-01-31", None, None),
        ("produced", "warehouse.sales", "load", "2030-01-31", 12, {"id": "int"}),
    ]
    assert job.progress["links"] == {"report": "https://host/x"}


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_failed_check_fails_the_job_and_is_recorded(worker_pools: WorkerPoolFixture, isolation: Isolation):
    queue_db = worker_pools.queue_fixture

    job = run_task(worker_pools, report_tasks.load, {"rows": 0}, isolation=isolation)

    assert (job.status, job.attempt) == (Status.FAILED, 1)
    assert job.error == "Fail: the check 'rows' failed: 0 is outside its limits: low 1"
    assert queue_db.sql(CHECKS) == [("rows", 0.0, 1.0, None, None, "failed", 1, "")]
    assert queue_db.sql(DATASETS) == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_median_is_of_earlier_values_that_did_not_fail(worker_pools: WorkerPoolFixture, isolation: Isolation):
    queue_db = worker_pools.queue_fixture
    for rows in (100, 90, 110):
        assert run_task(worker_pools, report_tasks.compare, {"rows": rows}, isolation=isolation).status == "succeeded"

    job = run_task(worker_pools, report_tasks.compare, {"rows": 5})
    assert "low 70, high 130, median of the last 3 100, tolerance 0.3" in str(job.error)
    for _ in range(3):  # however often it is tried
        queue_db.queue.retry(job.id)
        eventually(lambda: queue_db.status(job.id).final)
        assert queue_db.status(job.id) is Status.FAILED
    assert run_task(worker_pools, report_tasks.compare, {"rows": 120}).status is Status.SUCCEEDED

    assert [row[5] for row in queue_db.sql(CHECKS)] == ["passed"] * 3 + ["failed"] * 4 + ["passed"]
    assert "too little history" in queue_db.fetch_row("SELECT detail FROM dl_checks ORDER BY check_id LIMIT 1")


def test_check_in_a_transaction_rolls_it_back_and_is_recorded(worker_pools: WorkerPoolFixture):
    queue_db = worker_pools.queue_fixture
    queue_db.sql("CREATE TABLE witness (text text)")

    job = run_task(worker_pools, report_tasks.load_in_transaction, {"rows": 0})

    assert job.status is Status.FAILED
    assert queue_db.sql("SELECT * FROM witness") == []
    assert [row[0] for row in queue_db.sql(CHECKS)] == ["rows"]


def test_dataset_of_a_rolled_back_transaction_is_forgotten(worker_pools: WorkerPoolFixture):
    queue_db = worker_pools.queue_fixture

    def load(args: dict[str, Any], ctx: Context) -> None:
        ctx.produced("before")
        try:
            with ctx.transaction():
                ctx.produced("rolled back")
                raise KeyError
        except KeyError:
            pass

    assert run_task(worker_pools, load).status is Status.SUCCEEDED
    assert [row[1] for row in queue_db.sql(DATASETS)] == ["before"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_final_transaction_records_reports_once(worker_pools: WorkerPoolFixture, isolation: Isolation):
    queue_db = worker_pools.queue_fixture
    queue_db.sql("CREATE TABLE witness (text text)")

    job = run_task(worker_pools, report_tasks.load_in_transaction, {"rows": 4}, isolation=isolation)

    assert job.status is Status.SUCCEEDED, job.error
    assert queue_db.sql("SELECT * FROM witness") == [("loaded",)]
    assert [row[0] for row in queue_db.sql(CHECKS)] == ["rows"]
    assert [row[1] for row in queue_db.sql(DATASETS)] == ["warehouse.sales"]


def test_only_the_attempt_that_succeeds_reports_datasets(worker_pools: WorkerPoolFixture):
    queue_db = worker_pools.queue_fixture

    def load(args: dict[str, Any], ctx: Context) -> None:
        ctx.check("rows", ctx.attempt)
        ctx.produced("warehouse.sales", rows=ctx.attempt)
        if ctx.attempt == 1:
            raise ConnectionError

    run_task(worker_pools, load, retry={"kind": "fixed", "seconds": 0})

    assert [(row[1], row[6]) for row in queue_db.sql(CHECKS)] == [(1.0, 1), (2.0, 2)]
    assert [row[4] for row in queue_db.sql(DATASETS)] == [2]


def test_check_before_a_wait_is_recorded(worker_pools: WorkerPoolFixture):
    queue_db = worker_pools.queue_fixture

    def load(args: dict[str, Any], ctx: Context) -> None:
        if ctx.resume is None:
            ctx.check("files", 2, min=1)
            ctx.produced("too early")
            raise Wait([], cursor="waited")

    assert run_task(worker_pools, load).status is Status.SUCCEEDED
    assert [row[0] for row in queue_db.sql(CHECKS)] == ["files"]
    assert queue_db.sql(DATASETS) == []


def test_repeated_report_of_a_dataset_replaces_the_former(worker_pools: WorkerPoolFixture):
    queue_db = worker_pools.queue_fixture

    def load(args: dict[str, Any], ctx: Context) -> None:
        for rows in (1, 2, 3):
            ctx.produced("warehouse.sales", rows=rows)
        ctx.produced("warehouse.sales", rows=9, partition="other")
        ctx.consumed("warehouse.sales")

    run_task(worker_pools, load, partition_key="p")

    assert [(row[0], row[3], row[4]) for row in queue_db.sql(DATASETS)] == [
        ("produced", "p", 3), ("produced", "other", 9), ("consumed", "p", None),
    ]  # fmt: skip


def test_rows_of_produced_datasets_fill_the_slice(worker_pools: WorkerPoolFixture):
    queue_db = worker_pools.queue_fixture
    slice_of: dict[str, Any] = {"partition_key": "2030-01-31", "live_key": "slice:load:2030-01-31"}

    def load(args: dict[str, Any], ctx: Context) -> None:
        ctx.produced("a", rows=3)
        ctx.produced("b", rows=4)
        ctx.produced("c")
        ctx.consumed("d")

    run_task(worker_pools, load, **slice_of)

    assert queue_db.sql("SELECT rows, state::text FROM dl_slices") == [(7, "succeeded")]


def test_checks_are_counted(worker_pools: WorkerPoolFixture):
    run_task(worker_pools, report_tasks.load, {"rows": 3})
    run_task(worker_pools, report_tasks.load, {"rows": 0})
    (pool,) = worker_pools.pools

    def counted() -> dict[tuple[str, str], float]:
        samples = [
            s for metric in pool.counters.collect() for s in metric.samples if s.name == "dataloader_checks_total"
        ]
        return {(s.labels["name"], s.labels["outcome"]): s.value for s in samples if s.value}

    eventually(lambda: counted() == {("rows", "passed"): 1, ("refused", "warned"): 1, ("rows", "failed"): 1})


def test_passwords_and_secrets_are_redacted(worker_pools: WorkerPoolFixture):
    queue_db = worker_pools.queue_fixture

    def load(args: dict[str, Any], ctx: Context) -> None:
        ctx.produced("postgresql://loader:hunter22@db/sales")
        ctx.link("console", "https://user:hunter22@host/x")

    job = run_task(worker_pools, load)

    assert "hunter22" not in repr(queue_db.sql(DATASETS)) + repr(job.progress)
    assert job.progress["links"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda ctx: ctx.check("n" * 10_000, 1), "name has 10000 bytes"),
        (lambda ctx: ctx.check("rows", float("nan")), "value must be a finite number, not nan"),
        (lambda ctx: ctx.produced(""), "dataset must be a text"),
        (lambda ctx: ctx.produced("d", schema={"x": "y" * 70_000}), "schema cannot be kept: 70008 bytes"),
        (lambda ctx: ctx.link("x", "javascript:alert(1)"), "url must begin with http"),
        (lambda ctx: [ctx.link(f"n{n}", "https://host/x") for n in range(21)], "at most 20 links"),
        (lambda ctx: [ctx.check(f"n{n}", 1) for n in range(1_001)], "at most 1,000 checks"),
    ],
)
def test_bad_report_fails_the_attempt_with_its_reason(worker_pools: WorkerPoolFixture, call: Any, error: str):
    job = run_task(worker_pools, lambda args, ctx: call(ctx), max_attempts=1)

    assert job.status is Status.FAILED
    assert error in str(job.error)
