"""Jobs in front of the last claimed one while claims from the front of a queue take long, and none starts there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dataloader.app.features.limits.rows import Limits
from dataloader.workers import front_scans
from dataloader.workers.pace import Pace
from tests.support import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture


@pytest.mark.parametrize("waits_for", ["key", "limit"])
def test_job_starts_when_the_run_before_it_ends(
    worker_pools: WorkerPoolFixture, monkeypatch: pytest.MonkeyPatch, waits_for: str
):
    """The first claim finds all three jobs, and leaves one that waits in front of the last one that it has claimed. No
    scan from the front follows within an hour."""
    monkeypatch.setattr(Pace, "is_slow", True)
    monkeypatch.setattr(Pace, "interval_sec", 3600.0)
    queue_db = worker_pools.queue_fixture
    Limits(queue_db.session).set("warehouse", concurrency=1)
    for n, key, limits in ((0, "a", {"warehouse": 1}), (1, "b", {"warehouse": 1}), (2, "c", None)):
        by_key = waits_for == "key" and n < 2
        queue_db.enqueue("a" if by_key else key, task="quick", args={"n": n}, limits=None if by_key else limits)

    worker_pools.pool({"q": 3})

    eventually(lambda: sorted(worker_pools.run_keys) == ["0", "1", "2"])


def test_urgent_job_is_found_by_a_scan(worker_pools: WorkerPoolFixture, monkeypatch: pytest.MonkeyPatch):
    queue_db = worker_pools.queue_fixture
    monkeypatch.setattr(front_scans, "DEFER_INTERVAL_SEC", 0.0)
    monkeypatch.setattr(Pace, "is_slow", True)
    monkeypatch.setattr(Pace, "interval_sec", 0.0)
    queue_db.enqueue("a", task="quick", args={"n": 0})
    worker_pools.listening_pool({"q": 1}, heartbeat_sec=0.05)
    eventually(lambda: worker_pools.run_keys == ["0"])

    queue_db.enqueue("b", task="quick", args={"n": 1}, priority=1)
    unknown = queue_db.enqueue("c", task="unknown", priority=1)

    eventually(lambda: worker_pools.run_keys == ["0", "1"])
    deferred = "SELECT unknown_task AND wait_state = 'scheduled' FROM dl_jobs WHERE job_id = %s"
    eventually(lambda: queue_db.fetch_row(deferred, str(unknown)), message="the other one is deferred")


def test_job_that_fell_due_long_ago_is_found_by_a_scan(
    worker_pools: WorkerPoolFixture, monkeypatch: pytest.MonkeyPatch
):
    """A claim that starts behind a position makes ready only what fell due in the last ten seconds."""
    queue_db = worker_pools.queue_fixture
    monkeypatch.setattr(Pace, "is_slow", True)
    monkeypatch.setattr(Pace, "interval_sec", 0.0)
    later = queue_db.enqueue("b", task="quick", args={"n": 1}, available_at=datetime.now(UTC) + timedelta(hours=1))
    queue_db.enqueue("a", task="quick", args={"n": 0})
    worker_pools.listening_pool({"q": 1}, heartbeat_sec=0.05)
    eventually(lambda: worker_pools.run_keys == ["0"])

    time_passes = f"UPDATE dl_jobs SET available_at = now() - interval '1 minute' WHERE job_id = '{later}'"
    queue_db.sql(f"SELECT set_config('dl.own_update', 'on', true); {time_passes}")  # without triggers

    eventually(lambda: worker_pools.run_keys == ["0", "1"])
