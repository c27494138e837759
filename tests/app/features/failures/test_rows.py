"""Failures grouped by task and fingerprint."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from dataloader.app.features.failures import rows as module
from dataloader.app.features.failures.rows import Failures
from dataloader.app.queue.job import ClaimedJob, Status


@pytest.fixture
def fail(queue_db) -> Callable[..., UUID]:
    numbers = itertools.count()

    def fail(task: str = "t", fingerprint: str | None = "KeyError a.py:b", error: str = "no", queue: str = "q") -> UUID:
        run: ClaimedJob = queue_db.enqueue_and_claim(f"k{next(numbers)}", task=task, queue=queue)
        queue_db.settle(run, Status.FAILED, error=error, error_fingerprint=fingerprint)
        return run.id

    return fail


def test_groups_have_count_times_and_last_error(queue_db, fail):
    first, last = fail(error="first"), fail(error="last")
    fail("t2")
    lost = queue_db.enqueue_and_claim("lost", max_attempts=1)
    queue_db.lose_attempt(lost)
    fail(fingerprint=None)
    succeeded, retrying = queue_db.enqueue_and_claim("s"), queue_db.enqueue_and_claim("r")
    queue_db.settle(succeeded)
    queue_db.settle(retrying, Status.QUEUED, error="no", error_fingerprint="KeyError a.py:b")
    queue_db.queue.cancel(retrying.id)

    found = Failures(queue_db.session).groups()

    assert [(group.task, group.fingerprint, group.jobs) for group in found.failures[:1]] == [
        ("t", "KeyError a.py:b", 2)
    ]
    assert {(group.task, group.fingerprint, group.jobs) for group in found.failures[1:]} == {
        ("t2", "KeyError a.py:b", 1),
        ("t", "lease_expired", 1),
        ("t", None, 1),
    }
    largest = found.failures[0]
    assert (largest.queues, len(largest.by_hour), largest.by_hour[-1], sum(largest.by_hour)) == (["q"], 24, 2, 2)
    assert (largest.job_id, largest.error) == (last, "last")
    assert (largest.first_at, largest.last_at) == (queue_db.job(first).finished_at, queue_db.job(last).finished_at)
    assert (found.scanned, found.scanned_to) == (6, None)


def test_task_queue_and_limit_select_groups(queue_db, fail):
    fail()
    fail("t2")
    fail("t2", fingerprint="OSError", queue="q2")
    failures = Failures(queue_db.session)

    assert [group.task for group in failures.groups(task="t").failures] == ["t"]
    assert [group.fingerprint for group in failures.groups(queue="q2").failures] == ["OSError"]
    assert len(failures.groups(limit=2).failures) == 2
    assert failures.groups(task="none").failures == []


def test_only_newest_jobs_are_read_and_the_cut_is_reported(queue_db, fail, monkeypatch):
    monkeypatch.setattr(module, "MAX_SCANNED", 2)
    fail(error="oldest")
    second = fail("t2")
    fail("t3")

    found = Failures(queue_db.session).groups()

    assert {group.task for group in found.failures} == {"t2", "t3"}
    assert (found.scanned, found.scanned_to) == (2, queue_db.job(second).created_at)


def test_time_selects_groups_by_the_end_of_their_jobs(queue_db, fail):
    old, new = fail("old"), fail("new")
    queue_db.sql(
        "UPDATE dl_jobs SET created_at = now() - interval '3 d', finished_at = now() - interval '2 d'"
        " WHERE job_id = %s",
        str(old),
    )
    failures, ended_at = Failures(queue_db.session), queue_db.job(old).finished_at

    def tasks(since: datetime | None = None, until: datetime | None = None) -> list[str]:
        return [group.task for group in failures.groups(since=since, until=until).failures]

    assert tasks(until=ended_at + timedelta(hours=1)) == ["old"]
    assert tasks(since=ended_at + timedelta(hours=1)) == ["new"]
    assert tasks(since=ended_at, until=ended_at) == []
    assert sorted(tasks(since=ended_at)) == ["new", "old"]
    in_its_hours = failures.groups(until=ended_at + timedelta(minutes=1))
    assert sum(in_its_hours.failures[0].by_hour) == 1
    assert in_its_hours.hours_from <= ended_at - timedelta(hours=22)
    assert queue_db.job(new).finished_at > ended_at
