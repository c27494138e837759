"""A key that is unique among waiting and running jobs only."""

from __future__ import annotations

import pytest

from app.errors import NotRetryable
from app.queue.job import NewJob, Settlement, Status


def ask(desk, **more):
    return desk.queue.enqueue(NewJob(queue="q", task="t", lock_key="k", live_key="daily", **more))


def test_a_second_request_finds_the_job_that_waits_or_runs(desk):
    first = ask(desk)
    waiting = ask(desk, args={"other": 1})
    (job,) = desk.claim()
    running = ask(desk)
    desk.queue.settle([(job, Settlement(Status.SUCCEEDED))])
    after = ask(desk)

    assert (waiting.job_id, waiting.created, waiting.status) == (first.job_id, False, Status.QUEUED)
    assert (running.job_id, running.status) == (first.job_id, Status.RUNNING)
    assert after.created
    assert after.job_id != first.job_id


def test_a_finished_job_is_not_retried_beside_a_live_one(desk):
    first = ask(desk)
    desk.queue.cancel(first.job_id)
    second = ask(desk)

    with pytest.raises(NotRetryable, match="another job with its live_key 'daily' waits or runs"):
        desk.queue.retry(first.job_id)
    desk.queue.cancel(second.job_id)

    assert desk.queue.retry(first.job_id).status is Status.QUEUED
