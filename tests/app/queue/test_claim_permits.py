"""Claims of a queue that prefetch: four at a time, the fifth waits, but not for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from uuid import UUID

import pytest

from dataloader.app.queue.claims import ClaimMode, ClaimRequest
from dataloader.app.queue.job import new_run_ids
from dataloader.app.queue.jobs import JobQueue
from tests.app.queue.midway import Midway, midway
from tests.support.queue_fixture import BackgroundCall, QueueFixture


def prefetch(queue: JobQueue, name: str = "q", count: int = 1) -> list[UUID]:
    return [run.id for run in queue.claim(name, ["t"], new_run_ids(count), "w", ClaimRequest(ClaimMode.PREFETCH))[0]]


@pytest.fixture
def holders(queue_db: QueueFixture) -> Iterator[ExitStack]:
    """Four claims of the queue that are not committed. Closing it commits them."""
    for n in range(8):
        queue_db.enqueue(f"k{n}")
    with ExitStack() as stack:
        for _ in range(4):
            assert len(prefetch(stack.enter_context(midway(queue_db)))) == 1, "none of the four waits"
        yield stack


@pytest.fixture
def long_wait(queue_db: QueueFixture) -> Iterator[None]:
    """A claim waits for a permit until a test has seen it wait, however slow the machine is."""
    alter = "ALTER FUNCTION dl_take_claim_permit(text) SET lock_timeout = '{}'"
    queue_db.sql(alter.format("60s"))
    yield
    queue_db.sql(alter.format("1s"))


@pytest.mark.usefixtures("long_wait")
def test_fifth_claim_waits_until_another_ends(queue_db: QueueFixture, holders: ExitStack):
    fifth = BackgroundCall(prefetch, queue_db.new_queue(), count=8)
    queue_db.wait_for_lock_waiters()

    holders.close()

    assert len(fifth.result()) == 4


def test_claims_of_other_queues_and_of_long_jobs_do_not_wait(queue_db: QueueFixture, holders: ExitStack):
    other = queue_db.enqueue("other", queue="other")

    assert prefetch(queue_db.queue, "other") == [other]
    assert len(queue_db.queue.claim("q", ["t"], new_run_ids(8), "w")[0]) == 4


def test_claim_without_a_permit_continues_after_a_second(queue_db: QueueFixture, holders: ExitStack):
    fifth = Midway(queue_db)

    assert len(prefetch(JobQueue(fifth), count=8)) == 4
    with fifth.connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",), "the time limit is that of the permit alone"
