"""A dead attempt's sessions are ended before its job is given on, and what cannot be ended is named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from app.queue.attempt_sessions import session_name
from app.queue.job import Claimed, Status
from tests.support import eventually, free_port
from tests.support.plant import Plant
from tests.support.proxy import SilentProxy

# One statement that leaves a row every 20 ms, each committed at once.
WRITES_ON = """DO $$ BEGIN FOR n IN 1..1000 LOOP
    INSERT INTO written VALUES (clock_timestamp()); COMMIT; PERFORM pg_sleep(0.02);
END LOOP; END $$"""


@pytest.fixture
def left_behind(plant: Plant) -> Iterator[Callable[[], Claimed]]:
    """A claimed job whose worker is gone, and whose statement goes on."""
    plant.desk.sql("CREATE TABLE written (at timestamptz)")
    opened = []

    def write(connection: object) -> None:
        with suppress(psycopg2.Error):
            connection.cursor().execute(WRITES_ON)  # type: ignore[attr-defined]

    def leave() -> Claimed:
        plant.desk.enqueue("key")
        (job,) = plant.desk.claim()
        connection = psycopg2.connect(plant.dsn, application_name=session_name(job.id, job.run_id))
        connection.autocommit = True
        thread = threading.Thread(target=write, args=(connection,), daemon=True)
        opened.append((connection, thread))
        thread.start()
        eventually(lambda: plant.desk.one("SELECT count(*) FROM written"))
        plant.desk.expire(job.id)
        return job

    yield leave
    for connection, thread in opened:
        with suppress(psycopg2.Error):
            connection.cancel()
        thread.join(20)
        connection.close()


def written_after_requeue(plant: Plant) -> int:
    return int(
        plant.desk.one(
            "SELECT count(*) FROM written WHERE at > (SELECT min(ts) FROM dl_job_events WHERE kind = 'requeue')"
        )
    )


def test_dead_sessions_end_before_the_job_goes_on(plant: Plant, left_behind: Callable[[], Claimed]):
    job = left_behind()

    plant.pool()

    plant.until(job.id, Status.QUEUED)
    assert plant.desk.sessions("application_name LIKE 'dataloader:%%'") == 0
    assert written_after_requeue(plant) == 0
    (payload,) = plant.payloads(job.id, "requeue")
    assert "sessions_left" not in payload


def test_target_not_reached_is_named_and_holds_up_no_sweep(plant: Plant, left_behind: Callable[[], Claimed]):
    with SilentProxy(plant.dsn) as silent:
        silent.silence()
        closed = make_dsn(plant.dsn, host="127.0.0.1", port=free_port())
        job = left_behind()
        pool = plant.pool(targets={"warehouse": silent.dsn, "archive": closed})
        eventually(lambda: pool._reaper._ending, message="sessions are being ended")
        looked_at = pool._reaper.looked_at
        eventually(lambda: pool._reaper.looked_at > looked_at, 1.0, "the reaper looks meanwhile")

        plant.until(job.id, Status.QUEUED)

        (payload,) = plant.payloads(job.id, "requeue")
        assert payload["sessions_left"] == ["warehouse", "archive"]
        assert "its SQL may still run on warehouse, archive" in (plant.desk.job(job.id).error or "")
        assert written_after_requeue(plant) == 0


def test_run_without_sessions_costs_no_connection(plant: Plant, monkeypatch: pytest.MonkeyPatch):
    asked: list[object] = []
    monkeypatch.setattr("workers.reaper.end_sessions", lambda *given: asked.append(given))
    plant.desk.enqueue("key")
    (job,) = plant.desk.claim()
    plant.desk.expire(job.id)

    plant.pool()

    plant.until(job.id, Status.QUEUED)
    assert asked == []
