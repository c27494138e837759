"""What is ready is run here and now, with real claims and settlements."""

from __future__ import annotations

import pytest

from app.queue.job import Status
from pipelines.contract import Pipelines, Snooze, Stop, StopReason
from tests.support.queue_fixture import QueueFixture
from workers.testing import drain


@pytest.fixture
def queue_db(dsn):
    made = QueueFixture(dsn)
    yield made
    made.check_invariants()
    made.close()


@pytest.fixture
def tasks():
    known = Pipelines()

    @known.register("parent")
    def parent(args, ctx):
        return str(ctx.enqueue("child", {"from": "parent"}, queue="other", lock_key="child"))

    @known.register("child")
    def child(args, ctx):
        with ctx.transaction(final=True, result="in one stroke") as connection:
            connection.cursor().execute("CREATE TABLE made (x int)")

    @known.register("broken")
    def broken(args):
        raise ValueError("no good")

    @known.register("stops")
    def stops(args):
        raise Stop(StopReason.CANCEL)

    @known.register("loops")
    def loops(args):
        raise Snooze(0)

    return known


def test_drain_runs_jobs_and_follow_ups_until_none_is_ready(queue_db, dsn, tasks):
    parent = queue_db.enqueue("a", task="parent")
    broken = queue_db.enqueue("b", task="broken")
    queue_db.enqueue("c", task="parent", queue="elsewhere")

    ran = drain(dsn, tasks, ["q", "other"])

    assert [(job.task, job.status) for job in ran] == [
        ("parent", Status.SUCCEEDED),
        ("broken", Status.QUEUED),
        ("child", Status.SUCCEEDED),
    ]
    assert ran[0].id == parent
    assert ran[1].id == broken
    assert ran[1].error == "ValueError: no good"
    assert ran[2].result == "in one stroke"
    assert queue_db.fetch_row("SELECT count(*) FROM made") == 0
    assert drain(dsn, tasks, ["q", "other"]) == []


def test_drain_settles_a_stopped_job_by_its_reason(queue_db, dsn, tasks):
    queue_db.enqueue("a", task="stops")

    (job,) = drain(dsn, tasks, ["q"])

    assert job.status is Status.CANCELED


def test_drain_leaves_a_job_with_a_locked_key(queue_db, dsn, tasks):
    queue_db.enqueue("held", task="parent")
    other = queue_db.connect(autocommit=True)
    other.cursor().execute("SELECT pg_advisory_lock(hashtext('held'))")

    (job,) = drain(dsn, tasks, ["q"])

    assert (job.status, job.attempt) == (Status.QUEUED, 0)


def test_drain_refuses_to_run_without_end(queue_db, dsn, tasks):
    queue_db.enqueue("a", task="loops")

    with pytest.raises(AssertionError, match="3 jobs were run"):
        drain(dsn, tasks, ["q"], max_jobs=3)
