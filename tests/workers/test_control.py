from __future__ import annotations

import itertools

import pytest

from app.queue.job import Status
from app.queue.queues import Queues, QueueState
from tests.support import eventually
from tests.support.plant import Plant
from workers import control
from workers.line import Ruling
from workers.pool import WorkerPool


@pytest.fixture
def queues(plant: Plant) -> Queues:
    return Queues(plant.desk.session)


def ruled(pool: WorkerPool, queue: str = "q") -> Ruling:
    return pool._desk.lines[queue].ruling


def test_a_paused_queue_rests_and_an_opened_one_goes_on_at_once(plant, queues):
    pool = plant.listening({"q": 1})
    queues.rule("q", state=QueueState.PAUSED)
    eventually(lambda: ruled(pool).held, message="the process knows")
    job_id = plant.add()
    assert plant.desk.status(job_id) is Status.QUEUED

    queues.rule("q", state=QueueState.OPEN)

    plant.until(job_id, Status.SUCCEEDED)


def test_a_limit_over_all_processes_is_kept_and_whoever_waits_takes_the_freed_place(plant, queues):
    queues.rule("q", concurrency=1)
    for _ in range(2):
        plant.listening({"q": 2})
    job_ids = [plant.add("held", args={"n": n}) for n in range(4)]
    eventually(lambda: plant.gate.came, message="one runs")
    assert plant.desk.one("SELECT count(*) FROM dl_jobs WHERE status = 'running'") == 1

    plant.gate.open()

    plant.until_all(job_ids)
    spans = plant.desk.check()
    runs = sorted(run for job_id in job_ids for run in spans[job_id].runs)
    assert all(one[1] is not None and one[1] <= other[0] for one, other in itertools.pairwise(runs))


def test_a_process_runs_no_more_of_a_queue_than_it_may_and_gets_threads_when_it_may_run_more(plant, queues):
    queues.rule("q", per_worker=1)
    pool = plant.listening({"q": 2})
    eventually(lambda: ruled(pool).here == 1, message="the process knows")
    job_ids = [plant.add("held", args={"n": n}) for n in range(3)]
    eventually(lambda: plant.gate.came, message="one runs")
    assert plant.desk.one("SELECT count(*) FROM dl_jobs WHERE status = 'running'") == 1

    queues.rule("q", per_worker=3)

    eventually(lambda: len(plant.gate.came) == 3, message="all three run")
    plant.gate.open()
    plant.until_all(job_ids)


def test_a_drained_worker_ends_what_it_runs_claims_nothing_and_can_be_told_to_go_on(plant, queues):
    pool = plant.listening({"q": 2})
    first = plant.add("held", args={"n": 1})
    eventually(lambda: plant.gate.came, message="it runs")
    eventually(lambda: queues.worker(pool.id).rss_bytes, message="it has told how it does")

    queues.drain_worker(pool.id, draining=True)
    eventually(lambda: ruled(pool).held, message="the process knows")
    second = plant.add()
    plant.gate.open()
    plant.until(first, Status.SUCCEEDED)

    assert queues.worker(pool.id).draining
    eventually(lambda: queues.worker(pool.id).listener == "listening", message="the next time it tells how it does")
    assert plant.desk.status(second) is Status.QUEUED
    queues.drain_worker(pool.id, draining=False)
    plant.until(second, Status.SUCCEEDED)


def test_a_worker_tells_how_old_the_progress_of_its_runs_is(plant, queues):
    plant.listening({"q": 1})
    plant.add("held", args={"n": 1})
    eventually(lambda: plant.gate.came, message="it runs")

    def age() -> float | None:
        told = plant.desk.one("SELECT doing -> 0 -> 'progress_age_sec' FROM dl_workers")
        return None if told is None else float(told)

    eventually(lambda: (age() or 0) > 0.3, message="it grows")


def test_the_memory_of_a_process_is_known_where_the_system_tells_it(monkeypatch, tmp_path):
    told = control.rss_bytes()
    assert told is None or told > 1_000_000
    monkeypatch.setattr(control, "_MEMORY", tmp_path / "nothing")

    assert control.rss_bytes() is None
