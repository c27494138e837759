from __future__ import annotations

import threading
from uuid import UUID, uuid4

import pytest

from app.admin import bulk as module
from app.admin import job_search
from app.admin.bulk import BulkAction, BulkOperation, BulkOperations, BulkState
from app.admin.job_search import Filter, MatchCount
from app.errors import BulkMismatch, BulkNotFound
from app.queue.job import Status
from tests.support.queue_fixture import QueueFixture

ALL = Filter()


@pytest.fixture
def bulk(desk: QueueFixture) -> BulkOperations:
    desk.sql("TRUNCATE dl_bulk")
    return BulkOperations(desk.session)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_SIZE", 3)
    monkeypatch.setattr(job_search, "_FIRST_WINDOW_ROWS", 4)
    monkeypatch.setattr(job_search, "_MAX_WINDOW_ROWS", 4)


def done(bulk: BulkOperations, operation: BulkOperation) -> BulkOperation:
    while bulk.run_batch():
        pass
    return bulk.get(operation.bulk_id)


def statuses(desk: QueueFixture, *job_ids: UUID) -> list[Status]:
    return [desk.status(job_id) for job_id in job_ids]


def test_bulk_cancel_covers_queued_and_running_not_later_jobs(desk, bulk):
    running = desk.enqueue_and_claim("r")
    parked = desk.enqueue("r")
    desk.claim_once()
    waiting = [desk.enqueue(f"k{n}") for n in range(7)]
    ended = desk.enqueue_and_claim("e", queue="q2")
    desk.settle(ended)
    operation = bulk.start(BulkAction.CANCEL, ALL, expected=9, requested_by="somebody")
    later = desk.enqueue("later")
    control = desk.listener("dl_control")

    over = done(bulk, operation)

    assert (over.state, over.matched, over.changed, over.requested_by) == (BulkState.DONE, 9, 9, "somebody")
    assert set(statuses(desk, parked, *waiting)) == {Status.CANCELED}
    assert desk.job(running.id).cancel_requested
    assert f"cancel {running.run_id}" in control.payloads()
    assert statuses(desk, later, ended.id) == [Status.QUEUED, Status.SUCCEEDED]
    desk.check_invariants()


def test_bulk_cancel_of_ready_job_unblocks_next_of_its_key(desk, bulk):
    first, other = desk.enqueue("k", task="t"), desk.enqueue("k", task="t2")
    desk.sql("UPDATE dl_jobs SET wait_state = 'blocked' WHERE job_id = %s", str(other))

    done(bulk, bulk.start(BulkAction.CANCEL, Filter(task="t"), expected=1))

    assert desk.status(first) is Status.CANCELED
    assert desk.wait_state(other) == "ready"


def test_bulk_retry_requeues_one_job_of_each_live_key(desk, bulk):
    runs = [desk.enqueue_and_claim(f"k{n}") for n in range(4)]
    for run in runs:
        desk.settle(run, Status.FAILED)
    desk.sql("UPDATE dl_jobs SET live_key = 'one' WHERE lock_key IN ('k0', 'k1')")

    over = done(bulk, bulk.start(BulkAction.RETRY, Filter(status=frozenset({Status.FAILED})), expected=4))

    assert (over.matched, over.changed) == (4, 3)
    assert sorted(statuses(desk, *(run.id for run in runs))) == ["failed", "queued", "queued", "queued"]
    desk.check_invariants()


def test_bulk_deletes_finished_and_reprioritises_queued_jobs(desk, bulk):
    run = desk.enqueue_and_claim("k")
    desk.settle(run)
    waiting = desk.enqueue("w")

    deleted = done(bulk, bulk.start(BulkAction.DELETE, ALL, expected=1))
    moved = done(bulk, bulk.start(BulkAction.REPRIORITISE, ALL, expected=1, priority=3))

    assert (deleted.changed, moved.changed) == (1, 1)
    assert desk.queue.get(run.id) is None
    assert desk.job(waiting).priority == 3
    assert desk.queue.events(waiting)[-1].payload["before"] == {"priority": 100}
    desk.check_invariants()


def test_another_number_than_expected_changes_nothing(desk, bulk):
    desk.enqueue("a")
    with pytest.raises(BulkMismatch, match="found 1 job, expected 2"):
        bulk.start(BulkAction.CANCEL, ALL, expected=2)
    assert bulk.list() == []


def test_bulk_stops_at_expected_number_when_count_is_estimated(desk, bulk, monkeypatch):
    job_ids = [desk.enqueue(f"k{n}") for n in range(9)]
    monkeypatch.setattr(job_search.JobSearch, "count", lambda *_, **__: MatchCount(5, False, 5))

    over = done(bulk, bulk.start(BulkAction.CANCEL, ALL, expected=5))

    assert over.state is BulkState.STOPPED
    assert over.error is not None
    assert "more jobs match than the 5 expected" in over.error
    assert statuses(desk, *job_ids).count(Status.CANCELED) == over.changed == 3


def test_bulk_resumes_after_crash_and_ends_when_canceled(desk, bulk):
    job_ids = [desk.enqueue(f"k{n}") for n in range(9)]
    operation = bulk.start(BulkAction.CANCEL, ALL, expected=9)
    bulk.run_batch()
    bulk = BulkOperations(desk.new_session())

    bulk.run_batch()
    assert bulk.get(operation.bulk_id).changed == 6
    bulk.cancel(operation.bulk_id)

    assert done(bulk, operation).state is BulkState.CANCELED
    assert statuses(desk, *job_ids).count(Status.CANCELED) == 6
    with pytest.raises(BulkNotFound):
        bulk.get(uuid4())


def test_several_processes_do_each_batch_once(desk, bulk):
    job_ids = [desk.enqueue(f"k{n}") for n in range(30)]
    operation = bulk.start(BulkAction.REPRIORITISE, ALL, expected=30, priority=1)
    others = [BulkOperations(desk.new_session()) for _ in range(3)]

    def work(one: BulkOperations) -> None:
        while one.run_batch():
            pass

    threads = [threading.Thread(target=work, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    over = bulk.get(operation.bulk_id)
    assert (over.state, over.matched, over.changed) == (BulkState.DONE, 30, 30)
    edits = desk.fetch_row("SELECT count(*) FROM dl_job_events WHERE kind = 'edited'")
    assert edits == len(job_ids)


def test_a_batch_that_always_fails_ends_the_operation(desk, bulk):
    desk.enqueue("a")
    operation = bulk.start(BulkAction.REPRIORITISE, ALL, expected=1, priority=1)
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
        operation = done(bulk, bulk.start(BulkAction.CANCEL, ALL, expected=0))
        desk.sql(
            "UPDATE dl_bulk SET finished_at = now() - %s::interval WHERE bulk_id = %s", age, str(operation.bulk_id)
        )

    bulk.prune()

    assert len(bulk.list()) == 1
