"""What callers ask of the queue: enqueue, look, cancel, retry."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from dataloader._job_fields import JOB_FIELDS
from dataloader.app.errors import IdempotencyConflict, InvalidJob, JobNotFound, NotRetryable, SchemaError
from dataloader.app.queue import jobs
from dataloader.app.queue.job import NewJob, ReleaseReason, Status
from dataloader.app.queue.jobs import JobQueue
from tests.support.queue_fixture import QueueFixture

REQUEST: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k", "args": {"a": [1, "б", None]}}


# ── enqueue ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_is_kept_as_it_was_asked_for(queue_db):
    tomorrow = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    asked = NewJob(
        queue="q",
        task="t",
        lock_key="k",
        args={"a": {"b": [1, 2.5, "ж", True, None]}},
        idempotency_key="once",
        partition_key="p",
        priority=7,
        available_at=tomorrow,
        max_attempts=3,
        lease_ttl_sec=30,
        producer="me",
        consumer_group="us",
    )
    done = queue_db.queue.enqueue(asked)

    job = queue_db.job(done.job_id)
    assert done.created
    assert done.status is Status.QUEUED
    for name in (name for name, field in JOB_FIELDS.items() if field.has_column):
        assert getattr(job, name) == getattr(asked, name), name
    assert (job.attempt, job.started_at, job.finished_at, job.run_id) == (0, None, None, None)
    assert queue_db.event_kinds(job.id) == ["queued"]
    assert queue_db.queue.events(job.id)[0].payload["producer"] == "me"
    assert queue_db.wait_state(job.id) == "scheduled"


def test_without_a_time_a_job_is_ready_at_once(queue_db):
    assert queue_db.wait_state(queue_db.enqueue()) == "ready"


def test_same_request_finds_its_job_in_any_status(queue_db):
    first = queue_db.queue.enqueue(NewJob(**REQUEST, idempotency_key="once"))
    (run,) = queue_db.claim()
    queue_db.settle(run)

    again = queue_db.queue.enqueue(NewJob(**REQUEST, idempotency_key="once", priority=3))

    assert (again.job_id, again.status, again.created) == (first.job_id, Status.SUCCEEDED, False)
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 1


@pytest.mark.parametrize("other", [{"queue": "q2"}, {"task": "t2"}, {"args": {"a": 2}}])
def test_other_request_with_same_key_is_conflict(queue_db, other):
    first = queue_db.queue.enqueue(NewJob(**REQUEST, idempotency_key="once"))

    with pytest.raises(IdempotencyConflict, match=str(first.job_id)) as caught:
        queue_db.queue.enqueue(NewJob(**REQUEST | other, idempotency_key="once"))

    assert caught.value.keys == ("once",)


def test_key_of_plain_insert_is_compared_by_its_row(queue_db):
    job_id = queue_db.insert(idempotency_key="once", args=json.dumps(REQUEST["args"]))

    assert queue_db.queue.enqueue(NewJob(**REQUEST, idempotency_key="once")).job_id == job_id
    with pytest.raises(IdempotencyConflict):
        queue_db.queue.enqueue(NewJob(**REQUEST | {"task": "t2"}, idempotency_key="once"))


def test_jobs_without_a_key_are_never_the_same(queue_db):
    assert queue_db.queue.enqueue(NewJob(**REQUEST)).job_id != queue_db.queue.enqueue(NewJob(**REQUEST)).job_id


def test_one_key_from_many_threads_at_once_makes_one_job(queue_db):
    queues = [queue_db.new_queue() for _ in range(8)]
    together = threading.Barrier(len(queues))

    def ask(queue: JobQueue) -> list[tuple[UUID, bool]]:
        answers = []
        for n in range(20):
            together.wait(30)
            done = queue.enqueue(NewJob(**REQUEST, idempotency_key=f"key {n}"))
            answers.append((done.job_id, done.created))
        return answers

    with ThreadPoolExecutor(len(queues)) as threads:
        answers = list(threads.map(ask, queues))

    for of_one_key in zip(*answers, strict=True):
        assert len({job_id for job_id, _ in of_one_key}) == 1
        assert [created for _, created in of_one_key].count(True) == 1
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 20


@pytest.mark.parametrize(
    "bad",
    [
        {"queue": "nul\0"},
        {"task": "half \ud800"},
        {"lock_key": "\udfff"},
        {"idempotency_key": "\0"},
        {"producer": "\0"},
        {"args": {"a": "nul\0"}},
        {"args": {"nul\0": 1}},
        {"args": {"a": ["\ud83d"]}},
        {"args": {"a": float("nan")}},
        {"args": {"a": float("-inf")}},
        {"args": {"a": 10**4400}},
        {"args": {"a": object()}},
        {"args": {1: "a"}},
        {"args": {"a": json.loads("[" * 900 + "]" * 900)}},
        {"priority": 2**31},
        {"priority": -1},
        {"max_attempts": 2**40},
        {"lease_ttl_sec": 0},
    ],
)
def test_what_postgresql_cannot_keep_is_refused(queue_db, bad):
    with pytest.raises(InvalidJob):
        queue_db.queue.enqueue(NewJob(**REQUEST | bad))

    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 0
    queue_db.enqueue()  # and the connection is none the worse


def test_a_thousand_levels_are_refused_as_too_deep(queue_db):
    deep: list = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(InvalidJob, match="deeper"):
        queue_db.queue.enqueue(NewJob(**REQUEST | {"args": {"a": deep}}))

    while deep:  # taken apart by hand: Python itself frees it level in level
        deep = deep[0]


# ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_job_is_none(queue_db):
    assert queue_db.queue.get(uuid4()) is None
    assert queue_db.queue.events(uuid4()) == []


def test_a_round_trip_takes_a_while(queue_db):
    assert 0 < queue_db.queue.ping() < 30


def test_values_beyond_python_limits_are_shown(queue_db):
    many = "7" * 5000
    job_id = queue_db.insert(args='{"exp": 1e5000, "many": ' + many + ', "part": ' + "1" * 400 + '.5, "plain": 2.5}')
    large = queue_db.insert("k1", args='{"exp": 1e300, "part": ' + "1" * 300 + '.5, "plain": 2.5}')
    deep = queue_db.insert("k2", args='{"a": ' + "[" * 3000 + "]" * 3000 + "}")

    args = queue_db.job(large).args

    assert queue_db.job(job_id).args == {"$dropped": "a number in it has more than 310 digits"}
    assert args["plain"] == 2.5
    json.dumps(args, allow_nan=False)
    assert queue_db.job(deep).args == {"$dropped": "nested too deep to be shown"}


def test_times_beyond_python_range_are_clamped(queue_db):
    long_ago = queue_db.insert("a", available_at="0044-03-15 BC", created_at="-infinity")
    never = queue_db.insert("b", available_at="infinity", created_at="20000-01-01")

    past, future = queue_db.job(long_ago), queue_db.job(never)

    assert (past.available_at.year, past.created_at.year) == (1, 1)
    assert (future.available_at.year, future.created_at.year) == (9999, 9999)


def test_a_database_without_tables_says_what_to_do(empty_dsn):
    queue_db = QueueFixture(empty_dsn)

    with pytest.raises(SchemaError, match="dataloader migrate"):
        queue_db.enqueue()

    queue_db.close()


# ── cancel ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_waiting_job_is_canceled_at_once_wherever_it_waits(queue_db):
    running = queue_db.enqueue_and_claim("busy")
    parked = queue_db.enqueue("busy")
    queue_db.claim()
    ready = queue_db.enqueue("free")
    timed = queue_db.enqueue("later", available_at=datetime.now(UTC) + timedelta(hours=1))
    assert [queue_db.wait_state(job) for job in (parked, ready, timed)] == ["blocked", "ready", "scheduled"]

    for job_id in (parked, ready, timed):
        job = queue_db.queue.cancel(job_id)
        assert job.status is Status.CANCELED
        assert job.finished_at is not None
        assert queue_db.event_kinds(job_id) == ["queued", "canceled"]

    assert queue_db.status(running.id) is Status.RUNNING
    assert queue_db.claim(3) == []
    queue_db.check_invariants()


@pytest.mark.parametrize("end", [Status.SUCCEEDED, Status.FAILED, Status.CANCELED])
def test_a_finished_job_is_left_as_it_is(queue_db, end):
    run = queue_db.enqueue_and_claim()
    queue_db.settle(run, end)
    before = queue_db.job(run.id)

    assert queue_db.queue.cancel(run.id) == before


def test_running_job_gets_cancel_by_renewal_and_notification(queue_db):
    listener = queue_db.listener("dl_control")
    run = queue_db.enqueue_and_claim()
    assert queue_db.renew(run) is False

    queue_db.queue.cancel(run.id)

    assert queue_db.renew(run) is True
    assert listener.payloads() == [f"cancel {run.run_id}"]


def test_many_jobs_are_canceled_in_parts(queue_db, monkeypatch):
    monkeypatch.setattr(jobs, "_CANCEL_BATCH", 2)
    done, run = queue_db.enqueue_and_claim(key="done"), queue_db.enqueue_and_claim(key="run")
    queue_db.settle(done)
    queued = [queue_db.enqueue(key=f"k{n}") for n in range(3)]

    assert queue_db.queue.cancel_all([*queued, run.id, done.id, uuid4()]) == 4
    assert queue_db.queue.cancel_all([*queued, run.id]) == queue_db.queue.cancel_all([]) == 0

    assert {queue_db.status(job_id) for job_id in queued} == {Status.CANCELED}
    assert queue_db.job(run.id).cancel_requested
    assert queue_db.status(done.id) is Status.SUCCEEDED
    queue_db.check_invariants()


def test_what_does_not_exist_can_be_neither_canceled_nor_retried(queue_db):
    for ask in (queue_db.queue.cancel, queue_db.queue.retry):
        with pytest.raises(JobNotFound):
            ask(uuid4())


# ── retry ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", [Status.FAILED, Status.CANCELED, Status.LOST])
def test_a_person_gives_a_finished_job_a_fresh_start(queue_db, end):
    run = queue_db.enqueue_and_claim(max_attempts=1)
    queue_db.renew(run, {"done": 5})
    if end is Status.CANCELED:
        queue_db.queue.cancel(run.id)
    if end is Status.LOST:
        assert queue_db.lose_attempt(run).status is end
    else:
        queue_db.settle(run, end, error="no", traceback="where", result=[1])

    job = queue_db.queue.retry(run.id)

    assert (job.id, job.status, job.attempt, job.cancel_requested) == (run.id, Status.QUEUED, 0, False)
    assert (job.error, job.traceback, job.result, job.progress) == (None, None, None, {})
    assert (job.started_at, job.finished_at, job.lease_expires_at, job.heartbeat_at) == (None,) * 4
    assert queue_db.queue.events(run.id)[-1].payload["reason"] == "retry"
    (again,) = queue_db.claim()
    assert (again.id, again.attempt) == (run.id, 1)
    queue_db.check_invariants()


def test_unfinished_or_succeeded_job_cannot_be_retried(queue_db):
    job_id = queue_db.enqueue()
    for status in (Status.QUEUED, Status.RUNNING, Status.SUCCEEDED):
        if status is Status.RUNNING:
            (run,) = queue_db.claim()
        if status is Status.SUCCEEDED:
            queue_db.settle(run)
        before = queue_db.job(job_id)
        with pytest.raises(NotRetryable, match=f"{job_id} is {status}"):
            queue_db.queue.retry(job_id)
        assert queue_db.job(job_id) == before


def test_a_retry_rings(queue_db):
    run = queue_db.enqueue_and_claim()
    queue_db.settle(run, Status.FAILED)
    listener = queue_db.listener()

    queue_db.queue.retry(run.id)

    assert listener.payloads() == ["q"]


def test_a_retried_job_waits_for_its_key_like_any_other(queue_db):
    old = queue_db.enqueue_and_claim()
    queue_db.settle(old, Status.FAILED)
    running = queue_db.enqueue_and_claim()

    queue_db.queue.retry(old.id)
    assert queue_db.claim() == []
    assert queue_db.wait_state(old.id) == "blocked"
    queue_db.release(running, ReleaseReason.SHUTDOWN)

    assert [run.id for run in queue_db.claim(2)] == [old.id]
    queue_db.check_invariants()
