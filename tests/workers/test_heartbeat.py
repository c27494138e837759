from __future__ import annotations

import time
from datetime import datetime
from uuid import UUID

from app.queue.job import Status
from tests.support.plant import Plant
from tests.support.waiting import eventually

SOON = 10.0


def expiry(plant: Plant, job_id: UUID) -> datetime:
    expires = plant.desk.job(job_id).lease_expires_at
    assert expires is not None
    return expires


def test_a_run_that_lost_its_job_is_stopped_and_writes_nothing(plant: Plant, said):
    plant.listening()
    job = plant.add("held")
    plant.gate.until_inside(1)
    theirs = plant.desk.one("SELECT gen_random_uuid()")

    plant.desk.sql("UPDATE dl_jobs SET run_id = %s WHERE job_id = %s", theirs, str(job))

    eventually(lambda: plant.stopped, SOON)
    assert plant.stopped == ["lease_lost"]
    eventually(lambda: said("attempt.abandoned"), SOON)
    assert plant.desk.status(job) is Status.RUNNING
    assert plant.payloads(job, "done") == []
    plant.desk.sql("DELETE FROM dl_jobs")  # its journal knows nothing of the run that was made up


def test_a_worker_that_cannot_say_it_lives_still_keeps_its_leases(plant: Plant):
    plant.listening(command_timeout_sec=0.5)
    eventually(plant.desk.queue.workers)
    job = plant.add("held", lease_ttl_sec=2)
    plant.gate.until_inside(1)
    with plant.desk.held() as step:
        step("LOCK TABLE dl_workers IN ACCESS EXCLUSIVE MODE")
        until = plant.desk.job(job).lease_expires_at

        eventually(lambda: plant.desk.one("SELECT clock_timestamp() > %s + interval '1 s'", until), SOON)

        assert plant.stopped == []
        assert plant.desk.one("SELECT lease_expires_at > clock_timestamp() FROM dl_jobs")


def test_a_row_that_somebody_has_locked_costs_no_other_run_its_lease_and_no_stop(plant: Plant):
    plant.listening()
    jobs = [plant.add("held"), plant.add("held")]
    plant.gate.until_inside(2)
    with plant.desk.held() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(jobs[0]))
        until = expiry(plant, jobs[1])

        eventually(lambda: expiry(plant, jobs[1]) > until, SOON)

    eventually(lambda: expiry(plant, jobs[0]) > until, SOON)
    assert plant.stopped == []


def test_a_run_whose_lease_cannot_be_renewed_in_time_is_stopped_before_anybody_may_take_it(plant: Plant, said):
    plant.listening(command_timeout_sec=0.3)
    job = plant.add("held", lease_ttl_sec=2)
    plant.gate.until_inside(1)
    with plant.desk.held() as step:
        step("LOCK TABLE dl_jobs IN EXCLUSIVE MODE")

        eventually(lambda: plant.stopped, SOON)

        assert plant.stopped == ["lease_lost"]
        assert plant.desk.one("SELECT lease_expires_at > clock_timestamp() FROM dl_jobs"), "too late"
    eventually(lambda: said("attempt.abandoned"), SOON)
    plant.until(job, Status.RUNNING)
    assert plant.payloads(job, "done") == []


def test_a_job_that_ends_while_it_is_renewed_is_not_said_to_be_lost(plant: Plant, said):
    plant.gate.open()
    plant.listening({"q": 4}, heartbeat_sec=0.01)

    plant.until_all([plant.add("steps", args={"n": 3}) for _ in range(150)])

    assert said("lease.lost") == []


def test_a_beat_is_as_young_as_the_last_that_came_through(plant: Plant):
    pool = plant.listening()
    first = time.monotonic()

    eventually(lambda: pool.state().heartbeat_age_sec < time.monotonic() - first - 0.5, SOON)


def test_lease_shorter_than_heartbeats_can_renew_is_lengthened(plant: Plant):
    plant.listening(heartbeat_sec=1.0)
    job = plant.desk.insert(task="held", lease_ttl_sec=1)
    plant.gate.until_inside(1)
    first = expiry(plant, job)
    eventually(lambda: (expiry(plant, job) - first).total_seconds() > 3, SOON)
    assert plant.desk.job(job).lease_ttl_sec == 2
    plant.desk.sql("UPDATE dl_jobs SET lease_ttl_sec = 1")
    eventually(lambda: plant.desk.job(job).lease_ttl_sec == 2, SOON)

    assert (plant.stopped, plant.desk.job(job).attempt) == ([], 1)
