"""Debounce, throttle and expiry: when a request makes no job of its own, and when a job is too late."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dataloader.app.errors import IdempotencyConflict, InvalidJob
from dataloader.app.queue.batch import Outcome, enqueue_batch
from dataloader.app.queue.job import Enqueued, NewJob, Status
from dataloader.app.queue.jobs import JobQueue

FINE: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k"}


def debounced(key="d", wait_sec=60, **rule):
    return {"key": key, "wait_sec": wait_sec, **rule}


def request(queue_db, args=None, **rules):
    return queue_db.queue.enqueue(NewJob(**FINE, args=args or {}, **rules))


def due_in_sec(queue_db, job_id):
    return float(
        queue_db.fetch_row(
            "SELECT extract(epoch FROM available_at - now()) FROM dl_jobs WHERE job_id = %s", str(job_id)
        )
    )


def test_a_further_request_moves_the_job_and_has_the_last_args(queue_db):
    first = request(queue_db, {"n": 1}, debounce=debounced(wait_sec=60))
    queue_db.sql("UPDATE dl_jobs SET available_at = now() + interval '10 s'")

    second = request(queue_db, {"n": 2}, debounce=debounced(wait_sec=60))

    assert (second.job_id, second.created, second.debounced) == (first.job_id, False, True)
    assert (first.created, first.debounced) == (True, False)
    job = queue_db.job(first.job_id)
    assert (job.args, job.status) == ({"n": 2}, Status.QUEUED)
    assert 50 < due_in_sec(queue_db, job.id) <= 60
    assert [event.kind for event in queue_db.queue.events(job.id)] == ["queued", "debounced"]


def test_the_first_args_are_kept_and_a_list_has_all(queue_db):
    kept = request(queue_db, {"n": 1}, debounce=debounced("first", args="first"))
    request(queue_db, {"n": 2}, debounce=debounced("first", args="first"))
    listed = request(queue_db, {"n": 1}, debounce=debounced("list", args="list"))
    request(queue_db, {"n": 2}, debounce=debounced("list", args="list"))

    assert queue_db.job(kept.job_id).args == {"n": 1}
    assert queue_db.job(listed.job_id).args == {"items": [{"n": 1}, {"n": 2}]}


def test_a_full_list_starts_at_once_and_the_next_request_makes_another_job(queue_db):
    new = NewJob(**FINE, args={"n": 1}, debounce=debounced(args="list"))
    made = enqueue_batch(queue_db.session, [new] * 1001)

    ids = {outcome.job_id for outcome in made if outcome.job_id}
    assert [len(queue_db.job(job_id).args["items"]) for job_id in sorted(ids)] == [1000, 1]
    assert due_in_sec(queue_db, min(ids)) <= 0 < due_in_sec(queue_db, max(ids))
    assert [made[n].outcome for n in (0, 1, 999, 1000)] == [
        Outcome.CREATED,
        Outcome.DEBOUNCED,
        Outcome.DEBOUNCED,
        Outcome.CREATED,
    ]


def test_the_first_request_bounds_the_wait(queue_db):
    job = request(queue_db, debounce=debounced(wait_sec=60, max_wait_sec=90))
    queue_db.sql("UPDATE dl_jobs SET created_at = now() - interval '80 s'")
    request(queue_db, debounce=debounced(wait_sec=60, max_wait_sec=90))
    assert 0 < due_in_sec(queue_db, job.job_id) <= 10

    queue_db.sql("UPDATE dl_jobs SET created_at = now() - interval '585 s'")
    request(queue_db, debounce=debounced(wait_sec=60))  # ten times wait_sec by default
    assert 0 < due_in_sec(queue_db, job.job_id) <= 15


def test_a_started_job_leaves_its_key_also_after_a_retry(queue_db):
    first = request(queue_db, debounce=debounced(wait_sec=0.001))
    queue_db.sql("SELECT pg_sleep(0.01)")
    (run,) = queue_db.claim()
    assert run.id == first.job_id

    second = request(queue_db, debounce=debounced())
    queue_db.settle(run, Status.FAILED, error="x")
    queue_db.queue.retry(first.job_id)

    assert second.created
    assert queue_db.job(first.job_id).debounce_key is None
    assert request(queue_db, debounce=debounced()).job_id == second.job_id


def test_a_canceled_job_leaves_its_key(queue_db):
    first = request(queue_db, debounce=debounced())
    queue_db.queue.cancel(first.job_id)
    assert request(queue_db, debounce=debounced()).created
    queue_db.queue.retry(first.job_id)


def test_the_key_of_another_task_is_refused(queue_db):
    request(queue_db, debounce=debounced())
    with pytest.raises(IdempotencyConflict, match="'d' already belongs to job"):
        queue_db.queue.enqueue(NewJob(queue="q", task="other", lock_key="k", debounce=debounced()))


def test_a_conflict_names_each_key_that_it_may_be_of(queue_db):
    queue_db.queue.enqueue(NewJob(queue="q", task="t", lock_key="k", idempotency_key="a", live_key="l"))
    with pytest.raises(IdempotencyConflict, match="the key 'b' or 'l' already belongs to job"):
        queue_db.queue.enqueue(NewJob(queue="q", task="u", lock_key="k", idempotency_key="b", live_key="l"))


def test_requests_at_the_same_time_make_one_job(queue_db):
    own_sessions = 8
    outcomes: list[Enqueued] = []
    barrier = threading.Barrier(own_sessions)

    def ask(session):
        barrier.wait()
        outcomes.extend(
            JobQueue(session).enqueue(NewJob(**FINE, args={"n": n}, debounce=debounced(args="list"))) for n in range(10)
        )

    threads = [threading.Thread(target=ask, args=(queue_db.new_session(),)) for _ in range(own_sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {outcome.job_id for outcome in outcomes} == {outcomes[0].job_id}
    assert sum(outcome.created for outcome in outcomes) == 1
    assert len(queue_db.job(outcomes[0].job_id).args["items"]) == 10 * own_sessions


def test_one_job_in_each_window(queue_db):
    throttle = {"key": "hourly", "per_sec": 2_000_000}
    first = request(queue_db, throttle=throttle)
    second = request(queue_db, throttle=throttle)
    other = request(queue_db, throttle=throttle | {"key": "other"})
    assert (second.job_id, second.created, second.debounced) == (first.job_id, False, False)
    assert other.created

    queue_db.queue.cancel(first.job_id)
    assert request(queue_db, throttle=throttle).status is Status.CANCELED
    queue_db.sql("UPDATE dl_jobs SET throttle_key = 'hourly@1' WHERE job_id = %s", str(first.job_id))
    assert request(queue_db, throttle=throttle).created


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"debounce": {"key": "d"}}, "debounce: must be an object such as"),
        ({"debounce": {"key": "d", "wait_sec": 0}}, "must have a wait_sec of 0.001 to 2678400"),
        ({"debounce": debounced(max_wait_sec=1)}, "must have a max_wait_sec of wait_sec to"),
        ({"debounce": debounced(args="all")}, 'must have "last", "first" or "list" as args'),
        ({"debounce": debounced(" ")}, "has a key that is empty or has over 500 bytes"),
        ({"debounce": debounced("ж" * 251)}, "has a key that is empty or has over 500 bytes"),
        ({"debounce": debounced(), "live_key": "l"}, "cannot be combined with idempotency_key, live_key"),
        ({"throttle": {"key": "t", "per_sec": 0}}, "throttle: must have a per_sec of 1 to 2678400"),
        ({"throttle": {"key": "t" * 10_000, "per_sec": 1}}, "throttle: has a key that is empty or has over 500"),
        ({"throttle": {"key": "t", "per_sec": 1}, "live_key": "l"}, "cannot be combined with live_key or debounce"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(queue_db, rules, message):
    with pytest.raises(InvalidJob) as refusal:
        request(queue_db, **rules)
    assert message in str(refusal.value)
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 0


def test_a_job_that_has_not_started_in_time_is_canceled(queue_db):
    late = request(queue_db, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    other = queue_db.queue.enqueue(NewJob(queue="q", task="t", lock_key="other", start_within_sec=60))

    assert [run.id for run in queue_db.claim(5)] == [other.job_id]
    assert queue_db.queue.expire() == 1
    assert queue_db.queue.expire() == 0

    job = queue_db.job(late.job_id)
    assert (job.status, job.error.startswith("it had not started by ")) == (Status.CANCELED, True)
    assert queue_db.queue.events(job.id)[-1].payload["reason"] == "expired"
    assert queue_db.job(other.job_id).expires_at is None  # it has started in time


def test_expiry_unblocks_the_next_job_of_the_key_and_decides_children(queue_db):
    late = request(queue_db, expires_at=datetime.now(UTC) + timedelta(seconds=0.2))
    next_one = request(queue_db)
    queue_db.sql("UPDATE dl_jobs SET wait_state = 'blocked' WHERE job_id = %s", str(next_one.job_id))
    child = queue_db.queue.enqueue(
        NewJob(queue="q", task="t", lock_key="c", after=[{"job_id": str(late.job_id), "on": "ended"}])
    )
    queue_db.sql("SELECT pg_sleep(0.25)")

    assert queue_db.queue.expire() == 1

    assert queue_db.wait_state(next_one.job_id) == "ready"
    assert queue_db.wait_state(child.job_id) == "ready"


def test_a_retry_of_an_expired_job_may_start(queue_db):
    late = request(queue_db, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    queue_db.queue.expire()
    queue_db.queue.retry(late.job_id)
    assert queue_db.queue.expire() == 0
    assert [run.id for run in queue_db.claim()] == [late.job_id]


def test_time_to_start_counts_from_the_time_of_the_job(queue_db):
    at = datetime.now(UTC) + timedelta(hours=1)
    job = queue_db.queue.enqueue(NewJob(**FINE, available_at=at, start_within_sec=60))
    batch = enqueue_batch(queue_db.session, [NewJob(**FINE, available_at=at, start_within_sec=60)])
    for job_id in (job.job_id, batch[0].job_id):
        assert queue_db.job(job_id).expires_at == at + timedelta(seconds=60)


def test_args_named_items_are_as_good_as_others(queue_db):
    job = request(queue_db, {"items": 1}, debounce=debounced())
    request(queue_db, {"items": "two"}, debounce=debounced())
    assert queue_db.job(job.job_id).args == {"items": "two"}

    request(queue_db, {"n": 3}, debounce=debounced(args="list"))
    assert queue_db.job(job.job_id).args == {"items": [{"n": 3}]}


def test_a_list_of_large_args_is_full_before_a_worker_cannot_read_it(queue_db):
    new = NewJob(**FINE, args={"text": "x" * 3_000_000}, debounce=debounced(args="list"))
    outcomes = [enqueue_batch(queue_db.session, [new])[0].outcome for _ in range(5)]

    assert outcomes == [Outcome.CREATED, *[Outcome.DEBOUNCED] * 3, Outcome.CREATED]
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE available_at <= clock_timestamp()") == 1


def test_time_to_start_counts_from_the_last_debounced_request(queue_db):
    job = request(queue_db, debounce=debounced(wait_sec=60), start_within_sec=30)
    queue_db.sql("UPDATE dl_jobs SET available_at = now() + interval '1 s', expires_at = now() + interval '31 s'")
    request(queue_db, debounce=debounced(wait_sec=60), start_within_sec=30)

    found = queue_db.job(job.job_id)
    assert 29 < (found.expires_at - found.available_at).total_seconds() < 31


def test_a_debounced_request_of_a_refused_whole_is_skipped(queue_db):
    job = request(queue_db, {"n": 1}, debounce=debounced())
    again = NewJob(**FINE, args={"n": 2}, debounce=debounced())
    outcomes = enqueue_batch(queue_db.session, [again, NewJob(**{**FINE, "task": ""})], all_or_none=True)

    assert [outcome.outcome for outcome in outcomes] == [Outcome.SKIPPED, Outcome.INVALID]
    assert queue_db.job(job.job_id).args == {"n": 1}


def test_a_job_that_has_started_does_not_expire_when_it_is_retried(queue_db):
    run = queue_db.enqueue_and_claim("k")
    queue_db.sql("UPDATE dl_jobs SET expires_at = now() + interval '1 s', debounce_key = 'd'")

    queue_db.settle(run, Status.QUEUED)

    assert queue_db.sql("SELECT status::text, expires_at, debounce_key FROM dl_jobs") == [("queued", None, None)]
