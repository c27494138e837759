"""Each stop step on code that ignores the ones before it. The event names the step that worked."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dataloader.app.queue.attempt_sessions import SessionsEnded
from dataloader.app.queue.job import ClaimedJob, Status
from dataloader.pipelines.contract import StopReason, registry
from dataloader.pipelines.portable import clock
from dataloader.workers.running_attempts import RunningAttempts
from dataloader.workers.stopper import StopEscalator
from tests.support import stop_steps
from tests.support.claimed_jobs import attempt_with
from tests.support.recording import record_attempts
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

OPTIONS: dict[str, Any] = {"stop_step_sec": 0.3, "packages": ("tests.support.stop_steps",)}


def pool_with_stop_steps(worker_pools: WorkerPoolFixture):
    return worker_pools.listening_pool(pipelines=registry, targets={"default": worker_pools.dsn}, **OPTIONS)


def has_begun(worker_pools: WorkerPoolFixture, job_id):
    """Wait until the pipeline runs, with its own session active if it has one."""
    eventually(lambda: any(pool.would_lose_sec for pool in worker_pools.pools))
    if worker_pools.queue_fixture.job(job_id).task.startswith("process."):
        eventually(lambda: worker_pools.queue_fixture.job(job_id).progress.get("begun"))
    if worker_pools.queue_fixture.job(job_id).task.rpartition(".")[2].startswith(("query", "copy")):
        eventually(
            lambda: worker_pools.queue_fixture.fetch_row(
                "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND application_name LIKE %s",
                f"dataloader:{job_id}:%",
            ),
            message="the job's session is active",
        )


@pytest.mark.parametrize(
    ("task", "stop_step"),
    [
        ("thread.heed", "request"),
        ("thread.query", "cancel_query"),
        ("thread.copy_out", "cancel_query"),
        ("thread.spin", "interrupt"),
        ("thread.query_again", "terminate_session"),
        ("process.heed", "request"),
        ("process.query", "cancel_query"),
        ("process.sleep", "sigterm"),
        ("process.spin", "sigterm"),
        ("process.query_again", "sigterm"),
        ("process.hold_the_interpreter", "sigterm"),
    ],
)
def test_cancel_escalates_until_the_pipeline_stops(worker_pools, task, stop_step):
    pool_with_stop_steps(worker_pools)
    job_id = worker_pools.add_job(task)
    has_begun(worker_pools, job_id)

    worker_pools.queue_fixture.queue.cancel(job_id)
    worker_pools.wait_for_status(job_id, Status.CANCELED)

    (end,) = worker_pools.event_payloads(job_id, "canceled")
    assert end["stopped_by"] == stop_step
    assert end["stop_reason"] == "cancel"


def test_copy_that_ignores_cancel_ends_with_its_session(worker_pools):
    pool_with_stop_steps(worker_pools)
    job_id = worker_pools.add_job("thread.copy_in")
    has_begun(worker_pools, job_id)

    worker_pools.queue_fixture.queue.cancel(job_id)
    worker_pools.wait_for_status(job_id, Status.CANCELED)

    (end,) = worker_pools.event_payloads(job_id, "canceled")
    assert end["stopped_by"] == "terminate_session"
    assert not worker_pools.queue_fixture.fetch_row(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s", f"dataloader:{job_id}:%"
    )


def test_process_ignoring_sigterm_is_killed_with_children(worker_pools):
    pool_with_stop_steps(worker_pools)
    job_id = worker_pools.add_job("process.deaf_to_sigterm")
    has_begun(worker_pools, job_id)

    worker_pools.queue_fixture.queue.cancel(job_id)
    worker_pools.wait_for_status(job_id, Status.CANCELED)

    (end,) = worker_pools.event_payloads(job_id, "canceled")
    assert end["stopped_by"] in ("sigterm", "sigkill")  # the first, if it came before the child ignores signals


def test_thread_that_does_not_stop_is_recorded_as_pending(worker_pools):
    pool_with_stop_steps(worker_pools)
    job_id = worker_pools.add_job("thread.sleep", args={"seconds": 2.5})
    has_begun(worker_pools, job_id)

    worker_pools.queue_fixture.queue.cancel(job_id)
    result = eventually(lambda: worker_pools.event_payloads(job_id, "stop_pending"))
    during = worker_pools.queue_fixture.job(job_id)

    assert result[0]["reason"] == "cancel"
    assert during.status is Status.RUNNING
    assert during.error is not None
    assert during.error.startswith("stop pending")
    ended = worker_pools.wait_for_status(
        job_id, Status.SUCCEEDED
    )  # it came to its end by itself: that is not hidden either
    assert ended.error is None


def test_time_limit_ends_the_attempt_as_an_error(worker_pools):
    pool_with_stop_steps(worker_pools)
    job_id = worker_pools.add_job("thread.heed", time_limit_sec=1, max_attempts=1)

    ended = worker_pools.wait_for_status(job_id, Status.FAILED)

    assert ended.error == "TimeoutError: the time limit of 1 s was reached"
    assert worker_pools.event_payloads(job_id, "failed")[0]["stop_reason"] == "time_limit"


def test_shutdown_escalates_as_a_cancel(worker_pools):
    pool = pool_with_stop_steps(worker_pools)
    job_id = worker_pools.add_job("process.hold_the_interpreter")
    has_begun(worker_pools, job_id)

    assert pool.stop(grace=0.1)

    job = worker_pools.queue_fixture.job(job_id)
    (handed_back,) = worker_pools.event_payloads(job_id, "requeue")
    assert (job.status, job.attempt) == (Status.QUEUED, 0)
    assert (handed_back["reason"], handed_back["stopped_by"]) == ("shutdown", "sigterm")


def test_lost_lease_ends_the_process(worker_pools, monkeypatch):
    attempts = record_attempts(monkeypatch)
    pool = pool_with_stop_steps(worker_pools)
    job_id = worker_pools.add_job("process.hold_the_interpreter", max_attempts=1, lease_ttl_sec=300)
    has_begun(worker_pools, job_id)

    attempts[0].stop(StopReason.LEASE_LOST)
    eventually(lambda: not pool.state().busy)

    worker_pools.wait_for_status(job_id, Status.LOST)  # its process gave it up, though it lives: the reaper took it
    assert worker_pools.event_payloads(job_id, "lost")[0]["reason"] == "lease_expired"


def test_every_pipeline_of_the_table_is_run():
    assert {name for name in registry.names if name.startswith("thread.")} == {
        f"thread.{n}" for n in stop_steps.THREADS
    }


def test_silent_server_does_not_delay_other_stops(worker_pools, monkeypatch):
    pool = pool_with_stop_steps(worker_pools)
    let_go = threading.Event()
    monkeypatch.setattr(
        "dataloader.workers.connections.task_connections.TaskConnections._cancel_backends",
        lambda *_, **__: let_go.wait(20) and 0,
    )
    monkeypatch.setattr(
        "dataloader.workers.connections.task_connections.end_sessions", lambda *_: let_go.wait(20) and SessionsEnded()
    )
    stuck = worker_pools.add_job("thread.query")
    has_begun(worker_pools, stuck)
    other = worker_pools.add_job("thread.heed", time_limit_sec=1, max_attempts=1)
    worker_pools.queue_fixture.queue.cancel(stuck)

    worker_pools.wait_for_status(other, Status.FAILED)
    eventually(lambda: [job["job_id"] for job in pool.state().running] == [str(stuck)])  # its end is written first
    let_go.set()
    monkeypatch.undo()

    worker_pools.queue_fixture.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s", f"dataloader:{stuck}:%"
    )
    worker_pools.wait_for_status(stuck, Status.CANCELED)


def test_failed_stop_step_is_logged_and_escalation_goes_on(logged):
    def unwell(job: ClaimedJob, *, reason: str, error: str) -> None:
        raise RuntimeError("the session is broken")

    roster, attempt = RunningAttempts(), attempt_with(settings={"stop_step_sec": 0.0})
    roster.add([attempt])
    attempt.started_at = clock()
    attempt.stop(StopReason.CANCEL)
    StopEscalator(roster, record_pending=unwell, on_crash=print).run_once()

    assert attempt.stop_signal.step == "pending"
    eventually(lambda: logged("stop.failed"))
