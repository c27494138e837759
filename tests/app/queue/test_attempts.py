"""What workers ask of the queue: claim, renew, settle, release; and what the reaper does for the dead."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from app.queue.job import ReleaseReason, RenewalRequest, Settlement, SettleResult, Status, new_run_ids
from app.queue.jobs import JobLimits, JobQueue
from app.queue.workers import WorkerInfo, WorkerLiveness

# ── claim ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_jobs_are_claimed_by_priority_then_age(queue_db):
    old = queue_db.enqueue("a")
    new = queue_db.enqueue("b")
    urgent = queue_db.enqueue("c", priority=1)
    elsewhere = queue_db.enqueue("d", queue="other", priority=0)

    assert [run.id for run in queue_db.claim(2)] == [urgent, old]
    assert [run.id for run in queue_db.claim(5)] == [new]
    assert [run.id for run in queue_db.claim(queue="other")] == [elsewhere]
    assert queue_db.claim() == []


def test_a_batch_is_handed_out_in_order_with_a_run_id_each(queue_db):
    jobs = [queue_db.enqueue(str(n), priority=9 - n) for n in range(5)]
    runs = new_run_ids(7)

    taken, outlook = queue_db.queue.claim("q", ["t"], runs, "me")

    assert [run.id for run in taken] == jobs[::-1]
    assert [run.run_id for run in taken] == [UUID(run_id) for run_id in runs[:5]]
    assert (outlook.skipped, outlook.next_due_sec) == (0, None)
    assert {queue_db.job(job).worker for job in jobs} == {"me"}


def test_a_claim_stamps_the_lease_by_the_databases_clock(queue_db):
    queue_db.enqueue(lease_ttl_sec=40)
    before = queue_db.fetch_row("SELECT clock_timestamp()")
    (run,) = queue_db.claim()
    after = queue_db.fetch_row("SELECT clock_timestamp()")

    job = queue_db.job(run.id)
    assert job.status is Status.RUNNING
    assert job.run_id == run.run_id
    assert before <= job.started_at <= after
    assert before <= job.heartbeat_at <= after
    assert before + timedelta(seconds=40) <= job.lease_expires_at <= after + timedelta(seconds=40)
    assert (run.attempt, run.lease_ttl_sec) == (1, 40)


def test_the_first_start_is_kept_through_later_tries(queue_db):
    run = queue_db.enqueue_and_claim()
    first = queue_db.job(run.id).started_at
    queue_db.settle(run, Status.QUEUED)
    (again,) = queue_db.claim()

    assert queue_db.job(run.id).started_at == first
    assert (again.id, again.attempt) == (run.id, 2)
    assert again.run_id != run.run_id


def test_lost_claim_answer_is_found_by_run_ids(queue_db):
    queue_db.enqueue("a")
    runs = new_run_ids(2)
    (run,), _ = queue_db.queue.claim("q", ["t"], runs, "me")

    assert queue_db.queue.recover_claim(runs) == [run]
    assert queue_db.queue.recover_claim(new_run_ids(1)) == []
    queue_db.settle(run)
    assert queue_db.queue.recover_claim(runs) == []


def test_a_claim_says_when_the_next_timed_job_falls_due(queue_db):
    queue_db.enqueue("b", queue="other", available_at=datetime.now(UTC) + timedelta(hours=2))
    queue_db.enqueue("a", available_at=datetime.now(UTC) + timedelta(hours=1))
    queue_db.insert("never", available_at="infinity")

    taken, outlook = queue_db.claim_once()

    assert taken == []
    assert 3500 < outlook.next_due_sec <= 3600


def test_row_locked_forever_delays_no_other_job(queue_db):
    queue_db.insert("never", available_at="infinity")
    queue_db.enqueue("now")

    assert len(queue_db.claim()) == 1
    assert queue_db.claim_once()[1].next_due_sec is None


def test_what_python_cannot_decode_is_claimed_and_can_be_settled(queue_db):
    many = "7" * 5000
    deep = "[" * 3000 + "]" * 3000
    queue_db.insert("a", args=f'{{"exp": 1e5000, "many": {many}, "deep": {deep}}}', available_at="0044-03-15 BC")

    (run,) = queue_db.claim()

    assert json.loads(run.args_text).keys() == {"$dropped"}
    assert queue_db.job(run.id).available_at.year == 1
    assert queue_db.settle(run, Status.FAILED).outcome == "applied"


def test_attempt_count_never_exceeds_max_attempts_after_requeue(queue_db):
    queue_db.insert("a", attempt=5)

    (run,) = queue_db.claim()

    assert run.attempt == 5
    assert queue_db.lose_attempt(run).status is Status.LOST


def test_attempt_begins_without_leftovers_of_previous(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.settle(run, Status.QUEUED, error="first", traceback="there", result={"half": 1})
    (again,) = queue_db.claim()
    job = queue_db.job(run.id)
    assert (job.error, job.traceback, job.result) == (None, None, None)

    queue_db.release(again)
    job = queue_db.job(run.id)
    assert (job.error, job.traceback, job.result) == (None, None, None)


# ── unknown tasks ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_unknown_task_is_deferred_and_restored(queue_db):
    strange = queue_db.enqueue("a", task="strange", priority=1)
    queue_db.enqueue("b")

    (known,) = queue_db.claim(5)
    assert queue_db.queue.defer_unknown_tasks("q", ["t"]) == {"strange": 1}

    job = queue_db.job(strange)
    assert (job.status, job.attempt, queue_db.wait_state(strange)) == (Status.QUEUED, 0, "scheduled")
    assert "no live worker knows the task 'strange'" in job.error
    assert job.available_at > job.created_at + timedelta(seconds=4)
    assert queue_db.queue.events(strange)[-1].payload["reason"] == "unknown_task"
    assert queue_db.queue.defer_unknown_tasks("q", ["t"]) == {}

    queue_db.queue.restore_unknown_tasks(["other"], ["strange"])
    assert queue_db.claim(tasks=["strange"]) == []
    queue_db.queue.restore_unknown_tasks(["q"], ["strange"])
    assert queue_db.job(strange).error is None
    (run,) = queue_db.claim(tasks=["strange"])
    assert (run.id, run.attempt) == (strange, 1)
    assert queue_db.fetch_row("SELECT bool_or(unknown_task) FROM dl_jobs") is False
    queue_db.settle(known)
    queue_db.check_invariants()


def test_task_known_to_live_worker_is_not_deferred(queue_db):
    job_id = queue_db.enqueue(task="strange")
    worker = WorkerInfo(uuid4(), "w", "1", ("q",), ("strange",), 1)
    WorkerLiveness(queue_db.session).beat(worker, heartbeat_sec=10)

    assert queue_db.queue.defer_unknown_tasks("q", ["t"]) == {}
    assert queue_db.wait_state(job_id) == "ready"

    queue_db.sql("UPDATE dl_workers SET seen_at = now() - interval '31 s'")
    assert queue_db.queue.defer_unknown_tasks("q", ["t"]) == {"strange": 1}


def test_two_workers_restore_jobs_without_waiting(queue_db):
    for key in "abc":
        queue_db.enqueue(key, task="strange")
    queue_db.queue.defer_unknown_tasks("q", ["t"])

    with queue_db.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE lock_key = 'b' FOR NO KEY UPDATE")
        queue_db.queue.restore_unknown_tasks(["q"], ["strange"])

    assert queue_db.fetch_row("SELECT array_agg(lock_key ORDER BY lock_key) FROM dl_jobs WHERE NOT unknown_task") == [
        "a",
        "c",
    ]
    queue_db.queue.restore_unknown_tasks(["q"], ["strange"])
    assert len(queue_db.claim(3, tasks=["strange"])) == 3


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


def test_renewal_of_all_runs_returns_lost_ones(queue_db):
    runs = [queue_db.enqueue_and_claim(str(n)) for n in range(4)]
    queue_db.lose_attempt(runs[1])
    queue_db.queue.cancel(runs[2].id)

    answer = queue_db.queue.renew([RenewalRequest(run.id, run.run_id, None) for run in runs], late_sec=60)

    output = {one.run_id: (one.renewed, one.owned, one.cancel_requested) for one in answer}
    assert [output[run.run_id] for run in runs] == [
        (True, True, False),
        (False, False, False),
        (True, True, True),
        (True, True, False),
    ]


def test_locked_row_delays_no_other_row(queue_db):
    held, free = queue_db.enqueue_and_claim("a"), queue_db.enqueue_and_claim("b")
    with queue_db.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(held.id))
        answer = queue_db.queue.renew(
            [RenewalRequest(held.id, held.run_id, None), RenewalRequest(free.id, free.run_id, None)], late_sec=60
        )

    output = {one.run_id: (one.renewed, one.owned) for one in answer}
    assert output == {held.run_id: (False, True), free.run_id: (True, True)}


def test_a_late_heartbeat_is_journaled(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.sql("UPDATE dl_jobs SET heartbeat_at = heartbeat_at - interval '50 s'")

    queue_db.queue.renew([RenewalRequest(run.id, run.run_id, None)], late_sec=30)

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


# ── release ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("why", ReleaseReason)
def test_a_release_gives_the_attempt_back(queue_db, why):
    run = queue_db.enqueue_and_claim(max_attempts=1)
    for _ in range(3):
        fate = queue_db.release(run, why, {"done": 2})
        job = queue_db.job(run.id)
        assert fate == SettleResult("applied", Status.QUEUED)
        assert (job.attempt, job.lease_expires_at, job.progress) == (0, None, {"done": 2})
        queue_db.repair_blocked()
        (run,) = queue_db.claim()
        assert run.attempt == 1
    assert queue_db.queue.events(run.id)[2].payload["reason"] == why
    queue_db.check_invariants()


def test_repeated_release_is_reported_as_applied(queue_db):
    run = queue_db.enqueue_and_claim()

    assert queue_db.release(run) == SettleResult("applied", Status.QUEUED)
    assert queue_db.release(run) == SettleResult("already", Status.QUEUED)
    assert queue_db.job(run.id).attempt == 0


# ── reap ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_runs_whose_lease_ran_out_are_found_and_taken(queue_db):
    alive, dead = queue_db.enqueue_and_claim("a"), queue_db.enqueue_and_claim("b")
    queue_db.expire_lease(dead.id)

    expired = queue_db.queue.expired_runs()

    assert expired.runs == [(dead.id, dead.run_id, "b")]
    assert expired.server_uptime_sec > 0
    both = [(run.id, run.run_id, run.lock_key) for run in (alive, dead)]
    assert [one.job_id for one in queue_db.queue.reap(both, pause_sec=0)] == [dead.id]
    assert queue_db.queue.expired_runs().runs == []
    assert queue_db.status(alive.id) is Status.RUNNING


@pytest.mark.parametrize("until", ["infinity", "2999-01-01"])
@pytest.mark.parametrize(
    ("heartbeat_at", "is_over"),
    [("now() - interval '61 s'", True), ("now() - interval '50 s'", False), ("NULL", True), ("'infinity'", True)],
)
def test_lease_far_in_the_future_ends_after_its_last_heartbeat(queue_db, until, heartbeat_at, is_over):
    run = queue_db.enqueue_and_claim(lease_ttl_sec=60)
    queue_db.sql(f"UPDATE dl_jobs SET lease_expires_at = %s, heartbeat_at = {heartbeat_at}", until)

    assert [job_id for job_id, _, _ in queue_db.queue.expired_runs().runs] == [run.id] * is_over
    both = [(run.id, run.run_id, run.lock_key)]
    assert [one.job_id for one in queue_db.queue.reap(both, pause_sec=0)] == [run.id] * is_over
    if is_over:
        assert "infinity" not in queue_db.job(run.id).error


def test_run_renewed_before_reaping_is_left(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.expire_lease(run.id)
    found = queue_db.queue.expired_runs().runs
    queue_db.renew(run)

    assert queue_db.queue.reap(found, pause_sec=0) == []
    assert queue_db.settle(run).outcome == "applied"


def test_job_that_kills_its_worker_is_lost_after_max_attempts(queue_db):
    job_id = queue_db.enqueue(max_attempts=3)
    for attempt in (1, 2, 3):
        (run,) = queue_db.claim()
        assert run.attempt == attempt
        reaped = queue_db.lose_attempt(run)
        assert (reaped.job_id, reaped.queue, reaped.task, reaped.attempt) == (job_id, "q", "t", attempt)

    job = queue_db.job(job_id)
    assert job.status is reaped.status is Status.LOST
    assert "worker-1 vanished" in job.error
    assert job.finished_at is not None
    assert queue_db.claim() == []
    assert queue_db.event_kinds(job_id) == ["queued", *["picked", "requeue"] * 2, "picked", "lost"]
    queue_db.check_invariants()


def test_a_reaped_job_waits_longer_with_each_try(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.lose_attempt(run, pause_sec=30)
    first = queue_db.job(run.id).available_at - queue_db.queue.events(run.id)[-1].ts
    queue_db.make_due(run.id)
    (run,) = queue_db.claim()
    queue_db.lose_attempt(run, pause_sec=30)
    second = queue_db.job(run.id).available_at - queue_db.queue.events(run.id)[-1].ts

    assert (first, second) == (timedelta(seconds=30), timedelta(seconds=60))


def test_a_dead_run_whose_cancel_was_asked_for_is_canceled(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.queue.cancel(run.id)

    assert queue_db.lose_attempt(run).status is Status.CANCELED
    assert queue_db.job(run.id).finished_at is not None
    queue_db.check_invariants()


def test_two_reapers_take_a_dead_run_once(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.expire_lease(run.id)
    found = queue_db.queue.expired_runs().runs

    assert len(queue_db.queue.reap(found, pause_sec=0)) == 1
    assert queue_db.new_queue().reap(found, pause_sec=0) == []
    assert queue_db.event_kinds(run.id).count("requeue") == 1


def test_a_leftover_run_without_an_owner_is_taken_too(queue_db):
    job_id = queue_db.insert(status="running", attempt=1)
    ((found, run, key),) = queue_db.queue.expired_runs().runs
    assert (found, run, key) == (job_id, None, "k")

    (reaped,) = queue_db.queue.reap([(found, run, key)], pause_sec=0)

    assert reaped.status is Status.QUEUED
    assert [(one.id, one.attempt) for one in queue_db.claim()] == [(job_id, 2)]


def test_job_of_unknown_task_that_keeps_waiting_gets_one_event(queue_db):
    job_id = queue_db.enqueue("k", task="strange")

    first = queue_db.queue.defer_unknown_tasks("q", ["t"])
    for _ in range(3):
        queue_db.make_due(job_id)
        queue_db.claim_once()
        queue_db.promote()
        again = queue_db.queue.defer_unknown_tasks("q", ["t"])

    assert (first, again) == ({"strange": 1}, {})
    assert queue_db.event_kinds(job_id) == ["queued", "requeue"]
    assert queue_db.job(job_id).error == "no live worker knows the task 'strange'"
    assert queue_db.wait_state(job_id) == "scheduled"
