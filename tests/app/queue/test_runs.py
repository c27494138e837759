"""What workers ask of the queue: claim, renew, settle, release; and what the reaper does for the dead."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import uuid4

import pytest

from app.queue.ids import draw_runs
from app.queue.job import Fate, Release, Settlement, Status, WorkerInfo
from app.queue.jobqueue import JobQueue, Limits

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
    runs = draw_runs(7)

    taken, outlook = desk.queue.claim("q", ["t"], runs, "me")

    assert [run.id for run in taken] == jobs[::-1]
    assert [run.run_id for run in taken] == runs[:5]
    assert (outlook.skipped, outlook.due_in) == (0, None)
    assert {desk.job(job).worker for job in jobs} == {"me"}


def test_a_claim_stamps_the_lease_by_the_databases_clock(desk):
    desk.enqueue(lease_ttl_sec=40)
    before = desk.one("SELECT clock_timestamp()")
    (run,) = desk.claim()
    after = desk.one("SELECT clock_timestamp()")

    job = desk.job(run.id)
    assert job.status is Status.RUNNING
    assert job.run_id == run.run_id
    assert before <= job.started_at <= after
    assert before <= job.heartbeat_at <= after
    assert before + timedelta(seconds=40) <= job.lease_expires_at <= after + timedelta(seconds=40)
    assert (run.attempt, run.lease_ttl_sec) == (1, 40)


def test_the_first_start_is_kept_through_later_tries(desk):
    run = desk.claimed()
    first = desk.job(run.id).started_at
    desk.settle(run, Status.QUEUED)
    (again,) = desk.claim()

    assert desk.job(run.id).started_at == first
    assert (again.id, again.attempt) == (run.id, 2)
    assert again.run_id != run.run_id


def test_the_answer_of_a_claim_that_was_lost_can_be_found_by_its_run_ids(desk):
    desk.enqueue("a")
    runs = draw_runs(2)
    (run,), _ = desk.queue.claim("q", ["t"], runs, "me")

    assert desk.queue.find_claimed(runs) == [run]
    assert desk.queue.find_claimed(draw_runs(1)) == []
    desk.settle(run)
    assert desk.queue.find_claimed(runs) == []


def test_a_claim_says_when_the_next_timed_job_falls_due(desk):
    desk.enqueue("b", queue="other", available_at=datetime.now(UTC) + timedelta(hours=2))
    desk.enqueue("a", available_at=datetime.now(UTC) + timedelta(hours=1))
    desk.insert("never", available_at="infinity")

    taken, outlook = desk.look()

    assert taken == []
    assert 3500 < outlook.due_in <= 3600


def test_a_job_that_is_held_for_ever_holds_nobody_else(desk):
    desk.insert("never", available_at="infinity")
    desk.enqueue("now")

    assert len(desk.claim()) == 1
    assert desk.look()[1].due_in is None


def test_what_python_cannot_decode_is_claimed_and_can_be_settled(desk):
    many = "7" * 5000
    deep = "[" * 3000 + "]" * 3000
    desk.insert("a", args=f'{{"exp": 1e5000, "many": {many}, "deep": {deep}}}', available_at="0044-03-15 BC")

    (run,) = desk.claim()

    assert json.loads(run.args_text).keys() == {"$dropped"}
    assert desk.job(run.id).available_at.year == 1
    assert desk.settle(run, Status.FAILED).answer == "applied"


def test_a_job_put_into_the_queue_with_its_attempts_used_up_never_counts_past_them(desk):
    desk.insert("a", attempt=5)

    (run,) = desk.claim()

    assert run.attempt == 5
    assert desk.lose(run).status is Status.LOST


def test_a_try_begins_with_a_clean_sheet_whatever_the_one_before_left(desk):
    run = desk.claimed()
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
    assert desk.queue.set_aside("q", ["t"]) == {"strange": 1}

    job = desk.job(strange)
    assert (job.status, job.attempt, desk.place(strange)) == (Status.QUEUED, 0, "timed")
    assert "no live worker knows the task 'strange'" in job.error
    assert job.available_at > job.created_at + timedelta(seconds=4)
    assert desk.queue.events(strange)[-1].payload["reason"] == "unknown_task"
    assert desk.queue.set_aside("q", ["t"]) == {}

    desk.queue.take_back(["other"], ["strange"])
    assert desk.claim(tasks=["strange"]) == []
    desk.queue.take_back(["q"], ["strange"])
    assert desk.job(strange).error is None
    (run,) = desk.claim(tasks=["strange"])
    assert (run.id, run.attempt) == (strange, 1)
    assert desk.one("SELECT bool_or(stray) FROM dl_jobs") is False
    desk.settle(known)
    desk.check()


def test_a_task_that_a_live_worker_of_the_queue_knows_is_left_for_it(desk):
    job_id = desk.enqueue(task="strange")
    worker = WorkerInfo(uuid4(), "w", "1", ("q",), ("strange",), 1)
    desk.queue.register_worker(worker, heartbeat_sec=10)

    assert desk.queue.set_aside("q", ["t"]) == {}
    assert desk.place(job_id) == "ready"

    desk.sql("UPDATE dl_workers SET seen_at = now() - interval '31 s'")
    assert desk.queue.set_aside("q", ["t"]) == {"strange": 1}


def test_two_workers_that_come_at_once_take_jobs_back_without_waiting_for_each_other(desk):
    for key in "abc":
        desk.enqueue(key, task="strange")
    desk.queue.set_aside("q", ["t"])

    with desk.held() as step:
        step("SELECT FROM dl_jobs WHERE lock_key = 'b' FOR NO KEY UPDATE")
        desk.queue.take_back(["q"], ["strange"])

    assert desk.one("SELECT array_agg(lock_key ORDER BY lock_key) FROM dl_jobs WHERE NOT stray") == ["a", "c"]
    desk.queue.take_back(["q"], ["strange"])
    assert len(desk.claim(3, tasks=["strange"])) == 3


# ── fence ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stale_run_can_do_nothing_to_the_next_one(desk):
    stale = desk.claimed()
    desk.lose(stale)
    (current,) = desk.claim()
    before = desk.job(current.id)
    assert current.id == stale.id

    for end in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.QUEUED):
        assert desk.settle(stale, end) == Fate("not ours", None)
    for why in Release:
        assert desk.release(stale, why) == Fate("not ours", None)
    assert desk.renew(stale, {"zombie": True}) is None
    assert desk.queue.guard([stale.run]) == [(True, False)]
    assert desk.queue.reap([(stale.id, stale.run_id, stale.lock_key)], pause_sec=0) == []

    assert desk.job(current.id) == before
    assert desk.settle(current).answer == "applied"
    desk.check()


def test_the_same_attempt_number_is_not_the_same_run(desk):
    first = desk.claimed()
    desk.release(first)
    (second,) = desk.claim()
    assert (second.id, second.attempt) == (first.id, first.attempt)

    assert desk.settle(first).answer == "already"  # as what it was: released
    assert desk.status(first.id) is Status.RUNNING


# ── renew ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_renewal_extends_the_lease_and_keeps_the_progress_when_nothing_is_told(desk):
    run = desk.claimed(lease_ttl_sec=50)
    desk.expire(run.id)
    before = desk.one("SELECT clock_timestamp()")

    assert desk.renew(run, {"done": 1}) is False
    assert desk.renew(run) is False

    job = desk.job(run.id)
    assert job.progress == {"done": 1}
    assert job.heartbeat_at > before
    assert job.lease_expires_at > before + timedelta(seconds=50)
    assert desk.kinds(run.id) == ["queued", "picked"]


def test_all_runs_of_a_process_are_renewed_at_once_and_the_lost_ones_are_told(desk):
    runs = [desk.claimed(str(n)) for n in range(4)]
    desk.lose(runs[1])
    desk.queue.cancel(runs[2].id)

    said = desk.queue.renew([(run.id, run.run_id, None) for run in runs], late_sec=60)

    told = {one.run_id: (one.renewed, one.owned, one.cancel_requested) for one in said}
    assert [told[run.run_id] for run in runs] == [
        (True, True, False),
        (False, False, False),
        (True, True, True),
        (True, True, False),
    ]


def test_a_row_that_somebody_holds_costs_the_others_nothing(desk):
    held, free = desk.claimed("a"), desk.claimed("b")
    with desk.held() as step:
        step("SELECT FROM dl_jobs WHERE job_id = %s FOR UPDATE", str(held.id))
        said = desk.queue.renew([(held.id, held.run_id, None), (free.id, free.run_id, None)], late_sec=60)

    told = {one.run_id: (one.renewed, one.owned) for one in said}
    assert told == {held.run_id: (False, True), free.run_id: (True, True)}


def test_a_late_heartbeat_is_journaled(desk):
    run = desk.claimed()
    desk.sql("UPDATE dl_jobs SET heartbeat_at = heartbeat_at - interval '50 s'")

    desk.queue.renew([(run.id, run.run_id, None)], late_sec=30)

    event = desk.queue.events(run.id)[-1]
    assert event.kind == "heartbeat"
    assert 50 <= event.payload["late_sec"] < 300
    assert event.payload["run_id"] == str(run.run_id)


# ── settle ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_success_keeps_its_result_and_no_error_of_an_earlier_try(desk):
    run = desk.claimed()
    desk.settle(run, Status.QUEUED, error="first", traceback="there", progress={"done": 1})
    assert (desk.job(run.id).error, desk.job(run.id).traceback) == ("first", "there")
    (run,) = desk.claim()

    fate = desk.settle(run, result={"rows": 5}, error="must not be kept", traceback="nor this")

    job = desk.job(run.id)
    assert fate == Fate("applied", Status.SUCCEEDED)
    assert (job.error, job.traceback, job.result, job.progress) == (None, None, {"rows": 5}, {"done": 1})
    assert job.lease_expires_at is None
    assert job.finished_at >= job.started_at
    assert desk.kinds(run.id) == ["queued", "picked", "requeue", "picked", "done"]


def test_a_settlement_that_is_sent_again_is_told_that_it_was_applied(desk):
    for end in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.QUEUED):
        run = desk.claimed(str(end))
        assert desk.settle(run, end, retry_in=60) == Fate("applied", end)
        before = desk.job(run.id), desk.kinds(run.id)

        assert desk.settle(run, end, retry_in=60) == Fate("already", end)
        assert (desk.job(run.id), desk.kinds(run.id)) == before


def test_a_settlement_after_the_reaper_is_not_ours(desk):
    for tries, flag in ((1, False), (2, False), (2, True)):
        run = desk.claimed(f"{tries} {flag}", max_attempts=tries)
        if flag:
            desk.queue.cancel(run.id)
        desk.lose(run, pause_sec=60)

        assert desk.settle(run) == Fate("not ours", None)


def test_a_batch_is_settled_in_one_stroke_each_by_its_own_fate(desk):
    runs = [desk.claimed(str(n)) for n in range(4)]
    desk.lose(runs[0], pause_sec=60)
    desk.settle(runs[1])

    fates = desk.queue.settle([(run, Settlement(Status.SUCCEEDED, result=n)) for n, run in enumerate(runs)])

    assert [fate.answer for fate in fates] == ["not ours", "already", "applied", "applied"]
    assert [desk.job(run.id).result for run in runs] == [None, None, 2, 3]
    desk.check()


def test_a_retry_waits_for_its_pause(desk):
    run = desk.claimed()
    desk.settle(run, Status.QUEUED, retry_in=90.5)

    job = desk.job(run.id)
    event = desk.queue.events(run.id)[-1]

    assert timedelta(seconds=90.5) == job.available_at - event.at
    assert (event.payload["reason"], event.payload["pause_sec"]) == ("error", 90.5)
    assert (job.status, job.attempt, job.finished_at) == (Status.QUEUED, 1, None)
    assert desk.claim() == []


def test_without_attempts_left_there_is_no_other_try_whatever_the_worker_says(desk):
    run = desk.claimed(max_attempts=1)

    assert desk.settle(run, Status.QUEUED) == Fate("applied", Status.FAILED)
    assert desk.job(run.id).finished_at is not None
    assert desk.kinds(run.id)[-1] == "failed"
    desk.check()


@pytest.mark.parametrize("pause", [float("inf"), float("nan"), 1e300, -5.0])
def test_a_pause_that_makes_no_sense_keeps_no_run_from_being_written_down(desk, pause):
    run = desk.claimed()

    assert desk.settle(run, Status.QUEUED, retry_in=pause) == Fate("applied", Status.QUEUED)
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
    run = desk.claimed(max_attempts=9)
    assert desk.renew(run, odd) is False
    assert desk.release(run, Release.SHUTDOWN, odd).answer == "applied"
    (run,) = desk.claim()
    assert desk.settle(run, Status.QUEUED, error="nul\0 \udfff", traceback="\0" * 9, progress=odd).answer == "applied"
    (run,) = desk.claim()

    assert desk.settle(run, Status.FAILED, result=odd, progress=odd, error="\ud83d" * 20_000).answer == "applied"

    job = desk.job(run.id)
    assert job.result["nul\N{REPLACEMENT CHARACTER}"] == "nul\N{REPLACEMENT CHARACTER}"
    assert (job.result["nan"], job.result["inf"], job.result["set"]) == ("nan", "-inf", [1])
    assert (job.result["money"], job.result["7"]) == ("1.10", "Ellipsis")
    assert job.result == job.progress
    assert len(job.error) <= 8000
    assert "characters left out" in job.error
    json.dumps(job.result, allow_nan=False)


def test_a_result_that_is_too_large_or_cannot_be_told_is_named_in_its_place(desk):
    queue = JobQueue(desk.session, limits=Limits(largest_result=1000))
    large, silent = desk.claimed("a"), desk.claimed("b")

    queue.settle([(large, Settlement(Status.SUCCEEDED, result="x" * 2000))])
    queue.settle([(silent, Settlement(Status.SUCCEEDED, result=[Unspeakable()]))])

    assert desk.job(large.id).result == {"$dropped": "2002 bytes of JSON; at most 1000 are kept"}
    assert desk.job(silent.id).result == {"$dropped": "not JSON: RuntimeError"}


# ── release ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("why", Release)
def test_a_release_gives_the_attempt_back(desk, why):
    run = desk.claimed(max_attempts=1)
    for _ in range(3):
        fate = desk.release(run, why, {"done": 2})
        job = desk.job(run.id)
        assert fate == Fate("applied", Status.QUEUED)
        assert (job.attempt, job.lease_expires_at, job.progress) == (0, None, {"done": 2})
        desk.sweep()
        (run,) = desk.claim()
        assert run.attempt == 1
    assert desk.queue.events(run.id)[2].payload["reason"] == why
    desk.check()


def test_a_release_that_is_sent_again_is_told_that_it_was_applied(desk):
    run = desk.claimed()

    assert desk.release(run) == Fate("applied", Status.QUEUED)
    assert desk.release(run) == Fate("already", Status.QUEUED)
    assert desk.job(run.id).attempt == 0


# ── reap ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_runs_whose_lease_ran_out_are_found_and_taken(desk):
    alive, dead = desk.claimed("a"), desk.claimed("b")
    desk.expire(dead.id)

    expired = desk.queue.expired()

    assert expired.runs == [(dead.id, dead.run_id, "b")]
    assert expired.up_sec > 0
    both = [(run.id, run.run_id, run.lock_key) for run in (alive, dead)]
    assert [one.job_id for one in desk.queue.reap(both, pause_sec=0)] == [dead.id]
    assert desk.queue.expired().runs == []
    assert desk.status(alive.id) is Status.RUNNING


@pytest.mark.parametrize("until", ["infinity", "2999-01-01"])
@pytest.mark.parametrize(
    ("heartbeat_at", "is_over"),
    [("now() - interval '61 s'", True), ("now() - interval '50 s'", False), ("NULL", True), ("'infinity'", True)],
)
def test_lease_far_in_the_future_ends_after_its_last_heartbeat(desk, until, heartbeat_at, is_over):
    run = desk.claimed(lease_ttl_sec=60)
    desk.sql(f"UPDATE dl_jobs SET lease_expires_at = %s, heartbeat_at = {heartbeat_at}", until)

    assert [job_id for job_id, _, _ in desk.queue.expired().runs] == [run.id] * is_over
    both = [(run.id, run.run_id, run.lock_key)]
    assert [one.job_id for one in desk.queue.reap(both, pause_sec=0)] == [run.id] * is_over
    if is_over:
        assert "infinity" not in desk.job(run.id).error


def test_a_run_that_renewed_between_the_look_and_the_reaping_is_left(desk):
    run = desk.claimed()
    desk.expire(run.id)
    found = desk.queue.expired().runs
    desk.renew(run)

    assert desk.queue.reap(found, pause_sec=0) == []
    assert desk.settle(run).answer == "applied"


def test_a_job_that_kills_its_worker_is_lost_when_its_attempts_are_used_up(desk):
    job_id = desk.enqueue(max_attempts=3)
    for attempt in (1, 2, 3):
        (run,) = desk.claim()
        assert run.attempt == attempt
        reaped = desk.lose(run)
        assert (reaped.job_id, reaped.queue, reaped.task, reaped.attempt) == (job_id, "q", "t", attempt)

    job = desk.job(job_id)
    assert job.status is reaped.status is Status.LOST
    assert "worker-1 vanished" in job.error
    assert job.finished_at is not None
    assert desk.claim() == []
    assert desk.kinds(job_id) == ["queued", *["picked", "requeue"] * 2, "picked", "lost"]
    desk.check()


def test_a_reaped_job_waits_longer_with_each_try(desk):
    run = desk.claimed()
    desk.lose(run, pause_sec=30)
    first = desk.job(run.id).available_at - desk.queue.events(run.id)[-1].at
    desk.make_due(run.id)
    (run,) = desk.claim()
    desk.lose(run, pause_sec=30)
    second = desk.job(run.id).available_at - desk.queue.events(run.id)[-1].at

    assert (first, second) == (timedelta(seconds=30), timedelta(seconds=60))


def test_a_dead_run_whose_cancel_was_asked_for_is_canceled(desk):
    run = desk.claimed()
    desk.queue.cancel(run.id)

    assert desk.lose(run).status is Status.CANCELED
    assert desk.job(run.id).finished_at is not None
    desk.check()


def test_two_reapers_take_a_dead_run_once(desk):
    run = desk.claimed()
    desk.expire(run.id)
    found = desk.queue.expired().runs

    assert len(desk.queue.reap(found, pause_sec=0)) == 1
    assert desk.another().reap(found, pause_sec=0) == []
    assert desk.kinds(run.id).count("requeue") == 1


def test_a_leftover_run_without_an_owner_is_taken_too(desk):
    job_id = desk.insert(status="running", attempt=1)
    ((found, run, key),) = desk.queue.expired().runs
    assert (found, run, key) == (job_id, None, "k")

    (reaped,) = desk.queue.reap([(found, run, key)], pause_sec=0)

    assert reaped.status is Status.QUEUED
    assert [(one.id, one.attempt) for one in desk.claim()] == [(job_id, 2)]


def test_job_of_unknown_task_that_keeps_waiting_gets_one_event(desk):
    job_id = desk.enqueue("k", task="strange")

    first = desk.queue.set_aside("q", ["t"])
    for _ in range(3):
        desk.make_due(job_id)
        desk.look()
        desk.queue.promote()
        again = desk.queue.set_aside("q", ["t"])

    assert (first, again) == ({"strange": 1}, {})
    assert desk.kinds(job_id) == ["queued", "requeue"]
    assert desk.job(job_id).error == "no live worker knows the task 'strange'"
    assert desk.place(job_id) == "timed"
