"""What jobs bring along and leave: live keys, limits, policies of their own, checkpoints, refunds, crashes, notes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.errors import IdempotencyConflict, InvalidJob, NotRetryable
from app.queue.job import NewJob, ReleaseReason, ReleaseRequest, RenewalRequest, Settlement, SettleResult, Status

REQUEST: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k"}


# ── live keys ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_live_key_is_unique_among_waiting_and_running_jobs_only(desk):
    first = desk.queue.enqueue(NewJob(**REQUEST, live_key="daily"))

    waiting = desk.queue.enqueue(NewJob(**REQUEST, live_key="daily", args={"other": 1}))
    (run,) = desk.claim()
    running = desk.queue.enqueue(NewJob(**REQUEST, live_key="daily"))
    desk.settle(run, Status.QUEUED, retry_in_sec=60)
    again = desk.queue.enqueue(NewJob(**REQUEST, live_key="daily"))
    desk.queue.cancel(first.job_id)
    fresh = desk.queue.enqueue(NewJob(**REQUEST, live_key="daily"))

    assert [one.job_id for one in (waiting, running, again)] == [first.job_id] * 3
    assert [one.created for one in (first, waiting, running, again, fresh)] == [True, False, False, False, True]
    assert running.status is Status.RUNNING
    assert fresh.job_id != first.job_id
    assert desk.job(fresh.job_id).live_key == "daily"


def test_an_idempotency_key_speaks_before_a_live_key(desk):
    desk.queue.enqueue(NewJob(**REQUEST, live_key="daily", idempotency_key="once"))

    with pytest.raises(IdempotencyConflict):
        desk.queue.enqueue(NewJob(**REQUEST | {"task": "u"}, live_key="daily", idempotency_key="once"))


def test_one_live_key_from_many_at_once_makes_one_job(desk):
    queues = [desk.new_queue() for _ in range(6)]

    def ask(queue) -> list:
        return [queue.enqueue(NewJob(**REQUEST, live_key=f"live {n}")) for n in range(15)]

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(ask, queues))

    for of_one_key in zip(*answers, strict=True):
        assert len({one.job_id for one in of_one_key}) == 1
        assert [one.created for one in of_one_key].count(True) == 1


def test_a_job_whose_live_key_has_another_job_by_now_cannot_be_retried_beside_it(desk):
    old = desk.queue.enqueue(NewJob(**REQUEST, live_key="daily")).job_id
    desk.queue.cancel(old)
    desk.queue.enqueue(NewJob(**REQUEST, live_key="daily"))

    with pytest.raises(NotRetryable, match="daily"):
        desk.queue.retry(old)

    assert desk.status(old) is Status.CANCELED


# ── limits, policies, parents ───────────────────────────────────────────────────────────────────────────────────────


def test_a_jobs_own_limit_and_policy_come_with_the_claim(desk):
    parent = desk.enqueue("parent")
    policy = {"kind": "table", "steps": [60, 300]}
    job_id = desk.enqueue("child", time_limit_sec=90, retry=policy, parent_id=parent, priority=1)

    (run,) = desk.claim()
    job = desk.job(job_id)

    assert (run.id, run.time_limit_sec, json.loads(run.retry_text)) == (job_id, 90, policy)
    assert (job.time_limit_sec, job.retry, job.parent_id) == (90, policy, parent)
    (plain,) = desk.claim()
    assert (plain.time_limit_sec, plain.retry_text, plain.checkpoint_text, plain.crashes) == (None, None, None, 0)
    assert desk.queue.recover_claim([run.run_id]) == [run]


@pytest.mark.parametrize("bad", [{"live_key": "\0"}, {"retry": {"a": float("nan")}}, {"time_limit_sec": 2**31}])
def test_what_postgresql_cannot_keep_of_them_is_refused(desk, bad):
    with pytest.raises(InvalidJob):
        desk.queue.enqueue(NewJob(**REQUEST, **bad))


# ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_checkpoint_goes_on_to_the_next_try_however_this_one_ends(desk):
    run = desk.enqueue_and_claim(max_attempts=9)

    def next_run(expected):
        desk.repair_blocked()
        (again,) = desk.claim()
        assert json.loads(again.checkpoint_text) == expected
        return again

    desk.queue.renew([RenewalRequest(run.id, run.run_id, None, {"page": 1})], late_sec=60)
    desk.queue.renew([RenewalRequest(run.id, run.run_id)], late_sec=60)
    desk.lose_attempt(run)
    run = next_run({"page": 1})
    desk.release(run)
    run = next_run({"page": 1})
    desk.queue.release([ReleaseRequest(run, ReleaseReason.SHUTDOWN, None, {"page": 2})])
    run = next_run({"page": 2})
    desk.settle(run, Status.QUEUED)
    run = next_run({"page": 2})
    desk.settle(run, Status.QUEUED, checkpoint={"page": 3, "nul": "\0"})
    run = next_run({"page": 3, "nul": "\N{REPLACEMENT CHARACTER}"})
    desk.settle(run)

    assert desk.job(run.id).checkpoint is None
    desk.check_invariants()


# ── refunds, crashes, notes ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_refunded_try_is_not_counted(desk):
    run = desk.enqueue_and_claim(max_attempts=1)
    for _ in range(3):
        assert desk.settle(run, Status.QUEUED, refund_attempt=True) == SettleResult("applied", Status.QUEUED)
        assert desk.job(run.id).attempt == 0
        (run,) = desk.claim()
        assert run.attempt == 1

    assert desk.settle(run, Status.FAILED, refund_attempt=True).status is Status.FAILED
    assert desk.job(run.id).attempt == 1
    desk.check_invariants()


def test_crashes_are_counted_until_a_person_begins_afresh(desk):
    run = desk.enqueue_and_claim()
    desk.settle(run, Status.QUEUED, crashed=True)
    (run,) = desk.claim()
    assert run.crashes == 1
    desk.settle(run, Status.FAILED, crashed=True)
    assert desk.job(run.id).crashes == 2

    assert desk.queue.retry(run.id).crashes == 0


def test_notes_are_kept_in_the_journal(desk):
    run = desk.enqueue_and_claim()
    desk.queue.release([ReleaseRequest(run, ReleaseReason.SHUTDOWN, None, None, {"rung": 2})])
    (run,) = desk.claim()
    desk.settle(run, event_fields={"peak_mb": 7, "odd": float("nan")})

    released, ended = desk.queue.events(run.id)[2], desk.queue.events(run.id)[-1]
    assert released.payload["rung"] == 2
    assert (ended.payload["peak_mb"], ended.payload["odd"]) == (7, "nan")
    desk.check_invariants()


def test_a_run_that_will_not_stop_is_said_aloud_by_its_owner_only(desk):
    run = desk.enqueue_and_claim()
    desk.queue.record_stop_pending(run, reason="canceled", error="it does not stop")

    assert desk.job(run.id).error == "it does not stop"
    assert desk.queue.events(run.id)[-1].kind == "stop_pending"
    desk.check_invariants()
    desk.lose_attempt(run)
    before = desk.job(run.id), desk.event_kinds(run.id)
    desk.queue.record_stop_pending(run, reason="canceled", error="still not")
    assert (desk.job(run.id), desk.event_kinds(run.id)) == before


def test_a_batch_may_hold_all_sorts(desk):
    runs = [desk.enqueue_and_claim(str(n)) for n in range(3)]
    fates = desk.queue.settle(
        [
            (runs[0], Settlement(Status.QUEUED, error="e", refund_attempt=True, retry_in_sec=5)),
            (runs[1], Settlement(Status.QUEUED, error="e", crashed=True, checkpoint=[1])),
            (runs[2], Settlement(Status.SUCCEEDED, result=1, event_fields={"a": 1})),
        ]
    )

    assert [fate.status for fate in fates] == [Status.QUEUED, Status.QUEUED, Status.SUCCEEDED]
    assert [(desk.job(run.id).attempt, desk.job(run.id).crashes) for run in runs] == [(0, 0), (1, 1), (1, 0)]
    desk.check_invariants()
