from __future__ import annotations

import threading
from uuid import UUID, uuid4

import pytest

from dataloader.app.errors import BulkMismatch, BulkNotFound
from dataloader.app.features.bulk import rows as module
from dataloader.app.features.bulk.rows import BulkAction, BulkOperation, BulkOperations, BulkState
from dataloader.app.features.jobs import job_search
from dataloader.app.features.jobs.job_search import Filter, MatchCount
from dataloader.app.queue.job import Status
from tests.support.queue_fixture import QueueFixture

ALL = Filter()


@pytest.fixture
def bulk(queue_db: QueueFixture) -> BulkOperations:
    queue_db.sql("TRUNCATE dl_bulk")
    return BulkOperations(queue_db.session)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_SIZE", 3)
    monkeypatch.setattr(job_search, "_FIRST_WINDOW_ROWS", 4)
    monkeypatch.setattr(job_search, "_MAX_WINDOW_ROWS", 4)


def done(bulk: BulkOperations, operation: BulkOperation) -> BulkOperation:
    while bulk.run_batch():
        pass
    return bulk.get(operation.bulk_id)


def statuses(queue_db: QueueFixture, *job_ids: UUID) -> list[Status]:
    return [queue_db.status(job_id) for job_id in job_ids]


def test_bulk_cancel_covers_queued_and_running_not_later_jobs(queue_db, bulk):
    running = queue_db.enqueue_and_claim("r")
    parked = queue_db.enqueue("r")
    queue_db.claim_once()
    waiting = [queue_db.enqueue(f"k{n}") for n in range(7)]
    ended = queue_db.enqueue_and_claim("e", queue="q2")
    queue_db.settle(ended)
    operation = bulk.start(BulkAction.CANCEL, ALL, expected=9, requested_by="somebody")
    later = queue_db.enqueue("later")
    control = queue_db.listener("dl_control")

    over = done(bulk, operation)

    assert (over.state, over.matched, over.changed, over.requested_by) == (BulkState.DONE, 9, 9, "somebody")
    assert set(statuses(queue_db, parked, *waiting)) == {Status.CANCELED}
    assert queue_db.job(running.id).cancel_requested
    assert f"cancel {running.run_id}" in control.payloads()
    assert statuses(queue_db, later, ended.id) == [Status.QUEUED, Status.SUCCEEDED]
    queue_db.check_invariants()


def test_bulk_cancel_of_ready_job_unblocks_next_of_its_key(queue_db, bulk):
    first, other = queue_db.enqueue("k", task="t"), queue_db.enqueue("k", task="t2")
    queue_db.sql("UPDATE dl_jobs SET wait_state = 'blocked' WHERE job_id = %s", str(other))

    done(bulk, bulk.start(BulkAction.CANCEL, Filter(task="t"), expected=1))

    assert queue_db.status(first) is Status.CANCELED
    assert queue_db.wait_state(other) == "ready"


def test_bulk_retry_requeues_one_job_of_each_live_key(queue_db, bulk):
    runs = [queue_db.enqueue_and_claim(f"k{n}") for n in range(4)]
    for run in runs:
        queue_db.settle(run, Status.FAILED)
    queue_db.sql("UPDATE dl_jobs SET live_key = 'one' WHERE lock_key IN ('k0', 'k1')")

    over = done(bulk, bulk.start(BulkAction.RETRY, Filter(status=frozenset({Status.FAILED})), expected=4))

    assert (over.matched, over.changed) == (4, 3)
    assert sorted(statuses(queue_db, *(run.id for run in runs))) == ["failed", "queued", "queued", "queued"]
    queue_db.check_invariants()


def test_bulk_deletes_finished_and_reprioritises_queued_jobs(queue_db, bulk):
    run = queue_db.enqueue_and_claim("k")
    queue_db.settle(run)
    waiting = queue_db.enqueue("w")

    deleted = done(bulk, bulk.start(BulkAction.DELETE, ALL, expected=1))
    moved = done(bulk, bulk.start(BulkAction.REPRIORITISE, ALL, expected=1, priority=3))

    assert (deleted.changed, moved.changed) == (1, 1)
    assert queue_db.queue.get(run.id) is None
    assert queue_db.job(waiting).priority == 3
    assert queue_db.queue.events(waiting)[-1].payload["before"] == {"priority": 100}
    queue_db.check_invariants()


def test_cancel_accepts_fewer_jobs_and_some_more(queue_db, bulk):
    """Jobs end, and others arrive, between the count and the request."""
    for n in range(3):
        queue_db.enqueue(f"k{n}")

    fewer = done(bulk, bulk.start(BulkAction.CANCEL, ALL, expected=50))
    for n in range(3):
        queue_db.enqueue(f"k{n}")
    more = done(bulk, bulk.start(BulkAction.CANCEL, ALL, expected=1))

    assert [(over.state, over.matched, over.changed) for over in (fewer, more)] == [(BulkState.DONE, 3, 3)] * 2


def test_far_more_than_expected_changes_nothing(queue_db, bulk, monkeypatch):
    monkeypatch.setattr(module, "_EXPECTED_SLACK", 1)
    for n in range(6):
        queue_db.enqueue(f"k{n}")

    with pytest.raises(BulkMismatch, match="found 6 jobs, expected 2 and at most 5"):
        bulk.start(BulkAction.CANCEL, ALL, expected=2)

    assert bulk.list() == []


def test_delete_accepts_fewer_than_expected_and_none_more(queue_db, bulk):
    for key in "ab":
        queue_db.settle(queue_db.enqueue_and_claim(key))

    with pytest.raises(BulkMismatch, match="found 2 jobs, expected 1 and at most 1"):
        bulk.start(BulkAction.DELETE, ALL, expected=1)

    assert done(bulk, bulk.start(BulkAction.DELETE, ALL, expected=3)).changed == 2


def test_bulk_stops_at_expected_number_when_count_is_estimated(queue_db, bulk, monkeypatch):
    job_ids = [queue_db.enqueue(f"k{n}") for n in range(9)]
    monkeypatch.setattr(job_search.JobSearch, "count", lambda *_, **__: MatchCount(2, False, 2))
    monkeypatch.setattr(module, "_EXPECTED_SLACK", 1)

    over = done(bulk, bulk.start(BulkAction.CANCEL, ALL, expected=2))

    assert over.state is BulkState.STOPPED
    assert over.error is not None
    assert "more than 5 jobs match, expected 2" in over.error
    assert statuses(queue_db, *job_ids).count(Status.CANCELED) == over.changed == 3


def test_bulk_resumes_after_crash_and_ends_when_canceled(queue_db, bulk):
    job_ids = [queue_db.enqueue(f"k{n}") for n in range(9)]
    operation = bulk.start(BulkAction.CANCEL, ALL, expected=9)
    bulk.run_batch()
    bulk = BulkOperations(queue_db.new_session())

    bulk.run_batch()
    assert bulk.get(operation.bulk_id).changed == 6
    bulk.cancel(operation.bulk_id)

    assert done(bulk, operation).state is BulkState.CANCELED
    assert statuses(queue_db, *job_ids).count(Status.CANCELED) == 6
    with pytest.raises(BulkNotFound):
        bulk.get(uuid4())


def test_last_batch_of_a_process_that_died_is_counted_once(queue_db, bulk, monkeypatch):
    for n in range(3):
        queue_db.enqueue(f"k{n}")
    operation = bulk.start(BulkAction.REPRIORITISE, ALL, expected=3, priority=1)
    dying = BulkOperations(queue_db.new_session())
    monkeypatch.setattr(dying, "_finish", lambda *_: None)

    assert dying.run_batch()
    while bulk.run_batch():
        pass

    over = bulk.get(operation.bulk_id)
    assert (over.state, over.matched, over.changed) == (BulkState.DONE, 3, 3)


def test_several_processes_do_each_batch_once(queue_db, bulk):
    job_ids = [queue_db.enqueue(f"k{n}") for n in range(30)]
    operation = bulk.start(BulkAction.REPRIORITISE, ALL, expected=30, priority=1)
    others = [BulkOperations(queue_db.new_session()) for _ in range(3)]

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
    edits = queue_db.fetch_row("SELECT count(*) FROM dl_job_events WHERE kind = 'edited'")
    assert edits == len(job_ids)


def test_a_batch_that_always_fails_ends_the_operation(queue_db, bulk):
    queue_db.enqueue("a")
    operation = bulk.start(BulkAction.REPRIORITISE, ALL, expected=1, priority=1)
    queue_db.sql("UPDATE dl_bulk SET priority = NULL")
    queue_db.sql("ALTER TABLE dl_jobs ADD CONSTRAINT never CHECK (priority <> 1) NOT VALID")
    queue_db.sql("UPDATE dl_bulk SET priority = 1")
    try:
        over = done(bulk, operation)
    finally:
        queue_db.sql("ALTER TABLE dl_jobs DROP CONSTRAINT never")

    assert over.state is BulkState.FAILED
    assert over.error is not None


def test_operations_that_were_over_long_ago_are_forgotten(queue_db, bulk):
    for age in ("1 day", "100 days"):
        operation = done(bulk, bulk.start(BulkAction.CANCEL, ALL, expected=0))
        queue_db.sql(
            "UPDATE dl_bulk SET finished_at = now() - %s::interval WHERE bulk_id = %s", age, str(operation.bulk_id)
        )

    bulk.prune()

    assert len(bulk.list()) == 1
