"""What a pool counts, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dataloader.app.queue.job import Status
from dataloader.pipelines.portable import clock
from dataloader.workers.metrics import PoolCollector, PoolCounters
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture


def numbers(pool) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    registry = CollectorRegistry()
    registry.register(PoolCollector(lambda: pool))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return f"dataloader_{name}", frozenset(labels.items())


def test_no_metrics_without_a_pool():
    assert numbers(None) == {}


def test_metrics_of_attempts_durations_and_pool_state(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool({"q": 2})
    worker_pools.wait_for_all([worker_pools.add_job() for _ in range(3)])
    worker_pools.wait_for_status(worker_pools.add_job("broken", max_attempts=1), Status.FAILED)

    eventually(lambda: numbers(pool).get(key("attempts_total", queue="q", task="broken", status="failed")) == 1)
    result = numbers(pool)

    assert result[key("attempts_total", queue="q", task="quick", status="succeeded")] == 3
    assert result[key("job_run_seconds_count", queue="q", task="quick")] == 3
    assert result[key("job_wait_seconds_count", queue="q", task="quick")] == 3
    assert result[key("job_wait_seconds_bucket", queue="q", task="quick", le="+Inf")] == 3
    assert result[key("job_wait_seconds_bucket", queue="q", task="quick", le="43200.0")] == 3
    assert result[key("worker_threads", queue="q")] == 2
    assert result[key("listener", state="listening")] == 1
    assert result[key("listener", state="disconnected")] == 0
    assert result[key("consuming")] == 1
    assert result[key("leases_lost_total")] == result[key("fenced_writes_total")] == result[key("crashed_threads")] == 0
    assert result[key("dispatch_age_seconds")] < 60


def test_lost_lease_and_fenced_write_are_counted(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool({"q": 1})
    job = worker_pools.add_job("stubborn")
    worker_pools.gate.wait_for_inside(1)
    worker_pools.queue_fixture.sql(
        "UPDATE dl_jobs SET run_id = gen_random_uuid() WHERE job_id = %s", str(job)
    )  # it is another's now

    eventually(lambda: numbers(pool)[key("leases_lost_total")] == 1, message="the lease is lost")

    worker_pools.gate.open()
    eventually(lambda: pool.state().busy == 0, message="the thread is free again")
    worker_pools.queue_fixture.sql("DELETE FROM dl_jobs")  # its events do not show what was done by hand


def test_pool_with_all_threads_busy_is_consuming(worker_pools: WorkerPoolFixture, monkeypatch):
    pool = worker_pools.listening_pool({"q": 1})
    for module in ("dispatcher", "queue_claims"):
        monkeypatch.setattr(f"dataloader.workers.{module}.clock", lambda: clock() - 3600)
    worker_pools.add_job("held")
    worker_pools.gate.wait_for_inside(1)
    monkeypatch.undo()
    assert pool.state().dispatch_age_sec > 3000

    assert pool.state().consuming

    worker_pools.gate.open()
    eventually(lambda: pool.state().busy == 0, message="idle again")
    assert pool.state().consuming, "the time counts from when a thread waits again"


def test_pool_with_hanging_dispatcher_is_not_consuming(worker_pools: WorkerPoolFixture, monkeypatch):
    pool = worker_pools.listening_pool({"q": 1})
    monkeypatch.setattr("dataloader.workers.pool.clock", lambda: clock() + 3600)

    assert not pool.state().consuming


def test_durations_beyond_the_last_bucket_are_counted():
    counters = PoolCounters()
    counters.record("q", "t", "failed", run_durations=[100_000.0], wait_durations=[])

    samples = [sample for metric in counters.collect() for sample in metric.samples]

    buckets = {s.labels["le"]: s.value for s in samples if s.name == "dataloader_job_run_seconds_bucket"}
    assert (buckets["43200.0"], buckets["+Inf"]) == (0, 1)
    assert not [s.name for s in samples if s.name.endswith("_created")]
