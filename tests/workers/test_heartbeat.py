from __future__ import annotations

import time
from datetime import datetime
from uuid import UUID

from app.queue.job import Status
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

SOON = 10.0


def expiry(plant: WorkerPoolFixture, job_id: UUID) -> datetime:
    expires = plant.queue_fixture.job(job_id).lease_expires_at
    assert expires is not None
    return expires


def test_run_that_lost_its_job_is_stopped_and_writes_nothing(plant: WorkerPoolFixture, said):
    plant.listening_pool()
    job = plant.add_job("held")
    plant.gate.wait_for_inside(1)
    theirs = plant.queue_fixture.fetch_row("SELECT gen_random_uuid()")

    plant.queue_fixture.sql("UPDATE dl_jobs SET run_id = %s WHERE job_id = %s", theirs, str(job))

    eventually(lambda: plant.stop_reasons, SOON)
    assert plant.stop_reasons == ["lease_lost"]
    eventually(lambda: said("attempt.abandoned"), SOON)
    assert plant.queue_fixture.status(job) is Status.RUNNING
    assert plant.event_payloads(job, "done") == []
    plant.queue_fixture.sql("DELETE FROM dl_jobs")  # its journal knows nothing of the run that was made up


def test_worker_whose_heartbeat_fails_keeps_its_leases(plant: WorkerPoolFixture):
    plant.listening_pool(command_timeout_sec=0.5)
    eventually(lambda: plant.queue_fixture.sql("SELECT 1 FROM dl_workers"))
    job = plant.add_job("held", lease_ttl_sec=2)
    plant.gate.wait_for_inside(1)
    with plant.queue_fixture.open_transaction() as step:
        step("LOCK TABLE dl_workers IN ACCESS EXCLUSIVE MODE")
        until = plant.queue_fixture.job(job).lease_expires_at

        eventually(lambda: plant.queue_fixture.fetch_row("SELECT clock_timestamp() > %s + interval '1 s'", until), SOON)

        assert plant.stop_reasons == []
        assert plant.queue_fixture.fetch_row("SELECT lease_expires_at > clock_timestamp() FROM dl_jobs")


def test_locked_row_costs_no_other_attempt_its_lease(plant: WorkerPoolFixture):
    plant.listening_pool()
    jobs = [plant.add_job("held"), plant.add_job("held")]
    plant.gate.wait_for_inside(2)
    with plant.queue_fixture.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(jobs[0]))
        until = expiry(plant, jobs[1])

        eventually(lambda: expiry(plant, jobs[1]) > until, SOON)

    eventually(lambda: expiry(plant, jobs[0]) > until, SOON)
    assert plant.stop_reasons == []


def test_attempt_is_stopped_before_its_lease_expires(plant: WorkerPoolFixture, said):
    plant.listening_pool(command_timeout_sec=0.3)
    job = plant.add_job("held", lease_ttl_sec=2)
    plant.gate.wait_for_inside(1)
    with plant.queue_fixture.open_transaction() as step:
        step("LOCK TABLE dl_jobs IN EXCLUSIVE MODE")

        eventually(lambda: plant.stop_reasons, SOON)

        assert plant.stop_reasons == ["lease_lost"]
        assert plant.queue_fixture.fetch_row("SELECT lease_expires_at > clock_timestamp() FROM dl_jobs"), "too late"
    eventually(lambda: said("attempt.abandoned"), SOON)
    plant.wait_for_status(job, Status.RUNNING)
    assert plant.event_payloads(job, "done") == []


def test_job_settled_during_renewal_is_not_lost(plant: WorkerPoolFixture, said):
    plant.gate.open()
    plant.listening_pool({"q": 4}, heartbeat_sec=0.01)

    plant.wait_for_all([plant.add_job("steps", args={"n": 3}) for _ in range(150)])

    assert said("lease.lost") == []


def test_heartbeat_age_counts_from_the_last_success(plant: WorkerPoolFixture):
    pool = plant.listening_pool()
    first = time.monotonic()

    eventually(lambda: pool.state().heartbeat_age_sec < time.monotonic() - first - 0.5, SOON)


def test_lease_shorter_than_heartbeats_can_renew_is_lengthened(plant: WorkerPoolFixture):
    plant.listening_pool(heartbeat_sec=1.0)
    job = plant.queue_fixture.insert(task="held", lease_ttl_sec=1)
    plant.gate.wait_for_inside(1)
    first = expiry(plant, job)
    eventually(lambda: (expiry(plant, job) - first).total_seconds() > 3, SOON)
    assert plant.queue_fixture.job(job).lease_ttl_sec == 2
    plant.queue_fixture.sql("UPDATE dl_jobs SET lease_ttl_sec = 1")
    eventually(lambda: plant.queue_fixture.job(job).lease_ttl_sec == 2, SOON)

    assert (plant.stop_reasons, plant.queue_fixture.job(job).attempt) == ([], 1)
