"""What a pool counts, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.queue.job import Status
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture
from workers.counters import AttemptCounters
from workers.metrics import PoolCollector


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


def test_metrics_of_attempts_durations_and_pool_state(plant: WorkerPoolFixture):
    pool = plant.listening_pool({"q": 2})
    plant.wait_for_all([plant.add_job() for _ in range(3)])
    plant.wait_for_status(plant.add_job("broken", max_attempts=1), Status.FAILED)

    eventually(lambda: numbers(pool).get(key("attempts_total", queue="q", task="broken", status="failed")) == 1)
    told = numbers(pool)

    assert told[key("attempts_total", queue="q", task="quick", status="succeeded")] == 3
    assert told[key("job_run_seconds_count", queue="q", task="quick")] == 3
    assert told[key("job_wait_seconds_count", queue="q", task="quick")] == 3
    assert told[key("job_wait_seconds_bucket", queue="q", task="quick", le="+Inf")] == 3
    assert told[key("job_wait_seconds_bucket", queue="q", task="quick", le="43200.0")] == 3
    assert told[key("worker_threads", queue="q")] == 2
    assert told[key("listener", state="listening")] == 1
    assert told[key("listener", state="disconnected")] == 0
    assert told[key("consuming")] == 1
    assert told[key("leases_lost_total")] == told[key("fenced_writes_total")] == told[key("crashed_threads")] == 0
    assert told[key("dispatch_age_seconds")] < 60


def test_lost_lease_and_fenced_write_are_counted(plant: WorkerPoolFixture):
    pool = plant.listening_pool({"q": 1})
    job = plant.add_job("stubborn")
    plant.gate.wait_for_inside(1)
    plant.queue_fixture.sql(
        "UPDATE dl_jobs SET run_id = gen_random_uuid() WHERE job_id = %s", str(job)
    )  # it is another's now

    eventually(lambda: numbers(pool)[key("leases_lost_total")] == 1, message="the lease is lost")

    plant.gate.open()
    eventually(lambda: pool.state().busy == 0, message="the thread is free again")
    plant.queue_fixture.sql("DELETE FROM dl_jobs")  # its journal does not tell what was done by hand


def test_pool_with_all_threads_busy_is_consuming(plant: WorkerPoolFixture):
    pool = plant.listening_pool({"q": 1})
    plant.add_job("held")
    plant.gate.wait_for_inside(1)
    pool._dispatcher.last_cycle_at -= 3600

    assert pool.state().consuming

    plant.gate.open()
    eventually(lambda: pool.state().busy == 0, message="idle again")
    assert pool.state().consuming, "the time counts from when somebody waits again"


def test_pool_with_hanging_dispatcher_is_not_consuming(plant: WorkerPoolFixture):
    pool = plant.listening_pool({"q": 1})
    pool._dispatcher.last_cycle_at -= 3600

    assert not pool.state().consuming


def test_durations_beyond_the_last_bucket_are_counted():
    counters = AttemptCounters()
    counters.record("q", "t", "failed", run_durations=[100_000.0], wait_durations=[])

    samples = [sample for metric in counters.collect() for sample in metric.samples]

    buckets = {s.labels["le"]: s.value for s in samples if s.name == "dataloader_job_run_seconds_bucket"}
    assert (buckets["43200.0"], buckets["+Inf"]) == (0, 1)
    assert not [s.name for s in samples if s.name.endswith("_created")]
