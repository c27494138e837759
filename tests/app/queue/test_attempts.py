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


def test_jobs_are_claimed_by_priority_then_age(desk):
    old = desk.enqueue("a")
    new = desk.enqueue("b")
    urgent = desk.enqueue("c", priority=1)
    elsewhere = desk.enqueue("d", queue="other", priority=0)

    assert [run.id for run in desk.claim(2)] == [urgent, old]
    assert [run.id for run in desk.claim(5)] == [new]
    assert [run.id for run in desk.claim(queue="other")] == [elsewhere]
    assert desk.claim() == []


def test_a_batch_is_handed_out_in_order_with_a_run_id_each(desk):
    jobs = [desk.enqueue(str(n), priority=9 - n) for n in range(5)]
    runs = new_run_ids(7)

    taken, outlook = desk.queue.claim("q", ["t"], runs, "me")

    assert [run.id for run in taken] == jobs[::-1]
    assert [run.run_id for run in taken] == [UUID(run_id) for run_id in runs[:5]]
    assert (outlook.skipped, outlook.next_due_sec) == (0, None)
    assert {desk.job(job).worker for job in jobs} == {"me"}


def test_a_claim_stamps_the_lease_by_the_databases_clock(desk):
    desk.enqueue(lease_ttl_sec=40)
    before = desk.fetch_row("SELECT clock_timestamp()")
    (run,) = desk.claim()
    after = desk.fetch_row("SELECT clock_timestamp()")

    job = desk.job(run.id)
    assert job.status is Status.RUNNING
    assert job.run_id == run.run_id
    assert before <= job.started_at <= after
    assert before <= job.heartbeat_at <= after
    assert before + timedelta(seconds=40) <= job.lease_expires_at <= after + timedelta(seconds=40)
    assert (run.attempt, run.lease_ttl_sec) == (1, 40)


def test_the_first_start_is_kept_through_later_tries(desk):
    run = desk.enqueue_and_claim()
    first = desk.job(run.id).started_at
    desk.settle(run, Status.QUEUED)
    (again,) = desk.claim()

    assert desk.job(run.id).started_at == first
    assert (again.id, again.attempt) == (run.id, 2)
    assert again.run_id != run.run_id


def test_the_answer_of_a_claim_that_was_lost_can_be_found_by_its_run_ids(desk):
    desk.enqueue("a")
    runs = new_run_ids(2)
    (run,), _ = desk.queue.claim("q", ["t"], runs, "me")

    assert desk.queue.recover_claim(runs) == [run]
    assert desk.queue.recover_claim(new_run_ids(1)) == []
    desk.settle(run)
    assert desk.queue.recover_claim(runs) == []


def test_a_claim_says_when_the_next_timed_job_falls_due(desk):
    desk.enqueue("b", queue="other", available_at=datetime.now(UTC) + timedelta(hours=2))
    desk.enqueue("a", available_at=datetime.now(UTC) + timedelta(hours=1))
    desk.insert("never", available_at="infinity")

    taken, outlook = desk.claim_once()

    assert taken == []
    assert 3500 < outlook.next_due_sec <= 3600


def test_a_job_that_is_held_for_ever_holds_nobody_else(desk):
    desk.insert("never", available_at="infinity")
    desk.enqueue("now")

    assert len(desk.claim()) == 1
    assert desk.claim_once()[1].next_due_sec is None


def test_what_python_cannot_decode_is_claimed_and_can_be_settled(desk):
    many = "7" * 5000
    deep = "[" * 3000 + "]" * 3000
    desk.insert("a", args=f'{{"exp": 1e5000, "many": {many}, "deep": {deep}}}', available_at="0044-03-15 BC")

    (run,) = desk.claim()

    assert json.loads(run.args_text).keys() == {"$dropped"}
    assert desk.job(run.id).available_at.year == 1
    assert desk.settle(run, Status.FAILED).outcome == "applied"


def test_a_job_put_into_the_queue_with_its_attempts_used_up_never_counts_past_them(desk):
    desk.insert("a", attempt=5)

    (run,) = desk.claim()

    assert run.attempt == 5
    assert desk.lose_attempt(run).status is Status.LOST


def test_a_try_begins_with_a_clean_sheet_whatever_the_one_before_left(desk):
    run = desk.enqueue_and_claim()
    desk.settle(run, Status.QUEUED, error="first", traceback="there", result={"half": 1})
    (again,) = desk.claim()
    job = desk.job(run.id)
    assert (job.error, job.traceback, job.result) == (None, None, None)

    desk.release(again)
    job = desk.job(run.id)
    assert (job.error, job.traceback, job.result) == (None, None, None)


# ── unknown tasks ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_task_that_no_live_worker_knows_is_set_aside_at_no_cost_and_taken_back(desk):
    strange = desk.enqueue("a", task="strange", priority=1)
    desk.enqueue("b")

    (known,) = desk.claim(5)
    assert desk.queue.defer_unknown_tasks("q", ["t"]) == {"strange": 1}

    job = desk.job(strange)
    assert (job.status, job.attempt, desk.wait_state(strange)) == (Status.QUEUED, 0, "scheduled")
    assert "no live worker knows the task 'strange'" in job.error
    assert job.available_at > job.created_at + timedelta(seconds=4)
    assert desk.queue.events(strange)[-1].payload["reason"] == "unknown_task"
    assert desk.queue.defer_unknown_tasks("q", ["t"]) == {}

    desk.queue.restore_unknown_tasks(["other"], ["strange"])
    assert desk.claim(tasks=["strange"]) == []
    desk.queue.restore_unknown_tasks(["q"], ["strange"])
    assert desk.job(strange).error is None
    (run,) = desk.claim(tasks=["strange"])
    assert (run.id, run.attempt) == (strange, 1)
    assert desk.fetch_row("SELECT bool_or(unknown_task) FROM dl_jobs") is False
    desk.settle(known)
    desk.check_invariants()


def test_a_task_that_a_live_worker_of_the_queue_knows_is_left_for_it(desk):
    job_id = desk.enqueue(task="strange")
    worker = WorkerInfo(uuid4(), "w", "1", ("q",), ("strange",), 1)
    WorkerLiveness(desk.session).beat(worker, heartbeat_sec=10)

    assert desk.queue.defer_unknown_tasks("q", ["t"]) == {}
    assert desk.wait_state(job_id) == "ready"

    desk.sql("UPDATE dl_workers SET seen_at = now() - interval '31 s'")
    assert desk.queue.defer_unknown_tasks("q", ["t"]) == {"strange": 1}


def test_two_workers_that_come_at_once_take_jobs_back_without_waiting_for_each_other(desk):
    for key in "abc":
        desk.enqueue(key, task="strange")
    desk.queue.defer_unknown_tasks("q", ["t"])

    with desk.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE lock_key = 'b' FOR NO KEY UPDATE")
        desk.queue.restore_unknown_tasks(["q"], ["strange"])

    assert desk.fetch_row("SELECT array_agg(lock_key ORDER BY lock_key) FROM dl_jobs WHERE NOT unknown_task") == [
        "a",
        "c",
    ]
    desk.queue.restore_unknown_tasks(["q"], ["strange"])
    assert len(desk.claim(3, tasks=["strange"])) == 3


# ── fence ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stale_run_can_do_nothing_to_the_next_one(desk):
    stale = desk.enqueue_and_claim()
    desk.lose_attempt(stale)
    (current,) = desk.claim()
    before = desk.job(current.id)
    assert current.id == stale.id

    for end in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.QUEUED):
        assert desk.settle(stale, end) == SettleResult("not ours", None)
    for why in ReleaseReason:
        assert desk.release(stale, why) == SettleResult("not ours", None)
    assert desk.renew(stale, {"zombie": True}) is None
    assert desk.queue.lock_keys([stale]) == [(True, False)]
    assert desk.queue.reap([(stale.id, stale.run_id, stale.lock_key)], pause_sec=0) == []

    assert desk.job(current.id) == before
    assert desk.settle(current).outcome == "applied"
    desk.check_invariants()


def test_the_same_attempt_number_is_not_the_same_run(desk):
    first = desk.enqueue_and_claim()
    desk.release(first)
    (second,) = desk.claim()
    assert (second.id, second.attempt) == (first.id, first.attempt)

    assert desk.settle(first).outcome == "already"  # as what it was: released
    assert desk.status(first.id) is Status.RUNNING


# ── renew ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_renewal_extends_the_lease_and_keeps_the_progress_when_nothing_is_told(desk):
    run = desk.enqueue_and_claim(lease_ttl_sec=50)
    desk.expire_lease(run.id)
    before = desk.fetch_row("SELECT clock_timestamp()")

    assert desk.renew(run, {"done": 1}) is False
    assert desk.renew(run) is False

    job = desk.job(run.id)
    assert job.progress == {"done": 1}
    assert job.heartbeat_at > before
    assert job.lease_expires_at > before + timedelta(seconds=50)
    assert desk.event_kinds(run.id) == ["queued", "picked"]


def test_all_runs_of_a_process_are_renewed_at_once_and_the_lost_ones_are_told(desk):
    runs = [desk.enqueue_and_claim(str(n)) for n in range(4)]
    desk.lose_attempt(runs[1])
    desk.queue.cancel(runs[2].id)

    said = desk.queue.renew([RenewalRequest(run.id, run.run_id, None) for run in runs], late_sec=60)

    told = {one.run_id: (one.renewed, one.owned, one.cancel_requested) for one in said}
    assert [told[run.run_id] for run in runs] == [
        (True, True, False),
        (False, False, False),
        (True, True, True),
        (True, True, False),
    ]


def test_a_row_that_somebody_holds_costs_the_others_nothing(desk):
    held, free = desk.enqueue_and_claim("a"), desk.enqueue_and_claim("b")
    with desk.open_transaction() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(held.id))
        said = desk.queue.renew(
            [RenewalRequest(held.id, held.run_id, None), RenewalRequest(free.id, free.run_id, None)], late_sec=60
        )

    told = {one.run_id: (one.renewed, one.owned) for one in said}
    assert told == {held.run_id: (False, True), free.run_id: (True, True)}


def test_a_late_heartbeat_is_journaled(desk):
    run = desk.enqueue_and_claim()
    desk.sql("UPDATE dl_jobs SET heartbeat_at = heartbeat_at - interval '50 s'")

    desk.queue.renew([RenewalRequest(run.id, run.run_id, None)], late_sec=30)

    event = desk.queue.events(run.id)[-1]
    assert event.kind == "heartbeat"
    assert 50 <= event.payload["late_sec"] < 300
    assert event.payload["run_id"] == str(run.run_id)


# ── settle ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_success_keeps_its_result_and_no_error_of_an_earlier_try(desk):
    run = desk.enqueue_and_claim()
    desk.settle(run, Status.QUEUED, error="first", traceback="there", progress={"done": 1})
    assert (desk.job(run.id).error, desk.job(run.id).traceback) == ("first", "there")
    (run,) = desk.claim()

    fate = desk.settle(run, result={"rows": 5}, error="must not be kept", traceback="nor this")

    job = desk.job(run.id)
    assert fate == SettleResult("applied", Status.SUCCEEDED)
    assert (job.error, job.traceback, job.result, job.progress) == (None, None, {"rows": 5}, {"done": 1})
    assert job.lease_expires_at is None
    assert job.finished_at >= job.started_at
    assert desk.event_kinds(run.id) == ["queued", "picked", "requeue", "picked", "done"]


def test_a_settlement_that_is_sent_again_is_told_that_it_was_applied(desk):
    for end in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.QUEUED):
        run = desk.enqueue_and_claim(str(end))
        assert desk.settle(run, end, retry_in_sec=60) == SettleResult("applied", end)
        before = desk.job(run.id), desk.event_kinds(run.id)

        assert desk.settle(run, end, retry_in_sec=60) == SettleResult("already", end)
        assert (desk.job(run.id), desk.event_kinds(run.id)) == before


def test_a_settlement_after_the_reaper_is_not_ours(desk):
    for tries, flag in ((1, False), (2, False), (2, True)):
        run = desk.enqueue_and_claim(f"{tries} {flag}", max_attempts=tries)
        if flag:
            desk.queue.cancel(run.id)
        desk.lose_attempt(run, pause_sec=60)

        assert desk.settle(run) == SettleResult("not ours", None)


def test_a_batch_is_settled_in_one_stroke_each_by_its_own_fate(desk):
    runs = [desk.enqueue_and_claim(str(n)) for n in range(4)]
    desk.lose_attempt(runs[0], pause_sec=60)
    desk.settle(runs[1])

    fates = desk.queue.settle([(run, Settlement(Status.SUCCEEDED, result=n)) for n, run in enumerate(runs)])

    assert [fate.outcome for fate in fates] == ["not ours", "already", "applied", "applied"]
    assert [desk.job(run.id).result for run in runs] == [None, None, 2, 3]
    desk.check_invariants()


def test_a_retry_waits_for_its_pause(desk):
    run = desk.enqueue_and_claim()
    desk.settle(run, Status.QUEUED, retry_in_sec=90.5)

    job = desk.job(run.id)
    event = desk.queue.events(run.id)[-1]

    assert timedelta(seconds=90.5) == job.available_at - event.ts
    assert (event.payload["reason"], event.payload["pause_sec"]) == ("error", 90.5)
    assert (job.status, job.attempt, job.finished_at) == (Status.QUEUED, 1, None)
    assert desk.claim() == []


def test_without_attempts_left_there_is_no_other_try_whatever_the_worker_says(desk):
    run = desk.enqueue_and_claim(max_attempts=1)

    assert desk.settle(run, Status.QUEUED) == SettleResult("applied", Status.FAILED)
    assert desk.job(run.id).finished_at is not None
    assert desk.event_kinds(run.id)[-1] == "failed"
    desk.check_invariants()


@pytest.mark.parametrize("pause", [float("inf"), float("nan"), 1e300, -5.0])
def test_a_pause_that_makes_no_sense_keeps_no_run_from_being_written_down(desk, pause):
    run = desk.enqueue_and_claim()

    assert desk.settle(run, Status.QUEUED, retry_in_sec=pause) == SettleResult("applied", Status.QUEUED)
    assert desk.job(run.id).available_at < datetime.now(UTC) + timedelta(days=367)


# ── what pipelines report ───────────────────────────────────────────────────────────────────────────────────────────


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def test_whatever_a_pipeline_reports_can_be_written_down(desk):
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
    run = desk.enqueue_and_claim(max_attempts=9)
    assert desk.renew(run, odd) is False
    assert desk.release(run, ReleaseReason.SHUTDOWN, odd).outcome == "applied"
    (run,) = desk.claim()
    assert desk.settle(run, Status.QUEUED, error="nul\0 \udfff", traceback="\0" * 9, progress=odd).outcome == "applied"
    (run,) = desk.claim()

    assert desk.settle(run, Status.FAILED, result=odd, progress=odd, error="\ud83d" * 20_000).outcome == "applied"

    job = desk.job(run.id)
    assert job.result["nul\N{REPLACEMENT CHARACTER}"] == "nul\N{REPLACEMENT CHARACTER}"
    assert (job.result["nan"], job.result["inf"], job.result["set"]) == ("nan", "-inf", [1])
    assert (job.result["money"], job.result["7"]) == ("1.10", "Ellipsis")
    assert job.result == job.progress
    assert len(job.error) <= 8000
    assert "characters left out" in job.error
    json.dumps(job.result, allow_nan=False)


def test_a_result_that_is_too_large_or_cannot_be_told_is_named_in_its_place(desk):
    queue = JobQueue(desk.session, limits=JobLimits(max_result_bytes=1000))
    large, silent = desk.enqueue_and_claim("a"), desk.enqueue_and_claim("b")

    queue.settle([(large, Settlement(Status.SUCCEEDED, result="x" * 2000))])
    queue.settle([(silent, Settlement(Status.SUCCEEDED, result=[Unspeakable()]))])

    assert desk.job(large.id).result == {"$dropped": "2002 bytes of JSON; at most 1000 are kept"}
    assert desk.job(silent.id).result == {"$dropped": "not JSON: RuntimeError"}


# ── release ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("why", ReleaseReason)
def test_a_release_gives_the_attempt_back(desk, why):
    run = desk.enqueue_and_claim(max_attempts=1)
    for _ in range(3):
        fate = desk.release(run, why, {"done": 2})
        job = desk.job(run.id)
        assert fate == SettleResult("applied", Status.QUEUED)
        assert (job.attempt, job.lease_expires_at, job.progress) == (0, None, {"done": 2})
        desk.repair_blocked()
        (run,) = desk.claim()
        assert run.attempt == 1
    assert desk.queue.events(run.id)[2].payload["reason"] == why
    desk.check_invariants()


def test_a_release_that_is_sent_again_is_told_that_it_was_applied(desk):
    run = desk.enqueue_and_claim()

    assert desk.release(run) == SettleResult("applied", Status.QUEUED)
    assert desk.release(run) == SettleResult("already", Status.QUEUED)
    assert desk.job(run.id).attempt == 0


# ── reap ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_runs_whose_lease_ran_out_are_found_and_taken(desk):
    alive, dead = desk.enqueue_and_claim("a"), desk.enqueue_and_claim("b")
    desk.expire_lease(dead.id)

    expired = desk.queue.expired_runs()

    assert expired.runs == [(dead.id, dead.run_id, "b")]
    assert expired.server_uptime_sec > 0
    both = [(run.id, run.run_id, run.lock_key) for run in (alive, dead)]
    assert [one.job_id for one in desk.queue.reap(both, pause_sec=0)] == [dead.id]
    assert desk.queue.expired_runs().runs == []
    assert desk.status(alive.id) is Status.RUNNING


@pytest.mark.parametrize("until", ["infinity", "2999-01-01"])
@pytest.mark.parametrize(
    ("heartbeat_at", "is_over"),
    [("now() - interval '61 s'", True), ("now() - interval '50 s'", False), ("NULL", True), ("'infinity'", True)],
)
def test_lease_far_in_the_future_ends_after_its_last_heartbeat(desk, until, heartbeat_at, is_over):
    run = desk.enqueue_and_claim(lease_ttl_sec=60)
    desk.sql(f"UPDATE dl_jobs SET lease_expires_at = %s, heartbeat_at = {heartbeat_at}", until)

    assert [job_id for job_id, _, _ in desk.queue.expired_runs().runs] == [run.id] * is_over
    both = [(run.id, run.run_id, run.lock_key)]
    assert [one.job_id for one in desk.queue.reap(both, pause_sec=0)] == [run.id] * is_over
    if is_over:
        assert "infinity" not in desk.job(run.id).error


def test_a_run_that_renewed_between_the_look_and_the_reaping_is_left(desk):
    run = desk.enqueue_and_claim()
    desk.expire_lease(run.id)
    found = desk.queue.expired_runs().runs
    desk.renew(run)

    assert desk.queue.reap(found, pause_sec=0) == []
    assert desk.settle(run).outcome == "applied"


def test_a_job_that_kills_its_worker_is_lost_when_its_attempts_are_used_up(desk):
    job_id = desk.enqueue(max_attempts=3)
    for attempt in (1, 2, 3):
        (run,) = desk.claim()
        assert run.attempt == attempt
        reaped = desk.lose_attempt(run)
        assert (reaped.job_id, reaped.queue, reaped.task, reaped.attempt) == (job_id, "q", "t", attempt)

    job = desk.job(job_id)
    assert job.status is reaped.status is Status.LOST
    assert "worker-1 vanished" in job.error
    assert job.finished_at is not None
    assert desk.claim() == []
    assert desk.event_kinds(job_id) == ["queued", *["picked", "requeue"] * 2, "picked", "lost"]
    desk.check_invariants()


def test_a_reaped_job_waits_longer_with_each_try(desk):
    run = desk.enqueue_and_claim()
    desk.lose_attempt(run, pause_sec=30)
    first = desk.job(run.id).available_at - desk.queue.events(run.id)[-1].ts
    desk.make_due(run.id)
    (run,) = desk.claim()
    desk.lose_attempt(run, pause_sec=30)
    second = desk.job(run.id).available_at - desk.queue.events(run.id)[-1].ts

    assert (first, second) == (timedelta(seconds=30), timedelta(seconds=60))


def test_a_dead_run_whose_cancel_was_asked_for_is_canceled(desk):
    run = desk.enqueue_and_claim()
    desk.queue.cancel(run.id)

    assert desk.lose_attempt(run).status is Status.CANCELED
    assert desk.job(run.id).finished_at is not None
    desk.check_invariants()


def test_two_reapers_take_a_dead_run_once(desk):
    run = desk.enqueue_and_claim()
    desk.expire_lease(run.id)
    found = desk.queue.expired_runs().runs

    assert len(desk.queue.reap(found, pause_sec=0)) == 1
    assert desk.new_queue().reap(found, pause_sec=0) == []
    assert desk.event_kinds(run.id).count("requeue") == 1


def test_a_leftover_run_without_an_owner_is_taken_too(desk):
    job_id = desk.insert(status="running", attempt=1)
    ((found, run, key),) = desk.queue.expired_runs().runs
    assert (found, run, key) == (job_id, None, "k")

    (reaped,) = desk.queue.reap([(found, run, key)], pause_sec=0)

    assert reaped.status is Status.QUEUED
    assert [(one.id, one.attempt) for one in desk.claim()] == [(job_id, 2)]


def test_job_of_unknown_task_that_keeps_waiting_gets_one_event(desk):
    job_id = desk.enqueue("k", task="strange")

    first = desk.queue.defer_unknown_tasks("q", ["t"])
    for _ in range(3):
        desk.make_due(job_id)
        desk.claim_once()
        desk.promote()
        again = desk.queue.defer_unknown_tasks("q", ["t"])

    assert (first, again) == ({"strange": 1}, {})
    assert desk.event_kinds(job_id) == ["queued", "requeue"]
    assert desk.job(job_id).error == "no live worker knows the task 'strange'"
    assert desk.wait_state(job_id) == "scheduled"
