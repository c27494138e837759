"""Workers within another program, on its own pool."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg2.pool import PoolError, ThreadedConnectionPool

from dataloader import Workers, enqueue
from dataloader.app.errors import ConfigError
from dataloader.app.queue.job import Status
from dataloader.pipelines import contract
from dataloader.workers.heartbeat import Heartbeat
from tests.support import eventually
from tests.support.queue_fixture import QueueFixture

SETTINGS = {"DL_HEARTBEAT_SEC": "0.5", "DL_SHUTDOWN_GRACE_SEC": "0", "DL_STOP_STEP_SEC": "0.2"}


@pytest.fixture
def pool(dsn: str) -> Iterator[ThreadedConnectionPool]:
    made = ThreadedConnectionPool(1, 4, dsn)
    yield made
    made.closeall()


@pytest.fixture
def queue(dsn: str) -> Iterator[QueueFixture]:
    fixture = QueueFixture(dsn)
    yield fixture
    fixture.close()


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> contract.Pipelines:
    monkeypatch.setattr(contract.registry, "_tasks", {})
    return contract.registry


class BusyPool:
    """A pool whose connections are all in use, for a while."""

    is_busy = False
    refused_count = 0

    def __init__(self, pool: Any) -> None:
        self._pool, self.putconn = pool, pool.putconn

    def getconn(self) -> Any:
        if self.is_busy:
            self.refused_count += 1
            raise PoolError("connection pool exhausted")
        return self._pool.getconn()


def add_job(pool: Any, task: str, **options: Any) -> Any:
    connection = pool.getconn()
    job_id = enqueue(connection, task, queue="q", lock_key="k", **options)
    connection.commit()
    pool.putconn(connection)
    return job_id


def test_workers_run_jobs_on_the_callers_pool(pool, queue, tasks):
    tasks.register("sum")(lambda args: sum(args["n"]))
    state_before = (signal.getsignal(signal.SIGTERM), logging.getLogger().handlers[:], sys.stdout)

    with Workers(pool, {"q": 2}, settings=SETTINGS) as workers:
        job_id = add_job(pool, "sum", args={"n": [1, 2]})
        eventually(lambda: queue.job(job_id).status is Status.SUCCEEDED)
        roles = {
            row[0].split(":")[0]
            for row in queue.sql("SELECT application_name FROM pg_stat_activity WHERE datname = current_database()")
        }
        assert workers.state()["ready"]
        assert workers.failure is None

    assert queue.job(job_id).result == 3
    assert "dataloader-settle" not in roles
    assert {"dataloader-claim", "dataloader-listen", "dataloader-renew"} <= roles
    assert (signal.getsignal(signal.SIGTERM), logging.getLogger().handlers[:], sys.stdout) == state_before
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("worker-q")]


def test_busy_pool_delays_settlements_and_costs_no_job(pool, queue, tasks):
    started, may_end = threading.Event(), threading.Event()

    @tasks.register("held")
    def hold(args: Any) -> None:
        started.set()
        may_end.wait(30)

    busy = BusyPool(pool)
    with Workers(busy, {"q": 1}, settings=SETTINGS):
        job_id = add_job(pool, "held")
        assert started.wait(30)
        busy.is_busy = True
        may_end.set()
        eventually(lambda: busy.refused_count > 1)
        status = queue.job(job_id).status
        busy.is_busy = False
        eventually(lambda: queue.job(job_id).status is Status.SUCCEEDED)

    assert status is Status.RUNNING
    assert queue.job(job_id).attempt == 1


def test_stop_releases_running_jobs(pool, queue, tasks):
    started = threading.Event()

    @tasks.register("long")
    def run_long(args: Any, ctx: contract.Context) -> None:
        started.set()
        ctx.sleep(60)

    workers = Workers(pool, {"q": 1}, settings=SETTINGS)
    workers.start()
    job_id = add_job(pool, "long")
    assert started.wait(30)

    assert workers.stop()
    job = queue.job(job_id)
    assert (job.status, job.attempt) == (Status.QUEUED, 0)
    with pytest.raises(RuntimeError, match="started before"):
        workers.start()


def test_crashed_thread_stops_the_workers_alone(pool, queue, tasks, monkeypatch: pytest.MonkeyPatch):
    run_once, is_broken = Heartbeat.run_once, threading.Event()

    def crash_once(heartbeat: Heartbeat) -> float:
        if is_broken.is_set():
            is_broken.clear()
            raise RuntimeError("a bug")
        return run_once(heartbeat)

    monkeypatch.setattr(Heartbeat, "run_once", crash_once)
    workers = Workers(pool, {"q": 1}, settings=SETTINGS)
    workers.start()
    eventually(lambda: workers.state()["ready"])

    is_broken.set()

    eventually(lambda: not workers.state()["ready"])
    assert workers.failure is None or "heartbeat" in workers.failure
    assert workers.stop()
    with Workers(pool, {"q": 1}, settings=SETTINGS) as others:
        eventually(lambda: others.state()["ready"])


def test_packages_are_imported_by_start(pool, queue, tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shop_jobs.py").write_text(
        "from dataloader import register\n\n@register('shop.order')\ndef order(args):\n    return 'ordered'\n"
    )
    (tmp_path / "shop_broken.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)

    with Workers(pool, {"q": 1}, packages=["shop_jobs"], settings=SETTINGS):
        job_id = add_job(pool, "shop.order")
        eventually(lambda: queue.job(job_id).result == "ordered")
    with pytest.raises(ConfigError, match="shop_broken"):
        Workers(pool, {"q": 1}, packages=["shop_broken"], settings=SETTINGS).start()
    with pytest.raises(ConfigError, match="DL_HEARTBEAT_SEC"):
        Workers(pool, {"q": 1}, settings={"DL_HEARTBEAT_SEC": "often"})
