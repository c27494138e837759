"""Every statement driven from every status: what happens is what TRANSITIONS says, all of it and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import uuid4

import pytest

from app.errors import NotRetryable
from app.queue.job import TRANSITIONS, ClaimedJob, ReleaseReason, ReleaseRequest, Settlement, Status, Transition
from tests.support import Databases
from tests.support.queue_fixture import QueueFixture

ENDS = (Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.QUEUED)


@pytest.fixture(scope="module")
def desk(databases: Databases) -> Iterator[QueueFixture]:
    """One for all cases: each has a key and a queue of its own."""
    with databases.fresh() as dsn:
        made = QueueFixture(dsn)
        yield made
        made.close()


def arrive(desk: QueueFixture, status: Status, *, flag: bool = False, tries: int = 2) -> ClaimedJob:
    """A job in this status, in the hands of the last run that it had, with or without its cancel asked for."""
    name = str(uuid4())
    run = desk.enqueue_and_claim(name, queue=name, max_attempts=tries)
    if status is Status.QUEUED:
        desk.settle(run, Status.QUEUED)
        desk.promote()
    elif status is Status.LOST:
        desk.sql("UPDATE dl_jobs SET max_attempts = 1 WHERE job_id = %s", str(run.id))
        desk.lose_attempt(run)
    elif status is not Status.RUNNING:
        desk.settle(run, status)
    if flag:
        desk.sql("UPDATE dl_jobs SET cancel_requested = true WHERE job_id = %s", str(run.id))
    assert desk.status(run.id) is status
    return run


def claim(desk: QueueFixture, run: ClaimedJob) -> None:
    desk.claim(queue=run.queue)


def cancel(desk: QueueFixture, run: ClaimedJob) -> None:
    desk.queue.cancel(run.id)


def cancel_by_update(desk: QueueFixture, run: ClaimedJob) -> None:
    desk.sql("UPDATE dl_jobs SET cancel_requested = true WHERE job_id = %s", str(run.id))


def refuse(desk: QueueFixture, run: ClaimedJob) -> None:
    most = desk.job(run.id).max_attempts
    desk.sql("UPDATE dl_jobs SET max_attempts = 0 WHERE job_id = %s", str(run.id))
    desk.sql("UPDATE dl_jobs SET max_attempts = %s WHERE job_id = %s", most, str(run.id))


def retry(desk: QueueFixture, run: ClaimedJob) -> None:
    with suppress(NotRetryable):
        desk.queue.retry(run.id)


def reap(desk: QueueFixture, run: ClaimedJob) -> None:
    desk.queue.reap([(run.id, run.run_id, run.lock_key)], pause_sec=0)


def reap_expired(desk: QueueFixture, run: ClaimedJob) -> None:
    desk.expire_lease(run.id)
    reap(desk, run)


def settle(status: Status) -> Callable[[QueueFixture, ClaimedJob], None]:
    def settle(desk: QueueFixture, run: ClaimedJob) -> None:
        desk.queue.settle([(run, Settlement(status, error="told"))])

    return settle


def release(why: ReleaseReason) -> Callable[[QueueFixture, ClaimedJob], None]:
    def release(desk: QueueFixture, run: ClaimedJob) -> None:
        desk.queue.release([ReleaseRequest(run, why)])

    return release


STATEMENTS: tuple[tuple[Transition, Callable[[QueueFixture, ClaimedJob], None]], ...] = (
    (Transition.CLAIM, claim),
    *((Transition.SETTLE, settle(end)) for end in ENDS),
    *((Transition.RELEASE, release(why)) for why in ReleaseReason),
    (Transition.CANCEL, cancel),
    (Transition.CANCEL, cancel_by_update),
    (Transition.REFUSE, refuse),
    (Transition.REAP, reap),
    (Transition.REAP, reap_expired),
    (Transition.RETRY, retry),
)


def test_every_statement_from_every_status_makes_the_listed_transitions_and_no_other(desk):
    observed: set[tuple[Status, Transition, Status]] = set()
    for before in Status:
        for flag in (False, True) if before is Status.RUNNING else (False,):
            for tries in (1, 2):
                if tries == 1 and before is Status.QUEUED:
                    continue  # after its only try no job waits
                for move, statement in STATEMENTS:
                    run = arrive(desk, before, flag=flag, tries=tries)
                    statement(desk, run)
                    after = desk.status(run.id)
                    if after is not before:
                        observed.add((before, move, after))

    listed = {(before, move, after) for (before, move), afters in TRANSITIONS.items() for after in afters}
    assert observed == listed
    desk.sql("UPDATE dl_jobs SET lease_expires_at = NULL WHERE status <> 'running'")  # reap_expired set it by hand
    told = desk.check_invariants()
    assert {move for life in told.values() for move in life.transitions} == listed


@pytest.mark.parametrize(
    ("_", "statement"), [s for s in STATEMENTS if s[0] in (Transition.SETTLE, Transition.RELEASE, Transition.REAP)]
)
def test_a_statement_that_names_another_run_changes_nothing(desk, _, statement):
    run = arrive(desk, Status.RUNNING)
    desk.expire_lease(run.id)
    before = desk.job(run.id)

    statement_with_other_run = run._replace(run_text=str(uuid4()))
    if statement is reap_expired:
        reap(desk, statement_with_other_run)
    else:
        statement(desk, statement_with_other_run)

    assert desk.job(run.id) == before
    desk.settle(run)


@pytest.mark.parametrize("end", ENDS)
def test_an_owner_whose_lease_ran_out_may_settle_until_somebody_took_the_job(desk, end):
    run = arrive(desk, Status.RUNNING)
    desk.expire_lease(run.id)

    assert desk.settle(run, end).outcome == "applied"
    assert desk.status(run.id) is end


@pytest.mark.parametrize("end", ENDS)
def test_after_a_cancel_was_asked_for_only_a_success_stays_what_it_is(desk, end):
    run = arrive(desk, Status.RUNNING, flag=True)

    fate = desk.settle(run, end)

    assert fate.status is desk.status(run.id)
    assert fate.status is (Status.SUCCEEDED if end is Status.SUCCEEDED else Status.CANCELED)


@pytest.mark.parametrize("why", ReleaseReason)
def test_a_release_after_a_cancel_was_asked_for_cancels_and_keeps_the_attempt(desk, why):
    run = arrive(desk, Status.RUNNING, flag=True)

    assert desk.release(run, why).status is Status.CANCELED
    assert desk.job(run.id).attempt == 1
    assert desk.wait_state(run.id) == "scheduled"


def test_a_cancel_of_a_running_job_raises_its_flag_once(desk):
    run = arrive(desk, Status.RUNNING)

    desk.queue.cancel(run.id)
    job = desk.queue.cancel(run.id)

    assert (job.status, job.cancel_requested, job.finished_at) == (Status.RUNNING, True, None)
    assert desk.event_kinds(run.id).count("cancel_requested") == 1
    desk.settle(run, Status.CANCELED)
