"""A dead attempt's sessions are ended before its job is given on, and what cannot be ended is named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from app.queue.attempt_sessions import attempt_application_name
from app.queue.job import ClaimedJob, Status
from tests.support import eventually, free_port
from tests.support.proxy import SilentProxy
from tests.support.worker_pool_fixture import WorkerPoolFixture

# One statement that leaves a row every 20 ms, each committed at once.
WRITES_ON = """DO $$ BEGIN FOR n IN 1..1000 LOOP
    INSERT INTO written VALUES (clock_timestamp()); COMMIT; PERFORM pg_sleep(0.02);
END LOOP; END $$"""


@pytest.fixture
def left_behind(plant: WorkerPoolFixture) -> Iterator[Callable[[], ClaimedJob]]:
    """A claimed job whose worker is gone, and whose statement goes on."""
    plant.queue_fixture.sql("CREATE TABLE written (at timestamptz)")
    opened = []

    def write(connection: object) -> None:
        with suppress(psycopg2.Error):
            connection.cursor().execute(WRITES_ON)  # type: ignore[attr-defined]

    def leave() -> ClaimedJob:
        plant.queue_fixture.enqueue("key")
        (job,) = plant.queue_fixture.claim()
        connection = psycopg2.connect(plant.dsn, application_name=attempt_application_name(job.id, job.run_id))
        connection.autocommit = True
        thread = threading.Thread(target=write, args=(connection,), daemon=True)
        opened.append((connection, thread))
        thread.start()
        eventually(lambda: plant.queue_fixture.fetch_row("SELECT count(*) FROM written"))
        plant.queue_fixture.expire_lease(job.id)
        return job

    yield leave
    for connection, thread in opened:
        with suppress(psycopg2.Error):
            connection.cancel()
        thread.join(20)
        connection.close()


def written_after_requeue(plant: WorkerPoolFixture) -> int:
    return int(
        plant.queue_fixture.fetch_row(
            "SELECT count(*) FROM written WHERE at > (SELECT min(ts) FROM dl_job_events WHERE kind = 'requeue')"
        )
    )


def test_dead_sessions_end_before_the_job_goes_on(plant: WorkerPoolFixture, left_behind: Callable[[], ClaimedJob]):
    job = left_behind()

    plant.pool()

    plant.wait_for_status(job.id, Status.QUEUED)
    assert plant.queue_fixture.session_count("application_name LIKE 'dataloader:%%'") == 0
    assert written_after_requeue(plant) == 0
    (payload,) = plant.event_payloads(job.id, "requeue")
    assert "sessions_left" not in payload


def test_target_not_reached_is_named_and_holds_up_no_sweep(
    plant: WorkerPoolFixture, left_behind: Callable[[], ClaimedJob]
):
    with SilentProxy(plant.dsn) as silent:
        silent.silence()
        closed = make_dsn(plant.dsn, host="127.0.0.1", port=free_port())
        job = left_behind()
        pool = plant.pool(targets={"warehouse": silent.dsn, "archive": closed})
        eventually(lambda: pool._reaper._runs_in_progress, message="sessions are being ended")
        looked_at = pool._reaper.last_check_at
        eventually(lambda: pool._reaper.last_check_at > looked_at, 1.0, "the reaper looks meanwhile")

        plant.wait_for_status(job.id, Status.QUEUED)

        (payload,) = plant.event_payloads(job.id, "requeue")
        assert payload["sessions_left"] == ["warehouse", "archive"]
        assert "its SQL may still run on warehouse, archive" in (plant.queue_fixture.job(job.id).error or "")
        assert written_after_requeue(plant) == 0


def test_run_without_sessions_costs_no_connection(plant: WorkerPoolFixture, monkeypatch: pytest.MonkeyPatch):
    asked: list[object] = []
    monkeypatch.setattr("workers.reaper.end_sessions", lambda *given: asked.append(given))
    plant.queue_fixture.enqueue("key")
    (job,) = plant.queue_fixture.claim()
    plant.queue_fixture.expire_lease(job.id)

    plant.pool()

    plant.wait_for_status(job.id, Status.QUEUED)
    assert asked == []
