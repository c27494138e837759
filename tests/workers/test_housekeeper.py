"""One of the processes keeps house, over a connection of its own."""

from __future__ import annotations

import pytest

from app.errors import SchemaOutdated
from app.queue.retention import DAY, Ages
from tests.support.desk import Desk
from tests.support.waiting import eventually
from workers import housekeeper
from workers.housekeeper import Housekeeper


@pytest.fixture
def desk(dsn):
    made = Desk(dsn)
    yield made
    made.close()


def keeper(desk: Desk, *, deletes: bool = True) -> Housekeeper:
    held, working = desk.another_session(), desk.another_session(name="dataloader-house")
    return Housekeeper(held, working, Ages(succeeded=DAY), deletes=deletes, died=pytest.fail, first_after=0.0)


def some_old_jobs(desk: Desk, count: int) -> None:
    desk.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key, status, finished_at)"
        " SELECT 'q', 't', 'k' || n, 'succeeded', now() - interval '2 days' FROM generate_series(1, %s) n",
        count,
    )


def test_old_jobs_go_batch_by_batch_and_then_it_rests(desk, monkeypatch):
    monkeypatch.setattr(housekeeper, "_MOST", 2)
    some_old_jobs(desk, 5)
    keeping = keeper(desk)

    left = []
    for _ in range(3):
        keeping._prune_at = 0.0
        keeping.turn()
        left.append(desk.one("SELECT count(*) FROM dl_jobs"))

    assert left == [3, 1, 0]
    assert keeping.state().jobs == 5
    assert keeping.turn() > 0.5, "it rings again in a second, and prunes again in a minute"


def test_where_nothing_is_to_be_deleted_parts_are_made_all_the_same(desk):
    some_old_jobs(desk, 1)
    before = desk.one("SELECT count(*) FROM dl_parts('dl_job_events')")

    keeper(desk, deletes=False).turn()

    assert desk.one("SELECT count(*) FROM dl_jobs") == 1
    assert desk.one("SELECT count(*) FROM dl_parts('dl_job_events')") > before


def test_only_one_process_keeps_house_and_another_takes_over(desk):
    first, second = keeper(desk), keeper(desk)
    first.turn()
    assert second.turn() > 1.0
    assert (first.state().keeps_house, second.state().keeps_house) == (True, False)

    first._held.close()
    held = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    eventually(lambda: desk.one(held) == 0)
    second._try_at = 0.0
    second.turn()

    assert (first.state().keeps_house, second.state().keeps_house) == (False, True)


def test_a_connection_of_its_own_is_open_only_while_there_is_something_to_delete(desk, monkeypatch):
    monkeypatch.setattr(housekeeper, "_MOST", 2)
    some_old_jobs(desk, 3)
    keeping = keeper(desk)

    keeping.turn()
    assert keeping._working.connected
    keeping._prune_at = 0.0
    keeping.turn()
    assert not keeping._working.connected


def test_it_rings_for_jobs_that_wait(desk):
    keeping, listener = keeper(desk), desk.listener()
    desk.enqueue(queue="x")
    desk.enqueue(queue="y")
    listener.heard()

    keeping.turn()

    assert sorted(listener.heard()) == ["x", "y"]


def test_a_right_that_is_missing_is_told_and_does_not_end_it(desk, monkeypatch, caplog):
    keeping = keeper(desk)
    monkeypatch.setattr(
        keeping._retention, "keep_parts", lambda: (_ for _ in ()).throw(SchemaOutdated("permission denied"))
    )

    assert keeping.turn() >= 0.0
    assert "retention.failed" in caplog.text
