"""Attempts that are given back: by their worker, or by the reaper for the dead."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dataloader.app.queue.job import ReleaseReason, SettleResult, Status

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
