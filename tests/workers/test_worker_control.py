from __future__ import annotations

import itertools

import pytest

from app.admin.queues import Queues, QueueState
from app.queue.job import Status
from tests.support import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture
from workers import worker_control
from workers.pool import WorkerPool
from workers.queue_buffer import QueueLimits


@pytest.fixture
def queues(plant: WorkerPoolFixture) -> Queues:
    return Queues(plant.queue_fixture.session)


def ruled(pool: WorkerPool, queue: str = "q") -> QueueLimits:
    return pool._dispatcher.queues[queue].limits


def test_a_paused_queue_rests_and_an_opened_one_goes_on_at_once(plant, queues):
    pool = plant.listening_pool({"q": 1})
    queues.change_settings("q", state=QueueState.PAUSED)
    eventually(lambda: ruled(pool).paused, message="the process knows")
    job_id = plant.add_job()
    assert plant.queue_fixture.status(job_id) is Status.QUEUED

    queues.change_settings("q", state=QueueState.OPEN)

    plant.wait_for_status(job_id, Status.SUCCEEDED)


def test_global_limit_is_kept_across_processes(plant, queues):
    queues.change_settings("q", concurrency=1)
    for _ in range(2):
        plant.listening_pool({"q": 2})
    job_ids = [plant.add_job("held", args={"n": n}) for n in range(4)]
    eventually(lambda: plant.gate.arrived, message="one runs")
    assert plant.queue_fixture.fetch_row("SELECT count(*) FROM dl_jobs WHERE status = 'running'") == 1

    plant.gate.open()

    plant.wait_for_all(job_ids)
    spans = plant.queue_fixture.check_invariants()
    runs = sorted(run for job_id in job_ids for run in spans[job_id].runs)
    assert all(one[1] is not None and one[1] <= other[0] for one, other in itertools.pairwise(runs))


def test_process_limit_is_kept_and_raised_with_threads(plant, queues):
    queues.change_settings("q", per_worker=1)
    pool = plant.listening_pool({"q": 2})
    eventually(lambda: ruled(pool).max_in_process == 1, message="the process knows")
    job_ids = [plant.add_job("held", args={"n": n}) for n in range(3)]
    eventually(lambda: plant.gate.arrived, message="one runs")
    assert plant.queue_fixture.fetch_row("SELECT count(*) FROM dl_jobs WHERE status = 'running'") == 1

    queues.change_settings("q", per_worker=3)

    eventually(lambda: len(plant.gate.arrived) == 3, message="all three run")
    plant.gate.open()
    plant.wait_for_all(job_ids)


def test_drained_worker_claims_nothing_until_resumed(plant, queues):
    pool = plant.listening_pool({"q": 2})
    first = plant.add_job("held", args={"n": 1})
    eventually(lambda: plant.gate.arrived, message="it runs")
    eventually(lambda: queues.worker(pool.id).rss_bytes, message="it has told how it does")

    queues.drain_worker(pool.id, draining=True)
    eventually(lambda: ruled(pool).paused, message="the process knows")
    second = plant.add_job()
    plant.gate.open()
    plant.wait_for_status(first, Status.SUCCEEDED)

    assert queues.worker(pool.id).draining
    eventually(lambda: queues.worker(pool.id).listener == "listening", message="the next time it tells how it does")
    assert plant.queue_fixture.status(second) is Status.QUEUED
    queues.drain_worker(pool.id, draining=False)
    plant.wait_for_status(second, Status.SUCCEEDED)


def test_a_worker_tells_how_old_the_progress_of_its_runs_is(plant, queues):
    plant.listening_pool({"q": 1})
    plant.add_job("held", args={"n": 1})
    eventually(lambda: plant.gate.arrived, message="it runs")

    def age() -> float | None:
        told = plant.queue_fixture.fetch_row("SELECT running_attempts -> 0 -> 'progress_age_sec' FROM dl_workers")
        return None if told is None else float(told)

    eventually(lambda: (age() or 0) > 0.3, message="it grows")


def test_memory_is_known_where_system_reports_it(monkeypatch, tmp_path):
    told = worker_control.rss_bytes()
    assert told is None or told > 1_000_000
    monkeypatch.setattr(worker_control, "_STATM", tmp_path / "nothing")

    assert worker_control.rss_bytes() is None
