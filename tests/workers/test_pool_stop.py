"""The state of a pool, and how it stops."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dataloader.app.queue.job import Status
from dataloader.app.state.queues import Queues
from dataloader.pipelines.portable import clock
from dataloader.workers.claimer import Claimer
from dataloader.workers.logs.writer import JobLogWriter
from dataloader.workers.pool import WorkerPool
from tests.support.databases import execute_sql
from tests.support.queue_fixture import BackgroundCall
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

SOON = 20.0  # seconds; polls come every 30, so that what starts by then was woken by a notification


# ── the state ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_pool_state_lists_threads_and_running_jobs(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool({"q": 2})
    job = worker_pools.add_job("held")
    worker_pools.gate.wait_for_inside(1)

    state = pool.state()

    assert (state.ready, state.listener, state.threads, state.busy, state.crashed_threads) == (
        True,
        "listening",
        2,
        1,
        (),
    )
    assert state.worker_id == pool.id
    assert state.running == [{"job_id": str(job), "task": "held", "queue": "q", "attempt": 1}]
    ages = (state.claim_age_sec, state.heartbeat_age_sec, state.reaper_age_sec, state.self_test_age_sec)
    assert max(age for age in ages if age is not None) < SOON


def test_a_pool_is_ready_from_its_start_to_its_stop(worker_pools: WorkerPoolFixture):
    pool = worker_pools.pool(start=False)
    before = pool.state()
    pool.start()
    during = pool.state()
    pool.stop(grace=5)

    assert [before.ready, during.ready, pool.state().ready] == [False, True, False]


def test_the_state_can_be_asked_while_jobs_come_and_go(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool({"q": 4})
    asked = 0

    jobs = [worker_pools.add_job() for _ in range(100)]
    waiting = True
    while waiting:
        for _ in range(50):
            asked += pool.state().threads
        waiting = bool(worker_pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_jobs WHERE status <> 'succeeded'"))

    worker_pools.wait_for_all(jobs)
    assert asked


def test_pool_has_worker_row_until_it_stops(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool({"q": 2, "r": 1}, version="1.2.3")

    (info,) = eventually(Queues(worker_pools.queue_fixture.session).workers)
    pool.stop(grace=5)

    assert (info.worker_id, info.name, info.version, info.threads) == (pool.id, pool.name, "1.2.3", 3)
    assert info.alive
    assert set(info.queues) == {"q", "r"}
    assert set(info.tasks) == set(worker_pools.pipelines.names)
    assert Queues(worker_pools.queue_fixture.session).workers() == []


# ── the stop ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_lets_running_jobs_finish_and_begins_no_others(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool({"q": 1})
    running, waiting = worker_pools.add_job("held"), worker_pools.add_job("held")
    worker_pools.gate.wait_for_inside(1)

    stopping = BackgroundCall(pool.stop, 30.0)
    eventually(lambda: worker_pools.queue_fixture.fetch_row("SELECT stopping FROM dl_workers"))
    worker_pools.gate.open()

    assert stopping.result() is True
    assert worker_pools.queue_fixture.status(running) is Status.SUCCEEDED
    assert worker_pools.queue_fixture.status(waiting) is Status.QUEUED
    eventually(lambda: worker_pools.connections() == {}, message="all connections are closed")


def test_after_the_grace_running_jobs_are_handed_back_at_no_cost(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool()
    job = worker_pools.add_job("held", max_attempts=1)
    worker_pools.gate.wait_for_inside(1)

    clean = pool.stop(grace=0.05)

    back = worker_pools.queue_fixture.job(job)
    assert clean is True
    assert (back.status, back.attempt) == (Status.QUEUED, 0)
    assert worker_pools.stop_reasons == ["shutdown"]
    assert [event["reason"] for event in worker_pools.event_payloads(job, "requeue")] == ["shutdown"]


def test_stuck_job_is_released_and_its_key_stays_locked(worker_pools: WorkerPoolFixture, logged):
    pool = worker_pools.listening_pool(stop_wait_sec=0.1)
    job = worker_pools.add_job("stubborn", "its key", max_attempts=1)
    worker_pools.gate.wait_for_inside(1)

    clean = pool.stop(grace=0.05)

    back = worker_pools.queue_fixture.job(job)
    assert clean is False
    assert pool.stop(grace=1) is False, "asked again, it is still not clean"
    assert (back.status, back.attempt) == (Status.QUEUED, 0)
    assert logged("job.stop_timeout")
    assert worker_pools.queue_fixture.fetch_row("SELECT pg_try_advisory_lock(hashtext('its key'))") is False
    worker_pools.gate.open()
    eventually(lambda: not any(thread.name.startswith("worker-q-") for thread in threading.enumerate()))
    assert worker_pools.queue_fixture.status(job) is Status.QUEUED, "what it still did was written down"


def test_a_stop_may_come_twice_and_before_the_start(worker_pools: WorkerPoolFixture):
    idle = worker_pools.pool(start=False)
    pool = worker_pools.listening_pool()

    assert idle.stop(grace=1) is True
    both = [BackgroundCall(pool.stop, 1.0) for _ in range(2)]
    assert [one.result() for one in both] == [True, True]
    pool.stop_claiming()


def test_stop_wakes_an_idle_pool(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool({"q": 3, "r": 2})
    began = time.monotonic()

    assert pool.stop(grace=30) is True

    assert time.monotonic() - began < SOON


def test_heartbeats_poll_until_a_job_without_notification_comes(worker_pools: WorkerPoolFixture, monkeypatch):
    pool = worker_pools.listening_pool(claim_backoff_sec=0.6)
    worker_pools.wait_for_status(worker_pools.add_job(), Status.SUCCEEDED)
    began, claims, claim = clock(), list[float](), Claimer.claim

    def record_claim(*args: Any, **options: Any) -> Any:
        claims.append(clock())
        return claim(*args, **options)

    monkeypatch.setattr(Claimer, "claim", record_claim)
    eventually(lambda: clock() - max([began, *claims]) > 1.5 and pool.state().claim_age_sec < 0.6)

    job = worker_pools.add_job(available_at=datetime.now(UTC) + timedelta(hours=1))
    worker_pools.queue_fixture.make_due(job)
    worker_pools.wait_for_status(job, Status.SUCCEEDED, SOON)


@pytest.mark.superuser("inserts a job without its triggers, whose event would wait for the lock")
def test_claim_in_progress_at_stop_is_released(worker_pools: WorkerPoolFixture, superuser):
    pool = worker_pools.listening_pool({"q": 2})
    worker_pools.wait_for_status(worker_pools.add_job(), Status.SUCCEEDED)
    with worker_pools.queue_fixture.open_transaction() as step:
        step("LOCK TABLE dl_job_events IN SHARE MODE")  # a claim that found a job waits here, before its commit
        execute_sql(
            superuser(worker_pools.queue_fixture.dsn),
            "SET session_replication_role = replica",  # no event, no notification
            "INSERT INTO dl_jobs (queue, task, lock_key, max_attempts) VALUES ('q', 'quick', 'late', 1)",
        )
        worker_pools.queue_fixture.sql("SELECT pg_notify('dl_jobs', 'q')")
        worker_pools.queue_fixture.wait_for_lock_waiters()
        stopping = BackgroundCall(pool.stop, 10.0)
        eventually(lambda: worker_pools.queue_fixture.fetch_row("SELECT stopping FROM dl_workers"))

    assert stopping.result() is True
    assert worker_pools.queue_fixture.sql("SELECT status, attempt FROM dl_jobs WHERE lock_key = 'late'") == [
        ("queued", 0)
    ]
    worker_pools.queue_fixture.sql("DELETE FROM dl_jobs WHERE lock_key = 'late'")  # its journal has no first line


def test_starting_pool_reports_no_crashed_thread(worker_pools: WorkerPoolFixture, monkeypatch: pytest.MonkeyPatch):
    """Anyone who watches it may look between the start of the first thread and that of the last."""
    starting, seen = [], []
    begin, logs = WorkerPool.start, JobLogWriter.start

    def watched(pool: WorkerPool) -> None:
        starting.append(pool)
        begin(pool)

    def last(self: JobLogWriter) -> None:
        seen.append(starting[0].state())
        logs(self)

    monkeypatch.setattr(WorkerPool, "start", watched)
    monkeypatch.setattr(JobLogWriter, "start", last)
    pool = worker_pools.pool()

    assert [(state.crashed_threads, state.ready) for state in seen] == [((), False)]
    assert pool.state().ready
