"""Two that meet: one is held between its steps until the other waits for it, then both go on. Exactly one outcome is
right, whoever comes first."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest

from app.errors import IdempotencyConflict
from app.queue.ids import draw_runs
from app.queue.job import SUCCEEDED, Handback, NewJob, Release, Settlement, Status
from app.queue.jobqueue import JobQueue
from app.queue.statements import statements
from tests.support.desk import Aside, Desk


class Midway:
    """A source whose statements are sent part by part, in a transaction that is left open after the last."""

    schema = "public"

    def __init__(self, desk: Desk) -> None:
        self.connection = desk.connect()

    def ask(self, name: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            for part in statements("public")[name].parts:
                cursor.execute(part.text, parameters or {})
            return cursor.fetchall()


@contextmanager
def midway(desk: Desk):
    """The queue of somebody whose statement is done and not yet committed; at the end it is."""
    source = Midway(desk)
    yield JobQueue(source)
    source.connection.commit()


def test_a_cancel_that_meets_a_claim_comes_after_it_and_raises_the_flag(desk):
    job_id = desk.enqueue()
    with midway(desk) as claimer:
        runs, _ = claimer.claim("q", ["t"], draw_runs(1), "w")
        canceling = Aside(desk.another().cancel, job_id)
        desk.until_blocked()

    job = canceling.result()
    assert [run.id for run in runs] == [job_id]
    assert (job.status, job.cancel_requested) == (Status.RUNNING, True)
    assert desk.settle(runs[0], Status.CANCELED).status is Status.CANCELED
    desk.check()


def test_a_claim_that_meets_a_cancel_takes_nothing(desk):
    job_id = desk.enqueue()
    with midway(desk) as canceler:
        source = canceler.source
        source.ask("cancel", {"job_id": str(job_id)})
        assert desk.look()[0] == []

    assert desk.claim() == []
    assert desk.status(job_id) is Status.CANCELED
    desk.check()


def test_a_claim_that_has_its_row_but_not_yet_its_key_when_a_cancel_comes(desk):
    """The claim only tries for the key, so it gives way; a claim that waited would be a deadlock."""
    job_id = desk.enqueue()
    with desk.held() as step:
        row = "SELECT job_id FROM dl_jobs WHERE status = 'queued' AND place = 'ready' FOR NO KEY UPDATE SKIP LOCKED"
        assert len(step(row)) == 1
        canceling = Aside(desk.another().cancel, job_id)  # has the key, waits for the row
        desk.until_blocked()
        assert step("SELECT pg_try_advisory_xact_lock(1684828526, hashtext('k'))") == [(False,)]

    assert canceling.result().status is Status.CANCELED
    assert desk.claim() == []


@pytest.mark.parametrize("end", [Status.SUCCEEDED, Status.QUEUED])
def test_a_reaper_that_meets_a_settlement_finds_the_run_gone(desk, end):
    run = desk.claimed()
    desk.expire(run.id)
    found = desk.queue.expired().runs
    with midway(desk) as owner:
        owner.settle([(run, Settlement(end, error="e", retry_in=60))])
        reaping = Aside(desk.another().reap, found, pause_sec=0)
        desk.until_blocked()

    assert reaping.result() == []
    assert desk.status(run.id) is end
    desk.check()


@pytest.mark.parametrize(
    "ends",
    [
        [SUCCEEDED, SUCCEEDED],
        [SUCCEEDED, Settlement(Status.FAILED, error="e")],
        [Settlement(Status.QUEUED, error="e", retry_in=60), SUCCEEDED],
        [Settlement(Status.SUCCEEDED, result={"n": 1}), Settlement(Status.FAILED, error="e")],
    ],
)
def test_a_settlement_that_meets_a_renewal_is_applied_whole(desk, ends):
    runs = [desk.claimed(key) for key in ("one", "other")]
    with midway(desk) as owner:
        owner.renew([(run.id, run.run_id, None) for run in runs], late_sec=60)
        settling = Aside(desk.another().settle, list(zip(runs, ends, strict=True)))
        desk.until_blocked()

    assert [fate.answer for fate in settling.result()] == ["applied", "applied"]
    assert [desk.status(run.id) for run in runs] == [end.status for end in ends]
    desk.check()


def test_a_settlement_that_meets_the_reaper_is_not_ours(desk):
    run = desk.claimed()
    desk.expire(run.id)
    with midway(desk) as reaper:
        assert len(reaper.reap([(run.id, run.run_id, "k")], pause_sec=60)) == 1
        settling = Aside(desk.another().settle, [(run, Settlement(Status.SUCCEEDED))])
        desk.until_blocked()

    assert [fate.answer for fate in settling.result()] == ["not ours"]
    assert desk.status(run.id) is Status.QUEUED
    desk.check()


def test_a_renewal_that_meets_the_reaper_does_not_wait_and_learns_of_it_when_it_asks_again(desk):
    run = desk.claimed()
    desk.expire(run.id)
    with midway(desk) as reaper:
        assert len(reaper.reap([(run.id, run.run_id, "k")], pause_sec=60)) == 1
        (said,) = desk.queue.renew([(run.id, run.run_id, None)], late_sec=60)
        assert (said.renewed, said.owned) == (False, True)

    assert desk.renew(run) is None
    desk.check()


def test_a_reaper_that_meets_a_renewal_leaves_the_run(desk):
    run = desk.claimed()
    desk.expire(run.id)
    with midway(desk) as owner:
        owner.renew([(run.id, run.run_id, None)], late_sec=60)
        assert desk.another().reap([(run.id, run.run_id, "k")], pause_sec=0) == []

    assert desk.settle(run).answer == "applied"
    desk.check()


@pytest.mark.parametrize("end", [Status.SUCCEEDED, Status.FAILED])
def test_a_cancel_that_meets_a_settlement_comes_too_late(desk, end):
    run = desk.claimed()
    with midway(desk) as owner:
        owner.settle([(run, Settlement(end))])
        canceling = Aside(desk.another().cancel, run.id)
        desk.until_blocked()

    job = canceling.result()
    assert (job.status, job.cancel_requested) == (end, False)
    desk.check()


@pytest.mark.parametrize(("end", "ends"), [(Status.SUCCEEDED,) * 2, (Status.QUEUED, Status.CANCELED)])
def test_a_settlement_that_meets_a_cancel_counts_its_flag(desk, end, ends):
    run = desk.claimed()
    with midway(desk) as canceler:
        canceler.source.ask("cancel", {"job_id": str(run.id)})
        settling = Aside(desk.another().settle, [(run, Settlement(end, error="e"))])
        desk.until_blocked()

    assert [fate.status for fate in settling.result()] == [ends]
    assert desk.status(run.id) is ends
    desk.check()


def test_a_cancel_that_meets_a_retry_by_settlement_cancels_the_waiting_job(desk):
    run = desk.claimed()
    with midway(desk) as owner:
        owner.settle([(run, Settlement(Status.QUEUED, error="e"))])
        canceling = Aside(desk.another().cancel, run.id)
        desk.until_blocked()

    assert canceling.result().status is Status.CANCELED
    assert desk.claim() == []
    desk.check()


def test_a_claim_that_meets_the_settlement_of_its_key_loses_no_wake_up(desk):
    running = desk.claimed()
    waiting = desk.enqueue()
    with midway(desk) as owner:
        owner.settle([(running, Settlement(Status.SUCCEEDED))])
        taken, outlook = desk.look()
        assert (taken, outlook.skipped) == ([], 1)
        assert desk.place(waiting) == "ready"  # not parked: nobody would wake it

    assert [run.id for run in desk.claim()] == [waiting]
    desk.check()


def test_a_settlement_that_meets_the_parking_of_the_next_job_waits_and_wakes_it(desk):
    running = desk.claimed()
    waiting = desk.enqueue()
    with midway(desk) as claimer:
        assert claimer.claim("q", ["t"], draw_runs(1), "w")[0] == []
        settling = Aside(desk.another().settle, [(running, Settlement(Status.SUCCEEDED))])
        desk.until_blocked()

    assert [fate.answer for fate in settling.result()] == ["applied"]
    assert desk.place(waiting) == "ready"
    assert [run.id for run in desk.claim()] == [waiting]
    desk.check()


def test_two_claims_that_meet_at_one_job_take_it_once(desk):
    job_id = desk.enqueue()
    with midway(desk) as first:
        runs, _ = first.claim("q", ["t"], draw_runs(1), "w")
        assert desk.look()[0] == []

    assert [run.id for run in runs] == [job_id]
    assert desk.claim() == []
    desk.check()


def test_two_claims_that_meet_at_one_key_take_one_of_its_jobs(desk):
    first_job, second_job = desk.enqueue(), desk.enqueue()
    with midway(desk) as first:
        runs, _ = first.claim("q", ["t"], draw_runs(1), "w")
        taken, outlook = desk.look()
        assert (taken, outlook.skipped) == ([], 1)

    assert [run.id for run in runs] == [first_job]
    assert desk.claim() == []
    assert desk.place(second_job) == "parked"
    desk.check()


@pytest.mark.parametrize("commits", [True, False])
def test_a_second_enqueue_of_a_key_waits_for_the_first_and_finds_it_or_takes_its_place(desk, commits):
    request: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k", "idempotency_key": "once"}
    source = Midway(desk)
    first = JobQueue(source).enqueue(NewJob(**request))
    asking = Aside(desk.another().enqueue, NewJob(**request))
    conflicting = Aside(desk.another().enqueue, NewJob(**request | {"task": "other"}))
    desk.until_blocked(2)
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
    assert desk.one("SELECT count(*) FROM dl_jobs") == 1
    desk.check()


def test_a_job_that_is_deleted_between_the_insert_and_the_look_is_made_anew(desk):
    request: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k", "idempotency_key": "once"}
    old = desk.queue.enqueue(NewJob(**request)).job_id
    with desk.held() as step:
        step("DELETE FROM dl_jobs WHERE job_id = %s", str(old))
        asking = Aside(desk.another().enqueue, NewJob(**request))
        desk.until_blocked()

    assert asking.result().created
    assert asking.result().job_id != old


def test_a_cancel_that_meets_the_reaper_cancels_what_was_given_back(desk):
    run = desk.claimed()
    desk.expire(run.id)
    with midway(desk) as reaper:
        assert [reaped.status for reaped in reaper.reap([(run.id, run.run_id, "k")], pause_sec=60)] == [Status.QUEUED]
        canceling = Aside(desk.another().cancel, run.id)
        desk.until_blocked()

    assert canceling.result().status is Status.CANCELED
    assert desk.claim() == []
    desk.check()


def test_a_reaper_that_meets_a_cancel_comes_again_and_counts_its_flag(desk):
    run = desk.claimed()
    desk.expire(run.id)
    with midway(desk) as canceler:
        canceler.source.ask("cancel", {"job_id": str(run.id)})
        assert desk.reap(run.id) == []  # it does not wait for a row that somebody holds

    assert [reaped.status for reaped in desk.reap(run.id)] == [Status.CANCELED]
    desk.check()


def test_two_reapers_that_meet_take_a_run_once(desk):
    run = desk.claimed()
    desk.expire(run.id)
    with midway(desk) as first:
        taken = first.reap([(run.id, run.run_id, "k")], pause_sec=0)
        other = Aside(desk.another().reap, [(run.id, run.run_id, "k")], pause_sec=0)
        desk.until_blocked()  # at the key, which the first holds until it commits

    assert len(taken) == 1
    assert other.result() == []
    assert desk.kinds(run.id).count("requeue") == 1
    desk.check()


def test_a_settlement_that_meets_a_renewal_waits_and_is_applied(desk):
    run = desk.claimed()
    with midway(desk) as beating:
        beating.renew([(run.id, run.run_id, {"n": 1})], late_sec=60)
        settling = Aside(desk.another().settle, [(run, Settlement(Status.SUCCEEDED))])
        desk.until_blocked()

    assert [fate.answer for fate in settling.result()] == ["applied"]
    assert desk.job(run.id).progress == {"n": 1}
    desk.check()


def test_a_renewal_that_meets_the_settlement_of_its_run_does_not_wait_and_changes_nothing(desk):
    run = desk.claimed()
    with midway(desk) as owner:
        owner.settle([(run, Settlement(Status.SUCCEEDED, progress={"n": 2}))])
        (said,) = desk.queue.renew([(run.id, run.run_id, {"n": 1})], late_sec=60)
        assert (said.renewed, said.owned) == (False, True)

    assert desk.renew(run, {"n": 1}) is None
    assert (desk.job(run.id).progress, desk.job(run.id).lease_expires_at) == ({"n": 2}, None)
    desk.check()


def test_a_settlement_that_meets_the_cancel_of_the_parked_job_wakes_the_next_one(desk):
    running, first, second = desk.claimed(), desk.enqueue(), desk.enqueue()
    assert desk.claim() == []
    assert (desk.place(first), desk.place(second)) == ("parked", "parked")
    with midway(desk) as canceler:
        canceler.source.ask("cancel", {"job_id": str(first)})
        settling = Aside(desk.another().settle, [(running, Settlement(Status.SUCCEEDED))])
        desk.until_blocked()

    assert [fate.answer for fate in settling.result()] == ["applied"]
    assert (desk.status(first), desk.place(second)) == (Status.CANCELED, "ready")
    assert [run.id for run in desk.claim()] == [second]
    desk.check()


def test_a_cancel_of_the_parked_job_that_meets_the_settlement_cancels_it_awake_and_wakes_the_next_one(desk):
    running, first, second = desk.claimed(), desk.enqueue(), desk.enqueue()
    assert desk.claim() == []
    with midway(desk) as owner:
        owner.settle([(running, Settlement(Status.SUCCEEDED))])
        canceling = Aside(desk.another().cancel, first)
        desk.until_blocked()

    assert canceling.result().status is Status.CANCELED
    assert desk.place(second) == "ready"
    assert [run.id for run in desk.claim()] == [second]
    desk.check()


@pytest.mark.parametrize("why", [Release.SHUTDOWN, Release.NOT_STARTED])
def test_a_hand_back_that_meets_the_parking_of_the_next_job_waits_and_wakes_it(desk, why):
    running = desk.claimed()
    waiting = desk.enqueue()
    with midway(desk) as claimer:
        assert claimer.claim("q", ["t"], draw_runs(1), "w")[0] == []
        handing = Aside(desk.another().release, [Handback(running, why)])
        desk.until_blocked()

    assert [fate.answer for fate in handing.result()] == ["applied"]
    assert (desk.place(running.id), desk.place(waiting)) == ("ready", "ready")
    desk.check()


def test_the_reaper_that_meets_the_parking_of_the_next_job_waits_and_wakes_it(desk):
    running = desk.claimed(max_attempts=1)
    waiting = desk.enqueue()
    desk.expire(running.id)
    with midway(desk) as claimer:
        assert claimer.claim("q", ["t"], draw_runs(1), "w")[0] == []
        reaping = Aside(desk.another().reap, [(running.id, running.run_id, "k")], pause_sec=0)
        desk.until_blocked()

    assert [reaped.status for reaped in reaping.result()] == [Status.LOST]
    assert [run.id for run in desk.claim()] == [waiting]
    desk.check()


def test_a_claim_that_meets_the_reaper_at_its_key_parks_nobody(desk):
    running = desk.claimed(max_attempts=1)
    waiting = desk.enqueue()
    desk.expire(running.id)
    with midway(desk) as reaper:
        assert len(reaper.reap([(running.id, running.run_id, "k")], pause_sec=0)) == 1
        taken, outlook = desk.look()
        assert (taken, outlook.skipped) == ([], 1)
        assert desk.place(waiting) == "ready"

    assert [run.id for run in desk.claim()] == [waiting]
    desk.check()


def test_the_sweep_that_meets_a_claim_of_the_key_it_would_free_leaves_it(desk):
    """The claim has not committed: to the sweep the key looks free, and the waiting job as if nobody would wake it."""
    first, second = desk.enqueue(), desk.enqueue()
    desk.sql("UPDATE dl_jobs SET place = 'parked' WHERE job_id = %s", str(second))
    with midway(desk) as claimer:
        assert [run.id for run in claimer.claim("q", ["t"], draw_runs(1), "w")[0]] == [first]
        assert desk.sweep() == ()

    assert desk.place(second) == "parked"
    assert desk.sweep() == ()
    desk.check()


def test_a_claim_that_meets_the_sweep_at_its_key_looks_again(desk):
    first, second = desk.enqueue(), desk.enqueue()
    desk.sql("UPDATE dl_jobs SET place = 'parked' WHERE job_id = %s", str(second))
    with midway(desk) as sweeper:
        assert sweeper.sweep(after="", lately=()).promoted == ("k",)
        taken, outlook = desk.look()
        assert (taken, outlook.skipped) == ([], 1)

    assert [run.id for run in desk.claim()] == [first]
    assert desk.claim() == []
    assert desk.place(second) == "parked"
    desk.check()


@pytest.mark.parametrize("commits", [True, False])
def test_a_second_enqueue_of_a_live_key_waits_for_the_first_and_finds_it_or_takes_its_place(desk, commits):
    request: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k", "live_key": "alive"}
    source = Midway(desk)
    first = JobQueue(source).enqueue(NewJob(**request))
    asking = Aside(desk.another().enqueue, NewJob(**request))
    desk.until_blocked()
    if commits:
        source.connection.commit()
    else:
        source.connection.rollback()

    assert (asking.result().job_id == first.job_id, asking.result().created) == (commits, not commits)
    assert desk.one("SELECT count(*) FROM dl_jobs") == 1
    desk.check()


@pytest.mark.parametrize("commits", [True, False])
def test_an_enqueue_of_a_live_key_that_meets_the_end_of_its_job_waits_to_know_whether_it_has_ended(desk, commits):
    run = desk.claimed(live_key="alive")
    source = Midway(desk)
    JobQueue(source).settle([(run, Settlement(Status.SUCCEEDED))])
    asking = Aside(desk.another().enqueue, NewJob(queue="q", task="t", lock_key="k", live_key="alive"))
    desk.until_blocked()
    if commits:
        source.connection.commit()
    else:
        source.connection.rollback()

    assert (asking.result().job_id == run.id, asking.result().created) == (not commits, commits)
    desk.check()


def test_a_settlement_whose_commit_never_came_can_be_said_again(desk):
    run = desk.claimed()
    waiting = desk.enqueue()
    source = Midway(desk)
    JobQueue(source).settle([(run, Settlement(Status.SUCCEEDED))])
    again = Aside(desk.another().settle, [(run, Settlement(Status.SUCCEEDED))])
    desk.until_blocked()
    source.connection.rollback()

    assert [fate.answer for fate in again.result()] == ["applied"]
    assert [run.id for run in desk.claim()] == [waiting]
    desk.check()


def test_the_same_settlement_sent_twice_is_applied_once(desk):
    run = desk.claimed()
    with midway(desk) as owner:
        owner.settle([(run, Settlement(Status.SUCCEEDED))])
        again = Aside(desk.another().settle, [(run, Settlement(Status.SUCCEEDED))])
        desk.until_blocked()

    assert [(fate.answer, fate.status) for fate in again.result()] == [("already", Status.SUCCEEDED)]
    assert desk.kinds(run.id).count("done") == 1
    desk.check()
