"""Two that meet: one is held between its steps until the other waits for it, then both go on. Exactly one outcome is
right, whoever comes first."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest

from app.db.statements import statements
from app.errors import IdempotencyConflict
from app.queue.job import (
    SUCCEEDED,
    NewJob,
    ReleaseReason,
    ReleaseRequest,
    RenewalRequest,
    Settlement,
    Status,
    new_run_ids,
)
from app.queue.jobs import JobQueue
from tests.support.queue_fixture import BackgroundCall, QueueFixture


class Midway:
    """A source whose statements are sent part by part, in a transaction that is left open after the last."""

    schema = "public"

    def __init__(self, desk: QueueFixture) -> None:
        self.connection = desk.connect()

    def execute(self, name: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            for part in statements("public")[name].parts:
                cursor.execute(part.text, parameters or {})
            return cursor.fetchall()


@contextmanager
def midway(desk: QueueFixture):
    """The queue of somebody whose statement is done and not yet committed; at the end it is."""
    source = Midway(desk)
    yield JobQueue(source)
    source.connection.commit()


def test_a_cancel_that_meets_a_claim_comes_after_it_and_raises_the_flag(desk):
    job_id = desk.enqueue()
    with midway(desk) as claimer:
        runs, _ = claimer.claim("q", ["t"], new_run_ids(1), "w")
        canceling = BackgroundCall(desk.new_queue().cancel, job_id)
        desk.wait_for_lock_waiters()

    job = canceling.result()
    assert [run.id for run in runs] == [job_id]
    assert (job.status, job.cancel_requested) == (Status.RUNNING, True)
    assert desk.settle(runs[0], Status.CANCELED).status is Status.CANCELED
    desk.check_invariants()


def test_a_claim_that_meets_a_cancel_takes_nothing(desk):
    job_id = desk.enqueue()
    with midway(desk) as canceler:
        source = canceler.executor
        source.execute("cancel", {"job_id": str(job_id)})
        assert desk.claim_once()[0] == []

    assert desk.claim() == []
    assert desk.status(job_id) is Status.CANCELED
    desk.check_invariants()


def test_a_claim_that_has_its_row_but_not_yet_its_key_when_a_cancel_comes(desk):
    """The claim only tries for the key, so it gives way; a claim that waited would be a deadlock."""
    job_id = desk.enqueue()
    with desk.open_transaction() as step:
        row = (
            "SELECT job_id FROM dl_jobs WHERE status = 'queued' AND wait_state = 'ready' FOR NO KEY UPDATE SKIP LOCKED"
        )
        assert len(step(row)) == 1
        canceling = BackgroundCall(desk.new_queue().cancel, job_id)  # has the key, waits for the row
        desk.wait_for_lock_waiters()
        assert step("SELECT pg_try_advisory_xact_lock(1684828526, hashtext('k'))") == [(False,)]

    assert canceling.result().status is Status.CANCELED
    assert desk.claim() == []


@pytest.mark.parametrize("end", [Status.SUCCEEDED, Status.QUEUED])
def test_a_reaper_that_meets_a_settlement_finds_the_run_gone(desk, end):
    run = desk.enqueue_and_claim()
    desk.expire_lease(run.id)
    found = desk.queue.expired_runs().runs
    with midway(desk) as owner:
        owner.settle([(run, Settlement(end, error="e", retry_in_sec=60))])
        reaping = BackgroundCall(desk.new_queue().reap, found, pause_sec=0)
        desk.wait_for_lock_waiters()

    assert reaping.result() == []
    assert desk.status(run.id) is end
    desk.check_invariants()


@pytest.mark.parametrize(
    "ends",
    [
        [SUCCEEDED, SUCCEEDED],
        [SUCCEEDED, Settlement(Status.FAILED, error="e")],
        [Settlement(Status.QUEUED, error="e", retry_in_sec=60), SUCCEEDED],
        [Settlement(Status.SUCCEEDED, result={"n": 1}), Settlement(Status.FAILED, error="e")],
    ],
)
def test_a_settlement_that_meets_a_renewal_is_applied_whole(desk, ends):
    runs = [desk.enqueue_and_claim(key) for key in ("one", "other")]
    with midway(desk) as owner:
        owner.renew([RenewalRequest(run.id, run.run_id, None) for run in runs], late_sec=60)
        settling = BackgroundCall(desk.new_queue().settle, list(zip(runs, ends, strict=True)))
        desk.wait_for_lock_waiters()

    assert [fate.outcome for fate in settling.result()] == ["applied", "applied"]
    assert [desk.status(run.id) for run in runs] == [end.status for end in ends]
    desk.check_invariants()


def test_a_settlement_that_meets_the_reaper_is_not_ours(desk):
    run = desk.enqueue_and_claim()
    desk.expire_lease(run.id)
    with midway(desk) as reaper:
        assert len(reaper.reap([(run.id, run.run_id, "k")], pause_sec=60)) == 1
        settling = BackgroundCall(desk.new_queue().settle, [(run, Settlement(Status.SUCCEEDED))])
        desk.wait_for_lock_waiters()

    assert [fate.outcome for fate in settling.result()] == ["not ours"]
    assert desk.status(run.id) is Status.QUEUED
    desk.check_invariants()


def test_a_renewal_that_meets_the_reaper_does_not_wait_and_learns_of_it_when_it_asks_again(desk):
    run = desk.enqueue_and_claim()
    desk.expire_lease(run.id)
    with midway(desk) as reaper:
        assert len(reaper.reap([(run.id, run.run_id, "k")], pause_sec=60)) == 1
        (said,) = desk.queue.renew([RenewalRequest(run.id, run.run_id, None)], late_sec=60)
        assert (said.renewed, said.owned) == (False, True)

    assert desk.renew(run) is None
    desk.check_invariants()


def test_a_reaper_that_meets_a_renewal_leaves_the_run(desk):
    run = desk.enqueue_and_claim()
    desk.expire_lease(run.id)
    with midway(desk) as owner:
        owner.renew([RenewalRequest(run.id, run.run_id, None)], late_sec=60)
        assert desk.new_queue().reap([(run.id, run.run_id, "k")], pause_sec=0) == []

    assert desk.settle(run).outcome == "applied"
    desk.check_invariants()


@pytest.mark.parametrize("end", [Status.SUCCEEDED, Status.FAILED])
def test_a_cancel_that_meets_a_settlement_comes_too_late(desk, end):
    run = desk.enqueue_and_claim()
    with midway(desk) as owner:
        owner.settle([(run, Settlement(end))])
        canceling = BackgroundCall(desk.new_queue().cancel, run.id)
        desk.wait_for_lock_waiters()

    job = canceling.result()
    assert (job.status, job.cancel_requested) == (end, False)
    desk.check_invariants()


@pytest.mark.parametrize(("end", "ends"), [(Status.SUCCEEDED,) * 2, (Status.QUEUED, Status.CANCELED)])
def test_a_settlement_that_meets_a_cancel_counts_its_flag(desk, end, ends):
    run = desk.enqueue_and_claim()
    with midway(desk) as canceler:
        canceler.executor.execute("cancel", {"job_id": str(run.id)})
        settling = BackgroundCall(desk.new_queue().settle, [(run, Settlement(end, error="e"))])
        desk.wait_for_lock_waiters()

    assert [fate.status for fate in settling.result()] == [ends]
    assert desk.status(run.id) is ends
    desk.check_invariants()


def test_a_cancel_that_meets_a_retry_by_settlement_cancels_the_waiting_job(desk):
    run = desk.enqueue_and_claim()
    with midway(desk) as owner:
        owner.settle([(run, Settlement(Status.QUEUED, error="e"))])
        canceling = BackgroundCall(desk.new_queue().cancel, run.id)
        desk.wait_for_lock_waiters()

    assert canceling.result().status is Status.CANCELED
    assert desk.claim() == []
    desk.check_invariants()


def test_a_claim_that_meets_the_settlement_of_its_key_loses_no_wake_up(desk):
    running = desk.enqueue_and_claim()
    waiting = desk.enqueue()
    with midway(desk) as owner:
        owner.settle([(running, Settlement(Status.SUCCEEDED))])
        taken, outlook = desk.claim_once()
        assert (taken, outlook.skipped) == ([], 1)
        assert desk.wait_state(waiting) == "ready"  # not parked: nobody would wake it

    assert [run.id for run in desk.claim()] == [waiting]
    desk.check_invariants()


def test_a_settlement_that_meets_the_parking_of_the_next_job_waits_and_wakes_it(desk):
    running = desk.enqueue_and_claim()
    waiting = desk.enqueue()
    with midway(desk) as claimer:
        assert claimer.claim("q", ["t"], new_run_ids(1), "w")[0] == []
        settling = BackgroundCall(desk.new_queue().settle, [(running, Settlement(Status.SUCCEEDED))])
        desk.wait_for_lock_waiters()

    assert [fate.outcome for fate in settling.result()] == ["applied"]
    assert desk.wait_state(waiting) == "ready"
    assert [run.id for run in desk.claim()] == [waiting]
    desk.check_invariants()


def test_two_claims_that_meet_at_one_job_take_it_once(desk):
    job_id = desk.enqueue()
    with midway(desk) as first:
        runs, _ = first.claim("q", ["t"], new_run_ids(1), "w")
        assert desk.claim_once()[0] == []

    assert [run.id for run in runs] == [job_id]
    assert desk.claim() == []
    desk.check_invariants()


def test_two_claims_that_meet_at_one_key_take_one_of_its_jobs(desk):
    first_job, second_job = desk.enqueue(), desk.enqueue()
    with midway(desk) as first:
        runs, _ = first.claim("q", ["t"], new_run_ids(1), "w")
        taken, outlook = desk.claim_once()
        assert (taken, outlook.skipped) == ([], 1)

    assert [run.id for run in runs] == [first_job]
    assert desk.claim() == []
    assert desk.wait_state(second_job) == "blocked"
    desk.check_invariants()


@pytest.mark.parametrize("commits", [True, False])
def test_a_second_enqueue_of_a_key_waits_for_the_first_and_finds_it_or_takes_its_place(desk, commits):
    request: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k", "idempotency_key": "once"}
    source = Midway(desk)
    first = JobQueue(source).enqueue(NewJob(**request))
    asking = BackgroundCall(desk.new_queue().enqueue, NewJob(**request))
    conflicting = BackgroundCall(desk.new_queue().enqueue, NewJob(**request | {"task": "other"}))
    desk.wait_for_lock_waiters(2)
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
    assert desk.fetch_row("SELECT count(*) FROM dl_jobs") == 1
    desk.check_invariants()


def test_a_job_that_is_deleted_between_the_insert_and_the_look_is_made_anew(desk):
    request: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k", "idempotency_key": "once"}
    old = desk.queue.enqueue(NewJob(**request)).job_id
    with desk.open_transaction() as step:
        step("DELETE FROM dl_jobs WHERE job_id = %s", str(old))
        asking = BackgroundCall(desk.new_queue().enqueue, NewJob(**request))
        desk.wait_for_lock_waiters()

    assert asking.result().created
    assert asking.result().job_id != old


def test_a_cancel_that_meets_the_reaper_cancels_what_was_given_back(desk):
    run = desk.enqueue_and_claim()
    desk.expire_lease(run.id)
    with midway(desk) as reaper:
        assert [reaped.status for reaped in reaper.reap([(run.id, run.run_id, "k")], pause_sec=60)] == [Status.QUEUED]
        canceling = BackgroundCall(desk.new_queue().cancel, run.id)
        desk.wait_for_lock_waiters()

    assert canceling.result().status is Status.CANCELED
    assert desk.claim() == []
    desk.check_invariants()


def test_a_reaper_that_meets_a_cancel_comes_again_and_counts_its_flag(desk):
    run = desk.enqueue_and_claim()
    desk.expire_lease(run.id)
    with midway(desk) as canceler:
        canceler.executor.execute("cancel", {"job_id": str(run.id)})
        assert desk.reap(run.id) == []  # it does not wait for a row that somebody holds

    assert [reaped.status for reaped in desk.reap(run.id)] == [Status.CANCELED]
    desk.check_invariants()


def test_two_reapers_that_meet_take_a_run_once(desk):
    run = desk.enqueue_and_claim()
    desk.expire_lease(run.id)
    with midway(desk) as first:
        taken = first.reap([(run.id, run.run_id, "k")], pause_sec=0)
        other = BackgroundCall(desk.new_queue().reap, [(run.id, run.run_id, "k")], pause_sec=0)
        desk.wait_for_lock_waiters()  # at the key, which the first holds until it commits

    assert len(taken) == 1
    assert other.result() == []
    assert desk.event_kinds(run.id).count("requeue") == 1
    desk.check_invariants()


def test_a_settlement_that_meets_a_renewal_waits_and_is_applied(desk):
    run = desk.enqueue_and_claim()
    with midway(desk) as beating:
        beating.renew([RenewalRequest(run.id, run.run_id, {"n": 1})], late_sec=60)
        settling = BackgroundCall(desk.new_queue().settle, [(run, Settlement(Status.SUCCEEDED))])
        desk.wait_for_lock_waiters()

    assert [fate.outcome for fate in settling.result()] == ["applied"]
    assert desk.job(run.id).progress == {"n": 1}
    desk.check_invariants()


def test_a_renewal_that_meets_the_settlement_of_its_run_does_not_wait_and_changes_nothing(desk):
    run = desk.enqueue_and_claim()
    with midway(desk) as owner:
        owner.settle([(run, Settlement(Status.SUCCEEDED, progress={"n": 2}))])
        (said,) = desk.queue.renew([RenewalRequest(run.id, run.run_id, {"n": 1})], late_sec=60)
        assert (said.renewed, said.owned) == (False, True)

    assert desk.renew(run, {"n": 1}) is None
    assert (desk.job(run.id).progress, desk.job(run.id).lease_expires_at) == ({"n": 2}, None)
    desk.check_invariants()


def test_a_settlement_that_meets_the_cancel_of_the_parked_job_wakes_the_next_one(desk):
    running, first, second = desk.enqueue_and_claim(), desk.enqueue(), desk.enqueue()
    assert desk.claim() == []
    assert (desk.wait_state(first), desk.wait_state(second)) == ("blocked", "blocked")
    with midway(desk) as canceler:
        canceler.executor.execute("cancel", {"job_id": str(first)})
        settling = BackgroundCall(desk.new_queue().settle, [(running, Settlement(Status.SUCCEEDED))])
        desk.wait_for_lock_waiters()

    assert [fate.outcome for fate in settling.result()] == ["applied"]
    assert (desk.status(first), desk.wait_state(second)) == (Status.CANCELED, "ready")
    assert [run.id for run in desk.claim()] == [second]
    desk.check_invariants()


def test_a_cancel_of_the_parked_job_that_meets_the_settlement_cancels_it_awake_and_wakes_the_next_one(desk):
    running, first, second = desk.enqueue_and_claim(), desk.enqueue(), desk.enqueue()
    assert desk.claim() == []
    with midway(desk) as owner:
        owner.settle([(running, Settlement(Status.SUCCEEDED))])
        canceling = BackgroundCall(desk.new_queue().cancel, first)
        desk.wait_for_lock_waiters()

    assert canceling.result().status is Status.CANCELED
    assert desk.wait_state(second) == "ready"
    assert [run.id for run in desk.claim()] == [second]
    desk.check_invariants()


@pytest.mark.parametrize("why", [ReleaseReason.SHUTDOWN, ReleaseReason.NOT_STARTED])
def test_a_hand_back_that_meets_the_parking_of_the_next_job_waits_and_wakes_it(desk, why):
    running = desk.enqueue_and_claim()
    waiting = desk.enqueue()
    with midway(desk) as claimer:
        assert claimer.claim("q", ["t"], new_run_ids(1), "w")[0] == []
        handing = BackgroundCall(desk.new_queue().release, [ReleaseRequest(running, why)])
        desk.wait_for_lock_waiters()

    assert [fate.outcome for fate in handing.result()] == ["applied"]
    assert (desk.wait_state(running.id), desk.wait_state(waiting)) == ("ready", "ready")
    desk.check_invariants()


def test_the_reaper_that_meets_the_parking_of_the_next_job_waits_and_wakes_it(desk):
    running = desk.enqueue_and_claim(max_attempts=1)
    waiting = desk.enqueue()
    desk.expire_lease(running.id)
    with midway(desk) as claimer:
        assert claimer.claim("q", ["t"], new_run_ids(1), "w")[0] == []
        reaping = BackgroundCall(desk.new_queue().reap, [(running.id, running.run_id, "k")], pause_sec=0)
        desk.wait_for_lock_waiters()

    assert [reaped.status for reaped in reaping.result()] == [Status.LOST]
    assert [run.id for run in desk.claim()] == [waiting]
    desk.check_invariants()


def test_a_claim_that_meets_the_reaper_at_its_key_parks_nobody(desk):
    running = desk.enqueue_and_claim(max_attempts=1)
    waiting = desk.enqueue()
    desk.expire_lease(running.id)
    with midway(desk) as reaper:
        assert len(reaper.reap([(running.id, running.run_id, "k")], pause_sec=0)) == 1
        taken, outlook = desk.claim_once()
        assert (taken, outlook.skipped) == ([], 1)
        assert desk.wait_state(waiting) == "ready"

    assert [run.id for run in desk.claim()] == [waiting]
    desk.check_invariants()


def test_the_sweep_that_meets_a_claim_of_the_key_it_would_free_leaves_it(desk):
    """The claim has not committed: to the sweep the key looks free, and the waiting job as if nobody would wake it."""
    first, second = desk.enqueue(), desk.enqueue()
    desk.sql("UPDATE dl_jobs SET wait_state = 'blocked' WHERE job_id = %s", str(second))
    with midway(desk) as claimer:
        assert [run.id for run in claimer.claim("q", ["t"], new_run_ids(1), "w")[0]] == [first]
        assert desk.repair_blocked() == ()

    assert desk.wait_state(second) == "blocked"
    assert desk.repair_blocked() == ()
    desk.check_invariants()


def test_a_claim_that_meets_the_sweep_at_its_key_looks_again(desk):
    first, second = desk.enqueue(), desk.enqueue()
    desk.sql("UPDATE dl_jobs SET wait_state = 'blocked' WHERE job_id = %s", str(second))
    with midway(desk) as sweeper:
        assert sweeper.repair_blocked(after="", recently_repaired=()).unblocked == ("k",)
        taken, outlook = desk.claim_once()
        assert (taken, outlook.skipped) == ([], 1)

    assert [run.id for run in desk.claim()] == [first]
    assert desk.claim() == []
    assert desk.wait_state(second) == "blocked"
    desk.check_invariants()


@pytest.mark.parametrize("commits", [True, False])
def test_a_second_enqueue_of_a_live_key_waits_for_the_first_and_finds_it_or_takes_its_place(desk, commits):
    request: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k", "live_key": "alive"}
    source = Midway(desk)
    first = JobQueue(source).enqueue(NewJob(**request))
    asking = BackgroundCall(desk.new_queue().enqueue, NewJob(**request))
    desk.wait_for_lock_waiters()
    if commits:
        source.connection.commit()
    else:
        source.connection.rollback()

    assert (asking.result().job_id == first.job_id, asking.result().created) == (commits, not commits)
    assert desk.fetch_row("SELECT count(*) FROM dl_jobs") == 1
    desk.check_invariants()


@pytest.mark.parametrize("commits", [True, False])
def test_an_enqueue_of_a_live_key_that_meets_the_end_of_its_job_waits_to_know_whether_it_has_ended(desk, commits):
    run = desk.enqueue_and_claim(live_key="alive")
    source = Midway(desk)
    JobQueue(source).settle([(run, Settlement(Status.SUCCEEDED))])
    asking = BackgroundCall(desk.new_queue().enqueue, NewJob(queue="q", task="t", lock_key="k", live_key="alive"))
    desk.wait_for_lock_waiters()
    if commits:
        source.connection.commit()
    else:
        source.connection.rollback()

    assert (asking.result().job_id == run.id, asking.result().created) == (not commits, commits)
    desk.check_invariants()


def test_a_settlement_whose_commit_never_came_can_be_said_again(desk):
    run = desk.enqueue_and_claim()
    waiting = desk.enqueue()
    source = Midway(desk)
    JobQueue(source).settle([(run, Settlement(Status.SUCCEEDED))])
    again = BackgroundCall(desk.new_queue().settle, [(run, Settlement(Status.SUCCEEDED))])
    desk.wait_for_lock_waiters()
    source.connection.rollback()

    assert [fate.outcome for fate in again.result()] == ["applied"]
    assert [run.id for run in desk.claim()] == [waiting]
    desk.check_invariants()


def test_the_same_settlement_sent_twice_is_applied_once(desk):
    run = desk.enqueue_and_claim()
    with midway(desk) as owner:
        owner.settle([(run, Settlement(Status.SUCCEEDED))])
        again = BackgroundCall(desk.new_queue().settle, [(run, Settlement(Status.SUCCEEDED))])
        desk.wait_for_lock_waiters()

    assert [(fate.outcome, fate.status) for fate in again.result()] == [("already", Status.SUCCEEDED)]
    assert desk.event_kinds(run.id).count("done") == 1
    desk.check_invariants()
