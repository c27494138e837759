"""Which work a call of a job submits, finds again or replaces, on a fake engine with faults.

What holds on every engine is in test_job_scenarios.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataloader.pipelines.executors import Engines
from tests.support.fake_engine import install_entry_points
from tests.support.waiting import eventually
from tests.workers.offloads.offload_fixture import OffloadFixture, program, start_count


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_job_takes_the_result_of_its_program(offloads: OffloadFixture, isolation: str, tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(install_entry_points(tmp_path)))
    engines = Engines({"fake": {"address": offloads.engine.address}})
    offloads.start(isolation=isolation, engines=engines)

    job_id = offloads.add("blocking", "quick")

    job = offloads.succeeded(job_id)
    assert job.result == {"rows": 3}
    assert job.progress["processed"] == 3
    assert job.progress["total"] == 4
    eventually(lambda: offloads.log(job_id, "fake")[:1] == ["begun"])
    assert offloads.rows(job_id) == [(offloads.name(job_id), "succeeded")]


def test_program_learns_its_job_and_its_token(offloads: OffloadFixture):
    offloads.start()

    job_id = offloads.add("blocking", "variables")

    answer = offloads.succeeded(job_id).result
    token = offloads.pools.queue_fixture.fetch_row("SELECT fence_token FROM dl_offloads")
    assert (answer["DL_JOB_ID"], answer["DL_OFFLOAD"]) == (str(job_id), offloads.name(job_id))
    assert answer["DL_FENCE_TOKEN"] == token
    assert answer["DL_RUN_ID"] == offloads.pools.queue_fixture.fetch_row("SELECT run_id::text FROM dl_offloads")


def test_key_names_the_work(offloads: OffloadFixture):
    offloads.start()

    job_id = offloads.add("blocking", "quick", options={"key": "train"})

    offloads.succeeded(job_id)
    assert offloads.rows(job_id) == [(offloads.name(job_id, "train"), "succeeded")]


def test_two_submissions_at_once_are_one_execution(offloads: OffloadFixture):
    offloads.engine.faults["POST"].append("twice")
    offloads.start()

    job_id = offloads.add("blocking", "quick")

    offloads.succeeded(job_id)
    assert start_count(offloads.folder) == 1


def test_each_attempt_submits_failed_work_under_a_new_name(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("blocking", "fails", job={"max_attempts": 2})
    name = offloads.name(job_id)

    job = offloads.failed(job_id)

    assert "exit 1" in (job.error or "")
    assert "it broke" in (job.error or ""), "the end of its log"
    assert offloads.rows(job_id) == [(name, "failed"), (f"{name}.2", "failed")]
    offloads.pools.queue_fixture.queue.retry(job_id)
    eventually(lambda: len(offloads.rows(job_id)) == 4)
    assert offloads.rows(job_id)[2] == (f"{name}.3", "failed"), "a person's retry counts on"
    offloads.failed(job_id)


def test_refused_work_fails_the_job_at_once(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.pools.add_job("offload.blocking", args={"entrypoint": "refused"})
    unknown = offloads.add("blocking", "quick", engine="none")
    inside = offloads.add("in_transaction", "quick", job={"max_attempts": 1})

    assert offloads.failed(job_id).attempt == 1
    assert "no engine 'none' is known among fake, process" in (offloads.failed(unknown).error or "")
    assert "call them before" in (offloads.failed(inside).error or "")


def test_fresh_work_is_of_one_attempt(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add(
        "changed", "quick", then={"entrypoint": program("quick", offloads.folder)}, options={"fresh": True}
    )
    name = offloads.name(job_id)

    offloads.succeeded(job_id)

    assert [row[0] for row in offloads.rows(job_id)] == [name, f"{name}.2"]


def test_changed_work_waits_for_the_end_of_the_former(offloads: OffloadFixture):
    offloads.engine.ignores_stop = True
    offloads.start()
    then = {"entrypoint": program("quick", offloads.folder)}
    job_id = offloads.add("changed", "gate", then=then, options={"grace": 0.3}, job={"max_attempts": 2})
    name = offloads.name(job_id)

    eventually(lambda: "stop_pending" in offloads.pools.queue_fixture.event_kinds(job_id))

    assert offloads.rows(job_id) == [(name, None)], "nothing is submitted next to what runs"
    offloads.engine.ignores_stop = False
    assert "was asked to stop 0.3 s ago, and has not ended" in (offloads.failed(job_id).error or "")
    assert offloads.rows(job_id) == [(name, "stopped")]


def test_key_of_work_that_has_ended_takes_other_arguments(offloads: OffloadFixture):
    offloads.start()

    more = {"options": {"key": "a"}, "then": {"entrypoint": program("quick", offloads.folder)}}
    job_id = offloads.add("enlarged", "fails", resources={"fails_as": "oom"}, job={"max_attempts": 1}, **more)

    offloads.succeeded(job_id)
    assert [outcome for _, outcome in offloads.rows(job_id)] == ["failed", "succeeded"]


def test_key_of_other_work_of_the_attempt_is_refused(offloads: OffloadFixture):
    offloads.start()

    job_id = offloads.add("reused_key", "gate", options={"key": "a"}, job={"max_attempts": 1})

    assert "the key 'a' names other work of this attempt" in (offloads.failed(job_id).error or "")
    assert offloads.rows(job_id) == [(offloads.name(job_id, "a"), "stopped")]


def test_work_that_was_to_be_stopped_is_not_found_again(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("waiting", "gate")
    name = offloads.name(job_id)
    eventually(lambda: offloads.pools.queue_fixture.wait_state(job_id) == "waiting")
    offloads.engine.ignores_stop = True
    offloads.pools.queue_fixture.queue.cancel(job_id)
    eventually(lambda: offloads.engine.count_requests("DELETE") > 0, message="the poller stops it")

    offloads.pools.queue_fixture.queue.retry(job_id)
    offloads.engine.ignores_stop = False
    offloads.open_gate()

    offloads.succeeded(job_id)
    assert [row[0] for row in offloads.rows(job_id)] == [name, f"{name}.2"], "its fence refuses its commits"


def test_other_address_of_lost_work_is_noted(offloads: OffloadFixture):
    pool = offloads.start()
    job_id = offloads.add("blocking", "gate")
    name = offloads.name(job_id)
    offloads.wait_until_running(name)
    pool.stop(grace=0)
    offloads.pools.queue_fixture.sql("UPDATE dl_offloads SET address = 'http://former'")
    former = offloads.engine.programs.pop(name)

    offloads.start()

    eventually(lambda: any("was submitted to http://former" in line for line in offloads.log(job_id, "note")))
    former.process.kill()
    former.process.wait()
    offloads.open_gate()
    offloads.succeeded(job_id)
