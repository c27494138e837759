"""Bulk retries at a rate."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.db.statements import AuditContext, acting_as
from dataloader.app.errors import InvalidJob
from dataloader.app.features.bulk.rows import (
    BulkAction,
    BulkOperation,
    BulkOperations,
    BulkState,
    Redrive,
    redrive_step,
)
from dataloader.app.features.jobs import job_search
from dataloader.app.features.jobs.job_search import Filter
from dataloader.app.queue.job import ClaimedJob, Status
from tests.support import eventually
from tests.support.queue_fixture import QueueFixture

FAILED = Filter(status=frozenset({Status.FAILED, Status.LOST}))
Fail = Callable[..., list[UUID]]


@pytest.fixture
def bulk(queue_db: QueueFixture) -> BulkOperations:
    queue_db.sql("TRUNCATE dl_bulk")
    return BulkOperations(queue_db.session)


@pytest.fixture
def fail(queue_db: QueueFixture) -> Fail:
    numbers = count()

    def fail(jobs: int = 1, *, fingerprint: str = "KeyError a.py:b", **fields: Any) -> list[UUID]:
        runs: list[ClaimedJob] = [queue_db.enqueue_and_claim(f"k{next(numbers)}", **fields) for _ in range(jobs)]
        for run in runs:
            queue_db.settle(run, Status.FAILED, error="no", error_fingerprint=fingerprint)
        return [run.id for run in runs]

    return fail


def start(bulk: BulkOperations, expected: int, job_filter: Filter = FAILED, **redrive: Any) -> BulkOperation:
    options = Redrive(**{"per_minute": 60_000, **redrive})
    return bulk.start(BulkAction.REDRIVE, job_filter, expected=expected, redrive=options)


def run_due_steps(bulk: BulkOperations) -> None:
    while bulk.run_batch():
        pass


def finish(bulk: BulkOperations, operation: BulkOperation) -> BulkOperation:
    def ended() -> BulkOperation | None:
        bulk.run_batch()
        state = bulk.get(operation.bulk_id)
        return state if state.state.final else None

    found = eventually(ended, 60, "the operation ends")
    assert found is not None
    return found


def retried(queue_db: QueueFixture, jobs: list[UUID]) -> list[UUID]:
    return [job for job in jobs if queue_db.status(job) is Status.QUEUED]


def let_next_step_be_due(queue_db: QueueFixture) -> None:
    queue_db.sql("UPDATE dl_bulk SET next_step_at = clock_timestamp() WHERE next_step_at IS NOT NULL")


@pytest.mark.parametrize("per_minute", [1, 7, 59, 60, 61, 119, 120, 179, 6_001, 11_999, 12_000, 59_999, 60_000])
def test_steps_never_exceed_the_rate_in_any_minute(per_minute):
    jobs, pause_sec = redrive_step(per_minute)
    steps = round(60 / pause_sec)

    assert abs(steps * pause_sec - 60) < 1e-6
    assert per_minute / 2 < steps * jobs <= per_minute
    assert 1 <= jobs <= 200


def test_oldest_jobs_are_retried_first_step_by_step(queue_db, bulk, fail):
    jobs = fail(5)
    operation = start(bulk, 5, per_minute=1)

    run_due_steps(bulk)
    assert retried(queue_db, jobs) == jobs[:1]
    let_next_step_be_due(queue_db)
    run_due_steps(bulk)

    assert retried(queue_db, jobs) == jobs[:2]
    state = bulk.get(operation.bulk_id)
    assert (state.state, state.changed, state.per_minute) == (BulkState.RUNNING, 2, 1)
    left_sec = queue_db.fetch_row("SELECT extract(epoch FROM next_step_at - clock_timestamp())::float8 FROM dl_bulk")
    assert 30 < left_sec <= 60
    assert bulk.next_step_in_sec() == pytest.approx(left_sec, abs=10)
    queue_db.check_invariants()


def test_rate_is_held_by_the_clock_of_the_database(queue_db, bulk, fail):
    jobs = fail(5)
    finish(bulk, start(bulk, 5, per_minute=119))  # one each 0.504 s

    times = queue_db.sql(
        "SELECT extract(epoch FROM ts)::float8 FROM dl_job_events"
        " WHERE kind = 'requeue' AND payload ->> 'reason' = 'redrive' ORDER BY ts"
    )
    gaps = [after[0] - before[0] for before, after in pairwise(times)]
    assert len(times) == len(jobs)
    assert min(gaps) >= 0.3  # an event may be written a moment after its step's time


def test_restart_in_the_middle_continues_at_the_same_rate(queue_db, bulk, fail):
    jobs = fail(4)
    operation = start(bulk, 4, per_minute=1)
    run_due_steps(bulk)

    restarted = BulkOperations(queue_db.new_session())
    run_due_steps(restarted)
    assert retried(queue_db, jobs) == jobs[:1], "the next step is not due"
    for _ in range(4):
        let_next_step_be_due(queue_db)
        run_due_steps(restarted)

    state = bulk.get(operation.bulk_id)
    assert (state.state, state.changed, state.matched) == (BulkState.DONE, 4, 4)
    assert retried(queue_db, jobs) == jobs


def test_max_bounds_the_number(queue_db, bulk, fail):
    jobs = fail(7)

    state = finish(bulk, start(bulk, 7, max_jobs=3))

    assert (state.state, state.changed, state.max) == (BulkState.DONE, 3, 3)
    assert retried(queue_db, jobs) == jobs[:3]


@pytest.mark.parametrize(("jobs", "max_jobs"), [(1, None), (2, 1)])
def test_last_step_ends_it_without_a_pause(bulk, fail, jobs, max_jobs):
    fail(jobs)
    operation = start(bulk, jobs, per_minute=1, max_jobs=max_jobs)

    assert bulk.run_batch()

    assert bulk.get(operation.bulk_id).state is BulkState.DONE


def test_only_jobs_with_the_fingerprint_are_retried(queue_db, bulk, fail):
    other, wanted = fail(2, fingerprint="OSError"), fail(2)

    state = finish(bulk, start(bulk, 2, Filter(fingerprint="KeyError a.py:b")))

    assert (state.changed, retried(queue_db, other + wanted)) == (2, wanted)


def test_jobs_that_fail_after_the_request_are_left_out(queue_db, bulk, fail):
    (first, second), running = fail(2), queue_db.enqueue_and_claim("running", queue="q2")
    operation = start(bulk, 2, per_minute=1)
    run_due_steps(bulk)
    (again,) = queue_db.claim()
    for run in (again, running):
        queue_db.settle(run, Status.FAILED, error="later", error_fingerprint="KeyError a.py:b")

    let_next_step_be_due(queue_db)
    run_due_steps(bulk)
    let_next_step_be_due(queue_db)
    run_due_steps(bulk)

    assert (bulk.get(operation.bulk_id).state, again.id) == (BulkState.DONE, first)
    assert retried(queue_db, [first, second, running.id]) == [second]


def test_patch_is_merged_into_args_and_a_repeated_trigger_finds_the_job(queue_db, bulk, fail):
    (job,) = fail(args={"day": 1, "deep": {"a": 1, "b": 2}}, idempotency_key="once")

    state = finish(bulk, start(bulk, 1, args_patch={"deep": {"a": 9}, "full": True}))

    assert queue_db.job(job).args == {"day": 1, "deep": {"a": 9}, "full": True}
    event = queue_db.queue.events(job)[-1]
    assert event.payload["reason"] == "redrive"
    assert event.payload["args_patch"] == state.args_patch == {"deep": {"a": 9}, "full": True}
    assert queue_db.job(job).error_fingerprint is None
    repeated = queue_db.enqueue("k0", args={"day": 1, "deep": {"a": 1, "b": 2}}, idempotency_key="once")
    assert repeated == job


def test_patch_that_cannot_be_stored_is_refused(bulk, fail):
    fail()
    with pytest.raises(InvalidJob, match="args_patch"):
        start(bulk, 1, args_patch={"a": "\x00"})


def test_cancel_ends_it_while_its_next_step_waits(queue_db, bulk, fail):
    jobs = fail(3)
    operation = start(bulk, 3, per_minute=1)
    run_due_steps(bulk)

    bulk.cancel(operation.bulk_id)
    run_due_steps(bulk)

    assert bulk.get(operation.bulk_id).state is BulkState.CANCELED
    assert retried(queue_db, jobs) == jobs[:1]


def test_other_operations_run_while_its_next_step_waits(queue_db, bulk, fail):
    fail(3)
    start(bulk, 3, per_minute=1)
    run_due_steps(bulk)
    deleted = bulk.start(BulkAction.DELETE, Filter(status=frozenset({Status.FAILED})), expected=2)

    run_due_steps(bulk)

    assert (bulk.get(deleted.bulk_id).state, bulk.get(deleted.bulk_id).changed) == (BulkState.DONE, 2)


def test_it_goes_on_at_once_where_no_job_of_a_step_matches(queue_db, bulk, fail, monkeypatch):
    monkeypatch.setattr(job_search, "_FIRST_WINDOW_ROWS", 4)
    monkeypatch.setattr(job_search, "_MAX_WINDOW_ROWS", 4)
    monkeypatch.setattr("dataloader.app.features.bulk.rows._SCAN_BUDGET_SEC", 0.0)
    fail(20, task="t2")
    (job,) = fail()

    start(bulk, 1, Filter(task="t"), per_minute=1)
    run_due_steps(bulk)

    assert retried(queue_db, [job]) == [job]


def test_open_circuit_breaker_of_a_task_stops_it(queue_db, bulk, fail):
    first, second = fail(2)
    operation = start(bulk, 2, per_minute=1)
    run_due_steps(bulk)
    queue_db.sql("INSERT INTO dl_breakers (task, failures, state) VALUES ('t', 3, 'open')")

    let_next_step_be_due(queue_db)
    run_due_steps(bulk)

    over = bulk.get(operation.bulk_id)
    assert (over.state, over.error) == (BulkState.STOPPED, "the circuit breaker of t is open; changed so far: 1")
    assert retried(queue_db, [first, second]) == [first]


@pytest.mark.parametrize(("task", "state"), [("t", "closed"), ("t", "half_open"), ("t2", "open")])
def test_breaker_that_lets_a_job_start_or_of_another_task_does_not_stop_it(queue_db, bulk, fail, task, state):
    fail()
    queue_db.sql("INSERT INTO dl_breakers (task, failures, state) VALUES (%s, 3, %s)", task, state)

    assert finish(bulk, start(bulk, 1)).changed == 1


def test_audit_hides_the_values_of_the_patch(queue_db, bulk, fail):
    fail()
    with acting_as(AuditContext(action="start_bulk_operation", actor="Anna", via="api")):
        start(bulk, 1, args_patch={"password": "hunter2"})

    ((entry,),) = queue_db.sql("SELECT after FROM dl_audit WHERE subject = 'bulk'")
    assert (entry["args_patch"], entry["per_minute"]) == (["password"], 60_000)


def test_one_job_of_each_live_key_is_retried(queue_db, bulk, fail):
    jobs = fail(2)
    queue_db.sql("UPDATE dl_jobs SET live_key = 'one'")

    state = finish(bulk, start(bulk, 2))

    assert (state.state, state.matched, state.changed) == (BulkState.DONE, 2, 1)
    assert len(retried(queue_db, jobs)) == 1
