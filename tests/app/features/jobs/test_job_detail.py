from __future__ import annotations

from uuid import uuid4

import pytest

from dataloader.app.errors import JobNotFound
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.queue.job import ReleaseReason, Settlement, Status
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def reader(queue_db: QueueFixture) -> JobReader:
    return JobReader(queue_db.session)


def test_job_is_found_by_its_idempotency_key(queue_db, reader):
    job_id = queue_db.enqueue("a key", idempotency_key="i")

    found = reader.by_idempotency_key("i")

    assert found is not None
    assert found.job_id == job_id
    assert reader.by_idempotency_key("other") is None


def test_each_attempt_keeps_its_traceback(queue_db, reader):
    run = queue_db.enqueue_and_claim("k", max_attempts=2)
    text = "Traceback (most recent call last):\n" + "x" * 20_000 + "\nValueError: one"
    one = Settlement(Status.QUEUED, error="ValueError: one", traceback=text, error_fingerprint="aaaa")
    queue_db.queue.settle([(run, one)])
    (again,) = queue_db.claim()
    queue_db.settle(again, Status.SUCCEEDED)

    first, second = reader.detail(run.id).attempts

    assert first.traceback == text[-16_000:]
    assert (first.error, first.error_fingerprint) == ("ValueError: one", "aaaa")
    assert (second.traceback, second.error_fingerprint) == (None, None)
    assert first.event_fields == {}


def test_detail_has_attempts_related_jobs_and_lock_holder(queue_db, reader):
    run = queue_db.enqueue_and_claim("k", max_attempts=3)
    queue_db.settle(run, Status.QUEUED, retry_in_sec=0)
    (again,) = queue_db.claim()
    waiting = queue_db.enqueue("k", parent_id=run.id)
    queue_db.claim_once()

    story = reader.detail(run.id)
    child = reader.detail(waiting)

    assert [(a.attempt, a.outcome, a.reason, a.error) for a in story.attempts] == [
        (1, "requeue", "error", "it broke"),
        (2, None, None, None),
    ]
    assert [c.job_id for c in story.follow_up_jobs] == [waiting]
    assert child.parent is not None
    assert child.parent.job_id == run.id
    assert child.lock_holder is not None
    assert child.lock_holder.job_id == run.id
    queue_db.release(again, ReleaseReason.SHUTDOWN)
    assert [a.outcome for a in reader.detail(run.id).attempts] == ["requeue", "requeue"]
    with pytest.raises(JobNotFound):
        reader.detail(uuid4())


def test_version_changes_with_the_row(queue_db, reader):
    job_id = queue_db.enqueue("a")
    before = reader.get_with_version(job_id).version

    queue_db.queue.cancel(job_id)

    assert reader.get_with_version(job_id).version != before
