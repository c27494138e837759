from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from dataloader.app.queue.job import Status
from dataloader.app.queue.queues import QueueControl, QueueState
from dataloader.app.queue.workers import HeartbeatResult
from dataloader.app.state.queues import Queues
from dataloader.workers import memory, worker_control
from dataloader.workers.listener import ListenState
from dataloader.workers.pool import WorkerPool
from dataloader.workers.queue_buffer import BufferSettings
from dataloader.workers.running_attempts import RunningAttempts
from tests.support import eventually
from tests.support.recording import record_calls
from tests.support.worker_pool_fixture import WorkerPoolFixture


@pytest.fixture
def queues(worker_pools: WorkerPoolFixture) -> Queues:
    return Queues(worker_pools.queue_fixture.session)


def settings_of(pool: WorkerPool, queue: str = "q") -> BufferSettings:
    return pool._dispatcher.queues[queue].settings


def test_a_paused_queue_rests_and_an_opened_one_goes_on_at_once(worker_pools, queues):
    pool = worker_pools.listening_pool({"q": 1})
    queues.change_settings("q", state=QueueState.PAUSED)
    eventually(lambda: settings_of(pool).paused, message="the process knows")
    job_id = worker_pools.add_job()
    assert worker_pools.queue_fixture.status(job_id) is Status.QUEUED

    queues.change_settings("q", state=QueueState.OPEN)

    worker_pools.wait_for_status(job_id, Status.SUCCEEDED)


def test_global_limit_is_kept_across_processes(worker_pools, queues):
    queues.change_settings("q", concurrency=1)
    for _ in range(2):
        worker_pools.listening_pool({"q": 2})
    job_ids = [worker_pools.add_job("held", args={"n": n}) for n in range(4)]
    eventually(lambda: worker_pools.gate.arrived, message="one runs")
    assert worker_pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_jobs WHERE status = 'running'") == 1

    worker_pools.gate.open()

    worker_pools.wait_for_all(job_ids)
    spans = worker_pools.queue_fixture.check_invariants()
    runs = sorted(run for job_id in job_ids for run in spans[job_id].runs)
    assert all(one[1] is not None and one[1] <= other[0] for one, other in itertools.pairwise(runs))


def test_process_limit_is_kept_and_raised_with_threads(worker_pools, queues):
    queues.change_settings("q", per_worker=1)
    pool = worker_pools.listening_pool({"q": 2})
    eventually(lambda: settings_of(pool).max_in_process == 1, message="the process knows")
    job_ids = [worker_pools.add_job("held", args={"n": n}) for n in range(3)]
    eventually(lambda: worker_pools.gate.arrived, message="one runs")
    assert worker_pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_jobs WHERE status = 'running'") == 1

    queues.change_settings("q", per_worker=3)

    eventually(lambda: len(worker_pools.gate.arrived) == 3, message="all three run")
    worker_pools.gate.open()
    worker_pools.wait_for_all(job_ids)


def test_drained_worker_claims_nothing_until_resumed(worker_pools, queues):
    pool = worker_pools.listening_pool({"q": 2})
    first = worker_pools.add_job("held", args={"n": 1})
    eventually(lambda: worker_pools.gate.arrived, message="it runs")
    eventually(lambda: queues.worker(pool.id).rss_bytes, message="it has reported its state")

    queues.drain_worker(pool.id, draining=True)
    eventually(lambda: settings_of(pool).paused, message="the process knows")
    second = worker_pools.add_job()
    worker_pools.gate.open()
    worker_pools.wait_for_status(first, Status.SUCCEEDED)

    assert queues.worker(pool.id).draining
    eventually(lambda: queues.worker(pool.id).listener == "listening", message="the next time it reports its state")
    assert worker_pools.queue_fixture.status(second) is Status.QUEUED
    queues.drain_worker(pool.id, draining=False)
    worker_pools.wait_for_status(second, Status.SUCCEEDED)


def test_idle_process_reports_less_while_it_is_notified(monkeypatch):
    """Until something changes: a job, the state of its listener, settings, a request."""
    now, calls = [1000.0], list[float]()

    class ReportedTo:
        def report_and_fetch(self, *_: object, **__: object) -> tuple[dict[str, Any], bool]:
            calls.append(now[0] - 1000)
            return {}, False

    monkeypatch.setattr(worker_control, "clock", lambda: now[0])
    make: Any = worker_control.WorkerControl
    control = make(
        ReportedTo(),
        SimpleNamespace(queues={}, apply_settings=lambda settings: None),
        RunningAttempts(),
        worker_id=uuid4(),
        interval_sec=10.0,
        listen_state=lambda: ListenState.DISCONNECTED if now[0] < 1010 else ListenState.LISTENING,
        add_threads=None,
        watch_deaths=lambda: 1.0,
        memory=memory.MemoryMonitor(0.0, on_change=lambda is_high: None),
        on_crash=None,
    )
    for second in range(420):
        now[0] = 1000.0 + second
        if second == 45:
            control.sync_now()
        if second in (50, 60, 70):
            control.on_heartbeat(HeartbeatResult(settings_version="1" if second < 70 else "2"))
        control.run_once()

    assert calls == [0, 5, 45, 50, 70, 370]


def test_report_is_written_when_it_changes(worker_pools, monkeypatch):
    reports = record_calls(monkeypatch, QueueControl, "report_and_fetch")
    pool = worker_pools.listening_pool({"q": 1}, heartbeat_sec=30.0)
    worker_pools.add_job("held", args={"n": 1})
    worker_pools.gate.wait_for_inside(1)
    eventually(lambda: worker_pools.queue_fixture.fetch_row("SELECT listener FROM dl_workers") == "listening")
    version = worker_pools.queue_fixture.fetch_row("SELECT xmin::text FROM dl_workers")
    for _ in range(2):
        count = len(reports)
        worker_pools.queue_fixture.sql("SELECT pg_notify('dl_control', 'drain')")
        eventually(lambda: len(reports) > count, message="it has fetched its settings")  # noqa: B023
    assert worker_pools.queue_fixture.fetch_row("SELECT xmin::text FROM dl_workers") == version

    pool.stop_claiming()

    query = "SELECT stopping AND xmin::text <> %s FROM dl_workers"
    eventually(lambda: worker_pools.queue_fixture.fetch_row(query, version), message="the stop is reported")


def test_memory_is_known_where_system_reports_it(monkeypatch, tmp_path):
    result = memory.rss_bytes()
    assert result is None or result > 1_000_000
    monkeypatch.setattr(memory, "_STATM", tmp_path / "nothing")

    assert memory.rss_bytes() is None
