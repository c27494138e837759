"""How many jobs there are, of a small table and of one that is treated as a large one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dataloader.app.queue.job import Status
from dataloader.app.state import statistics as module
from dataloader.app.state.statistics import JobCounts
from tests.support.queue_fixture import QueueFixture


def counts(queue_db: QueueFixture) -> dict[tuple[str, Status], tuple[int, bool]]:
    return {(count.queue, count.status): (count.jobs, count.exact) for count in JobCounts(queue_db.session).by_queue()}


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Every table counts as a large one."""
    monkeypatch.setattr(module, "MAX_FULL_SCAN_PAGES", 0)
    return monkeypatch


@pytest.fixture
def some_of_each(queue_db: QueueFixture) -> QueueFixture:
    queue_db.settle(queue_db.enqueue_and_claim("done", queue="x"))
    queue_db.settle(queue_db.enqueue_and_claim("broken", queue="x"), Status.FAILED)
    queue_db.enqueue_and_claim("busy", queue="x")
    queue_db.enqueue("busy", queue="x")
    queue_db.claim(queue="x")  # parks it
    queue_db.enqueue("ready", queue="x")
    queue_db.enqueue("ready", queue="y")
    queue_db.enqueue("later", queue="y", available_at=datetime.now(UTC) + timedelta(hours=1))
    return queue_db


@pytest.mark.parametrize("exact", [True, False])
def test_few_jobs_are_counted_and_many_successes_estimated(some_of_each, monkeypatch, exact):
    if not exact:
        monkeypatch.setattr(module, "MAX_FULL_SCAN_PAGES", 0)

    assert counts(some_of_each) == {
        ("x", Status.QUEUED): (2, True),
        ("x", Status.RUNNING): (1, True),
        ("x", Status.FAILED): (1, True),
        ("x", Status.SUCCEEDED): (1, exact),
        ("y", Status.QUEUED): (2, True),
    }


@pytest.mark.parametrize("wait_state", ["ready", "scheduled", "blocked"])
def test_more_than_the_bound_are_an_estimate_of_at_least_as_many(queue_db, large, wait_state):
    queue_db.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key, wait_state) SELECT 'x', 't', 'k', %s::dl_wait_state"
        " FROM generate_series(1, 30)",
        wait_state,
    )

    for max_exact, is_exact in ((10, False), (30, True)):
        large.setattr(module, "MAX_EXACT_COUNT", max_exact)
        assert counts(queue_db) == {("x", Status.QUEUED): (30, is_exact)}


def test_where_the_sample_saw_none_the_bound_is_returned(queue_db, large):
    queue_db.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key, status, args)"
        " SELECT 'x', 't', 'k', 'failed', jsonb_build_object('n', repeat('x', 500)) FROM generate_series(1, 200)"
    )
    queue_db.sql("DELETE FROM dl_jobs WHERE ctid < (SELECT max(ctid) FROM dl_jobs) AND random() < 0.5")
    pages = queue_db.fetch_row("SELECT pg_relation_size('dl_jobs') / 8192")
    assert pages > 5

    large.setattr(module, "SAMPLED_PAGES", 0)
    large.setattr(module, "MAX_EXACT_COUNT", 10)
    ((jobs, exact),) = counts(queue_db).values()

    assert (jobs, exact) == (11, False)


def test_a_sample_estimates_what_it_has_not_read(queue_db, large):
    queue_db.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key, status, finished_at)"
        " SELECT 'x', 't', 'k', 'succeeded', now() FROM generate_series(1, 20000)"
    )
    pages = queue_db.fetch_row("SELECT pg_relation_size('dl_jobs') / 8192")

    large.setattr(module, "SAMPLED_PAGES", pages // 4)
    ((jobs, exact),) = counts(queue_db).values()

    assert not exact
    assert 12_000 < jobs < 28_000
    assert counts(queue_db) == {("x", Status.SUCCEEDED): (jobs, False)}, "another count of the same table is the same"


def test_oldest_ready_counts_from_due_time_also_before_promotion(queue_db):
    for key, priority, age in (("a", 1, 5), ("b", 100, 90), ("c", 100, 10)):
        job_id = queue_db.enqueue(key, queue="x", priority=priority)
        queue_db.sql(
            "UPDATE dl_jobs SET created_at = now() - make_interval(secs => %s) WHERE job_id = %s", age, str(job_id)
        )
    queue_db.sql("UPDATE dl_jobs SET available_at = created_at, wait_state = 'ready'")
    queue_db.promote()
    queue_db.insert(queue="plain", created_at="2020-01-01", available_at=datetime.now(UTC) - timedelta(seconds=40))
    queue_db.insert(queue="later", available_at=datetime.now(UTC) + timedelta(hours=1))
    queue_db.enqueue_and_claim("running", queue="z")

    oldest = JobCounts(queue_db.session).oldest_ready()

    assert set(oldest) == {"x", "plain"}
    assert 89 < oldest["x"] < 300
    assert 39 < oldest["plain"] < 80


def test_the_numbers_come_from_the_queues_own_schema(empty_dsn, monkeypatch):
    from dataloader.app.db.schema import migrate

    migrate(empty_dsn, "Of ours")
    queue_db = QueueFixture(empty_dsn, schema="Of ours")
    queue_db.enqueue(queue="x")

    assert counts(queue_db) == {("x", Status.QUEUED): (1, True)}
    monkeypatch.setattr(module, "MAX_FULL_SCAN_PAGES", 0)
    assert counts(queue_db) == {("x", Status.QUEUED): (1, True)}
    queue_db.close()
