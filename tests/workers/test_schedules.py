"""Firing schedules: each nominal time has one row, over processes, crashes, clock jumps and locks of others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from dataloader.app.features.alerts.rows import Alerts, RuleKind
from dataloader.app.features.schedules import duty as schedules
from dataloader.app.features.schedules.rows import Schedules, Times
from dataloader.app.queue.job import SUCCEEDED
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.pipelines.contract import Context, schedule
from dataloader.pipelines.portable import clock
from dataloader.pipelines.schedule_definition import definition_from
from tests.support.processes import ROOT
from tests.support.queue_fixture import QueueFixture
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

HOURLY = {"expression": "0 * * * *", "queue": "q", "zone": "UTC"}


def test_a_time_that_has_come_makes_one_job_with_its_interval(schedule_db):
    schedule = schedule_db.create(
        last="date_trunc('hour', now()) - interval '1 minute'",
        args={"from": "{interval_start:%H}", "to": "{interval_end}"},
        catch_up="all",
    )
    schedule_db.fire()
    schedule_db.fire()

    ((job_id,),) = schedule_db.rows("job_id")
    job = schedule_db.queue.job(job_id)
    hour = schedule_db.hour()
    assert (job.logical_at, job.interval_start, job.interval_end) == (hour, hour - timedelta(hours=1), hour)
    assert job.args == {"from": f"{hour - timedelta(hours=1):%H}", "to": hour.astimezone(UTC).isoformat()}
    assert (job.lock_key, job.producer, job.schedule_id) == ("schedule:s", "schedule:s", schedule.schedule_id)
    assert schedule_db.counted() == {("s", "made"): 1}
    after = schedule_db.schedules.get("s")
    assert (after.last_at, after.next_at) == (hour, hour + timedelta(hours=1))


def test_an_outage_of_three_days_is_fired_or_accounted_for(schedule_db):
    for name in ("last", "all", "skip"):
        schedule_db.create(name, last="date_trunc('hour', now()) - interval '3 days'", catch_up=name, catch_up_max=10)
    schedule_db.fire()

    counts = Counter(
        schedule_db.queue.sql("SELECT s.name, f.outcome FROM dl_firings f JOIN dl_schedules s USING (schedule_id)")
    )
    # The time of this hour may be within its grace or not: `last` fires one or two.
    assert 10 <= counts["all", "made"] <= 11
    assert 1 <= counts["last", "made"] <= 2
    assert counts["skip", "made"] <= 1
    assert counts["last", "late_skipped"] == counts["all", "late_skipped"] == counts["skip", "late_skipped"] == 1
    created = schedule_db.queue.sql(
        "SELECT logical_at FROM dl_jobs WHERE producer = 'schedule:all' ORDER BY created_at"
    )
    assert created == sorted(created), "they are claimed in their order"


def test_a_template_that_makes_no_job_is_refused_and_the_next_time_is_fired(schedule_db):
    @schedule_db.tasks.register("typed", args={"type": "object", "required": ["day"]})
    def typed(args: dict[str, Any]) -> None: ...

    schedule_db.create(last="date_trunc('hour', now()) - interval '90 minutes'", catch_up="all", task="typed")
    schedule_db.fire()
    assert {outcome for _, outcome in schedule_db.rows()} == {"refused"}
    assert "args.day" in schedule_db.rows("detail")[0][0]

    schedule_db.queue.sql('UPDATE dl_schedules SET overrides = overrides || \'{"args": {"day": "x"}}\', version = 2')
    schedule_db.queue.sql("UPDATE dl_schedules SET last_at = last_at - interval '5 hours', next_at = now()")
    schedule_db.fire()
    assert Counter(outcome for _, outcome in schedule_db.rows())["made"] >= 3


def test_a_definition_that_does_not_hold_any_more_stops_its_schedule_with_the_error(schedule_db):
    schedule_db.create(last="date_trunc('hour', now()) - interval '1 minute'")
    schedule_db.queue.sql('UPDATE dl_schedules SET overrides = overrides || \'{"zone": "Mars/Olympus"}\'')
    schedule_db.fire()

    stopped = schedule_db.schedules.get("s")
    assert (stopped.next_at, stopped.error) == (
        None,
        "zone: 'Mars/Olympus' is no IANA time zone, such as Europe/Moscow or UTC",
    )
    assert schedule_db.rows("outcome") == [("refused",)]


def test_a_paused_schedule_does_not_fire_and_says_so_when_resumed(schedule_db):
    schedule_db.create(last="date_trunc('hour', now()) - interval '150 minutes'")
    paused = schedule_db.schedules.pause("s", reason="the source is down", changed_by="ann")
    schedule_db.fire()
    assert schedule_db.rows() == []

    hour = schedule_db.hour()
    schedule_db.schedules.resume(
        paused, Times(hour, hour + timedelta(hours=1)), skipped=(hour - timedelta(hours=2), hour)
    )
    schedule_db.fire()

    assert schedule_db.rows("outcome, detail") == [("paused_skipped", "paused by ann: the source is down")]


def test_a_slice_that_another_job_loads_is_not_made_twice(schedule_db):
    schedule_db.create(
        last="date_trunc('hour', now()) - interval '1 minute'",
        catch_up="all",
        partitions={"unit": "day", "start": "2020-01-01"},
        args={"day": "{partition}"},
    )
    day = schedule_db.queue.fetch_row("SELECT (date_trunc('hour', now()) AT TIME ZONE 'UTC')::date - 1")
    other = schedule_db.queue.enqueue("other", task="t", live_key=f"slice:t:{day}", partition_key=str(day))
    schedule_db.fire()

    assert schedule_db.rows("outcome, job_id::text") == [("exists", str(other))]
    (run,) = schedule_db.queue.claim()
    assert (run.id, run.partition_key) == (other, str(day))
    schedule_db.queue.queue.settle([(run, SUCCEEDED)])
    assert schedule_db.queue.sql("SELECT partition_key, state::text, runs FROM dl_slices") == [
        (str(day), "succeeded", 1)
    ]


def test_a_clock_that_jumps_ahead_is_looked_at_again_before_anything_is_fired(schedule_db, monkeypatch, logged):
    with monkeypatch.context() as behind:  # against the process's own clock, the database's is three hours behind
        behind.setattr(schedules, "clock", lambda: clock() + 3 * 3600)
        schedule_db.fire()
    schedule_db.create(last="date_trunc('hour', now()) - interval '1 minute'", catch_up="all")

    assert 1 <= (schedule_db.duty.run() or 0) <= 60
    assert len(logged("schedules.clock_jumped")) == 1
    assert schedule_db.rows() == []
    schedule_db.fire()
    assert len(schedule_db.rows()) == 1


def test_a_clock_that_jumps_back_fires_no_time_again(schedule_db):
    schedule_db.create(last="date_trunc('hour', now()) - interval '150 minutes'", catch_up="all")
    schedule_db.fire()
    before = schedule_db.rows("fire_at, job_id")
    schedule_db.queue.sql("UPDATE dl_schedules SET last_at = last_at - interval '2 hours', next_at = now()")
    schedule_db.fire()

    assert schedule_db.rows("fire_at, job_id")[-len(before) :] == before
    assert schedule_db.queue.fetch_row("SELECT count(*) FROM dl_jobs") == len(schedule_db.rows())


def test_a_key_that_a_long_transaction_holds_delays_its_own_schedule_only(schedule_db):
    partitions = {"unit": "day", "start": "2020-01-01"}
    schedule_db.create(
        "held", last="date_trunc('hour', now()) - interval '1 minute'", catch_up="all", partitions=partitions
    )
    for n in range(3):
        schedule_db.create(
            f"free-{n}", last="date_trunc('hour', now()) - interval '1 minute'", catch_up="all", task="u"
        )
    day = schedule_db.queue.fetch_row("SELECT (date_trunc('hour', now()) AT TIME ZONE 'UTC')::date - 1")
    holder = schedule_db.queue.connect()
    holder.cursor().execute(
        "INSERT INTO dl_jobs (queue, task, lock_key, live_key) VALUES ('q', 't', 'k', %s)", (f"slice:t:{day}",)
    )
    schedule_db.duty.run()
    assert schedule_db.rows("outcome") == [("made",)] * 3

    holder.rollback()
    eventually(lambda: schedule_db.fire() or schedule_db.rows("outcome") == [("made",)] * 4)


def test_pause_of_a_held_schedule_doubles_and_two_lines_are_logged(schedule_db, monkeypatch, caplog):
    caplog.set_level("INFO")
    for name in ("held", "free"):
        schedule_db.create(name, last="date_trunc('hour', now()) - interval '1 minute'", task=name)
    holder = schedule_db.queue.connect()
    holder.cursor().execute("SELECT FROM dl_schedules WHERE name = 'held' FOR UPDATE")
    now, pauses = clock(), list[float]()
    monkeypatch.setattr(schedules, "clock", lambda: now)

    for _ in range(3):
        schedule_db.fire()
        pauses.append(round(schedule_db.duty.run()))
        now += pauses[-1]
    assert schedule_db.rows("outcome") == [("made",)]
    holder.rollback()
    schedule_db.fire()

    assert schedule_db.rows("outcome") == [("made",)] * 2
    assert pauses == [1, 2, 4]
    assert [record.getMessage() for record in caplog.records if record.getMessage().startswith("schedules.")] == [
        "schedules.delayed",
        "schedules.resumed",
    ]


def test_what_was_changed_while_it_was_fired_is_fired_by_one_definition_only(schedule_db):
    schedule_db.create(last="date_trunc('hour', now()) - interval '1 minute'", catch_up="all")
    read = schedule_db.schedules.due(limit=10)
    plan = schedule_db.duty.plan(read.schedules[0], read.now)
    schedule_db.queue.sql(
        'UPDATE dl_schedules SET version = version + 1, overrides = overrides || \'{"args": {"new": 1}}\''
    )

    assert schedule_db.schedules.fire([plan]) == []
    schedule_db.fire()
    assert schedule_db.queue.sql("SELECT args FROM dl_jobs") == [({"new": 1},)]


def register_worker(queue: QueueFixture, **info: Any) -> UUID:
    worker = WorkerInfo(uuid4(), "w", "1", ("q",), ("t",), 1, **info)
    WorkerLiveness(queue.session).send_heartbeat(worker, heartbeat_sec=10)
    return worker.id


def test_a_declaration_of_an_older_process_changes_nothing(schedule_db):
    old, new = (register_worker(schedule_db.queue) for _ in range(2))
    schedule_db.queue.sql("UPDATE dl_workers SET started_at = now() - interval '1 hour' WHERE worker_id = %s", str(old))

    def declare(worker: Any, expression: str) -> None:
        definition = {**HOURLY, "expression": expression}
        schedule_db.schedules.declare([{"name": "s", "task": "t", "definition": definition}], worker)

    declare(new, "0 6 * * *")
    declare(old, "0 5 * * *")
    assert schedule_db.schedules.get("s").effective_definition["expression"] == "0 6 * * *"
    declare(new, "0 7 * * *")
    assert schedule_db.schedules.get("s").version == 2
    schedule_db.create("people's")
    assert schedule_db.schedules.declare([{"name": "people's", "task": "t", "definition": HOURLY}], new) == ["people's"]


def test_a_schedule_that_no_live_worker_declares_is_orphaned_and_fires_no_more(schedule_db):
    worker = register_worker(schedule_db.queue, schedules=("s",))
    schedule_db.schedules.declare([{"name": "s", "task": "t", "definition": HOURLY}], worker)
    schedule_db.queue.sql("UPDATE dl_schedules SET seen_at = now() - interval '11 minutes'")
    assert schedule_db.schedules.see() == []
    schedule_db.queue.sql("DELETE FROM dl_workers")
    schedule_db.queue.sql("UPDATE dl_schedules SET seen_at = now() - interval '11 minutes'")
    assert schedule_db.schedules.see() == ["s"]
    schedule_db.queue.sql(
        "UPDATE dl_schedules SET last_at = now() - interval '3 hours', next_at = now() - interval '2 hours'"
    )
    schedule_db.fire()
    assert schedule_db.rows() == []

    schedule_db.schedules.declare(
        [{"name": "s", "task": "t", "definition": HOURLY}], register_worker(schedule_db.queue)
    )
    assert schedule_db.schedules.get("s").orphaned_at is None


def test_first_next_time_keeps_error_found_at_declaration(schedule_db):
    definition = {**HOURLY, "expression": "0 6 1 1 *", "args": {"x": "{partition}"}}
    worker = register_worker(schedule_db.queue, schedules=("s",))
    schedule_db.schedules.declare([{"name": "s", "task": "t", "definition": definition}], worker)
    declared = schedule_db.schedules.get("s")
    schedule_db.schedules.record_error(declared, "x: this job has no partition")

    schedule_db.fire()

    planned = schedule_db.schedules.get("s")
    assert planned.next_at - declared.next_at > timedelta(minutes=1)
    assert planned.error == "x: this job has no partition"


def test_schedule_in_code_that_makes_no_job_is_found_at_start(worker_pools: WorkerPoolFixture, caplog):
    @schedule("0 6 * * *", queue="q", zone="UTC", args={"date": "{interval_start:%Y-%m-%d}"})
    @worker_pools.pipelines.register("orders", lock_key="orders:{day}")
    def orders(args: dict[str, Any]) -> None: ...

    worker_pools.pool()
    schedules = Schedules(worker_pools.queue_fixture.session)
    eventually(lambda: [found.error for found in schedules.list_by_name()] != [])

    problem = "the argument 'day' is missing, which 'orders:{day}' needs"
    eventually(lambda: schedules.get("orders").error == problem)
    assert schedules.get("orders").next_at is not None
    eventually(lambda: any(record.getMessage() == "schedule.makes_no_jobs" for record in caplog.records))
    assert [found.name for found in schedules.not_firing(late_sec=5, limit=5)] == ["orders"]


def test_a_schedule_shows_an_error_until_a_time_makes_a_job(schedule_db):
    schedule_db.create(last="now() - interval '1 hour'", args={"x": "{partition}"})
    schedule_db.fire()
    assert schedule_db.schedules.get("s").error == "x: this job has no partition"

    schedule_db.queue.sql(
        "UPDATE dl_schedules SET overrides = overrides - 'args', next_at = now(), last_at = now() - interval '1 h'"
    )
    schedule_db.fire()
    assert schedule_db.schedules.get("s").error is None


RACER = """
import sys
from dataloader.app.db.connection import Session
from dataloader.pipelines.contract import Context, Pipelines, schedule
from dataloader.app.features.schedules.duty import SchedulesDuty
from dataloader.pipelines.portable import clock
session = Session(sys.argv[1], application_name="racer")
duty = SchedulesDuty(session, Pipelines(), zone="UTC", default_lease_sec=60, record_firing=lambda *fired: None)
print("ready", flush=True)
sys.stdin.readline()
while True:
    try:
        duty.run()
    except Exception as error:
        print(type(error).__name__, error, file=sys.stderr)
"""


def test_racing_processes_that_are_killed_fire_each_time_exactly_once(schedule_db):
    start = schedule_db.queue.fetch_row("SELECT date_trunc('second', now())")
    for n in range(40):
        values = definition_from(
            {"task": "t", "queue": "q", "kind": "interval", "expression": "1", "overlap": "allow", "catch_up": "all"},
            zone="UTC",
        ).to_json()
        schedule_db.schedules.create(f"s-{n}", "t", values, Times(start, start + timedelta(seconds=1)))
    racers = [_start_racer(schedule_db.queue.dsn) for _ in range(6)]
    try:
        for racer in racers:
            assert racer.stdout.readline() == b"ready\n"
        for racer in racers:
            racer.stdin.write(b"go\n")
            racer.stdin.flush()
        for n in range(6):  # one by one they are killed, whatever they do
            schedule_db.queue.sql("SELECT pg_sleep(0.7)")
            os.kill(racers[n].pid, signal.SIGKILL)
            if n < 3:
                racers.append(_start_racer(schedule_db.queue.dsn))
                racers[-1].stdin.write(b"go\n")
                racers[-1].stdin.flush()
        schedule_db.queue.sql("SELECT pg_sleep(1)")
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate(timeout=30)
    end = schedule_db.queue.fetch_row("SELECT date_trunc('second', now())")
    schedule_db.fire()

    fired = schedule_db.queue.sql(
        "SELECT schedule_id, fire_at, outcome, job_id FROM dl_firings WHERE fire_at <= %s", end
    )
    seconds = int((end - start).total_seconds())
    assert Counter(row[0] for row in fired) == dict.fromkeys((row[0] for row in fired), seconds)
    assert len({row[0] for row in fired}) == 40
    assert {row[2] for row in fired} == {"made"}
    jobs = schedule_db.queue.sql(
        "SELECT count(*), count(DISTINCT (schedule_id, logical_at)) FROM dl_jobs WHERE logical_at <= %s", end
    )
    assert jobs == [(len(fired), len(fired))]


def _start_racer(dsn: str) -> Any:
    return subprocess.Popen(
        [sys.executable, "-c", RACER, dsn],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def test_a_worker_declares_and_fires_the_schedules_of_its_tasks(worker_pools: WorkerPoolFixture):
    done: list[tuple[datetime | None, Any]] = []

    @schedule(every=1, queue="q", args={"until": "{interval_end}"})
    @worker_pools.pipelines.register("tick")
    def tick(args: dict[str, Any], ctx: Context) -> None:
        done.append((ctx.logical_at, ctx.interval))

    worker_pools.pool()
    eventually(lambda: len(done) >= 3)

    found = Schedules(worker_pools.queue_fixture.session).get("tick")
    assert (found.source, found.task, found.orphaned_at) == ("code", "tick", None)
    for logical_at, interval in done:
        assert logical_at == interval.end == interval.start + timedelta(seconds=1)


def test_alerts_say_what_is_late_refused_or_behind(schedule_db):
    alerts = Alerts(schedule_db.queue.session)
    for kind, threshold in ((RuleKind.SCHEDULE_LATE, 60), (RuleKind.SCHEDULE_BEHIND, 3)):
        alerts.add(kind.value, kind, threshold)
    schedule_db.create("late", last="now() - interval '3 hours'")
    schedule_db.queue.sql("UPDATE dl_schedules SET next_at = now() - interval '2 hours' WHERE name = 'late'")
    schedule_db.create("paused", last="now() - interval '3 hours'")
    schedule_db.schedules.pause("paused")
    schedule_db.create("fine", last="now()")
    schedule_db.queue.sql("UPDATE dl_schedules SET next_at = now() + interval '1 hour' WHERE name = 'fine'")
    behind = schedule_db.create("behind", last="now()")
    for n in range(4):
        schedule_db.queue.enqueue(f"{n}", schedule_id=behind.schedule_id, logical_at=behind.created_at)
    schedule_db.queue.sql("UPDATE dl_schedules SET next_at = now() + interval '1 hour' WHERE name = 'behind'")
    alerts.check(interval_sec=15)

    details = {(alert.kind, alert.subject): alert.detail for alert in alerts.all()}
    assert details.pop(("schedule_late", "late")).startswith("the schedule late is 2 h")
    assert details == {("schedule_behind", "behind"): "4 jobs of the schedule behind have not ended"}
    schedule_db.queue.sql("DELETE FROM dl_schedules WHERE name <> 'late'")
    schedule_db.queue.sql(
        'UPDATE dl_schedules SET overrides = overrides || \'{"args": {"x": "{partition}"}}\', version = 2'
    )
    schedule_db.fire()
    schedule_db.queue.sql("DELETE FROM dl_alerts")
    alerts.check(interval_sec=15)
    (refused,) = alerts.all()
    assert refused.detail == "the schedule late makes no jobs: x: this job has no partition"
