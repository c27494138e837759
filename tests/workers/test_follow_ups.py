"""The jobs that a running job enqueues."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dataloader.pipelines.contract import Stop, StopReason
from dataloader.workers.context import JobContext
from tests.support.job_context import claimed_context, close_connections
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def at_work(queue_db: QueueFixture) -> Iterator[JobContext]:
    with claimed_context(queue_db) as context:
        yield context


def declare(context: Any, **fields: Any) -> None:
    """What the code of the task `next` says of its jobs."""
    context.settings = replace(context.settings, declared_job_fields={"next": fields})


def test_follow_up_has_the_limits_of_its_task_unless_it_names_some(queue_db, at_work):
    declare(at_work, limits={"warehouse": 2, "tenant:{tenant}": 1})

    def limits_of(**options: Any) -> Any:
        return queue_db.job(at_work.enqueue(**options)).limits

    assert limits_of(task="next", args={"tenant": "acme"}) == {"warehouse": 2, "tenant:acme": 1}
    assert limits_of(task="next", args={"n": 1}, limits={"warehouse": 1}) == {"warehouse": 1}
    assert limits_of(task="other") is None
    with pytest.raises(ValueError, match="'tenant' is missing"):
        at_work.enqueue("next")


def test_follow_up_of_unique_task_is_the_live_job(queue_db, at_work):
    declare(at_work, unique_by=["day"])
    assert at_work.enqueue("next", {"day": 1, "n": 1}) == at_work.enqueue("next", {"day": 1, "n": 2})


def test_follow_up_counts_the_defaults_of_its_task(queue_db, at_work):
    declare(at_work, unique_by=["day"], limits={"day:{day}": 1}, defaults={"day": "2030-01-01"})

    job_id = at_work.enqueue("next", {"n": 1})

    assert at_work.enqueue("next", {"n": 2, "day": "2030-01-01"}) == job_id
    assert queue_db.job(job_id).limits == {"day:2030-01-01": 1}
    assert queue_db.job(job_id).args == {"n": 1}


def test_follow_up_has_the_lock_key_of_its_task(queue_db, at_work):
    declare(at_work, lock_key="shop:{shop}", defaults={"shop": 1})

    def key_of(**options):
        return queue_db.job(at_work.enqueue("next", **options)).lock_key

    assert key_of() == "shop:1"
    assert key_of(args={"shop": 2}) == "shop:2"
    assert key_of(lock_key="other") == "other"
    _, last = at_work.fan_out([{"task": "next", "args": {"shop": 3}}], then={"task": "next", "args": {"shop": 4}})
    assert queue_db.job(last).lock_key == "shop:4"
    with pytest.raises(ValueError, match="shop"):
        at_work.enqueue("next", {"shop": [1]})


def test_attempt_that_lost_its_job_enqueues_nothing(queue_db, at_work):
    queue_db.expire_lease(at_work.job_id)
    queue_db.queue.reap([(at_work.job_id, at_work.job.run_id, "key")], pause_sec=0)

    with pytest.raises(Stop):
        at_work.enqueue("next")
    assert at_work.stop_reason is StopReason.LEASE_LOST
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE task = 'next'") == 0


def test_next_attempt_gets_the_same_follow_ups(queue_db, at_work):
    with pytest.raises(ValueError, match="no"), at_work.transaction():
        at_work.enqueue("next", {"n": 1})
        raise ValueError("no")
    with at_work.transaction():
        first = at_work.enqueue("next", {"n": 1})
    second = at_work.enqueue("next", {"n": 1})

    again = JobContext(at_work.job, at_work.settings)
    assert [again.enqueue("next", {"n": 1}), again.enqueue("next", {"n": 1})] == [first, second]
    close_connections(again)
    assert first != second
    child = queue_db.job(first)
    assert (child.queue, child.lock_key, child.priority, child.parent_id) == ("q", "next", 7, at_work.job_id)


def test_follow_up_has_the_lease_of_the_settings(queue_db, at_work):
    at_work.settings = replace(at_work.settings, follow_up_lease_sec=90)

    assert queue_db.job(at_work.enqueue("next")).lease_ttl_sec == 90
