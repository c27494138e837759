"""What jobs bring along and leave: live keys, limits, policies of their own, checkpoints, refunds, crashes, notes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dataloader.app.errors import IdempotencyConflict, InvalidJob, NotRetryable
from dataloader.app.queue.job import (
    NewJob,
    Released,
    ReleaseReason,
    RenewalRequest,
    Settlement,
    SettleResult,
    Status,
)

REQUEST: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k"}


# ── live keys ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_live_key_is_unique_among_queued_and_running_jobs(queue_db):
    first = queue_db.queue.enqueue(NewJob(**REQUEST, live_key="daily"))

    waiting = queue_db.queue.enqueue(NewJob(**REQUEST, live_key="daily", args={"other": 1}))
    (run,) = queue_db.claim()
    running = queue_db.queue.enqueue(NewJob(**REQUEST, live_key="daily"))
    queue_db.settle(run, Status.QUEUED, retry_in_sec=60)
    again = queue_db.queue.enqueue(NewJob(**REQUEST, live_key="daily"))
    queue_db.queue.cancel(first.job_id)
    fresh = queue_db.queue.enqueue(NewJob(**REQUEST, live_key="daily"))

    assert [one.job_id for one in (waiting, running, again)] == [first.job_id] * 3
    assert [one.created for one in (first, waiting, running, again, fresh)] == [True, False, False, False, True]
    assert running.status is Status.RUNNING
    assert fresh.job_id != first.job_id
    assert queue_db.job(fresh.job_id).live_key == "daily"


def test_an_idempotency_key_speaks_before_a_live_key(queue_db):
    queue_db.queue.enqueue(NewJob(**REQUEST, live_key="daily", idempotency_key="once"))

    with pytest.raises(IdempotencyConflict):
        queue_db.queue.enqueue(NewJob(**REQUEST | {"task": "u"}, live_key="daily", idempotency_key="once"))


def test_one_live_key_from_many_at_once_makes_one_job(queue_db):
    queues = [queue_db.new_queue() for _ in range(6)]

    def ask(queue) -> list:
        return [queue.enqueue(NewJob(**REQUEST, live_key=f"live {n}")) for n in range(15)]

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(ask, queues))

    for of_one_key in zip(*answers, strict=True):
        assert len({one.job_id for one in of_one_key}) == 1
        assert [one.created for one in of_one_key].count(True) == 1


def test_retry_is_refused_while_live_key_has_another_job(queue_db):
    old = queue_db.queue.enqueue(NewJob(**REQUEST, live_key="daily")).job_id
    queue_db.queue.cancel(old)
    queue_db.queue.enqueue(NewJob(**REQUEST, live_key="daily"))

    with pytest.raises(NotRetryable, match="daily"):
        queue_db.queue.retry(old)

    assert queue_db.status(old) is Status.CANCELED


# ── limits, policies, parents ───────────────────────────────────────────────────────────────────────────────────────


def test_a_jobs_own_limit_and_policy_come_with_the_claim(queue_db):
    parent = queue_db.enqueue("parent")
    policy = {"kind": "table", "steps": [60, 300]}
    job_id = queue_db.enqueue("child", time_limit_sec=90, retry=policy, parent_id=parent, priority=1)

    (run,) = queue_db.claim()
    job = queue_db.job(job_id)

    assert (run.id, run.time_limit_sec, json.loads(run.retry_text)) == (job_id, 90, policy)
    assert (job.time_limit_sec, job.retry, job.parent_id) == (90, policy, parent)
    (plain,) = queue_db.claim()
    assert (plain.time_limit_sec, plain.retry_text, plain.checkpoint_text, plain.crashes) == (None, None, None, 0)
    assert queue_db.queue.recover_claim([run.run_id]) == [run]


@pytest.mark.parametrize("bad", [{"live_key": "\0"}, {"retry": {"a": float("nan")}}, {"time_limit_sec": 2**31}])
def test_what_postgresql_cannot_keep_of_them_is_refused(queue_db, bad):
    with pytest.raises(InvalidJob):
        queue_db.queue.enqueue(NewJob(**REQUEST, **bad))


# ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_checkpoint_reaches_next_attempt_however_this_one_ends(queue_db):
    run = queue_db.enqueue_and_claim(max_attempts=9)

    def next_run(expected):
        queue_db.repair_blocked()
        (again,) = queue_db.claim()
        assert json.loads(again.checkpoint_text) == expected
        return again

    queue_db.queue.renew([RenewalRequest(run.id, run.run_id, None, {"page": 1})])
    queue_db.queue.renew([RenewalRequest(run.id, run.run_id)])
    queue_db.lose_attempt(run)
    run = next_run({"page": 1})
    queue_db.release(run)
    run = next_run({"page": 1})
    queue_db.queue.release([(run, Released(ReleaseReason.SHUTDOWN, None, {"page": 2}))])
    run = next_run({"page": 2})
    queue_db.settle(run, Status.QUEUED)
    run = next_run({"page": 2})
    queue_db.settle(run, Status.QUEUED, checkpoint={"page": 3, "nul": "\0"})
    run = next_run({"page": 3, "nul": "\N{REPLACEMENT CHARACTER}"})
    queue_db.settle(run)

    assert queue_db.job(run.id).checkpoint is None
    queue_db.check_invariants()


# ── refunds, crashes, notes ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_refunded_try_is_not_counted(queue_db):
    run = queue_db.enqueue_and_claim(max_attempts=1)
    for _ in range(3):
        assert queue_db.settle(run, Status.QUEUED, refund_attempt=True) == SettleResult("applied", Status.QUEUED)
        assert queue_db.job(run.id).attempt == 0
        queue_db.make_due(run.id)
        (run,) = queue_db.claim()
        assert run.attempt == 1

    assert queue_db.settle(run, Status.FAILED, refund_attempt=True).status is Status.FAILED
    assert queue_db.job(run.id).attempt == 1
    queue_db.check_invariants()


@pytest.mark.parametrize(
    ("created_at", "pause_sec", "expected"),
    [
        ("clock_timestamp() - interval '1 s'", 0.5, 1),
        ("clock_timestamp() - interval '100 s'", 1, 10),
        ("clock_timestamp() - interval '1 d'", 1, 60),
        ("clock_timestamp() - interval '1 d'", 2, 2),
        ("clock_timestamp() + interval '1 d'", 0, 1),
        ("'-infinity'", 1, 60),
    ],
)
def test_short_snooze_grows_with_the_age_of_a_job(queue_db, created_at, pause_sec, expected):
    run = queue_db.enqueue_and_claim()
    queue_db.sql(f"UPDATE dl_jobs SET created_at = {created_at}")
    queue_db.settle(run, Status.QUEUED, refund_attempt=True, retry_in_sec=pause_sec)

    ((pause,),) = queue_db.sql("SELECT payload ->> 'pause_sec' FROM dl_job_events WHERE kind = 'requeue'")
    assert float(pause) == pytest.approx(expected, rel=0.5)


def test_crashes_are_counted_until_a_person_begins_afresh(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.settle(run, Status.QUEUED, crashed=True)
    (run,) = queue_db.claim()
    assert run.crashes == 1
    queue_db.settle(run, Status.FAILED, crashed=True)
    assert queue_db.job(run.id).crashes == 2

    assert queue_db.queue.retry(run.id).crashes == 0


def test_notes_are_kept_in_the_journal(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.queue.release([(run, Released(ReleaseReason.SHUTDOWN, None, None, {"rung": 2}))])
    (run,) = queue_db.claim()
    queue_db.settle(run, event_fields={"peak_mb": 7, "odd": float("nan")})

    released, ended = queue_db.queue.events(run.id)[2], queue_db.queue.events(run.id)[-1]
    assert released.payload["rung"] == 2
    assert (ended.payload["peak_mb"], ended.payload["odd"]) == (7, "nan")
    queue_db.check_invariants()


def test_stop_pending_is_recorded_by_owner_only(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.queue.record_stop_pending(run, reason="canceled", error="it does not stop")

    assert queue_db.job(run.id).error == "it does not stop"
    assert queue_db.queue.events(run.id)[-1].kind == "stop_pending"
    queue_db.check_invariants()
    queue_db.lose_attempt(run)
    before = queue_db.job(run.id), queue_db.event_kinds(run.id)
    queue_db.queue.record_stop_pending(run, reason="canceled", error="still not")
    assert (queue_db.job(run.id), queue_db.event_kinds(run.id)) == before


def test_a_batch_may_hold_all_sorts(queue_db):
    runs = [queue_db.enqueue_and_claim(str(n)) for n in range(3)]
    fates = queue_db.queue.settle(
        [
            (runs[0], Settlement(Status.QUEUED, error="e", refund_attempt=True, retry_in_sec=5)),
            (runs[1], Settlement(Status.QUEUED, error="e", crashed=True, checkpoint=[1])),
            (runs[2], Settlement(Status.SUCCEEDED, result=1, event_fields={"a": 1})),
        ]
    )

    assert [fate.status for fate in fates] == [Status.QUEUED, Status.QUEUED, Status.SUCCEEDED]
    assert [(queue_db.job(run.id).attempt, queue_db.job(run.id).crashes) for run in runs] == [(0, 0), (1, 1), (1, 0)]
    queue_db.check_invariants()
