"""Two that meet: one is held between its steps until the other waits for it, then both go on. Exactly one outcome is
right, whichever comes first."""

from __future__ import annotations

from typing import Any

import pytest

from dataloader.app.queue.job import (
    SUCCEEDED,
    NewJob,
    RenewalRequest,
    Settlement,
    Status,
    new_run_ids,
)
from dataloader.app.queue.jobs import JobQueue
from tests.app.queue.midway import Midway, midway
from tests.support.queue_fixture import BackgroundCall


def test_cancel_racing_claim_sets_cancel_requested(queue_db):
    job_id = queue_db.enqueue()
    with midway(queue_db) as claimer:
        runs, _ = claimer.claim("q", ["t"], new_run_ids(1), "w")
        canceling = BackgroundCall(queue_db.new_queue().cancel, job_id)
        queue_db.wait_for_lock_waiters()

    job = canceling.result()
    assert [run.id for run in runs] == [job_id]
    assert (job.status, job.cancel_requested) == (Status.RUNNING, True)
    assert queue_db.settle(runs[0], Status.CANCELED).status is Status.CANCELED
    queue_db.check_invariants()


def test_a_claim_that_meets_a_cancel_takes_nothing(queue_db):
    job_id = queue_db.enqueue()
    with midway(queue_db) as canceler:
        canceler.cancel_all([job_id])
        assert queue_db.claim_once()[0] == []

    assert queue_db.claim() == []
    assert queue_db.status(job_id) is Status.CANCELED
    queue_db.check_invariants()


@pytest.mark.parametrize("end", [Status.SUCCEEDED, Status.QUEUED])
def test_a_reaper_that_meets_a_settlement_finds_the_run_gone(queue_db, end):
    run = queue_db.enqueue_and_claim()
    queue_db.expire_lease(run.id)
    found = queue_db.queue.expired_runs().runs
    with midway(queue_db) as owner:
        owner.settle([(run, Settlement(end, error="e", retry_in_sec=60))])
        reaping = BackgroundCall(queue_db.new_queue().reap, found, pause_sec=0)
        queue_db.wait_for_lock_waiters()

    assert reaping.result() == []
    assert queue_db.status(run.id) is end
    queue_db.check_invariants()


@pytest.mark.parametrize(
    "ends",
    [
        [SUCCEEDED, SUCCEEDED],
        [SUCCEEDED, Settlement(Status.FAILED, error="e")],
        [Settlement(Status.QUEUED, error="e", retry_in_sec=60), SUCCEEDED],
        [Settlement(Status.SUCCEEDED, result={"n": 1}), Settlement(Status.FAILED, error="e")],
    ],
)
def test_a_settlement_that_meets_a_renewal_is_applied_whole(queue_db, ends):
    runs = [queue_db.enqueue_and_claim(key) for key in ("one", "other")]
    with midway(queue_db) as owner:
        owner.renew([RenewalRequest(run.id, run.run_id) for run in runs])
        settling = BackgroundCall(queue_db.new_queue().settle, list(zip(runs, ends, strict=True)))
        queue_db.wait_for_lock_waiters()

    assert [fate.outcome for fate in settling.result()] == ["applied", "applied"]
    assert [queue_db.status(run.id) for run in runs] == [end.status for end in ends]
    queue_db.check_invariants()


def test_a_settlement_that_meets_the_reaper_is_not_ours(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.expire_lease(run.id)
    with midway(queue_db) as reaper:
        assert len(reaper.reap([(run.id, run.run_id, "k")], pause_sec=60)) == 1
        settling = BackgroundCall(queue_db.new_queue().settle, [(run, Settlement(Status.SUCCEEDED))])
        queue_db.wait_for_lock_waiters()

    assert [fate.outcome for fate in settling.result()] == ["not ours"]
    assert queue_db.status(run.id) is Status.QUEUED
    queue_db.check_invariants()


def test_renewal_racing_reaper_does_not_wait(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.expire_lease(run.id)
    with midway(queue_db) as reaper:
        assert len(reaper.reap([(run.id, run.run_id, "k")], pause_sec=60)) == 1
        assert queue_db.queue.renew([RenewalRequest(run.id, run.run_id)]) == set()

    assert queue_db.renew(run) is None
    queue_db.check_invariants()


def test_a_reaper_that_meets_a_renewal_leaves_the_run(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.expire_lease(run.id)
    with midway(queue_db) as owner:
        owner.renew([RenewalRequest(run.id, run.run_id)])
        assert queue_db.new_queue().reap([(run.id, run.run_id, "k")], pause_sec=0) == []

    assert queue_db.settle(run).outcome == "applied"
    queue_db.check_invariants()


@pytest.mark.parametrize("end", [Status.SUCCEEDED, Status.FAILED])
def test_a_cancel_that_meets_a_settlement_comes_too_late(queue_db, end):
    run = queue_db.enqueue_and_claim()
    with midway(queue_db) as owner:
        owner.settle([(run, Settlement(end))])
        canceling = BackgroundCall(queue_db.new_queue().cancel, run.id)
        queue_db.wait_for_lock_waiters()

    job = canceling.result()
    assert (job.status, job.cancel_requested) == (end, False)
    queue_db.check_invariants()


@pytest.mark.parametrize(("end", "ends"), [(Status.SUCCEEDED,) * 2, (Status.QUEUED, Status.CANCELED)])
def test_a_settlement_that_meets_a_cancel_counts_its_flag(queue_db, end, ends):
    run = queue_db.enqueue_and_claim()
    with midway(queue_db) as canceler:
        canceler.cancel_all([run.id])
        settling = BackgroundCall(queue_db.new_queue().settle, [(run, Settlement(end, error="e"))])
        queue_db.wait_for_lock_waiters()

    assert [fate.status for fate in settling.result()] == [ends]
    assert queue_db.status(run.id) is ends
    queue_db.check_invariants()


def test_cancel_racing_retry_settlement_cancels_queued_job(queue_db):
    run = queue_db.enqueue_and_claim()
    with midway(queue_db) as owner:
        owner.settle([(run, Settlement(Status.QUEUED, error="e"))])
        canceling = BackgroundCall(queue_db.new_queue().cancel, run.id)
        queue_db.wait_for_lock_waiters()

    assert canceling.result().status is Status.CANCELED
    assert queue_db.claim() == []
    queue_db.check_invariants()


def test_two_claims_that_meet_at_one_job_take_it_once(queue_db):
    job_id = queue_db.enqueue()
    with midway(queue_db) as first:
        runs, _ = first.claim("q", ["t"], new_run_ids(1), "w")
        assert queue_db.claim_once()[0] == []

    assert [run.id for run in runs] == [job_id]
    assert queue_db.claim() == []
    queue_db.check_invariants()


def test_job_deleted_between_insert_and_read_is_inserted_again(queue_db):
    request: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k", "idempotency_key": "once"}
    old = queue_db.queue.enqueue(NewJob(**request)).job_id
    with queue_db.open_transaction() as step:
        step("DELETE FROM dl_jobs WHERE job_id = %s", str(old))
        asking = BackgroundCall(queue_db.new_queue().enqueue, NewJob(**request))
        queue_db.wait_for_lock_waiters()

    assert asking.result().created
    assert asking.result().job_id != old


def test_cancel_racing_reaper_cancels_requeued_job(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.expire_lease(run.id)
    with midway(queue_db) as reaper:
        assert [reaped.status for reaped in reaper.reap([(run.id, run.run_id, "k")], pause_sec=60)] == [Status.QUEUED]
        canceling = BackgroundCall(queue_db.new_queue().cancel, run.id)
        queue_db.wait_for_lock_waiters()

    assert canceling.result().status is Status.CANCELED
    assert queue_db.claim() == []
    queue_db.check_invariants()


def test_reaper_racing_cancel_retries_and_sees_the_flag(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.expire_lease(run.id)
    with midway(queue_db) as canceler:
        canceler.cancel_all([run.id])
        assert queue_db.reap(run.id) == []  # it does not wait for a row that someone holds

    assert [reaped.status for reaped in queue_db.reap(run.id)] == [Status.CANCELED]
    queue_db.check_invariants()


def test_two_reapers_that_meet_take_a_run_once(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.expire_lease(run.id)
    with midway(queue_db) as first:
        taken = first.reap([(run.id, run.run_id, "k")], pause_sec=0)
        other = BackgroundCall(queue_db.new_queue().reap, [(run.id, run.run_id, "k")], pause_sec=0)
        queue_db.wait_for_lock_waiters()  # at the key, which the first holds until it commits

    assert len(taken) == 1
    assert other.result() == []
    assert queue_db.event_kinds(run.id).count("requeue") == 1
    queue_db.check_invariants()


def test_a_settlement_that_meets_a_renewal_waits_and_is_applied(queue_db):
    run = queue_db.enqueue_and_claim()
    with midway(queue_db) as owner:
        owner.renew([RenewalRequest(run.id, run.run_id, {"n": 1})])
        settling = BackgroundCall(queue_db.new_queue().settle, [(run, Settlement(Status.SUCCEEDED))])
        queue_db.wait_for_lock_waiters()

    assert [fate.outcome for fate in settling.result()] == ["applied"]
    assert queue_db.job(run.id).progress == {"n": 1}
    queue_db.check_invariants()


def test_renewal_racing_settle_does_not_wait(queue_db):
    run = queue_db.enqueue_and_claim()
    with midway(queue_db) as owner:
        owner.settle([(run, Settlement(Status.SUCCEEDED, progress={"n": 2}))])
        assert queue_db.queue.renew([RenewalRequest(run.id, run.run_id, {"n": 1})]) == set()

    assert queue_db.renew(run, {"n": 1}) is None
    assert (queue_db.job(run.id).progress, queue_db.job(run.id).lease_expires_at) == ({"n": 2}, None)
    queue_db.check_invariants()


def test_uncommitted_settlement_can_be_repeated(queue_db):
    run = queue_db.enqueue_and_claim()
    waiting = queue_db.enqueue()
    source = Midway(queue_db)
    JobQueue(source).settle([(run, Settlement(Status.SUCCEEDED))])
    again = BackgroundCall(queue_db.new_queue().settle, [(run, Settlement(Status.SUCCEEDED))])
    queue_db.wait_for_lock_waiters()
    source.connection.rollback()

    assert [fate.outcome for fate in again.result()] == ["applied"]
    assert [run.id for run in queue_db.claim()] == [waiting]
    queue_db.check_invariants()


def test_the_same_settlement_sent_twice_is_applied_once(queue_db):
    run = queue_db.enqueue_and_claim()
    with midway(queue_db) as owner:
        owner.settle([(run, Settlement(Status.SUCCEEDED))])
        again = BackgroundCall(queue_db.new_queue().settle, [(run, Settlement(Status.SUCCEEDED))])
        queue_db.wait_for_lock_waiters()

    assert [(fate.outcome, fate.status) for fate in again.result()] == [("already", Status.SUCCEEDED)]
    assert queue_db.event_kinds(run.id).count("done") == 1
    queue_db.check_invariants()
