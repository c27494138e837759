"""What holds a job, as real worker processes' threads and limits have it."""

from __future__ import annotations

from uuid import UUID

from app.admin.explain import JobExplainer, ReasonCode
from app.admin.queues import Queues
from app.queue.job import Status
from tests.support import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture


def codes(plant: WorkerPoolFixture, job_id: UUID) -> list[str]:
    return [reason.code for reason in JobExplainer(plant.queue_fixture.session).explain(job_id).reasons]


def test_busy_threads_of_its_queue_hold_a_job_beside_idle_queues(plant):
    plant.listening_pool({"a": 2, "b": 2})
    for n in range(2):
        plant.add_job("held", queue="a", args={"n": n})
    eventually(lambda: len(plant.gate.arrived) == 2, message="both run")

    assert codes(plant, plant.add_job(queue="a")) == ["threads_busy"]


def test_per_worker_limit_holds_a_job_beside_idle_threads(plant):
    Queues(plant.queue_fixture.session).change_settings("q", per_worker=1)
    pool = plant.listening_pool({"q": 2})
    eventually(lambda: pool._dispatcher.queues["q"].limits.max_in_process == 1, message="the process knows")
    plant.add_job("held")
    eventually(lambda: plant.gate.arrived, message="one runs")

    job_id = plant.add_job("held")
    (reason,) = JobExplainer(plant.queue_fixture.session).explain(job_id).reasons
    assert reason.code is ReasonCode.PER_WORKER_LIMIT
    assert reason.details["per_worker"] == 1
    Queues(plant.queue_fixture.session).change_settings("q", per_worker=3)  # the pool starts a third thread

    eventually(lambda: len(plant.gate.arrived) == 2, message="the limit was what held it")
    eventually(
        lambda: plant.queue_fixture.fetch_row("SELECT queue_threads ->> 'q' FROM dl_workers") == "3",
        message="the third is known",
    )


def test_worker_that_shuts_down_holds_a_job(plant):
    pool = plant.listening_pool({"q": 2})
    plant.add_job("held")
    eventually(lambda: plant.gate.arrived, message="one runs")

    pool.stop_claiming()
    job_id = plant.add_job()

    eventually(lambda: codes(plant, job_id) == ["workers_draining"], message=lambda: str(codes(plant, job_id)))


def test_thread_kept_by_a_run_without_lease_counts_as_busy(plant):
    plant.listening_pool({"q": 1})
    lost = plant.add_job("stubborn", max_attempts=1)
    eventually(lambda: plant.gate.arrived, message="it runs")
    eventually(lambda: plant.queue_fixture.expire_lease(lost) or plant.queue_fixture.reap(lost), message="it is reaped")
    job_id = plant.add_job()

    eventually(lambda: codes(plant, job_id) == ["threads_busy"], message=lambda: str(codes(plant, job_id)))
    plant.gate.open()
    plant.wait_for_status(job_id, Status.SUCCEEDED)
