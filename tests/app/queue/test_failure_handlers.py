"""Failure handlers: a job that has failed for good enqueues a job of the task that its own declares."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from dataloader.app.features.failures.rows import Failures
from dataloader.app.queue.job import Job, Settlement, Status
from dataloader.pipelines.contract import Pipelines

FAILURE = Settlement(Status.FAILED, error="ValueError: broken")


@pytest.fixture
def tasks(queue_db) -> Pipelines:
    known = Pipelines()
    known.register("t", on_failed="notify")(lambda args: None)
    known.register("notify", queue="q", on_failed="notify")(lambda args: None)
    declare(queue_db, known)
    return known


def declare(queue_db, known: Pipelines) -> None:
    Failures(queue_db.session).declare_handlers(known.names, known.declared_failure_handlers())


def handlers(queue_db) -> list[Job]:
    ids = queue_db.sql("SELECT job_id FROM dl_jobs WHERE task = 'notify' ORDER BY created_at")
    return [queue_db.job(UUID(str(job_id))) for (job_id,) in ids]


def fail(queue_db, job_id: UUID, end: Settlement = FAILURE) -> None:
    (run,) = [run for run in queue_db.claim(5, tasks=["t", "notify"]) if run.id == job_id]
    queue_db.queue.settle([(run, end)])


def test_handler_gets_the_failed_job(queue_db, tasks):
    args: dict[str, Any] = {
        "shop": 7,
        "password": {"$secret": "bank"},
        "rows": [{"$result": "extract.rows"}],
        "text": '"$secret": x',
    }
    job_id = queue_db.enqueue("k", args=args, max_attempts=2)

    fail(queue_db, job_id, Settlement(Status.QUEUED, error="ValueError: broken"))
    assert handlers(queue_db) == []
    queue_db.sql("UPDATE dl_jobs SET available_at = now() WHERE job_id = %s", str(job_id))
    fail(queue_db, job_id)

    (handler,) = handlers(queue_db)
    assert (handler.queue, handler.status, handler.parent_id) == ("q", Status.QUEUED, job_id)
    assert handler.args == {
        "job_id": str(job_id), "queue": "q", "task": "t", "status": "failed", "attempt": 2,
        "error": "ValueError: broken",
        # no references of its own: it has neither the parents nor the secrets of the failed job
        "args": {**args, "password": {"secret": "bank"}, "rows": [{"result": "extract.rows"}]},
    }  # fmt: skip
    queue_db.check_invariants()


def test_handler_is_enqueued_with_the_settlement_or_not_at_all(queue_db, tasks):
    job_id = queue_db.enqueue("k")
    connection = queue_db.connect()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE dl_jobs SET status = 'failed' WHERE job_id = %s", (str(job_id),))
        cursor.execute("SELECT count(*) FROM dl_jobs WHERE task = 'notify'")
        assert cursor.fetchone() == (1,)
    connection.rollback()

    assert handlers(queue_db) == []


def test_lost_job_and_job_without_attempts_have_a_handler(queue_db, tasks):
    lost = queue_db.enqueue("k", max_attempts=1)
    (run,) = queue_db.claim(1)
    queue_db.lose_attempt(run)
    refused = queue_db.insert("k2", max_attempts=0)

    assert queue_db.status(lost) is Status.LOST
    assert [(job.args["job_id"], job.args["status"]) for job in handlers(queue_db)] == [
        (str(lost), "lost"), (str(refused), "failed"),
    ]  # fmt: skip
    assert "its lease ran out" in handlers(queue_db)[0].args["error"]


def test_failed_handler_enqueues_nothing(queue_db, tasks):
    fail(queue_db, queue_db.enqueue("k"))
    (handler,) = handlers(queue_db)

    fail(queue_db, handler.id)

    assert [job.id for job in handlers(queue_db)] == [handler.id]
    queue_db.queue.retry(handler.id)
    fail(queue_db, handler.id)
    assert len(handlers(queue_db)) == 1


def test_other_ends_have_no_handler_and_a_second_failure_another(queue_db, tasks):
    fail(queue_db, queue_db.enqueue("k2"), Settlement(Status.SUCCEEDED))
    queue_db.queue.cancel(queue_db.enqueue("k3"))
    assert handlers(queue_db) == []

    job_id = queue_db.enqueue("k")
    fail(queue_db, job_id)
    queue_db.queue.retry(job_id)
    fail(queue_db, job_id)

    assert [job.args["job_id"] for job in handlers(queue_db)] == [str(job_id)] * 2


def test_handler_that_is_no_longer_declared_is_deleted(queue_db, tasks):
    queue_db.sql("INSERT INTO dl_failure_handlers VALUES ('of another process', 'x')")
    changed = Pipelines()
    changed.register("t")(lambda args: None)
    changed.register("notify")(lambda args: None)

    declare(queue_db, changed)

    assert queue_db.sql("SELECT task FROM dl_failure_handlers") == [("of another process",)]
    fail(queue_db, queue_db.enqueue("k"))
    assert handlers(queue_db) == []
