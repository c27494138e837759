"""A key that is unique among waiting and running jobs only."""

from __future__ import annotations

import pytest

from dataloader.app.errors import NotRetryable
from dataloader.app.queue.job import NewJob, Settlement, Status


def ask(queue_db, **more):
    return queue_db.queue.enqueue(NewJob(queue="q", task="t", lock_key="k", live_key="daily", **more))


def test_a_second_request_finds_the_job_that_waits_or_runs(queue_db):
    first = ask(queue_db)
    waiting = ask(queue_db, args={"other": 1})
    (job,) = queue_db.claim()
    running = ask(queue_db)
    queue_db.queue.settle([(job, Settlement(Status.SUCCEEDED))])
    after = ask(queue_db)

    assert (waiting.job_id, waiting.created, waiting.status) == (first.job_id, False, Status.QUEUED)
    assert (running.job_id, running.status) == (first.job_id, Status.RUNNING)
    assert after.created
    assert after.job_id != first.job_id


def test_finished_job_is_not_retried_while_another_is_live(queue_db):
    first = ask(queue_db)
    queue_db.queue.cancel(first.job_id)
    second = ask(queue_db)

    with pytest.raises(NotRetryable, match="another job with its live_key 'daily' waits or runs"):
        queue_db.queue.retry(first.job_id)
    queue_db.queue.cancel(second.job_id)

    assert queue_db.queue.retry(first.job_id).status is Status.QUEUED
