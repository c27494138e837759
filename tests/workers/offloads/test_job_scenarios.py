"""The same scenarios for jobs on each engine: one execution wherever the engine keeps names, and its result taken.

In `make test` on the fake engine and a fake API server of Kubernetes; by `make engines` on child processes, Ray, Dask.
`job_engines.MISSING` has the scenarios that make no sense for an engine.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataloader.app.queue.job import Status
from dataloader.workers.logs.writer import JobLogLimits
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture
from tests.workers.offloads.conftest import FIGURES
from tests.workers.offloads.job_engines import ENGINES, EngineJobs, make_job_engine


@pytest.fixture(params=ENGINES)
def jobs(
    request: pytest.FixtureRequest, fast_polls: None, worker_pools: WorkerPoolFixture, tmp_path: Path
) -> Iterator[EngineJobs]:
    for engine in make_job_engine(request.param, request, tmp_path):
        made = EngineJobs(worker_pools, engine, tmp_path, FIGURES.setdefault(request.param, {}))
        yield made
        made.open_gate(*made.folders)


def test_next_worker_takes_what_a_killed_one_began(jobs: EngineJobs):
    """Killed before the intent, after it, after the submission, while the work runs, and when it has ended unread."""
    queue_db = jobs.pools.queue_fixture
    begun = {moment: jobs.add("blocking", "gate", key=moment) for moment in ("at-intent", "at-submit", "at-run")}
    is_intending = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND query LIKE '%%INSERT INTO %%dl_offloads%%'"
    )
    with jobs.worker_process() as worker:
        jobs.wait_until_held("at-intent")
        jobs.wait_until_held("at-submit")
        jobs.wait_until_running(begun["at-run"])
        if jobs.engine.has_logs:
            eventually(lambda: "begun" in jobs.log(begun["at-run"]), message="its log is kept")
        begun["at-end"] = jobs.add("blocking", "quick", key="at-end")
        jobs.wait_until_held("at-end")  # holds the poller too
        with queue_db.open_transaction() as step:
            step("LOCK TABLE dl_offloads IN EXCLUSIVE MODE")
            begun["before"] = jobs.add("blocking", "gate", key="before")
            eventually(lambda: queue_db.fetch_row(is_intending) == 1, message="the intent waits")
            worker.kill()
            queue_db.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    assert jobs.rows(begun["before"]) == []
    assert jobs.starts(begun["before"]) == 0, "nothing is submitted before the intent is durable"

    jobs.start()
    jobs.open_gate(*begun.values())

    lost = 0 if jobs.engine.survives else 1
    executions = {"before": 1, "at-intent": 1, "at-submit": 1 + lost, "at-run": 1 + lost, "at-end": 1 + lost}
    for moment, job_id in begun.items():
        job = jobs.succeeded(job_id)
        assert (job.result, job.attempt) == ({"rows": 3}, 2), moment
        assert jobs.rows(job_id) == [(jobs.name(job_id), "succeeded")], moment
    assert {moment: jobs.starts(job_id) for moment, job_id in begun.items()} == executions
    if jobs.engine.has_logs and jobs.engine.survives:
        end = '::result {"rows": 3}'
        eventually(lambda: end in jobs.log(begun["at-run"]))
        assert jobs.log(begun["at-run"]).count("begun") == 1, "what the killed worker had kept is not repeated"


@pytest.mark.parametrize("moment", ["at-intent", "at-submit"])
def test_cancel_during_the_submission_stops_the_work(jobs: EngineJobs, moment: str):
    jobs.start(is_held=True)
    job_id = jobs.add("blocking", "gate", key=moment)
    jobs.wait_until_held(moment)

    jobs.cancel(job_id)
    jobs.release(moment)

    jobs.canceled(job_id)
    assert jobs.has_stopped(job_id)
    assert jobs.rows(job_id) == [(jobs.name(job_id), "stopped")]


def test_cancel_stops_running_work(jobs: EngineJobs):
    jobs.start()
    began = time.monotonic()
    job_id = jobs.add("blocking", "gate")
    jobs.wait_until_running(job_id)
    jobs.figures["start"] = time.monotonic() - began

    began = time.monotonic()
    jobs.cancel(job_id)

    jobs.canceled(job_id)
    jobs.figures["stop"] = time.monotonic() - began
    assert jobs.has_stopped(job_id)
    assert jobs.rows(job_id) == [(jobs.name(job_id), "stopped")]


def test_cancel_of_a_waiting_job_stops_its_work(jobs: EngineJobs):
    jobs.start()
    job_id = jobs.add("waiting", "gate")
    jobs.wait_until_running(job_id)
    eventually(lambda: jobs.pools.queue_fixture.wait_state(job_id) == "waiting")

    jobs.cancel(job_id)

    jobs.canceled(job_id)
    eventually(lambda: jobs.rows(job_id) == [(jobs.name(job_id), "stopped")], message="the poller stops it")
    assert jobs.has_stopped(job_id)


def test_cancel_after_the_unread_end_runs_nothing_again(jobs: EngineJobs):
    jobs.start(is_held=True)
    job_id = jobs.add("blocking", "quick", key="at-end")
    jobs.wait_until_held("at-end")

    jobs.cancel(job_id)
    jobs.wait_until_held("at-end", times=2)  # the second one asks in order to stop it
    jobs.release("at-end")

    jobs.canceled(job_id)
    assert jobs.starts(job_id) == 1
    assert jobs.rows(job_id) == [(jobs.name(job_id), "stopped")]


def test_lost_lease_stops_nothing(jobs: EngineJobs, logged):
    jobs.start(heartbeat_sec=0.5)
    job_id = jobs.add("blocking", "gate", job={"lease_ttl_sec": 30})  # some engines take longer than a short lease
    jobs.wait_until_running(job_id)
    queue_db = jobs.pools.queue_fixture

    queue_db.lose_lease(job_id)

    eventually(lambda: [fields["job"] for fields in logged("attempt.abandoned")] == [str(job_id)])
    beats = jobs.beats(job_id)
    eventually(lambda: jobs.beats(job_id) > beats, message="it runs on")
    jobs.open_gate(job_id)
    assert jobs.succeeded(job_id).attempt == 2
    assert jobs.starts(job_id) == 1
    assert jobs.rows(job_id) == [(jobs.name(job_id), "succeeded")]


def test_shutdown_detaches(jobs: EngineJobs, logged):
    pool = jobs.start()
    job_id = jobs.add("blocking", "gate")
    jobs.wait_until_running(job_id)

    pool.stop(grace=0)

    beats = jobs.beats(job_id)
    eventually(lambda: jobs.beats(job_id) > beats, message="it runs on")
    began = time.monotonic()
    jobs.start()
    eventually(lambda: logged("offload.attached"), message="the next one attaches")
    jobs.figures["re-attach"] = time.monotonic() - began
    jobs.open_gate(job_id)
    assert jobs.succeeded(job_id).attempt == 1
    assert jobs.starts(job_id) == 1


def test_engine_that_was_killed_is_waited_for(jobs: EngineJobs):
    """One that forgets its names, as one without a store does, runs the work again."""
    jobs.start()
    job_id = jobs.add("blocking", "gate")
    jobs.wait_until_running(job_id)

    jobs.engine.down()

    def shows_outage() -> bool:
        return "unavailable since" in str(jobs.pools.queue_fixture.job(job_id).progress.get("engine"))

    eventually(shows_outage)
    jobs.engine.up()
    starts = 1 if jobs.engine.keeps_names else 2
    jobs.wait_until_running(job_id, starts=starts)
    jobs.open_gate(job_id)
    job = jobs.succeeded(job_id)
    assert (job.result, job.attempt, job.progress["engine"]) == ({"rows": 3}, 1, "available")
    assert jobs.starts(job_id) == starts
    assert jobs.rows(job_id) == [(jobs.name(job_id), "succeeded")]


def test_changed_arguments_replace_the_work(jobs: EngineJobs):
    jobs.start()
    folder = jobs.folder / "then"
    folder.mkdir()
    job_id = jobs.add("changed", "gate", then=jobs.engine.work("quick", folder))

    assert jobs.succeeded(job_id).result == {"rows": 3}

    assert jobs.has_stopped(job_id)
    name = jobs.name(job_id)
    assert jobs.rows(job_id) == [(name, "stopped"), (f"{name}.2", "succeeded")]


def test_too_large_result_fails_the_job(jobs: EngineJobs):
    jobs.start()

    job = jobs.failed(jobs.add("blocking", "big"))

    assert (job.attempt, "to storage" in (job.error or "")) == (1, True), job.error


def test_log_of_the_work_has_the_cap_of_job_logs(jobs: EngineJobs):
    jobs.start(log_limits=JobLogLimits(max_bytes=2_000))
    job_id = jobs.add("blocking", "lines")
    jobs.succeeded(job_id)

    def all_lines() -> list[str]:
        rows = jobs.pools.queue_fixture.sql("SELECT line FROM dl_job_logs WHERE job_id = %s", str(job_id))
        return [line for (line,) in rows]

    eventually(lambda: any("reached 2,000" in line for line in all_lines()))
    assert sum(map(len, all_lines())) < 20_000


@pytest.mark.parametrize("jobs", ["fake"], indirect=True)
def test_kill_during_shutdown_loses_no_line(jobs: EngineJobs):
    queue_db = jobs.pools.queue_fixture
    is_writing = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND query LIKE '%%INSERT INTO %%dl_job_logs%%begun%%'"
    )
    with jobs.worker_process() as worker, queue_db.open_transaction() as step:
        step("LOCK TABLE dl_job_logs IN EXCLUSIVE MODE")
        job_id = jobs.add("blocking", "gate")
        eventually(lambda: queue_db.fetch_row(is_writing) == 1, message="its line is read, and cannot be written")
        worker.signal(signal.SIGTERM)
        eventually(lambda: queue_db.status(job_id) is Status.QUEUED, message="it is released")
        worker.kill()
        queue_db.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")

    jobs.start()
    jobs.open_gate(job_id)

    jobs.succeeded(job_id)
    eventually(lambda: '::result {"rows": 3}' in jobs.log(job_id))
    assert jobs.log(job_id).count("begun") == 1
    assert jobs.starts(job_id) == 1
