"""What a pool counts, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.queue.job import Status
from tests.support.plant import Plant
from tests.support.waiting import eventually
from workers.numbers import PoolCollector
from workers.tally import Tally


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


def test_before_there_is_a_pool_there_are_no_numbers():
    assert numbers(None) == {}


def test_ends_run_times_waits_and_the_state_of_the_pool_are_told(plant: Plant):
    pool = plant.listening({"q": 2})
    plant.until_all([plant.add() for _ in range(3)])
    plant.until(plant.add("broken", max_attempts=1), Status.FAILED)

    eventually(lambda: numbers(pool).get(key("tries_ended_total", queue="q", task="broken", status="failed")) == 1)
    told = numbers(pool)

    assert told[key("tries_ended_total", queue="q", task="quick", status="succeeded")] == 3
    assert told[key("job_run_seconds_count", queue="q", task="quick")] == 3
    assert told[key("job_wait_seconds_count", queue="q", task="quick")] == 3
    assert told[key("job_wait_seconds_bucket", queue="q", task="quick", le="+Inf")] == 3
    assert told[key("job_wait_seconds_bucket", queue="q", task="quick", le="43200")] == 3
    assert told[key("worker_threads", queue="q")] == 2
    assert told[key("listener", state="listening")] == 1
    assert told[key("listener", state="away")] == 0
    assert told[key("consuming")] == 1
    assert told[key("leases_lost_total")] == told[key("fenced_writes_total")] == told[key("dead_threads")] == 0
    assert told[key("claim_round_age_seconds")] < 60


def test_a_lost_lease_and_a_refused_end_are_counted(plant: Plant):
    pool = plant.listening({"q": 1})
    job = plant.add("stubborn")
    plant.gate.until_inside(1)
    plant.desk.sql("UPDATE dl_jobs SET run_id = gen_random_uuid() WHERE job_id = %s", str(job))  # it is another's now

    eventually(lambda: numbers(pool)[key("leases_lost_total")] == 1, message="the lease is lost")

    plant.gate.open()
    eventually(lambda: pool.state().busy == 0, message="the thread is free again")
    plant.desk.sql("DELETE FROM dl_jobs")  # its journal does not tell what was done by hand


def test_a_pool_whose_threads_are_all_busy_consumes(plant: Plant):
    pool = plant.listening({"q": 1})
    plant.add("held")
    plant.gate.until_inside(1)
    pool._desk.rounded_at -= 3600

    assert pool.state().consuming

    plant.gate.open()
    eventually(lambda: pool.state().busy == 0, message="idle again")
    assert pool.state().consuming, "the time counts from when somebody waits again"


def test_a_claim_loop_that_hangs_does_not_consume(plant: Plant):
    pool = plant.listening({"q": 1})
    pool._desk.rounded_at -= 3600

    assert not pool.state().consuming


def test_what_is_counted_is_a_copy():
    tally = Tally()
    tally.ended("q", "t", "succeeded", ran=[0.2], waited=[7.0])
    before = tally.counted()
    tally.ended("q", "t", "failed", ran=[100_000.0], waited=[])
    tally.fenced()

    after = tally.counted()
    assert sum(before.ran["q", "t"].counts) == 1
    assert (before.fenced, after.fenced) == (0, 1)
    assert after.ran["q", "t"].counts[-1] == 1, "longer than the last bound"
    assert after.ended == {("q", "t", "succeeded"): 1, ("q", "t", "failed"): 1}
