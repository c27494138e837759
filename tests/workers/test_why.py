"""What holds a job, as real worker processes' threads and limits have it."""

from __future__ import annotations

from uuid import UUID

from app.queue.job import Status
from app.queue.queues import Queues
from app.queue.why import ReasonCode, Why
from tests.support import eventually
from tests.support.plant import Plant


def codes(plant: Plant, job_id: UUID) -> list[str]:
    return [reason.code for reason in Why(plant.desk.session).explain(job_id).reasons]


def test_busy_threads_of_its_queue_hold_a_job_beside_idle_queues(plant):
    plant.listening({"a": 2, "b": 2})
    for n in range(2):
        plant.add("held", queue="a", args={"n": n})
    eventually(lambda: len(plant.gate.came) == 2, message="both run")

    assert codes(plant, plant.add(queue="a")) == ["threads_busy"]


def test_per_worker_limit_holds_a_job_beside_idle_threads(plant):
    Queues(plant.desk.session).rule("q", per_worker=1)
    pool = plant.listening({"q": 2})
    eventually(lambda: pool._desk.lines["q"].ruling.here == 1, message="the process knows")
    plant.add("held")
    eventually(lambda: plant.gate.came, message="one runs")

    job_id = plant.add("held")
    (reason,) = Why(plant.desk.session).explain(job_id).reasons
    assert reason.code is ReasonCode.PER_WORKER_LIMIT
    assert reason.facts["per_worker"] == 1
    Queues(plant.desk.session).rule("q", per_worker=3)  # the pool starts a third thread

    eventually(lambda: len(plant.gate.came) == 2, message="the limit was what held it")
    eventually(
        lambda: plant.desk.one("SELECT queue_threads ->> 'q' FROM dl_workers") == "3", message="the third is known"
    )


def test_worker_that_shuts_down_holds_a_job(plant):
    pool = plant.listening({"q": 2})
    plant.add("held")
    eventually(lambda: plant.gate.came, message="one runs")

    pool.stop_claiming()
    job_id = plant.add()

    eventually(lambda: codes(plant, job_id) == ["workers_draining"], message=lambda: str(codes(plant, job_id)))


def test_thread_kept_by_a_run_without_lease_counts_as_busy(plant):
    plant.listening({"q": 1})
    lost = plant.add("stubborn", max_attempts=1)
    eventually(lambda: plant.gate.came, message="it runs")
    eventually(lambda: plant.desk.expire(lost) or plant.desk.reap(lost), message="it is reaped")
    job_id = plant.add()

    eventually(lambda: codes(plant, job_id) == ["threads_busy"], message=lambda: str(codes(plant, job_id)))
    plant.gate.open()
    plant.until(job_id, Status.SUCCEEDED)
