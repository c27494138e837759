"""Two that meet: one is held between its steps until the other waits for it, then both go on. Exactly one outcome is
right, whoever comes first."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest

from app.errors import IdempotencyConflict
from app.queue.job import NewJob, Settlement, Status
from app.queue.jobqueue import JobQueue, draw_runs
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
    found, _ = desk.queue.expired()
    with midway(desk) as owner:
        owner.settle([(run, Settlement(end, error="e", retry_in=60))])
        reaping = Aside(desk.another().reap, found, pause_sec=0)
        desk.until_blocked()

    assert reaping.result() == []
    assert desk.status(run.id) is end
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
