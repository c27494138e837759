"""What an attempt writes: the fence, renewals and settlements."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import uuid4

import pytest

from dataloader.app.queue.job import ReleaseReason, RenewalRequest, RunRef, Settlement, SettleResult, Status
from dataloader.app.queue.jobs import JobLimits, JobQueue

# ── fence ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stale_run_can_do_nothing_to_the_next_one(queue_db):
    stale = queue_db.enqueue_and_claim()
    queue_db.lose_attempt(stale)
    (current,) = queue_db.claim()
    before = queue_db.job(current.id)
    assert current.id == stale.id

    for end in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.QUEUED):
        assert queue_db.settle(stale, end) == SettleResult("not ours", None)
    for why in ReleaseReason:
        assert queue_db.release(stale, why) == SettleResult("not ours", None)
    assert queue_db.renew(stale, {"zombie": True}) is None
    assert queue_db.queue.lock_keys([stale]) == [(True, False)]
    assert queue_db.queue.reap([(stale.id, stale.run_id, stale.lock_key)], pause_sec=0) == []

    assert queue_db.job(current.id) == before
    assert queue_db.settle(current).outcome == "applied"
    queue_db.check_invariants()


def test_the_same_attempt_number_is_not_the_same_run(queue_db):
    first = queue_db.enqueue_and_claim()
    queue_db.release(first)
    (second,) = queue_db.claim()
    assert (second.id, second.attempt) == (first.id, first.attempt)

    assert queue_db.settle(first).outcome == "already"  # as what it was: released
    assert queue_db.status(first.id) is Status.RUNNING


# ── renew ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_renewal_without_progress_keeps_progress(queue_db):
    run = queue_db.enqueue_and_claim(lease_ttl_sec=50)
    queue_db.expire_lease(run.id)
    before = queue_db.fetch_row("SELECT clock_timestamp()")

    assert queue_db.renew(run, {"done": 1}) is False
    assert queue_db.renew(run) is False

    job = queue_db.job(run.id)
    assert job.progress == {"done": 1}
    assert job.heartbeat_at > before
    assert job.lease_expires_at > before + timedelta(seconds=50)
    assert queue_db.event_kinds(run.id) == ["queued", "picked"]


def test_heartbeat_returns_lost_and_canceled_runs(queue_db):
    runs = [queue_db.enqueue_and_claim(str(n)) for n in range(4)]
    queue_db.lose_attempt(runs[1])
    queue_db.queue.cancel(runs[2].id)

    answers = queue_db.queue.beat(queue_db.worker_id, [RunRef(run.id, run.run_id) for run in runs])

    assert {answer.run_id: (answer.is_owned, answer.cancel_requested) for answer in answers} == {
        runs[1].run_id: (False, False),
        runs[2].run_id: (True, True),
    }
    requests = [RenewalRequest(run.id, run.run_id) for run in runs]
    assert queue_db.queue.renew(requests) == {run.run_id for run in runs if run is not runs[1]}


def test_locked_row_delays_no_other_row(queue_db):
    held, free = queue_db.enqueue_and_claim("a"), queue_db.enqueue_and_claim("b")
    with queue_db.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(held.id))
        requests = [RenewalRequest(held.id, held.run_id), RenewalRequest(free.id, free.run_id)]
        assert queue_db.queue.renew(requests) == {free.run_id}
        assert queue_db.queue.beat(queue_db.worker_id, [RunRef(run.id, run.run_id) for run in (held, free)]) == []


def test_a_late_heartbeat_is_journaled(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.sql("UPDATE dl_jobs SET heartbeat_at = heartbeat_at - interval '50 s'")

    runs = [RunRef(run.id, run.run_id)]
    queue_db.queue.record_late_heartbeat(runs, silence_sec=70, late_sec=60)
    queue_db.queue.record_late_heartbeat(runs, silence_sec=70, late_sec=30)

    event = queue_db.queue.events(run.id)[-1]
    assert event.kind == "heartbeat"
    assert 50 <= event.payload["late_sec"] < 300
    assert event.payload["run_id"] == str(run.run_id)


# ── settle ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_success_clears_error_of_earlier_attempt(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.settle(run, Status.QUEUED, error="first", traceback="there", progress={"done": 1})
    assert (queue_db.job(run.id).error, queue_db.job(run.id).traceback) == ("first", "there")
    (run,) = queue_db.claim()

    fate = queue_db.settle(run, result={"rows": 5}, error="must not be kept", traceback="nor this")

    job = queue_db.job(run.id)
    assert fate == SettleResult("applied", Status.SUCCEEDED)
    assert (job.error, job.traceback, job.result, job.progress) == (None, None, {"rows": 5}, {"done": 1})
    assert job.lease_expires_at is None
    assert job.finished_at >= job.started_at
    assert queue_db.event_kinds(run.id) == ["queued", "picked", "requeue", "picked", "done"]


def test_repeated_settlement_is_reported_as_applied(queue_db):
    for end in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.QUEUED):
        run = queue_db.enqueue_and_claim(str(end))
        assert queue_db.settle(run, end, retry_in_sec=60) == SettleResult("applied", end)
        before = queue_db.job(run.id), queue_db.event_kinds(run.id)

        assert queue_db.settle(run, end, retry_in_sec=60) == SettleResult("already", end)
        assert (queue_db.job(run.id), queue_db.event_kinds(run.id)) == before


def test_a_settlement_after_the_reaper_is_not_ours(queue_db):
    for tries, flag in ((1, False), (2, False), (2, True)):
        run = queue_db.enqueue_and_claim(f"{tries} {flag}", max_attempts=tries)
        if flag:
            queue_db.queue.cancel(run.id)
        queue_db.lose_attempt(run, pause_sec=60)

        assert queue_db.settle(run) == SettleResult("not ours", None)


def test_a_batch_is_settled_in_one_stroke_each_by_its_own_fate(queue_db):
    runs = [queue_db.enqueue_and_claim(str(n)) for n in range(4)]
    queue_db.lose_attempt(runs[0], pause_sec=60)
    queue_db.settle(runs[1])

    fates = queue_db.queue.settle([(run, Settlement(Status.SUCCEEDED, result=n)) for n, run in enumerate(runs)])

    assert [fate.outcome for fate in fates] == ["not ours", "already", "applied", "applied"]
    assert [queue_db.job(run.id).result for run in runs] == [None, None, 2, 3]
    queue_db.check_invariants()


def test_a_retry_waits_for_its_pause(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.settle(run, Status.QUEUED, retry_in_sec=90.5)

    job = queue_db.job(run.id)
    event = queue_db.queue.events(run.id)[-1]

    assert timedelta(seconds=90.5) == job.available_at - event.ts
    assert (event.payload["reason"], event.payload["pause_sec"]) == ("error", 90.5)
    assert (job.status, job.attempt, job.finished_at) == (Status.QUEUED, 1, None)
    assert queue_db.claim() == []


def test_no_retry_without_attempts_left(queue_db):
    run = queue_db.enqueue_and_claim(max_attempts=1)

    assert queue_db.settle(run, Status.QUEUED) == SettleResult("applied", Status.FAILED)
    assert queue_db.job(run.id).finished_at is not None
    assert queue_db.event_kinds(run.id)[-1] == "failed"
    queue_db.check_invariants()


@pytest.mark.parametrize("pause", [float("inf"), float("nan"), 1e300, -5.0])
def test_absurd_retry_pause_does_not_prevent_settlement(queue_db, pause):
    run = queue_db.enqueue_and_claim()

    assert queue_db.settle(run, Status.QUEUED, retry_in_sec=pause) == SettleResult("applied", Status.QUEUED)
    assert queue_db.job(run.id).available_at < datetime.now(UTC) + timedelta(days=367)


# ── what pipelines report ───────────────────────────────────────────────────────────────────────────────────────────


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def test_whatever_a_pipeline_reports_can_be_written_down(queue_db):
    deep: dict = {}
    for _ in range(1000):
        deep = {"d": deep}
    odd = {
        "nul\0": "nul\0",
        "half": "\ud800",
        "nan": float("nan"),
        "inf": float("-inf"),
        "huge": 10**5000,
        "deep": deep,
        "set": {1},
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "money": Decimal("1.10"),
        "id": uuid4(),
        7: Ellipsis,
    }
    run = queue_db.enqueue_and_claim(max_attempts=9)
    assert queue_db.renew(run, odd) is False
    assert queue_db.release(run, ReleaseReason.SHUTDOWN, odd).outcome == "applied"
    (run,) = queue_db.claim()
    assert (
        queue_db.settle(run, Status.QUEUED, error="nul\0 \udfff", traceback="\0" * 9, progress=odd).outcome == "applied"
    )
    (run,) = queue_db.claim()

    assert queue_db.settle(run, Status.FAILED, result=odd, progress=odd, error="\ud83d" * 20_000).outcome == "applied"

    job = queue_db.job(run.id)
    assert job.result["nul\N{REPLACEMENT CHARACTER}"] == "nul\N{REPLACEMENT CHARACTER}"
    assert (job.result["nan"], job.result["inf"], job.result["set"]) == ("nan", "-inf", [1])
    assert (job.result["money"], job.result["7"]) == ("1.10", "Ellipsis")
    assert job.result == job.progress
    assert len(job.error) <= 8000
    assert "characters left out" in job.error
    json.dumps(job.result, allow_nan=False)


def test_oversized_or_unencodable_result_is_replaced_by_note(queue_db):
    queue = JobQueue(queue_db.session, limits=JobLimits(max_result_bytes=1000))
    large, silent = queue_db.enqueue_and_claim("a"), queue_db.enqueue_and_claim("b")

    queue.settle([(large, Settlement(Status.SUCCEEDED, result="x" * 2000))])
    queue.settle([(silent, Settlement(Status.SUCCEEDED, result=[Unspeakable()]))])

    assert queue_db.job(large.id).result == {"$dropped": "2002 bytes of JSON; at most 1000 are kept"}
    assert queue_db.job(silent.id).result == {"$dropped": "not JSON: RuntimeError"}
