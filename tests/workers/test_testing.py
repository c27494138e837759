"""What is ready is run here and now, with real claims and settlements."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dataloader.app.features.schedules.rows import Schedules, Times
from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Breaker, Pipelines, Stop, StopReason, schedule
from dataloader.workers.testing import drain
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def queue_db(dsn):
    made = QueueFixture(dsn)
    yield made
    made.check_invariants()
    made.close()


def raise_error(args):
    raise ValueError("no good")


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

    known.register("broken")(raise_error)

    @known.register("stops")
    def stops(args):
        raise Stop(StopReason.CANCEL)

    @known.register("loops")
    def loops(args, ctx):
        ctx.enqueue("loops", queue="q", lock_key="loops")

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


def test_drain_runs_the_handlers_of_failures(queue_db, dsn):
    tasks = Pipelines()
    tasks.register("broken", on_failed="notify", no_retry=[ValueError])(raise_error)
    tasks.register("notify")(lambda args: args["error"])
    queue_db.enqueue("a", task="broken")

    ran = drain(dsn, tasks, ["q"])

    assert [(job.task, job.status, job.result) for job in ran] == [
        ("broken", Status.FAILED, None),
        ("notify", Status.SUCCEEDED, "ValueError: no good"),
    ]


def test_drain_leaves_the_jobs_of_an_open_breaker(queue_db, dsn):
    tasks = Pipelines()
    tasks.register("broken", breaker=Breaker(failures=1), no_retry=[ValueError])(raise_error)
    first, second = (queue_db.enqueue(key, task="broken") for key in "ab")

    assert [job.id for job in drain(dsn, tasks, ["q"])] == [first]
    assert queue_db.status(second) is Status.QUEUED


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


# ── schedules ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_drain_fires_schedules_in_the_order_of_their_times(queue_db, dsn):
    known = Pipelines()

    @known.register("hourly", queue="q", lock_key="h")
    @schedule("30 * * * *", zone="UTC", jitter=600)
    def hourly(args, ctx):
        if ctx.logical_at.hour % 2:
            ctx.produced("hours")

    @known.register("after", queue="q", lock_key="a")
    @schedule(after=["hours"])
    def after(args):
        pass

    @known.register("off", queue="q", lock_key="o")
    @schedule("0 * * * *", off=True)
    def off(args):
        pass

    begin = Schedules(queue_db.session).now().replace(minute=30, second=0, microsecond=0)
    first = begin + timedelta(hours=24)  # a time that does not come while the test runs
    created_at = first - timedelta(minutes=1)
    fields = {"kind": "cron", "expression": "30 * * * *", "zone": "UTC", "args": {"of": "people"}, "lock_key": "t"}
    Schedules(queue_db.session).create("table", "hourly", fields | {"queue": "q"}, Times(created_at, first))

    ran = drain(dsn, known, ["q"], now=first + timedelta(hours=1, minutes=29))

    assert all(job.status is Status.SUCCEEDED for job in ran)
    runs = [(job.lock_key, job.logical_at) for job in ran if job.logical_at is not None]
    in_code = [at for key, at in runs if key == "h"]
    assert in_code == [in_code[0] + timedelta(hours=n) for n in range(len(in_code))]
    assert in_code[-1] == first + timedelta(hours=1)
    assert [at for key, at in runs if key == "t"] == in_code[-2:]
    hourly_times = [at for key, at in runs if key in "ht"]
    assert hourly_times == sorted(hourly_times)
    keys = [key for key, _ in runs]
    updated = [{n for n, run in enumerate(runs) if run[1] == at and run[0] in "ht"} for at in in_code if at.hour % 2]
    assert [keys[max(positions) + 1] for positions in updated] == ["a"] * len(updated)
    assert keys.count("a") == len(updated)
    assert "off" not in {job.task for job in ran}
    assert drain(dsn, known, ["q"], now=first + timedelta(hours=1, minutes=29)) == []


def test_drain_to_a_time_before_the_next_fires_nothing(queue_db, dsn):
    known = Pipelines()

    @known.register("yearly", queue="q", lock_key="y")
    @schedule("0 0 1 1 *")
    def yearly(args):
        pass

    assert drain(dsn, known, ["q"], now=datetime(2020, 1, 1, tzinfo=UTC)) == []
    assert drain(dsn, known, ["q"]) == []
