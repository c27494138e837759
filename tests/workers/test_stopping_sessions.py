"""A thread that continues after every stop step keeps no session: they are ended before its job is given on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg2
import pytest

from dataloader.pipelines.contract import Context, Pipelines, Stop, StopReason
from tests.support import eventually
from tests.support.dead_sql import SLOW_WRITES, TABLES
from tests.support.recording import record_attempts
from tests.support.worker_pool_fixture import WorkerPoolFixture

REFUSED = "refused"


class Deaf:
    """Ignores every stop, while a thread of its own is in a statement; then it wants another connection."""

    def __init__(self, worker_pools: WorkerPoolFixture) -> None:
        worker_pools.queue_fixture.sql(TABLES)
        self.worker_pools, self.came = worker_pools, list[str]()
        self.tasks = Pipelines()
        self.tasks.register("deaf")(self._run)

    def _run(self, args: dict[str, Any], ctx: Context) -> None:
        connection = ctx.connect("default")
        connection.autocommit = True
        writer = threading.Thread(target=self._write, args=(connection, ctx.job_id))
        writer.start()
        self.worker_pools.gate.wait_inside("deaf")
        writer.join()
        try:
            ctx.connect("default")
            self.came.append("a connection")
        except Stop:
            self.came.append(REFUSED)
            raise

    def _write(self, connection: Any, job_id: UUID) -> None:
        with suppress(psycopg2.Error):
            connection.cursor().execute(SLOW_WRITES.format(job=job_id, commit="COMMIT;"))

    def begin(self, **options: Any) -> tuple[Any, UUID]:
        pool = self.worker_pools.pool(pipelines=self.tasks, targets={"default": self.worker_pools.dsn}, **options)
        job_id = self.worker_pools.add_job("deaf", lease_ttl_sec=30)
        eventually(lambda: self.worker_pools.queue_fixture.fetch_row("SELECT count(*) FROM written"))
        return pool, job_id

    def sessions(self) -> int:
        return self.worker_pools.queue_fixture.session_count("application_name LIKE 'dataloader:%%'")


@pytest.fixture
def deaf(worker_pools: WorkerPoolFixture) -> Deaf:
    return Deaf(worker_pools)


def test_shutdown_ends_sessions_of_an_unresponsive_thread(worker_pools: WorkerPoolFixture, deaf: Deaf):
    pool, job_id = deaf.begin(stop_wait_sec=0.3, stop_step_sec=60.0)

    assert not pool.stop(grace=0)

    assert worker_pools.event_payloads(job_id, "requeue")[0]["reason"] == "shutdown"
    late = "SELECT count(*) FROM written WHERE at > (SELECT ts FROM dl_job_events WHERE kind = 'requeue')"
    assert worker_pools.queue_fixture.fetch_row(late) == 0
    assert deaf.sessions() == 0
    worker_pools.gate.open()
    eventually(lambda: deaf.came == [REFUSED], message=lambda: str(deaf.came))


@pytest.mark.parametrize(
    ("stop", "grace_sec"),
    [
        (lambda attempt: attempt.stop(StopReason.LEASE_LOST), 60.0),
        (lambda attempt: attempt.stop(StopReason.CANCEL), 0.1),
    ],
    ids=["lease lost, without grace", "cancel, after its steps"],
)
def test_unresponsive_thread_has_no_session_after_stop(
    worker_pools: WorkerPoolFixture,
    deaf: Deaf,
    stop: Callable[[Any], None],
    grace_sec: float,
    monkeypatch: pytest.MonkeyPatch,
):
    attempts = record_attempts(monkeypatch)
    _, job_id = deaf.begin(stop_step_sec=grace_sec)
    (attempt,), key = attempts, worker_pools.queue_fixture.job(job_id).lock_key

    stop(attempt)

    eventually(lambda: deaf.sessions() == 0, 20)
    eventually(lambda: attempt.refuses_sessions, 20)
    is_free = "SELECT pg_try_advisory_lock(hashtext(%s))"
    assert worker_pools.queue_fixture.fetch_row(is_free, key) is False, "its key stays with it"
    worker_pools.gate.open()
    eventually(lambda: deaf.came == [REFUSED], message=lambda: str(deaf.came))
