"""The lines about attempts that did not succeed, and about keys that hold jobs back."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from dataloader.app.queue.job import Status
from dataloader.workers.reports.attempt_log import BlockedKeysLog
from tests.support import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

Logged = Callable[[str], list[dict[str, object]]]


def test_retry_is_a_warning_and_final_failure_an_error(
    worker_pools: WorkerPoolFixture, logged: Logged, caplog: pytest.LogCaptureFixture
):
    worker_pools.listening_pool()
    job_id = worker_pools.add_job("broken", max_attempts=2)
    worker_pools.wait_for_status(job_id, Status.FAILED)

    eventually(lambda: len(logged("worker.complete.failed")) == 2)
    first, last = logged("worker.complete.failed")

    assert (first["job"], first["attempt"], first["max_attempts"]) == (str(job_id), 1, 2)
    assert first["error"] == "ValueError: no good: {}"
    assert first["retry_at"]
    assert (last["attempt"], last["status"]) == (2, "failed")
    levels = [record.levelno for record in caplog.records if record.getMessage() == "worker.complete.failed"]
    assert levels == [logging.WARNING, logging.ERROR]


def test_cancel_and_release_are_no_failures(
    worker_pools: WorkerPoolFixture, logged: Logged, caplog: pytest.LogCaptureFixture
):
    pool = worker_pools.listening_pool(stop_wait_sec=5.0)
    canceled, handed_back = worker_pools.add_job("held"), worker_pools.add_job("held")
    worker_pools.gate.wait_for_inside(2)
    worker_pools.queue_fixture.queue.cancel(canceled)
    worker_pools.wait_for_status(canceled, Status.CANCELED)

    assert pool.stop(grace=0) is True

    assert worker_pools.queue_fixture.status(handed_back) is Status.QUEUED
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_lost_key_is_logged_as_a_failed_attempt(worker_pools: WorkerPoolFixture, logged: Logged):
    worker_pools.listening_pool({"q": 1})
    job_id = worker_pools.add_job("held", key="k")
    worker_pools.gate.wait_for_inside(1)
    with worker_pools.queue_fixture.open_transaction() as step:
        worker_pools.queue_fixture.sql("SELECT pg_terminate_backend(%s)", worker_pools.connections()["claim"])
        eventually(lambda: step("SELECT pg_try_advisory_xact_lock(hashtext('k'))")[0][0], interval_sec=0.001)

        (line,) = eventually(lambda: logged("worker.complete.failed"))

    assert (line["job"], line["reason"], line["status"]) == (str(job_id), "key_lost", "queued")


def test_blocking_key_is_logged_once(worker_pools: WorkerPoolFixture, logged: Logged):
    worker_pools.listening_pool({"q": 3})
    worker_pools.add_job("held", key="hot")
    worker_pools.gate.wait_for_inside(1)
    for _ in range(3):
        worker_pools.add_job("quick", key="hot")

    eventually(
        lambda: worker_pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_jobs WHERE wait_state = 'blocked'") == 3
    )

    (line,) = eventually(lambda: logged("worker.claim.backoff"))
    assert (line["queue"], line["lock_key"], line["reason"]) == ("q", "hot", "key_busy")


def test_blocking_key_is_logged_again_after_a_minute(logged: Logged, monkeypatch: pytest.MonkeyPatch):
    now = 1000.0
    monkeypatch.setattr("dataloader.workers.reports.attempt_log.clock", lambda: now)
    backoff = BlockedKeysLog()
    for step in (0, 59, 61, 119, 122):
        now = 1000.0 + step
        backoff.report("q", ["k"])

    assert len(logged("worker.claim.backoff")) == 3
