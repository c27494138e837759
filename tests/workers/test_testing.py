"""What is ready is run here and now, with real claims and settlements."""

from __future__ import annotations

import pytest

from app.queue.job import Status
from pipelines.contract import Pipelines, Snooze, Stop, StopReason
from tests.support.desk import Desk
from workers.testing import drain


@pytest.fixture
def desk(dsn):
    made = Desk(dsn)
    yield made
    made.check()
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


def test_jobs_and_their_follow_ups_are_run_until_none_is_ready(desk, dsn, tasks):
    parent = desk.enqueue("a", task="parent")
    broken = desk.enqueue("b", task="broken")
    desk.enqueue("c", task="parent", queue="elsewhere")

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
    assert desk.one("SELECT count(*) FROM made") == 0
    assert drain(dsn, tasks, ["q", "other"]) == []


def test_a_stopped_job_is_what_its_stop_makes_of_it(desk, dsn, tasks):
    desk.enqueue("a", task="stops")

    (job,) = drain(dsn, tasks, ["q"])

    assert job.status is Status.CANCELED


def test_a_key_that_somebody_holds_keeps_its_job_waiting(desk, dsn, tasks):
    desk.enqueue("held", task="parent")
    other = desk.connect(autocommit=True)
    other.cursor().execute("SELECT pg_advisory_lock(hashtext('held'))")

    (job,) = drain(dsn, tasks, ["q"])

    assert (job.status, job.attempt) == (Status.QUEUED, 0)


def test_a_job_that_never_ends_is_found_out(desk, dsn, tasks):
    desk.enqueue("a", task="loops")

    with pytest.raises(AssertionError, match="3 jobs were run"):
        drain(dsn, tasks, ["q"], most=3)
