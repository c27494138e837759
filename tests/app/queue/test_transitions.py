"""Every statement driven from every status: what happens is what TRANSITIONS says, all of it and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import uuid4

import pytest

from dataloader.app.errors import NotRetryable
from dataloader.app.queue.job import (
    TRANSITIONS,
    ClaimedJob,
    Released,
    ReleaseReason,
    Settlement,
    Status,
    Transition,
)
from tests.support import Databases
from tests.support.queue_fixture import QueueFixture

ENDS = (Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.QUEUED)


@pytest.fixture(scope="module")
def queue_db(databases: Databases) -> Iterator[QueueFixture]:
    """One for all cases: each has a key and a queue of its own."""
    with databases.fresh() as dsn:
        made = QueueFixture(dsn)
        yield made
        made.close()


def arrive(queue_db: QueueFixture, status: Status, *, flag: bool = False, tries: int = 2) -> ClaimedJob:
    """A job in this status, in the hands of the last run that it had, with or without its cancel asked for."""
    name = str(uuid4())
    run = queue_db.enqueue_and_claim(name, queue=name, max_attempts=tries)
    if status is Status.QUEUED:
        queue_db.settle(run, Status.QUEUED)
        queue_db.promote()
    elif status is Status.LOST:
        queue_db.sql("UPDATE dl_jobs SET max_attempts = 1 WHERE job_id = %s", str(run.id))
        queue_db.lose_attempt(run)
    elif status is not Status.RUNNING:
        queue_db.settle(run, status)
    if flag:
        queue_db.sql("UPDATE dl_jobs SET cancel_requested = true WHERE job_id = %s", str(run.id))
    assert queue_db.status(run.id) is status
    return run


def claim(queue_db: QueueFixture, run: ClaimedJob) -> None:
    queue_db.claim(queue=run.queue)


def cancel(queue_db: QueueFixture, run: ClaimedJob) -> None:
    queue_db.queue.cancel(run.id)


def cancel_by_update(queue_db: QueueFixture, run: ClaimedJob) -> None:
    queue_db.sql("UPDATE dl_jobs SET cancel_requested = true WHERE job_id = %s", str(run.id))


def refuse(queue_db: QueueFixture, run: ClaimedJob) -> None:
    attempt_limit = queue_db.job(run.id).max_attempts
    queue_db.sql("UPDATE dl_jobs SET max_attempts = 0 WHERE job_id = %s", str(run.id))
    queue_db.sql("UPDATE dl_jobs SET max_attempts = %s WHERE job_id = %s", attempt_limit, str(run.id))


def retry(queue_db: QueueFixture, run: ClaimedJob) -> None:
    with suppress(NotRetryable):
        queue_db.queue.retry(run.id)


def reap(queue_db: QueueFixture, run: ClaimedJob) -> None:
    queue_db.queue.reap([(run.id, run.run_id, run.lock_key)], pause_sec=0)


def reap_expired(queue_db: QueueFixture, run: ClaimedJob) -> None:
    queue_db.expire_lease(run.id)
    reap(queue_db, run)


def settle(status: Status) -> Callable[[QueueFixture, ClaimedJob], None]:
    def settle(queue_db: QueueFixture, run: ClaimedJob) -> None:
        queue_db.queue.settle([(run, Settlement(status, error="told"))])

    return settle


def release(why: ReleaseReason) -> Callable[[QueueFixture, ClaimedJob], None]:
    def release(queue_db: QueueFixture, run: ClaimedJob) -> None:
        queue_db.queue.release([(run, Released(why))])

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


def test_statements_make_only_listed_transitions(queue_db):
    observed: set[tuple[Status, Transition, Status]] = set()
    for before in Status:
        for flag in (False, True) if before is Status.RUNNING else (False,):
            for tries in (1, 2):
                if tries == 1 and before is Status.QUEUED:
                    continue  # after its only try no job waits
                for move, statement in STATEMENTS:
                    run = arrive(queue_db, before, flag=flag, tries=tries)
                    statement(queue_db, run)
                    after = queue_db.status(run.id)
                    if after is not before:
                        observed.add((before, move, after))

    listed = {(before, move, after) for (before, move), afters in TRANSITIONS.items() for after in afters}
    assert observed == listed
    queue_db.sql("UPDATE dl_jobs SET lease_expires_at = NULL WHERE status <> 'running'")  # reap_expired set it by hand
    result = queue_db.check_invariants()
    assert {move for life in result.values() for move in life.transitions} == listed


@pytest.mark.parametrize(
    ("_", "statement"), [s for s in STATEMENTS if s[0] in (Transition.SETTLE, Transition.RELEASE, Transition.REAP)]
)
def test_a_statement_that_names_another_run_changes_nothing(queue_db, _, statement):
    run = arrive(queue_db, Status.RUNNING)
    queue_db.expire_lease(run.id)
    before = queue_db.job(run.id)

    statement_with_other_run = run._replace(run_text=str(uuid4()))
    if statement is reap_expired:
        reap(queue_db, statement_with_other_run)
    else:
        statement(queue_db, statement_with_other_run)

    assert queue_db.job(run.id) == before
    queue_db.settle(run)


@pytest.mark.parametrize("end", ENDS)
def test_expired_owner_may_settle_until_job_is_reaped(queue_db, end):
    run = arrive(queue_db, Status.RUNNING)
    queue_db.expire_lease(run.id)

    assert queue_db.settle(run, end).outcome == "applied"
    assert queue_db.status(run.id) is end


@pytest.mark.parametrize("end", ENDS)
def test_after_cancel_request_only_success_stays(queue_db, end):
    run = arrive(queue_db, Status.RUNNING, flag=True)

    fate = queue_db.settle(run, end)

    assert fate.status is queue_db.status(run.id)
    assert fate.status is (Status.SUCCEEDED if end is Status.SUCCEEDED else Status.CANCELED)


@pytest.mark.parametrize("why", ReleaseReason)
def test_release_after_cancel_request_cancels_and_keeps_attempt(queue_db, why):
    run = arrive(queue_db, Status.RUNNING, flag=True)

    assert queue_db.release(run, why).status is Status.CANCELED
    assert queue_db.job(run.id).attempt == 1
    assert queue_db.wait_state(run.id) == "scheduled"


def test_a_cancel_of_a_running_job_raises_its_flag_once(queue_db):
    run = arrive(queue_db, Status.RUNNING)

    queue_db.queue.cancel(run.id)
    job = queue_db.queue.cancel(run.id)

    assert (job.status, job.cancel_requested, job.finished_at) == (Status.RUNNING, True, None)
    assert queue_db.event_kinds(run.id).count("cancel_requested") == 1
    queue_db.settle(run, Status.CANCELED)
