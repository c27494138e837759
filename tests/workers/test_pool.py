"""A pool from end to end: jobs come by notification, and every way to the end is written down."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.portable import clock
from dataloader.workers import claim_timers
from dataloader.workers.dispatcher import Dispatcher
from dataloader.workers.pool import WorkerPool
from tests.support.recording import record_calls
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

SOON = 20.0  # seconds; polls come every 30, so that what starts by then was woken by a notification


def test_idle_worker_is_notified_of_plain_insert(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool()
    before = time.monotonic()

    job = worker_pools.queue_fixture.insert(task="quick", args='{"n": 7}')

    done = worker_pools.wait_for_status(job, Status.SUCCEEDED, SOON)
    assert time.monotonic() - before < SOON
    assert done.result == {"n": 7}
    assert done.attempt == 1


def test_job_enqueued_before_the_pool_starts_runs(worker_pools: WorkerPoolFixture):
    job = worker_pools.add_job()

    worker_pools.pool()

    worker_pools.wait_for_status(job, Status.SUCCEEDED, SOON)


def test_scheduled_job_starts_when_due_and_not_before(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool()
    due = datetime.now(UTC) + timedelta(seconds=0.7)

    job = worker_pools.add_job(available_at=due)

    done = worker_pools.wait_for_status(job, Status.SUCCEEDED, SOON)
    assert done.started_at is not None
    lateness = (done.started_at - due).total_seconds()
    assert 0 <= lateness < SOON


@pytest.mark.parametrize("threads", [1, 4])
def test_worker_thread_listens_again_after_all_were_busy(
    worker_pools: WorkerPoolFixture, monkeypatch: pytest.MonkeyPatch, threads: int
):
    """The heartbeat listens while no worker thread can. If it began again at once each time, no thread would claim."""
    stood_in = record_calls(monkeypatch, Dispatcher, "listen_while_busy")
    pool = worker_pools.listening_pool({"q": threads})
    for _ in range(3):
        begun = len(stood_in)
        jobs = [worker_pools.add_job("held", key=f"busy {n}") for n in range(threads)]
        eventually(lambda: pool.state().busy == threads and len(stood_in) > begun + 1)  # noqa: B023
        for job in jobs:
            worker_pools.queue_fixture.queue.cancel(job)
        worker_pools.wait_for_all(jobs, Status.CANCELED)
        before = len(stood_in)
        due = datetime.now(UTC) + timedelta(seconds=0.3)
        late = worker_pools.wait_for_status(worker_pools.add_job(available_at=due), Status.SUCCEEDED, SOON)
        assert late.started_at is not None
        assert 0 <= (late.started_at - due).total_seconds() < SOON
        assert len(stood_in) - before < 50, "it does not turn without a pause"


def test_job_overdue_at_commit_is_promoted_at_once(worker_pools: WorkerPoolFixture, monkeypatch: pytest.MonkeyPatch):
    """Its transaction was open past its time. A ring alone sorts nothing in: the claim that finds it does."""
    monkeypatch.setattr(claim_timers, "CONFLICT_RETRY_SEC", 3 * SOON)  # as after many of them
    monkeypatch.setattr(claim_timers, "FALLBACK_POLL_SEC", 3 * SOON)
    worker_pools.listening_pool()
    worker_pools.wait_for_status(worker_pools.add_job(), Status.SUCCEEDED, SOON)

    with worker_pools.queue_fixture.open_transaction() as step:
        (job,) = step(
            "INSERT INTO dl_jobs (queue, task, lock_key, available_at)"
            " VALUES ('q', 'quick', 'k', clock_timestamp() + interval '50 ms') RETURNING job_id::text"
        )[0]
        step("SELECT pg_sleep(0.1)")

    worker_pools.wait_for_status(UUID(job), Status.SUCCEEDED, SOON)


def test_a_busy_queue_does_not_starve_another(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool({"slow": 1, "swift": 2})
    held = [worker_pools.add_job("held", queue="slow") for _ in range(3)]
    worker_pools.gate.wait_for_inside(1)

    jobs = [worker_pools.add_job(queue="swift", args={"n": n}) for n in range(20)]

    worker_pools.wait_for_all(jobs, timeout=SOON)
    assert worker_pools.gate.inside_count == 1
    worker_pools.gate.open()
    worker_pools.wait_for_all(held, timeout=SOON)
    assert worker_pools.gate.max_inside == 1, "more than the queue's threads ran at once"


def test_queue_runs_as_many_jobs_as_it_has_threads(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool({"a": 1, "b": 3})
    jobs = [worker_pools.add_job("held", queue=queue) for queue in ("a", "b") for _ in range(4)]

    worker_pools.gate.wait_for_inside(4)

    state = pool.state()
    assert state.queues == {"a": {"threads": 1, "busy": 1}, "b": {"threads": 3, "busy": 3}}
    assert worker_pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_jobs WHERE status = 'running'") == 4
    worker_pools.gate.open()
    worker_pools.wait_for_all(jobs, timeout=SOON)


def test_slow_job_does_not_delay_prefetched_jobs(worker_pools: WorkerPoolFixture):
    first = worker_pools.listening_pool({"q": 1})
    worker_pools.wait_for_all(
        [worker_pools.add_job(args={"n": n}) for n in range(60)]
    )  # tiny ones, so that it claims ahead
    assert first.state().busy == 0
    with (
        worker_pools.queue_fixture.open_transaction() as step
    ):  # all become visible at once: the slow one is in front of the tiny ones
        step(
            "INSERT INTO dl_jobs (queue, task, lock_key, priority, lease_ttl_sec)"
            " SELECT 'q', CASE n WHEN 1 THEN 'held' ELSE 'quick' END, 'h' || n, n, 2 FROM generate_series(1, 4) n"
        )
    worker_pools.gate.wait_for_inside(1)

    worker_pools.pool({"q": 1})

    eventually(
        lambda: (
            worker_pools.queue_fixture.fetch_row(
                "SELECT count(*) FROM dl_jobs WHERE lock_key LIKE 'h%%' AND status = 'succeeded'"
            )
            == 3
        ),
        SOON,
        lambda: str(
            worker_pools.queue_fixture.sql("SELECT task, status, worker FROM dl_jobs WHERE lock_key LIKE 'h%%'")
        ),
    )
    assert worker_pools.gate.inside_count == 1


def test_higher_priority_runs_first(worker_pools: WorkerPoolFixture):
    for n in (3, 1, 2):
        worker_pools.add_job(args={"n": n}, priority=n)

    worker_pools.pool({"q": 1})

    eventually(lambda: len(worker_pools.run_keys) == 3, SOON)
    assert worker_pools.run_keys == ["1", "2", "3"]


def test_jobs_of_one_key_run_one_by_one_and_delay_no_others(worker_pools: WorkerPoolFixture):
    worker_pools.gate.open()
    hot = [worker_pools.add_job("held", "hot", args={"n": n}) for n in range(30)]
    others = [worker_pools.add_job(args={"n": n}) for n in range(30)]

    worker_pools.pool({"q": 4})

    worker_pools.wait_for_all([*hot, *others], timeout=20)
    # A claim that scanned before a settlement may pass over the job which that one unblocked: the order is not exact.
    assert sorted(worker_pools.gate.arrived, key=int) == [str(n) for n in range(30)]
    assert worker_pools.gate.max_inside == 1
    assert {worker_pools.queue_fixture.job(job).attempt for job in hot} == {1}
    assert worker_pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_job_events WHERE kind = 'picked'") == 60, (
        "claimed and put back"
    )


def test_a_held_key_stops_none_of_the_others(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool({"q": 2})
    first, second = (
        worker_pools.add_job("held", "hot", args={"n": 1}),
        worker_pools.add_job("held", "hot", args={"n": 2}),
    )
    worker_pools.gate.wait_for_inside(1)

    worker_pools.wait_for_all([worker_pools.add_job() for _ in range(5)], timeout=SOON)

    assert worker_pools.queue_fixture.status(second) is Status.QUEUED
    worker_pools.gate.open()
    worker_pools.wait_for_all([first, second], timeout=SOON)


def test_a_running_job_is_canceled_by_notification(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool(heartbeat_sec=30.0)
    job = worker_pools.add_job("held", lease_ttl_sec=90)
    worker_pools.gate.wait_for_inside(1)

    worker_pools.queue_fixture.queue.cancel(job)

    canceled = worker_pools.wait_for_status(job, Status.CANCELED, SOON)
    assert canceled.error == "canceled on request"
    assert worker_pools.stop_reasons == ["cancel"]


def test_cancel_with_lost_notification_comes_by_heartbeat(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool()
    job = worker_pools.add_job("held")
    worker_pools.gate.wait_for_inside(1)

    worker_pools.queue_fixture.sql("UPDATE dl_jobs SET cancel_requested = true WHERE job_id = %s", str(job))

    worker_pools.wait_for_status(job, Status.CANCELED, SOON)


def test_cancel_arrives_while_every_thread_is_busy(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool({"q": 1}, heartbeat_sec=30.0)
    job = worker_pools.add_job("held", lease_ttl_sec=90)
    worker_pools.gate.wait_for_inside(1)

    worker_pools.queue_fixture.queue.cancel(job)

    worker_pools.wait_for_status(job, Status.CANCELED, SOON)


def last_self_test_at(pool: WorkerPool) -> float:
    age_sec = pool.state().self_test_age_sec
    assert age_sec is not None
    return clock() - age_sec


def test_while_every_thread_is_busy_the_pool_goes_on_listening(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool({"q": 1})
    worker_pools.add_job("held")
    worker_pools.gate.wait_for_inside(1)
    before = last_self_test_at(pool)

    eventually(lambda: last_self_test_at(pool) > before + 0.5, SOON)


def test_a_canceled_coroutine_ends_at_its_await(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool()
    job = worker_pools.add_job("waits")
    worker_pools.gate.wait_for_arrivals(1)

    worker_pools.queue_fixture.queue.cancel(job)

    worker_pools.wait_for_status(job, Status.CANCELED, SOON)


def test_failing_job_is_retried_until_attempts_are_used_up(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool()

    job = worker_pools.add_job("broken", max_attempts=3, retry={"kind": "table", "seconds": [0.05, 0.1]})

    failed = worker_pools.wait_for_status(job, Status.FAILED, SOON)
    assert failed.attempt == 3
    assert failed.error == "ValueError: no good: {}"
    assert failed.traceback is not None
    assert "_broken" in failed.traceback
    assert [event["pause_sec"] for event in worker_pools.event_payloads(job, "requeue")] == [0.05, 0.1]


def test_unknown_task_waits_for_a_worker_without_an_attempt(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool()
    job = worker_pools.add_job("later")
    shown = eventually(lambda: worker_pools.queue_fixture.job(job).error, SOON)
    known = Pipelines()
    known.register("later")(lambda args: "at last")

    worker_pools.pool(pipelines=known)

    done = worker_pools.wait_for_status(job, Status.SUCCEEDED, SOON)
    assert shown == "no live worker knows the task 'later'"
    assert done.attempt == 1
    assert done.error is None


def test_task_known_to_another_live_worker_is_not_deferred(worker_pools: WorkerPoolFixture):
    known = Pipelines()
    known.register("later")(worker_pools.pipelines.get("held").call)  # type: ignore[union-attr]
    worker_pools.listening_pool({"q": 1}, pipelines=known)
    first = worker_pools.add_job("later")
    worker_pools.gate.wait_for_inside(1)
    worker_pools.listening_pool({"q": 1})

    second = worker_pools.add_job("later")
    worker_pools.wait_for_status(worker_pools.add_job("quick"), Status.SUCCEEDED, SOON)

    assert worker_pools.queue_fixture.job(second).error is None
    worker_pools.gate.open()
    worker_pools.wait_for_all([first, second], timeout=SOON)


@pytest.mark.parametrize("threads", [1, 12])
def test_pool_has_four_connections_whatever_its_threads(worker_pools: WorkerPoolFixture, threads: int):
    worker_pools.listening_pool({"q": threads, "r": threads})
    jobs = [worker_pools.add_job("held", queue=queue) for queue in ("q", "r") for _ in range(threads)]
    worker_pools.gate.wait_for_inside(2 * threads)
    eventually(lambda: worker_pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_workers") == 1)

    rows = worker_pools.queue_fixture.sql(
        "SELECT application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'dataloader-%%'"
        "   AND application_name NOT LIKE 'dataloader-maintenance:%%'"  # only the leader has it
    )

    assert sorted(name.partition(":")[0] for (name,) in rows) == [
        f"dataloader-{role}" for role in ("claim", "listen", "renew", "settle")
    ]
    worker_pools.gate.open()
    worker_pools.wait_for_all(jobs, timeout=SOON)


def test_two_pools_share_the_work_and_run_no_job_twice(worker_pools: WorkerPoolFixture):
    worker_pools.pool({"q": 3})
    worker_pools.pool({"q": 3})

    jobs = [worker_pools.add_job(key=f"k{n % 40}", args={"n": n}) for n in range(150)]

    worker_pools.wait_for_all(jobs)
    assert sorted(worker_pools.run_keys, key=int) == [str(n) for n in range(150)]


def test_progress_is_in_the_row_while_the_job_runs(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool()

    job = worker_pools.add_job("steps", args={"n": 3})

    eventually(lambda: worker_pools.queue_fixture.job(job).progress == {"processed": 3}, SOON)
    assert worker_pools.queue_fixture.status(job) is Status.RUNNING


def test_a_lease_is_kept_for_as_long_as_the_job_runs(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool()
    job = worker_pools.add_job("held", lease_ttl_sec=30)
    worker_pools.gate.wait_for_inside(1)
    first = worker_pools.queue_fixture.job(job).lease_expires_at
    assert first is not None

    eventually(
        lambda: worker_pools.queue_fixture.fetch_row(
            "SELECT lease_expires_at > %s + interval '1.5 s' FROM dl_jobs", first
        )
    )

    assert worker_pools.queue_fixture.status(job) is Status.RUNNING
    assert worker_pools.queue_fixture.job(job).attempt == 1
    assert worker_pools.stop_reasons == []
