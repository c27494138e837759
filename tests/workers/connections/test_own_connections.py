"""Threads that a task leaves behind: with the end of their attempt they lose the connections that they have opened."""

from __future__ import annotations

import threading
from typing import Any

import psycopg2
import pytest

from dataloader.app.errors import SessionsRefused
from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Context, Stop
from dataloader.workers.connections.own_connections import wrap_drivers
from tests.support.real_service import query_rows
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

INSERT = "INSERT INTO left_rows DEFAULT VALUES"


class LeftThread:
    """A task that leaves a thread behind, which writes a row whenever it may."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.errors: list[BaseException] = []  # by the thread, read by the test after `has_tried`
        self.has_written, self.has_ended, self.has_tried = threading.Event(), threading.Event(), threading.Event()
        query_rows(dsn, "CREATE TABLE left_rows (at timestamptz DEFAULT clock_timestamp())")

    def leave(self) -> None:
        threading.Thread(target=self._write, daemon=True).start()
        self.has_written.wait(60)

    def leave_and_wait(self, args: dict[str, Any], ctx: Context) -> None:
        self.leave()
        while True:
            ctx.sleep(0.1)

    def _write(self) -> None:
        connection = psycopg2.connect(self._dsn)
        connection.autocommit = True
        connection.cursor().execute(INSERT)
        self.has_written.set()
        self.has_ended.wait(60)
        for use in (lambda: connection.cursor().execute(INSERT), lambda: psycopg2.connect(self._dsn).close()):
            try:
                use()
            except (psycopg2.Error, SessionsRefused, Stop) as error:
                self.errors.append(error)
        connection.close()
        self.has_tried.set()

    def rows_after_end(self) -> int:
        self.has_ended.set()
        assert self.has_tried.wait(60)
        ((count,),) = query_rows(self._dsn, "SELECT count(*) FROM left_rows")
        return int(count) - 1


@pytest.fixture
def left(dsn: str) -> LeftThread:
    wrap_drivers()
    return LeftThread(dsn)


def test_thread_writes_nothing_after_its_attempt_has_returned(worker_pools: WorkerPoolFixture, left: LeftThread):
    worker_pools.pipelines.register("leaves")(lambda args: left.leave())
    worker_pools.pool()
    job = worker_pools.add_job("leaves")
    worker_pools.wait_for_status(job, Status.SUCCEEDED)

    assert left.rows_after_end() == 0
    assert [type(error) for error in left.errors] == [SessionsRefused] * 2
    assert str(job) in str(left.errors[0])


def test_thread_writes_nothing_after_a_cancel(worker_pools: WorkerPoolFixture, left: LeftThread):
    worker_pools.pipelines.register("leaves")(left.leave_and_wait)
    worker_pools.pool()
    job = worker_pools.add_job("leaves")
    eventually(left.has_written.is_set)
    worker_pools.queue_fixture.queue.cancel(job)
    worker_pools.wait_for_status(job, Status.CANCELED)

    assert left.rows_after_end() == 0
    assert len(left.errors) == 2


def test_thread_of_a_task_without_the_check_is_left_alone(worker_pools: WorkerPoolFixture, left: LeftThread):
    worker_pools.pipelines.register("leaves", connection_check=False)(lambda args: left.leave())
    worker_pools.pool()
    worker_pools.wait_for_status(worker_pools.add_job("leaves"), Status.SUCCEEDED)

    assert left.rows_after_end() == 1
    assert left.errors == []
