"""A dead attempt's sessions are ended before its job is given on, and what cannot be ended is named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from dataloader.app.queue.attempt_sessions import attempt_application_name
from dataloader.app.queue.job import ClaimedJob, Status
from dataloader.app.queue.jobs import JobQueue
from tests.support import eventually, free_port
from tests.support.proxy import SilentProxy
from tests.support.recording import record_calls
from tests.support.worker_pool_fixture import WorkerPoolFixture

# One statement that leaves a row every 20 ms, each committed at once.
WRITES_ON = """DO $$ BEGIN FOR n IN 1..1000 LOOP
    INSERT INTO written VALUES (clock_timestamp()); COMMIT; PERFORM pg_sleep(0.02);
END LOOP; END $$"""


@pytest.fixture
def left_behind(worker_pools: WorkerPoolFixture) -> Iterator[Callable[[], ClaimedJob]]:
    """A claimed job whose worker is gone, and whose statement continues."""
    worker_pools.queue_fixture.sql("CREATE TABLE written (at timestamptz)")
    opened = []

    def write(connection: object) -> None:
        with suppress(psycopg2.Error):
            connection.cursor().execute(WRITES_ON)  # type: ignore[attr-defined]

    def leave() -> ClaimedJob:
        worker_pools.queue_fixture.enqueue("key")
        (job,) = worker_pools.queue_fixture.claim()
        connection = psycopg2.connect(worker_pools.dsn, application_name=attempt_application_name(job.id, job.run_id))
        connection.autocommit = True
        thread = threading.Thread(target=write, args=(connection,), daemon=True)
        opened.append((connection, thread))
        thread.start()
        eventually(lambda: worker_pools.queue_fixture.fetch_row("SELECT count(*) FROM written"))
        worker_pools.queue_fixture.expire_lease(job.id)
        return job

    yield leave
    for connection, thread in opened:
        with suppress(psycopg2.Error):
            connection.cancel()
        thread.join(20)
        connection.close()


def written_after_requeue(worker_pools: WorkerPoolFixture) -> int:
    return int(
        worker_pools.queue_fixture.fetch_row(
            "SELECT count(*) FROM written WHERE at > (SELECT min(ts) FROM dl_job_events WHERE kind = 'requeue')"
        )
    )


def test_dead_sessions_end_before_the_job_goes_on(
    worker_pools: WorkerPoolFixture, left_behind: Callable[[], ClaimedJob]
):
    job = left_behind()

    worker_pools.pool()

    worker_pools.wait_for_status(job.id, Status.QUEUED)
    assert worker_pools.queue_fixture.session_count("application_name LIKE 'dataloader:%%'") == 0
    assert written_after_requeue(worker_pools) == 0
    (payload,) = worker_pools.event_payloads(job.id, "requeue")
    assert "sessions_left" not in payload


def test_target_not_reached_is_named_and_holds_up_no_sweep(
    worker_pools: WorkerPoolFixture, left_behind: Callable[[], ClaimedJob], monkeypatch: pytest.MonkeyPatch
):
    checks = record_calls(monkeypatch, JobQueue, "expired_runs")
    with SilentProxy(worker_pools.dsn) as silent:
        silent.silence()
        closed = make_dsn(worker_pools.dsn, host="127.0.0.1", port=free_port())
        job = left_behind()
        worker_pools.pool(targets={"warehouse": silent.dsn, "archive": closed})
        eventually(
            lambda: "end-sessions" in {thread.name for thread in threading.enumerate()},
            message="sessions are being ended",
        )
        count = len(checks)
        eventually(lambda: len(checks) > count + 1, 1.0, "the reaper looks meanwhile")

        worker_pools.wait_for_status(job.id, Status.QUEUED)

        payload = worker_pools.event_payloads(job.id, "requeue")[0]  # the first: of the dead attempt
        assert payload["sessions_left"] == ["warehouse", "archive"]
        assert "its SQL may still run on warehouse, archive" in (worker_pools.queue_fixture.job(job.id).error or "")
        assert written_after_requeue(worker_pools) == 0


def test_run_without_sessions_costs_no_connection(worker_pools: WorkerPoolFixture, monkeypatch: pytest.MonkeyPatch):
    asked: list[object] = []
    monkeypatch.setattr("dataloader.workers.reaper.end_sessions", lambda *given: asked.append(given))
    worker_pools.queue_fixture.enqueue("key")
    (job,) = worker_pools.queue_fixture.claim()
    worker_pools.queue_fixture.expire_lease(job.id)

    worker_pools.pool()

    worker_pools.wait_for_status(job.id, Status.QUEUED)
    assert asked == []
