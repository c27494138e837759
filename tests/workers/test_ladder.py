"""Each rung on code that ignores the ones before it. The journal says which one worked."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from app.queue.attempt_sessions import SessionsEnded
from app.queue.job import Claimed, Status
from pipelines.contract import StopReason, registry
from tests.support import rungs
from tests.support.claims import attempt_with
from tests.support.plant import Plant
from tests.support.waiting import eventually
from workers.ladder import Ladder
from workers.roster import Roster
from workers.threads import clock

OPTIONS: dict[str, Any] = {"stop_grace_sec": 0.3, "packages": ("tests.support.rungs",)}


def ladder(plant: Plant):
    return plant.listening(pipelines=registry, targets={"default": plant.dsn}, **OPTIONS)


def has_begun(plant: Plant, job_id):
    """In the midst of it: a session of the job's own at work, if it has one."""
    eventually(lambda: [attempt for pool in plant.pools for attempt in pool._roster.all() if attempt.started])
    if plant.desk.job(job_id).task.startswith("process."):
        eventually(lambda: plant.desk.job(job_id).progress.get("begun"))
    if plant.desk.job(job_id).task.rpartition(".")[2].startswith(("query", "copy")):
        eventually(
            lambda: plant.desk.one(
                "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND application_name LIKE %s",
                f"dataloader:{job_id}:%",
            ),
            message="the job's session is at work",
        )


@pytest.mark.parametrize(
    ("task", "rung"),
    [
        ("thread.heed", "flag"),
        ("thread.query", "query"),
        ("thread.copy_out", "query"),
        ("thread.spin", "interrupt"),
        ("thread.query_again", "terminate"),
        ("process.heed", "flag"),
        ("process.query", "query"),
        ("process.sleep", "sigterm"),
        ("process.spin", "sigterm"),
        ("process.query_again", "sigterm"),
        ("process.hold_the_interpreter", "sigterm"),
    ],
)
def test_a_cancel_climbs_until_the_pipeline_gives_in(plant, task, rung):
    ladder(plant)
    job_id = plant.add(task)
    has_begun(plant, job_id)

    plant.desk.queue.cancel(job_id)
    plant.until(job_id, Status.CANCELED)

    (end,) = plant.payloads(job_id, "canceled")
    assert end["stopped_by"] == rung
    assert end["stop_reason"] == "cancel"


def test_a_copy_into_the_database_that_no_cancel_stops_ends_with_its_session(plant):
    ladder(plant)
    job_id = plant.add("thread.copy_in")
    has_begun(plant, job_id)

    plant.desk.queue.cancel(job_id)
    plant.until(job_id, Status.CANCELED)

    (end,) = plant.payloads(job_id, "canceled")
    assert end["stopped_by"] == "terminate"
    assert not plant.desk.one(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s", f"dataloader:{job_id}:%"
    )


def test_a_process_that_is_deaf_to_sigterm_is_killed_with_its_children(plant):
    ladder(plant)
    job_id = plant.add("process.deaf_to_sigterm")
    has_begun(plant, job_id)

    plant.desk.queue.cancel(job_id)
    plant.until(job_id, Status.CANCELED)

    (end,) = plant.payloads(job_id, "canceled")
    assert end["stopped_by"] in ("sigterm", "sigkill")  # the first, if it came before the child had closed its ears


def test_what_a_thread_cannot_stop_is_said_and_not_claimed(plant):
    ladder(plant)
    job_id = plant.add("thread.sleep", args={"seconds": 2.5})
    has_begun(plant, job_id)

    plant.desk.queue.cancel(job_id)
    told = eventually(lambda: plant.payloads(job_id, "stop_pending"))
    during = plant.desk.job(job_id)

    assert told[0]["reason"] == "cancel"
    assert during.status is Status.RUNNING
    assert during.error is not None
    assert during.error.startswith("stop pending")
    ended = plant.until(job_id, Status.SUCCEEDED)  # it came to its end by itself: that is not hidden either
    assert ended.error is None


def test_a_time_limit_of_the_job_ends_the_try_as_an_error(plant):
    ladder(plant)
    job_id = plant.add("thread.heed", time_limit_sec=1, max_attempts=1)

    ended = plant.until(job_id, Status.FAILED)

    assert ended.error == "TimeoutError: the time limit of 1 s was reached"
    assert plant.payloads(job_id, "failed")[0]["stop_reason"] == "time_limit"


def test_shutdown_climbs_the_same_ladder(plant):
    pool = ladder(plant)
    job_id = plant.add("process.hold_the_interpreter")
    has_begun(plant, job_id)

    assert pool.stop(grace=0.1)

    job = plant.desk.job(job_id)
    (handed_back,) = plant.payloads(job_id, "requeue")
    assert (job.status, job.attempt) == (Status.QUEUED, 0)
    assert (handed_back["reason"], handed_back["stopped_by"]) == ("shutdown", "sigterm")


def test_a_lost_lease_brings_a_process_down(plant):
    pool = ladder(plant)
    job_id = plant.add("process.hold_the_interpreter", max_attempts=1)
    has_begun(plant, job_id)
    (attempt,) = pool._roster.all()

    attempt.stop(StopReason.LEASE_LOST)
    eventually(lambda: not pool.state().busy)

    plant.until(job_id, Status.LOST)  # nothing was written for it, and nobody renewed it: the reaper took it
    assert plant.payloads(job_id, "lost")[0]["reason"] == "lease_expired"


def test_every_pipeline_of_the_table_is_tried():
    assert {name for name in registry.names if name.startswith("thread.")} == {f"thread.{n}" for n in rungs.THREADS}


def test_a_server_that_is_away_does_not_make_the_stops_of_others_late(plant, monkeypatch):
    pool = ladder(plant)
    let_go = threading.Event()
    monkeypatch.setattr("app.queue.effects._tell", lambda *_, **__: let_go.wait(20) and 0)
    monkeypatch.setattr("app.queue.effects.end_sessions", lambda *_: let_go.wait(20) and SessionsEnded())
    stuck = plant.add("thread.query")
    has_begun(plant, stuck)
    other = plant.add("thread.heed", time_limit_sec=1, max_attempts=1)
    plant.desk.queue.cancel(stuck)

    plant.until(other, Status.FAILED)
    eventually(lambda: [attempt.job.id for attempt in pool._roster.all()] == [stuck])  # its end is written first
    let_go.set()
    monkeypatch.undo()

    plant.desk.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s", f"dataloader:{stuck}:%"
    )
    plant.until(stuck, Status.CANCELED)


def test_what_cannot_be_told_to_the_database_is_logged_and_ends_no_keeper(said):
    def unwell(job: Claimed, reason: str, told: str) -> None:
        raise RuntimeError("the session is broken")

    roster, attempt = Roster(), attempt_with(tools={"stop_grace_sec": 0.0})
    roster.add([attempt])
    attempt.began = clock()
    attempt.stop(StopReason.CANCEL)
    Ladder(roster, note_pending=unwell, died=print).turn()

    assert attempt.rung == "pending"
    eventually(lambda: said("stop.failed"))
