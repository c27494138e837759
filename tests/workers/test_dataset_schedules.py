"""Schedules that fire when datasets are updated."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from dataloader.app.features.schedules.rows import Schedule, Schedules, Times
from dataloader.app.queue.job import SUCCEEDED, Reports
from dataloader.pipelines.contract import Context, schedule
from dataloader.pipelines.schedule_definition import definition_from
from tests.support.queue_fixture import QueueFixture
from tests.support.schedule_fixture import ScheduleFixture
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture


def produce(schedule_db: ScheduleFixture, *datasets: str) -> None:
    """A run that updates these datasets."""
    run = schedule_db.queue.enqueue_and_claim("producer", queue="producers")
    reports = Reports(datasets=tuple({"kind": "produced", "dataset": name} for name in datasets))
    schedule_db.queue.settle(run, reports=reports)


def by_dataset(schedule_db: ScheduleFixture, name: str = "s", **definition: Any) -> Schedule:
    values = {"kind": "dataset", "queue": "q", "task": "t", "after": ["a", "b"], **definition}
    now = schedule_db.queue.fetch_row("SELECT now()")
    created = definition_from(values, zone="UTC").to_json()
    return schedule_db.schedules.create(name, "t", created, Times(now, None))


def test_a_schedule_fires_when_all_its_datasets_or_one_have_been_updated(schedule_db):
    by_dataset(schedule_db, "all")
    by_dataset(schedule_db, "any", need="any", overlap="allow")
    by_dataset(schedule_db, "other", after=["c"])
    produce(schedule_db, "a")
    produce(schedule_db, "a", "d")
    schedule_db.fire()
    assert schedule_db.rows("made_by, outcome, detail") == [("dataset", "made", "updated: a")], "any"
    assert schedule_db.queue.fetch_row("SELECT count(*) FROM dl_dataset_updates") == 1, "one update of a is enough"

    produce(schedule_db, "b")
    schedule_db.fire()
    schedule_db.fire()

    jobs = schedule_db.queue.sql("SELECT producer, idempotency_key FROM dl_jobs WHERE queue = 'q' ORDER BY created_at")
    assert Counter(producer for producer, _ in jobs) == {"schedule:all": 1, "schedule:any": 2}
    assert "updated: a, b" in [detail for (detail,) in schedule_db.rows("detail")]
    assert schedule_db.queue.fetch_row("SELECT count(*) FROM dl_dataset_updates") == 0


def test_update_cancels_the_job_of_the_update_before(schedule_db):
    by_dataset(schedule_db, after=["a"], overlap="cancel")
    for _ in range(2):
        produce(schedule_db, "a")
        schedule_db.fire()

    statuses = schedule_db.queue.sql("SELECT status::text FROM dl_jobs WHERE queue = 'q' ORDER BY created_at")
    assert statuses == [("canceled",), ("queued",)]


def test_updates_before_a_queued_job_begins_are_served_by_it(schedule_db):
    by_dataset(schedule_db, need="any")
    for dataset in ("a", "a", "b"):
        produce(schedule_db, dataset)
        schedule_db.fire()
    ((job_id,),) = schedule_db.queue.sql("SELECT job_id FROM dl_jobs WHERE queue = 'q'")
    assert schedule_db.rows("outcome, job_id") == [("made", job_id), ("exists", job_id), ("exists", job_id)]

    (run,) = schedule_db.queue.claim()
    produce(schedule_db, "b")
    schedule_db.fire()
    assert [outcome for (outcome,) in schedule_db.rows("outcome")][3:] == ["made"], "the job that runs may not see it"
    assert schedule_db.queue.claim() == [], "it waits for the one that runs"
    schedule_db.queue.queue.settle([(run, SUCCEEDED)])
    assert len(schedule_db.queue.claim()) == 1


def test_updates_during_a_pause_are_dropped_or_kept(schedule_db):
    for name, keep in (("kept", True), ("dropped", False)):
        by_dataset(schedule_db, name, after=["a"])
        schedule_db.schedules.pause(name, reason="moving")
        produce(schedule_db, "a")
        schedule_db.fire()
        assert schedule_db.queue.fetch_row("SELECT count(*) FROM dl_jobs WHERE producer = %s", f"schedule:{name}") == 0
        paused = schedule_db.schedules.get(name)
        schedule_db.schedules.resume(paused, Times(paused.last_at, None), keep_updates=keep)
        schedule_db.fire()
    made = schedule_db.queue.sql("SELECT producer FROM dl_jobs WHERE queue = 'q' ORDER BY created_at")
    assert made[0] == ("schedule:kept",)
    assert ("schedule:dropped",) not in made
    dropped = schedule_db.queue.sql("SELECT detail FROM dl_firings WHERE outcome = 'paused_skipped'")
    assert dropped == [("paused: moving, updated: a",)]


def test_updates_outside_the_bounds_of_a_schedule_make_no_job(schedule_db):
    by_dataset(schedule_db, after=["a"], starts_at="2100-01-01T00:00:00+00:00")
    produce(schedule_db, "a")
    schedule_db.fire()

    assert schedule_db.rows() == []
    assert schedule_db.queue.fetch_row("SELECT count(*) FROM dl_dataset_updates") == 0


def test_a_settlement_and_a_firing_do_not_wait_for_one_another(schedule_db):
    """The firing waits for a key that the settlement ends; the settlement reports what the firing deletes."""
    by_dataset(schedule_db, after=["a"], partitions={"unit": "day", "start": "2020-01-01"}, need="any")
    produce(schedule_db, "a")
    read = schedule_db.schedules.due(limit=1)
    (found,) = read.schedules
    firing = schedule_db.duty.plan(found, read.now, read.updates[found.schedule_id])
    key = firing["firings"][0]["job"]["live_key"]
    run = schedule_db.queue.enqueue_and_claim("loads it", queue="producers", live_key=key)
    with ThreadPoolExecutor(1) as threads, schedule_db.queue.connect() as settling:
        cursor = settling.cursor()
        cursor.execute("UPDATE dl_jobs SET status = 'succeeded', finished_at = now() WHERE job_id = %s", (str(run.id),))
        fired = threads.submit(Schedules(QueueFixture(schedule_db.queue.dsn).session).fire, [firing])
        schedule_db.queue.wait_for_lock_waiters()
        cursor.execute(
            "SELECT dl_record_reports(jsonb_build_array(%s::jsonb || jsonb_build_object('run_id', %s)),"
            " ARRAY[%s]::uuid[])",
            (
                json.dumps({"checks": [], "datasets": [{"kind": "produced", "dataset": "a"}]}),
                str(run.run_id),
                str(run.id),
            ),
        )
        settling.commit()
        assert [time.outcome.value for time in fired.result(30)] == ["made"]


def test_an_update_that_commits_after_the_job_of_an_earlier_one_began_makes_another_job(schedule_db):
    by_dataset(schedule_db, after=["a"])
    produce(schedule_db, "a")
    run = schedule_db.queue.enqueue_and_claim("late", queue="producers")
    reports = json.dumps([{"run_id": str(run.run_id), "datasets": [{"kind": "produced", "dataset": "a"}]}])
    report = "SELECT dl_record_reports(%s::jsonb, ARRAY[%s]::uuid[])"
    with schedule_db.queue.connect() as settling, ThreadPoolExecutor(1) as threads:
        cursor = settling.cursor()
        cursor.execute("UPDATE dl_jobs SET status = 'succeeded', finished_at = now() WHERE job_id = %s", (str(run.id),))
        cursor.execute(report, (reports, str(run.id)))
        read = schedule_db.schedules.due(limit=1)
        (found,) = read.schedules
        firing = schedule_db.duty.plan(found, read.now, read.updates[found.schedule_id])
        fired = threads.submit(Schedules(QueueFixture(schedule_db.queue.dsn).session).fire, [firing])
        schedule_db.queue.wait_for_lock_waiters()
        settling.commit()
        assert len(fired.result(30)) == 1, "its job begins after the update"
    assert len(schedule_db.queue.claim()) == 1

    produce(schedule_db, "a")
    run = schedule_db.queue.enqueue_and_claim("later", queue="producers")
    with schedule_db.queue.connect() as firing, schedule_db.queue.connect() as settling:
        firing.cursor().execute("DELETE FROM dl_dataset_updates")
        cursor = settling.cursor()
        cursor.execute("UPDATE dl_jobs SET status = 'succeeded', finished_at = now() WHERE job_id = %s", (str(run.id),))
        reports = json.dumps([{"run_id": str(run.run_id), "datasets": [{"kind": "produced", "dataset": "a"}]}])
        cursor.execute(report, (reports, str(run.id)))
        firing.commit()
        settling.commit()
    assert schedule_db.queue.fetch_row("SELECT count(*) FROM dl_dataset_updates") == 1


def test_a_worker_fires_by_dataset(worker_pools: WorkerPoolFixture):
    done: list[UUID] = []

    @worker_pools.pipelines.register("source")
    def source(args: dict[str, Any], ctx: Context) -> None:
        ctx.produced("warehouse.sales", rows=1)

    @schedule(after=["warehouse.sales"], queue="q")
    @worker_pools.pipelines.register("report")
    def report(args: dict[str, Any], ctx: Context) -> None:
        done.append(ctx.job_id)

    worker_pools.pool()
    eventually(
        lambda: worker_pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_schedules WHERE next_at IS NULL") == 1
    )
    worker_pools.queue_fixture.enqueue("source", task="source")
    eventually(lambda: len(done) == 1)
