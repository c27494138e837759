from __future__ import annotations

import time
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.queue.job import Status
from dataloader.app.queue.workers import WorkerLiveness
from dataloader.workers import heartbeat as heartbeat_module
from dataloader.workers.heartbeat import Heartbeat
from dataloader.workers.running_attempts import RunningAttempts
from tests.support.claimed_jobs import attempt_with
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

SOON = 30.0


def expiry(worker_pools: WorkerPoolFixture, job_id: UUID) -> datetime:
    expires = worker_pools.queue_fixture.job(job_id).lease_expires_at
    assert expires is not None
    return expires


def last_heartbeat(worker_pools: WorkerPoolFixture, job_id: UUID) -> datetime:
    seen_at = worker_pools.queue_fixture.job(job_id).heartbeat_at
    assert seen_at is not None
    return seen_at


def test_run_that_lost_its_job_is_stopped_and_writes_nothing(worker_pools: WorkerPoolFixture, logged):
    worker_pools.listening_pool()
    job = worker_pools.add_job("held")
    worker_pools.gate.wait_for_inside(1)
    theirs = worker_pools.queue_fixture.fetch_row("SELECT gen_random_uuid()")

    worker_pools.queue_fixture.sql("UPDATE dl_jobs SET run_id = %s WHERE job_id = %s", theirs, str(job))

    eventually(lambda: worker_pools.stop_reasons, SOON)
    assert worker_pools.stop_reasons == ["lease_lost"]
    eventually(lambda: logged("attempt.abandoned"), SOON)
    assert worker_pools.queue_fixture.status(job) is Status.RUNNING
    assert worker_pools.event_payloads(job, "done") == []
    worker_pools.queue_fixture.sql("DELETE FROM dl_jobs")  # its journal knows nothing of the run that was made up


def test_worker_whose_heartbeat_fails_keeps_its_leases(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool(command_timeout_sec=0.5)
    eventually(lambda: worker_pools.queue_fixture.sql("SELECT 1 FROM dl_workers"))
    job = worker_pools.add_job("held")
    worker_pools.gate.wait_for_inside(1)
    with worker_pools.queue_fixture.open_transaction() as step:
        step("LOCK TABLE dl_workers IN ACCESS EXCLUSIVE MODE")
        seen_at = last_heartbeat(worker_pools, job)

        eventually(lambda: last_heartbeat(worker_pools, job) > seen_at + timedelta(seconds=2), SOON)

        assert worker_pools.stop_reasons == []


def test_locked_row_costs_no_other_attempt_its_lease(worker_pools: WorkerPoolFixture):
    worker_pools.listening_pool()
    jobs = [worker_pools.add_job("held"), worker_pools.add_job("held")]
    worker_pools.gate.wait_for_inside(2)
    with worker_pools.queue_fixture.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(jobs[0]))
        until = expiry(worker_pools, jobs[1])

        eventually(lambda: expiry(worker_pools, jobs[1]) > until, SOON)

    eventually(lambda: expiry(worker_pools, jobs[0]) > until, SOON)
    assert worker_pools.stop_reasons == []


def test_lease_is_trusted_from_when_the_heartbeat_was_sent(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(heartbeat_module, "clock", lambda: now[0])

    class SlowQueue:
        def beat(self, *_: Any, **__: Any) -> list[Any]:
            now[0] += 5.0
            return []

        def restore_unknown_tasks(self, *_: Any) -> None: ...

    make: Any = Heartbeat
    running, attempt = RunningAttempts(), attempt_with()
    running.add([attempt])
    info = SimpleNamespace(id=UUID(int=1), queues=(), tasks=())
    heartbeat = make(
        SlowQueue(), running, interval_sec=10.0, info=info, register=lambda: None, declare=lambda: None,
        listen=lambda timeout: True, scan_fronts=lambda: None, on_crash=None, counters=None,
    )  # fmt: skip

    heartbeat.run_once()

    assert (attempt.lease.renewed_at, heartbeat.last_beat_at) == (100.0, 100.0)


def test_attempt_without_heartbeats_is_stopped(worker_pools: WorkerPoolFixture, logged):
    """How long before the end of its lease: see the tests of Lease."""
    worker_pools.listening_pool(command_timeout_sec=0.3)
    job = worker_pools.add_job("held", lease_ttl_sec=2)
    worker_pools.gate.wait_for_inside(1)
    with worker_pools.queue_fixture.open_transaction() as step:
        step("LOCK TABLE dl_heartbeats IN EXCLUSIVE MODE")

        eventually(lambda: worker_pools.stop_reasons, SOON)

        assert worker_pools.stop_reasons == ["lease_lost"]
    eventually(lambda: logged("attempt.abandoned"), SOON)
    assert worker_pools.event_payloads(job, "done") == []


def test_job_settled_during_renewal_is_not_lost(worker_pools: WorkerPoolFixture, logged):
    worker_pools.gate.open()
    worker_pools.listening_pool({"q": 4}, heartbeat_sec=0.01)

    worker_pools.wait_for_all([worker_pools.add_job("steps", args={"n": 3}) for _ in range(150)])

    assert logged("lease.lost") == []


def test_heartbeat_age_counts_from_the_last_success(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool()
    first = time.monotonic()

    eventually(lambda: pool.state().heartbeat_age_sec < time.monotonic() - first - 0.5, SOON)


def test_lease_shorter_than_heartbeats_can_renew_is_lengthened(worker_pools: WorkerPoolFixture):
    pool = worker_pools.listening_pool(heartbeat_sec=10.0)
    job = worker_pools.queue_fixture.insert(task="held", lease_ttl_sec=1)
    worker_pools.gate.wait_for_inside(1)
    first = expiry(worker_pools, job)
    assert worker_pools.queue_fixture.job(job).lease_ttl_sec == 20

    worker_pools.queue_fixture.sql("UPDATE dl_jobs SET lease_ttl_sec = 1")
    WorkerLiveness(worker_pools.queue_fixture.session).request_heartbeat(pool.id)

    eventually(lambda: worker_pools.queue_fixture.job(job).lease_ttl_sec == 20, SOON)
    assert expiry(worker_pools, job) > first
    assert (worker_pools.stop_reasons, worker_pools.queue_fixture.job(job).attempt) == ([], 1)
