"""Two statements that meet at one lock key or live key: none loses an unblock, and one job of the key runs."""

from __future__ import annotations

from typing import Any

import pytest

from dataloader.app.errors import IdempotencyConflict
from dataloader.app.queue.job import (
    NewJob,
    Released,
    ReleaseReason,
    Settlement,
    Status,
    new_run_ids,
)
from dataloader.app.queue.jobs import JobQueue
from tests.app.queue.midway import Midway, midway
from tests.support.queue_fixture import BackgroundCall


def test_cancel_between_row_lock_and_key_lock_of_claim(queue_db):
    """The claim only tries for the key, so it gives way; a claim that waited would be a deadlock."""
    job_id = queue_db.enqueue()
    with queue_db.open_transaction() as step:
        row = (
            "SELECT job_id FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready' FOR NO KEY UPDATE SKIP LOCKED"
        )
        assert len(step(row)) == 1
        canceling = BackgroundCall(queue_db.new_queue().cancel, job_id)  # has the key, waits for the row
        queue_db.wait_for_lock_waiters()
        assert step("SELECT pg_try_advisory_xact_lock(1684828526, hashtext('k'))") == [(False,)]

    assert canceling.result().status is Status.CANCELED
    assert queue_db.claim() == []


def test_claim_racing_settle_of_key_loses_no_unblock(queue_db):
    running = queue_db.enqueue_and_claim()
    waiting = queue_db.enqueue()
    with midway(queue_db) as owner:
        owner.settle([(running, Settlement(Status.SUCCEEDED))])
        taken, outlook = queue_db.claim_once()
        assert (taken, outlook.skipped) == ([], 1)
        assert queue_db.wait_state(waiting) == "ready"  # not blocked: nothing would make it ready

    assert [run.id for run in queue_db.claim()] == [waiting]
    queue_db.check_invariants()


def test_settle_racing_block_of_next_job_unblocks_it(queue_db):
    running = queue_db.enqueue_and_claim()
    waiting = queue_db.enqueue()
    with midway(queue_db) as claimer:
        assert claimer.claim("q", ["t"], new_run_ids(1), "w")[0] == []
        settling = BackgroundCall(queue_db.new_queue().settle, [(running, Settlement(Status.SUCCEEDED))])
        queue_db.wait_for_lock_waiters()

    assert [fate.outcome for fate in settling.result()] == ["applied"]
    assert queue_db.wait_state(waiting) == "ready"
    assert [run.id for run in queue_db.claim()] == [waiting]
    queue_db.check_invariants()


def test_two_claims_that_meet_at_one_key_take_one_of_its_jobs(queue_db):
    first_job, second_job = queue_db.enqueue(), queue_db.enqueue()
    with midway(queue_db) as first:
        runs, _ = first.claim("q", ["t"], new_run_ids(1), "w")
        taken, outlook = queue_db.claim_once()
        assert (taken, outlook.skipped) == ([], 1)

    assert [run.id for run in runs] == [first_job]
    assert queue_db.claim() == []
    assert queue_db.wait_state(second_job) == "blocked"
    queue_db.check_invariants()


@pytest.mark.parametrize("commits", [True, False])
def test_second_enqueue_of_key_waits_for_first(queue_db, commits):
    request: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k", "idempotency_key": "once"}
    source = Midway(queue_db)
    first = JobQueue(source).enqueue(NewJob(**request))
    asking = BackgroundCall(queue_db.new_queue().enqueue, NewJob(**request))
    conflicting = BackgroundCall(queue_db.new_queue().enqueue, NewJob(**request | {"task": "other"}))
    queue_db.wait_for_lock_waiters(2)
    if commits:
        source.connection.commit()
        assert (asking.result().job_id, asking.result().created) == (first.job_id, False)
        with pytest.raises(IdempotencyConflict):
            conflicting.result()
    else:
        source.connection.rollback()
        outcomes = []
        for aside in (asking, conflicting):
            try:
                outcomes.append(aside.result().created)
            except IdempotencyConflict:
                outcomes.append(False)
        assert sorted(outcomes) == [False, True]
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 1
    queue_db.check_invariants()


def test_settle_racing_cancel_of_blocked_job_unblocks_next(queue_db):
    running, first, second = queue_db.enqueue_and_claim(), queue_db.enqueue(), queue_db.enqueue()
    assert queue_db.claim() == []
    assert (queue_db.wait_state(first), queue_db.wait_state(second)) == ("blocked", "blocked")
    with midway(queue_db) as canceler:
        canceler.cancel_all([first])
        settling = BackgroundCall(queue_db.new_queue().settle, [(running, Settlement(Status.SUCCEEDED))])
        queue_db.wait_for_lock_waiters()

    assert [fate.outcome for fate in settling.result()] == ["applied"]
    assert (queue_db.status(first), queue_db.wait_state(second)) == (Status.CANCELED, "ready")
    assert [run.id for run in queue_db.claim()] == [second]
    queue_db.check_invariants()


def test_cancel_racing_settle_unblocks_next_job(queue_db):
    running, first, second = queue_db.enqueue_and_claim(), queue_db.enqueue(), queue_db.enqueue()
    assert queue_db.claim() == []
    with midway(queue_db) as owner:
        owner.settle([(running, Settlement(Status.SUCCEEDED))])
        canceling = BackgroundCall(queue_db.new_queue().cancel, first)
        queue_db.wait_for_lock_waiters()

    assert canceling.result().status is Status.CANCELED
    assert queue_db.wait_state(second) == "ready"
    assert [run.id for run in queue_db.claim()] == [second]
    queue_db.check_invariants()


@pytest.mark.parametrize("why", [ReleaseReason.SHUTDOWN, ReleaseReason.NOT_STARTED])
def test_release_racing_block_of_next_job_unblocks_it(queue_db, why):
    running = queue_db.enqueue_and_claim()
    waiting = queue_db.enqueue()
    with midway(queue_db) as claimer:
        assert claimer.claim("q", ["t"], new_run_ids(1), "w")[0] == []
        handing = BackgroundCall(queue_db.new_queue().release, [(running, Released(why))])
        queue_db.wait_for_lock_waiters()

    assert [fate.outcome for fate in handing.result()] == ["applied"]
    assert (queue_db.wait_state(running.id), queue_db.wait_state(waiting)) == ("ready", "ready")
    queue_db.check_invariants()


def test_reaper_racing_block_of_next_job_unblocks_it(queue_db):
    running = queue_db.enqueue_and_claim(max_attempts=1)
    waiting = queue_db.enqueue()
    queue_db.expire_lease(running.id)
    with midway(queue_db) as claimer:
        assert claimer.claim("q", ["t"], new_run_ids(1), "w")[0] == []
        reaping = BackgroundCall(queue_db.new_queue().reap, [(running.id, running.run_id, "k")], pause_sec=0)
        queue_db.wait_for_lock_waiters()

    assert [reaped.status for reaped in reaping.result()] == [Status.LOST]
    assert [run.id for run in queue_db.claim()] == [waiting]
    queue_db.check_invariants()


def test_claim_racing_reaper_at_key_blocks_no_job(queue_db):
    running = queue_db.enqueue_and_claim(max_attempts=1)
    waiting = queue_db.enqueue()
    queue_db.expire_lease(running.id)
    with midway(queue_db) as reaper:
        assert len(reaper.reap([(running.id, running.run_id, "k")], pause_sec=0)) == 1
        taken, outlook = queue_db.claim_once()
        assert (taken, outlook.skipped) == ([], 1)
        assert queue_db.wait_state(waiting) == "ready"

    assert [run.id for run in queue_db.claim()] == [waiting]
    queue_db.check_invariants()


def test_sweep_racing_claim_of_key_skips_it(queue_db):
    """The claim has not committed: the repair finds the key free, and a blocked job that nothing makes ready."""
    first, second = queue_db.enqueue(), queue_db.enqueue()
    queue_db.sql("UPDATE dl_jobs SET wait_state = 'blocked' WHERE job_id = %s", str(second))
    with midway(queue_db) as claimer:
        assert [run.id for run in claimer.claim("q", ["t"], new_run_ids(1), "w")[0]] == [first]
        assert queue_db.repair_blocked() == ()

    assert queue_db.wait_state(second) == "blocked"
    assert queue_db.repair_blocked() == ()
    queue_db.check_invariants()


def test_a_claim_that_meets_the_sweep_at_its_key_looks_again(queue_db):
    first, second = queue_db.enqueue(), queue_db.enqueue()
    queue_db.sql("UPDATE dl_jobs SET wait_state = 'blocked' WHERE job_id = %s", str(second))
    with midway(queue_db) as sweeper:
        assert sweeper.repair_blocked(after="").unblocked == ("k",)
        taken, outlook = queue_db.claim_once()
        assert (taken, outlook.skipped) == ([], 1)

    assert [run.id for run in queue_db.claim()] == [first]
    assert queue_db.claim() == []
    assert queue_db.wait_state(second) == "blocked"
    queue_db.check_invariants()


@pytest.mark.parametrize("commits", [True, False])
def test_second_enqueue_of_live_key_waits_for_first(queue_db, commits):
    request: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k", "live_key": "alive"}
    source = Midway(queue_db)
    first = JobQueue(source).enqueue(NewJob(**request))
    asking = BackgroundCall(queue_db.new_queue().enqueue, NewJob(**request))
    queue_db.wait_for_lock_waiters()
    if commits:
        source.connection.commit()
    else:
        source.connection.rollback()

    assert (asking.result().job_id == first.job_id, asking.result().created) == (commits, not commits)
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 1
    queue_db.check_invariants()


@pytest.mark.parametrize("commits", [True, False])
def test_enqueue_of_live_key_racing_settle_waits_for_it(queue_db, commits):
    run = queue_db.enqueue_and_claim(live_key="alive")
    source = Midway(queue_db)
    JobQueue(source).settle([(run, Settlement(Status.SUCCEEDED))])
    asking = BackgroundCall(queue_db.new_queue().enqueue, NewJob(queue="q", task="t", lock_key="k", live_key="alive"))
    queue_db.wait_for_lock_waiters()
    if commits:
        source.connection.commit()
    else:
        source.connection.rollback()

    assert (asking.result().job_id == run.id, asking.result().created) == (not commits, commits)
    queue_db.check_invariants()
