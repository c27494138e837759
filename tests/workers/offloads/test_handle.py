"""A job that waits for its work: how the work ends, and outages of a fake engine."""

from __future__ import annotations

import pytest

from dataloader.pipelines.executors import Engines
from dataloader.pipelines.portable import clock
from dataloader.workers.logs import writer
from dataloader.workers.logs.writer import JobLogWriter
from dataloader.workers.offloads import handle, poller
from tests.support.recording import record_calls
from tests.support.waiting import eventually
from tests.workers.offloads.offload_fixture import OffloadFixture, start_count


def test_timeout_of_the_work_stops_it(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("blocking", "gate", options={"timeout": 0.5}, job={"max_attempts": 1})

    job = offloads.failed(job_id)

    assert "has not ended within 0.5 s" in (job.error or "")
    assert not offloads.is_alive(offloads.name(job_id))


def test_lost_engine_worker_counts_as_a_crash(offloads: OffloadFixture):
    offloads.start()

    job_id = offloads.add("blocking", "fails", resources={"fails_as": "worker_lost"})

    job = offloads.failed(job_id)
    assert job.crashes == 2
    assert "poison" in (job.error or "")


def test_work_out_of_memory_is_a_memory_error(offloads: OffloadFixture):
    offloads.start()

    job_id = offloads.add("blocking", "fails", resources={"fails_as": "oom"}, job={"max_attempts": 1})

    assert (offloads.failed(job_id).error or "").startswith("RemoteOutOfMemory")


def test_engine_that_stays_away_fails_the_attempt(offloads: OffloadFixture):
    offloads.engine.down()
    offloads.start()

    job_id = offloads.add("blocking", "quick", options={"engine_timeout": 0.3}, job={"max_attempts": 3})

    def is_retried() -> bool:
        return bool(offloads.pools.event_payloads(job_id, "requeue"))

    eventually(is_retried)
    assert "EngineUnavailable" in offloads.pools.event_payloads(job_id, "requeue")[0]["error"]
    offloads.engine.up()
    offloads.succeeded(job_id)
    assert offloads.rows(job_id) == [(offloads.name(job_id), "succeeded")], "the name stayed"


def test_engine_that_goes_away_fails_the_attempt(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("blocking", "gate", options={"engine_timeout": 0.3}, job={"max_attempts": 3})
    offloads.wait_until_running(offloads.name(job_id))

    offloads.engine.down()

    eventually(lambda: bool(offloads.pools.event_payloads(job_id, "requeue")))
    assert "EngineUnavailable" in offloads.pools.event_payloads(job_id, "requeue")[0]["error"]
    offloads.engine.up()
    offloads.open_gate()
    offloads.succeeded(job_id)
    assert start_count(offloads.folder) == 1


def test_next_attempt_reads_behind_lines_that_were_not_written(
    offloads: OffloadFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writer, "_FLUSH_INTERVAL_SEC", 60.0)
    monkeypatch.setattr(poller, "_CLAIM_INTERVAL_SEC", 60.0)  # it writes the lines first
    written = record_calls(monkeypatch, JobLogWriter, "write")
    pool = offloads.start()
    offloads.succeeded(offloads.add("blocking", "quick"))  # whose lines are written; others then wait a minute
    job_id = offloads.add("blocking", "gate", options={"engine_timeout": 0.3})
    eventually(lambda: (job_id, "begun") in {(args[1], args[-1]) for args in written}, message="its line is read")
    assert offloads.log(job_id, "fake") == []

    offloads.engine.down()
    eventually(lambda: bool(offloads.pools.event_payloads(job_id, "requeue")))
    offloads.engine.up()
    offloads.open_gate()

    offloads.succeeded(job_id)
    pool.stop(grace=1)
    assert offloads.log(job_id, "fake").count("begun") == 1


def test_engine_that_forgets_each_time_is_given_up(offloads: OffloadFixture):
    offloads.engine.faults["GET"].extend(["unknown"] * 1_000)
    offloads.start()

    job_id = offloads.add("blocking", "quick", job={"max_attempts": 1})

    assert f"has forgotten {offloads.name(job_id)} 4 times" in (offloads.failed(job_id).error or "")
    assert offloads.engine.count_requests("POST") == 4


def test_engine_that_forgets_the_work_of_a_waiting_job_is_given_up(offloads: OffloadFixture):
    offloads.engine.faults["GET"].extend(["unknown"] * 1_000)
    offloads.start()

    job_id = offloads.add("waiting", "quick", job={"max_attempts": 1})

    assert f"has forgotten {offloads.name(job_id)} 4 times" in (offloads.failed(job_id).error or "")
    assert offloads.engine.count_requests("POST") == 4
    assert offloads.rows(job_id) == [(offloads.name(job_id), "failed")], "the next attempt takes another name"


def test_lost_and_slow_answers_cost_no_execution(offloads: OffloadFixture):
    offloads.engine.faults["POST"].extend(["lost", "500"])
    offloads.engine.faults["GET"].extend(["500", "slow"])
    offloads.start()

    job_id = offloads.add("blocking", "quick")

    offloads.succeeded(job_id)
    assert start_count(offloads.folder) == 1


def test_forgotten_work_is_submitted_again(offloads: OffloadFixture):
    offloads.start()
    job_id = offloads.add("blocking", "gate")
    name = offloads.name(job_id)
    offloads.wait_until_running(name)

    program_before = offloads.engine.programs.pop(name)
    eventually(lambda: start_count(offloads.folder) == 2)
    program_before.process.kill()
    program_before.process.wait()
    offloads.open_gate()

    assert offloads.succeeded(job_id).attempt == 1
    assert offloads.rows(job_id) == [(name, "succeeded")]


def test_refused_token_is_named_in_the_log_and_the_error(offloads: OffloadFixture):
    offloads.engine.token = "right"
    settings = {"ray": {"address": offloads.engine.address, "token": {"$secret": "of-ray"}}}
    offloads.start(engines=Engines(settings, read_secret=lambda name: "wrong"))

    limits = {"engine_timeout": 0.3, "grace": 0.1}
    job_id = offloads.add("blocking", "quick", engine="ray", options=limits, job={"max_attempts": 1})

    expected = 'does not accept the setting "token" of this engine in DL_EXECUTORS'
    assert expected in (offloads.failed(job_id).error or "")
    eventually(lambda: any(expected in line for line in offloads.log(job_id, "note")))


def test_lost_result_is_an_error(offloads: OffloadFixture):
    offloads.engine.has_lost_logs = True
    offloads.start()

    job_id = offloads.add("blocking", "quick", job={"max_attempts": 1})

    name = offloads.name(job_id)
    assert f"the result of {name} is lost" in (offloads.failed(job_id).error or "")
    assert offloads.rows(job_id) == [(name, "failed")], "the next attempt submits it again"


@pytest.mark.parametrize("is_lost", [False, True])
def test_late_work_waits_for_an_engine_that_is_away(
    offloads: OffloadFixture, is_lost: bool, monkeypatch: pytest.MonkeyPatch
):
    passed_sec = 0.0
    monkeypatch.setattr(handle, "clock", lambda: clock() + passed_sec)
    offloads.start()
    job_id = offloads.add("blocking", "gate", options={"timeout": 60}, job={"max_attempts": 1})
    name = offloads.name(job_id)
    offloads.wait_until_running(name)
    offloads.engine.down()
    eventually(lambda: "engine" in offloads.pools.queue_fixture.job(job_id).progress)

    passed_sec = 61.0

    eventually(lambda: any("is stopped when the engine answers" in line for line in offloads.log(job_id, "note")))
    assert offloads.pools.queue_fixture.fetch_row("SELECT stop_requested_at IS NOT NULL FROM dl_offloads")
    program = offloads.engine.programs[name]
    if is_lost:
        program.process.kill()
        program.is_forgotten = True
    offloads.engine.up()
    assert "has not ended within 60 s" in (offloads.failed(job_id).error or "")
    assert not offloads.is_alive(name)
    assert offloads.engine.count_requests("POST") == 1, "it is not submitted again"


def test_late_work_that_is_lost_is_not_submitted_again(offloads: OffloadFixture):
    pool = offloads.start()
    job_id = offloads.add("blocking", "gate", options={"timeout": 60}, job={"max_attempts": 1})
    name = offloads.name(job_id)
    offloads.wait_until_running(name)
    pool.stop(grace=0)
    lost = offloads.engine.programs.pop(name).process
    lost.kill()
    lost.wait()
    offloads.pools.queue_fixture.sql("UPDATE dl_offloads SET deadline_at = now()")

    offloads.start()

    assert "has not ended within 60 s" in (offloads.failed(job_id).error or "")
    assert offloads.engine.count_requests("POST") == 1


def test_broken_answers_cost_no_execution(offloads: OffloadFixture):
    offloads.engine.faults["POST"].extend(["reset"])
    offloads.engine.faults["GET"].extend(["garbage", "reset", "unknown", "500"])
    offloads.start()

    job_id = offloads.add("blocking", "quick")

    assert offloads.succeeded(job_id).result == {"rows": 3}
    assert start_count(offloads.folder) == 1


def test_noise_of_failed_work_is_limited(offloads: OffloadFixture):
    offloads.start()

    job_id = offloads.add("blocking", "noise", job={"max_attempts": 1})

    error = offloads.failed(job_id).error or ""
    assert "it broke" in error
    assert error.count("x" * 1_000 + "\n") > 5, "not of the first line alone"
    assert len(error) < 20_000
    eventually(lambda: any("\N{REPLACEMENT CHARACTER}" in line for line in offloads.log(job_id, "fake")))
    assert max(map(len, offloads.log(job_id, "fake"))) < 20_000
