"""The stop of work whose attempt ends, on a fake engine with faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataloader.app.queue.job import Status
from dataloader.pipelines.executors import Engines
from tests.support.fake_engine import install_entry_points
from tests.support.waiting import eventually
from tests.workers.offloads.offload_fixture import OffloadFixture


def test_shutdown_stops_what_asks_for_it(offloads: OffloadFixture):
    pool = offloads.start()
    job_id = offloads.add("blocking", "gate", options={"on_shutdown": "stop"})
    name = offloads.name(job_id)
    offloads.wait_until_running(name)

    pool.stop(grace=0)

    assert not offloads.is_alive(name)
    offloads.open_gate()
    offloads.start()
    offloads.succeeded(job_id)
    assert offloads.rows(job_id) == [(name, "stopped"), (f"{name}.2", "succeeded")]


def test_cancel_stops_work_of_an_isolated_job(offloads: OffloadFixture, tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(install_entry_points(tmp_path)))
    offloads.start(isolation="process", engines=Engines({"fake": {"address": offloads.engine.address}}))
    job_id = offloads.add("blocking", "gate")
    name = offloads.name(job_id)
    offloads.wait_until_running(name)
    position = "SELECT log_position FROM dl_offloads"
    eventually(lambda: offloads.pools.queue_fixture.fetch_row(position) == "1", message="one line of its log is kept")

    offloads.pools.queue_fixture.queue.cancel(job_id)

    offloads.pools.wait_for_status(job_id, Status.CANCELED)
    assert not offloads.is_alive(name)
    assert offloads.rows(job_id) == [(name, "stopped")]


@pytest.mark.parametrize("stopper", ["attempt", "poller"])
def test_cancel_stops_work_that_begins_late(offloads: OffloadFixture, stopper: str):
    offloads.engine.faults["POST"].extend(["late", *["500"] * 100])
    pool = offloads.start()
    job_id = offloads.add("blocking", "gate")
    name = offloads.name(job_id)
    eventually(lambda: offloads.engine.count_requests("POST") > 0)

    if stopper == "poller":
        pool.stop(grace=0)
        offloads.pools.queue_fixture.queue.cancel(job_id)
        offloads.start()
    else:
        offloads.pools.queue_fixture.queue.cancel(job_id)

    offloads.pools.wait_for_status(job_id, Status.CANCELED)
    eventually(lambda: offloads.rows(job_id) == [(name, "stopped")])
    assert offloads.engine.starts[name] == 1
    assert not offloads.is_alive(name)


@pytest.mark.parametrize("stopper", ["attempt", "poller"])
def test_abandoned_work_that_begins_late_is_stopped(offloads: OffloadFixture, stopper: str):
    offloads.engine.faults["POST"].extend(["late", *["500"] * 100])
    pool = offloads.start()
    job_id = offloads.add("blocking", "gate", options={"grace": 0.1, "abandon": True})
    name = offloads.name(job_id)
    eventually(lambda: offloads.engine.count_requests("POST") > 0)

    if stopper == "poller":
        pool.stop(grace=0)
    offloads.pools.queue_fixture.queue.cancel(job_id)
    if stopper == "poller":
        offloads.start()

    eventually(lambda: offloads.engine.starts[name] == 1)
    eventually(lambda: not offloads.is_alive(name))
    eventually(lambda: offloads.rows(job_id)[0][1] is not None)


def test_stop_that_does_not_come_is_shown(offloads: OffloadFixture):
    offloads.engine.ignores_stop = True
    offloads.start(queues={"q": 2})
    job_id = offloads.add("blocking", "gate", options={"grace": 0.3}, job={"key": "shared"})
    other = offloads.add("unread", "quick", job={"key": "shared"})
    name = offloads.name(job_id)
    offloads.wait_until_running(name)

    offloads.pools.queue_fixture.queue.cancel(job_id)

    eventually(lambda: "stop_pending" in offloads.pools.queue_fixture.event_kinds(job_id))
    job = offloads.pools.queue_fixture.job(job_id)
    assert f"stop pending (cancel): fake {name} runs on" in (job.error or "")
    assert job.status is Status.RUNNING
    assert offloads.pools.queue_fixture.status(other) is Status.QUEUED, "the key is kept"
    offloads.engine.ignores_stop = False
    offloads.open_gate()
    offloads.pools.wait_for_status(job_id, Status.CANCELED)
    offloads.succeeded(other)


def test_abandoned_stop_is_not_waited_for(offloads: OffloadFixture):
    offloads.engine.ignores_stop = True
    offloads.start()
    job_id = offloads.add("blocking", "gate", options={"grace": 0.1, "abandon": True})
    offloads.wait_until_running(offloads.name(job_id))

    offloads.pools.queue_fixture.queue.cancel(job_id)

    offloads.pools.wait_for_status(job_id, Status.CANCELED)
    assert offloads.rows(job_id) == [(offloads.name(job_id), "abandoned")]
    assert offloads.is_alive(offloads.name(job_id))


def test_time_limit_stops_the_work(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("blocking", "gate", job={"time_limit_sec": 1, "max_attempts": 1})

    job = offloads.failed(job_id)

    assert "time limit of 1 s" in (job.error or "")
    assert not offloads.is_alive(offloads.name(job_id))


def test_job_that_ends_without_it_stops_its_work(offloads: OffloadFixture):
    offloads.start()
    ended, failed = offloads.add("unread", "gate"), offloads.add("fails_here", "gate")

    offloads.succeeded(ended)
    offloads.failed(failed)

    for job_id in (ended, failed):
        assert not offloads.is_alive(offloads.name(job_id))
        assert offloads.rows(job_id) == [(offloads.name(job_id), "stopped")]


def test_stop_is_waited_for_through_broken_answers(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("blocking", "gate")
    name = offloads.name(job_id)
    offloads.wait_until_running(name)
    offloads.engine.faults["DELETE"].extend(["ignored", "garbage", "reset", "500"])
    offloads.engine.faults["GET"].extend(["garbage", "reset"])

    offloads.pools.queue_fixture.queue.cancel(job_id)

    offloads.pools.wait_for_status(job_id, Status.CANCELED)
    assert not offloads.is_alive(name)
    assert offloads.rows(job_id) == [(name, "stopped")]


def test_work_left_by_an_ended_job_is_noted(offloads: OffloadFixture):
    offloads.start()
    offloads.engine.faults["GET"].extend(["500"] * 1_000)
    job_id = offloads.add("unread", "gate", options={"grace": 0.2})
    name = offloads.name(job_id)

    offloads.succeeded(job_id)

    eventually(lambda: any(f"{name} is stopped when the engine" in line for line in offloads.log(job_id, "note")))
    assert offloads.is_alive(name)
    offloads.engine.faults.clear()
    eventually(lambda: not offloads.is_alive(name))
