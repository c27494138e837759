"""The lines about attempts that ended badly, and about keys that hold jobs back."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from app.queue.job import Status
from tests.support import eventually
from tests.support.plant import Pauses, Plant
from workers.attempt_log import BackoffLog

Said = Callable[[str], list[dict[str, object]]]


def test_retry_is_a_warning_and_final_failure_an_error(plant: Plant, said: Said, caplog: pytest.LogCaptureFixture):
    plant.listening(retry=Pauses(0.01))
    job_id = plant.add("broken", max_attempts=2)
    plant.until(job_id, Status.FAILED)

    eventually(lambda: len(said("worker.complete.failed")) == 2)
    first, last = said("worker.complete.failed")

    assert (first["job"], first["attempt"], first["max_attempts"]) == (str(job_id), 1, 2)
    assert first["error"] == "ValueError: no good: {}"
    assert first["retry_at"]
    assert (last["attempt"], last["status"]) == (2, "failed")
    levels = [record.levelno for record in caplog.records if record.getMessage() == "worker.complete.failed"]
    assert levels == [logging.WARNING, logging.ERROR]


def test_cancel_and_handback_are_no_failures(plant: Plant, said: Said, caplog: pytest.LogCaptureFixture):
    pool = plant.listening(stop_sec=5.0)
    canceled, handed_back = plant.add("held"), plant.add("held")
    plant.gate.until_inside(2)
    plant.desk.queue.cancel(canceled)
    plant.until(canceled, Status.CANCELED)

    assert pool.stop(grace=0) is True

    assert plant.desk.status(handed_back) is Status.QUEUED
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_key_that_is_lost_to_another_session_ends_the_attempt_badly(plant: Plant, said: Said):
    plant.listening({"q": 1})
    job_id = plant.add("held", key="k")
    plant.gate.until_inside(1)
    with plant.desk.held() as step:
        pids = [plant.connections()[role] for role in ("settle", "claim")]
        blocked = "SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) pid"
        plant.desk.sql(blocked, pids)
        eventually(lambda: step("SELECT pg_try_advisory_xact_lock(hashtext('k'))")[0][0], period=0.001)

        (line,) = eventually(lambda: said("worker.complete.failed"))

    assert (line["job"], line["reason"], line["status"]) == (str(job_id), "key_lost", "queued")


def test_key_that_holds_jobs_back_has_one_line(plant: Plant, said: Said):
    plant.listening({"q": 3})
    plant.add("held", key="hot")
    plant.gate.until_inside(1)
    for _ in range(3):
        plant.add("quick", key="hot")

    eventually(lambda: plant.desk.one("SELECT count(*) FROM dl_jobs WHERE place = 'parked'") == 3)

    (line,) = eventually(lambda: said("worker.claim.backoff"))
    assert (line["queue"], line["lock_key"], line["reason"]) == ("q", "hot", "key_busy")


def test_key_is_reported_again_after_a_minute(said: Said, monkeypatch: pytest.MonkeyPatch):
    now = 1000.0
    monkeypatch.setattr("workers.attempt_log.clock", lambda: now)
    backoff = BackoffLog()
    for step in (0, 59, 61, 119, 122):
        now = 1000.0 + step
        backoff.report("q", ["k"])

    assert len(said("worker.claim.backoff")) == 3
