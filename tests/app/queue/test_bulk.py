from __future__ import annotations

import threading
from uuid import UUID, uuid4

import pytest

from app.errors import BulkMismatch, BulkNotFound
from app.queue import bulk as module
from app.queue import lists
from app.queue.bulk import Action, Bulk, BulkOperation, BulkState
from app.queue.job import Status
from app.queue.lists import Filter, Tally
from tests.support.desk import Desk

ALL = Filter()


@pytest.fixture
def bulk(desk: Desk) -> Bulk:
    desk.sql("TRUNCATE dl_bulk")
    return Bulk(desk.session)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 3)
    monkeypatch.setattr(lists, "_FIRST_WINDOW", 4)
    monkeypatch.setattr(lists, "_LARGEST_WINDOW", 4)


def done(bulk: Bulk, operation: BulkOperation) -> BulkOperation:
    while bulk.turn():
        pass
    return bulk.get(operation.id)


def statuses(desk: Desk, *job_ids: UUID) -> list[Status]:
    return [desk.status(job_id) for job_id in job_ids]


def test_all_that_wait_are_canceled_those_that_run_are_asked_to_stop_and_later_ones_are_not_meant(desk, bulk):
    running = desk.claimed("r")
    parked = desk.enqueue("r")
    desk.look()
    waiting = [desk.enqueue(f"k{n}") for n in range(7)]
    ended = desk.claimed("e", queue="q2")
    desk.settle(ended)
    operation = bulk.start(Action.CANCEL, ALL, expected=9, by="somebody")
    later = desk.enqueue("later")
    control = desk.listener("dl_control")

    over = done(bulk, operation)

    assert (over.state, over.matched, over.changed, over.asked_by) == (BulkState.DONE, 9, 9, "somebody")
    assert set(statuses(desk, parked, *waiting)) == {Status.CANCELED}
    assert desk.job(running.id).cancel_requested
    assert f"cancel {running.run_id}" in control.heard()
    assert statuses(desk, later, ended.id) == [Status.QUEUED, Status.SUCCEEDED]
    desk.check()


def test_a_canceled_holder_of_a_place_leaves_it_to_the_next_job_of_its_key(desk, bulk):
    first, other = desk.enqueue("k", task="t"), desk.enqueue("k", task="t2")
    desk.sql("UPDATE dl_jobs SET place = 'parked' WHERE job_id = %s", str(other))

    done(bulk, bulk.start(Action.CANCEL, Filter(task="t"), expected=1))

    assert desk.status(first) is Status.CANCELED
    assert desk.place(other) == "ready"


def test_what_ended_badly_is_queued_again_and_of_one_live_key_only_one(desk, bulk):
    runs = [desk.claimed(f"k{n}") for n in range(4)]
    for run in runs:
        desk.settle(run, Status.FAILED)
    desk.sql("UPDATE dl_jobs SET live_key = 'one' WHERE lock_key IN ('k0', 'k1')")

    over = done(bulk, bulk.start(Action.RETRY, Filter(status=frozenset({Status.FAILED})), expected=4))

    assert (over.matched, over.changed) == (4, 3)
    assert sorted(statuses(desk, *(run.id for run in runs))) == ["failed", "queued", "queued", "queued"]
    desk.check()


def test_finished_jobs_are_deleted_and_waiting_ones_given_another_priority(desk, bulk):
    run = desk.claimed("k")
    desk.settle(run)
    waiting = desk.enqueue("w")

    deleted = done(bulk, bulk.start(Action.DELETE, ALL, expected=1))
    moved = done(bulk, bulk.start(Action.REPRIORITISE, ALL, expected=1, priority=3))

    assert (deleted.changed, moved.changed) == (1, 1)
    assert desk.queue.get(run.id) is None
    assert desk.job(waiting).priority == 3
    assert desk.queue.events(waiting)[-1].payload["before"] == {"priority": 100}
    desk.check()


def test_another_number_than_expected_changes_nothing(desk, bulk):
    desk.enqueue("a")
    with pytest.raises(BulkMismatch, match="found 1 job, expected 2"):
        bulk.start(Action.CANCEL, ALL, expected=2)
    assert bulk.list() == []


def test_where_too_many_fit_to_be_counted_it_stops_at_the_number_that_was_expected(desk, bulk, monkeypatch):
    job_ids = [desk.enqueue(f"k{n}") for n in range(9)]
    monkeypatch.setattr(lists.Lists, "count", lambda *_, **__: Tally(5, False, 5))

    over = done(bulk, bulk.start(Action.CANCEL, ALL, expected=5))

    assert over.state is BulkState.STOPPED
    assert over.error is not None
    assert "more jobs fit than the 5 expected" in over.error
    assert statuses(desk, *job_ids).count(Status.CANCELED) == over.changed == 3


def test_it_goes_on_where_a_dead_process_left_it_and_ends_when_it_is_told(desk, bulk):
    job_ids = [desk.enqueue(f"k{n}") for n in range(9)]
    operation = bulk.start(Action.CANCEL, ALL, expected=9)
    bulk.turn()
    bulk = Bulk(desk.another_session())

    bulk.turn()
    assert bulk.get(operation.id).changed == 6
    bulk.cancel(operation.id)

    assert done(bulk, operation).state is BulkState.CANCELED
    assert statuses(desk, *job_ids).count(Status.CANCELED) == 6
    with pytest.raises(BulkNotFound):
        bulk.get(uuid4())


def test_several_processes_do_each_batch_once(desk, bulk):
    job_ids = [desk.enqueue(f"k{n}") for n in range(30)]
    operation = bulk.start(Action.REPRIORITISE, ALL, expected=30, priority=1)
    others = [Bulk(desk.another_session()) for _ in range(3)]

    def work(one: Bulk) -> None:
        while one.turn():
            pass

    threads = [threading.Thread(target=work, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    over = bulk.get(operation.id)
    assert (over.state, over.matched, over.changed) == (BulkState.DONE, 30, 30)
    edits = desk.one("SELECT count(*) FROM dl_job_events WHERE kind = 'edited'")
    assert edits == len(job_ids)


def test_a_batch_that_always_fails_ends_the_operation(desk, bulk):
    desk.enqueue("a")
    operation = bulk.start(Action.REPRIORITISE, ALL, expected=1, priority=1)
    desk.sql("UPDATE dl_bulk SET priority = NULL")
    desk.sql("ALTER TABLE dl_jobs ADD CONSTRAINT never CHECK (priority <> 1) NOT VALID")
    desk.sql("UPDATE dl_bulk SET priority = 1")
    try:
        over = done(bulk, operation)
    finally:
        desk.sql("ALTER TABLE dl_jobs DROP CONSTRAINT never")

    assert over.state is BulkState.FAILED
    assert over.error is not None


def test_operations_that_were_over_long_ago_are_forgotten(desk, bulk):
    for age in ("1 day", "100 days"):
        operation = done(bulk, bulk.start(Action.CANCEL, ALL, expected=0))
        desk.sql("UPDATE dl_bulk SET finished_at = now() - %s::interval WHERE bulk_id = %s", age, str(operation.id))

    bulk.prune()

    assert len(bulk.list()) == 1
