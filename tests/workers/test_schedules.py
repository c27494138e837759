"""Firing schedules: each nominal time has one row, over processes, crashes, clock jumps and locks of others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from app.admin.alerts import Alerts, RuleKind
from app.admin.schedules import Schedule, Schedules, Times
from app.queue.job import SUCCEEDED, Reports
from app.queue.workers import WorkerInfo, WorkerLiveness
from pipelines.contract import Context, Pipelines, schedule
from pipelines.schedule_definition import definition_from
from tests.support.processes import ROOT
from tests.support.queue_fixture import QueueFixture
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture
from workers import schedules
from workers.metrics import PoolCounters
from workers.schedules import SchedulesDuty
from workers.threads import clock

HOURLY = {"expression": "0 * * * *", "queue": "q", "zone": "UTC"}


class ScheduleFixture:
    def __init__(self, queue: QueueFixture) -> None:
        self.queue = queue
        self.schedules = Schedules(queue.session)
        self.tasks = Pipelines()
        self.counters = PoolCounters()
        self.duty = SchedulesDuty(
            queue.session, self.tasks, zone="UTC", default_lease_sec=60, record_firing=self.counters.record_firing
        )

    def create(self, name: str = "s", *, last: str = "now()", task: str = "t", **definition: Any) -> Schedule:
        """A schedule whose times after `last` are to be fired."""
        values = definition_from({**HOURLY, **definition, "task": task}, zone="UTC").to_json()
        last_at = self.queue.fetch_row(f"SELECT {last}")
        return self.schedules.create(name, task, values, Times(last_at, self.queue.fetch_row("SELECT now()")))

    def fire(self) -> None:
        while self.duty.run() == 0.0:
            pass

    def rows(self, columns: str = "fire_at, outcome") -> list[tuple[Any, ...]]:
        return self.queue.sql(f"SELECT {columns} FROM dl_firings ORDER BY fire_at")

    def counted(self) -> dict[tuple[str, str], float]:
        samples = [sample for metric in self.counters.collect() for sample in metric.samples]
        found = [sample for sample in samples if sample.name == "dataloader_schedule_firings_total"]
        return {(sample.labels["schedule"], sample.labels["outcome"]): sample.value for sample in found}

    def hour(self, ago: int = 0) -> datetime:
        """The last full hour, or one before it."""
        hour: datetime = self.queue.fetch_row(f"SELECT date_trunc('hour', now()) - interval '{ago} hours'")
        return hour


@pytest.fixture
def fixture(dsn: str) -> Iterator[ScheduleFixture]:
    queue = QueueFixture(dsn)
    yield ScheduleFixture(queue)
    queue.close()


def test_a_time_that_has_come_makes_one_job_with_its_interval(fixture):
    schedule = fixture.create(
        last="date_trunc('hour', now()) - interval '1 minute'",
        args={"from": "{interval_start:%H}", "to": "{interval_end}"},
        catch_up="all",
    )
    fixture.fire()
    fixture.fire()

    ((job_id,),) = fixture.rows("job_id")
    job = fixture.queue.job(job_id)
    hour = fixture.hour()
    assert (job.logical_at, job.interval_start, job.interval_end) == (hour, hour - timedelta(hours=1), hour)
    assert job.args == {"from": f"{hour - timedelta(hours=1):%H}", "to": hour.astimezone(UTC).isoformat()}
    assert (job.lock_key, job.producer, job.schedule_id) == ("schedule:s", "schedule:s", schedule.schedule_id)
    assert fixture.counted() == {("s", "made"): 1}
    after = fixture.schedules.get("s")
    assert (after.last_at, after.next_at) == (hour, hour + timedelta(hours=1))


def test_an_outage_of_three_days_is_fired_or_accounted_for(fixture):
    for name in ("last", "all", "skip"):
        fixture.create(name, last="date_trunc('hour', now()) - interval '3 days'", catch_up=name, catch_up_max=10)
    fixture.fire()

    counts = Counter(
        fixture.queue.sql("SELECT s.name, f.outcome FROM dl_firings f JOIN dl_schedules s USING (schedule_id)")
    )
    # The time of this hour may be within its grace or not: `last` fires one or two.
    assert 10 <= counts["all", "made"] <= 11
    assert 1 <= counts["last", "made"] <= 2
    assert counts["skip", "made"] <= 1
    assert counts["last", "late_skipped"] == counts["all", "late_skipped"] == counts["skip", "late_skipped"] == 1
    created = fixture.queue.sql("SELECT logical_at FROM dl_jobs WHERE producer = 'schedule:all' ORDER BY created_at")
    assert created == sorted(created), "they are claimed in their order"


def test_a_template_that_makes_no_job_is_refused_and_the_next_time_is_fired(fixture):
    @fixture.tasks.register("typed", args={"type": "object", "required": ["day"]})
    def typed(args: dict[str, Any]) -> None: ...

    fixture.create(last="date_trunc('hour', now()) - interval '90 minutes'", catch_up="all", task="typed")
    fixture.fire()
    assert {outcome for _, outcome in fixture.rows()} == {"refused"}
    assert "args.day" in fixture.rows("detail")[0][0]

    fixture.queue.sql('UPDATE dl_schedules SET overrides = overrides || \'{"args": {"day": "x"}}\', version = 2')
    fixture.queue.sql("UPDATE dl_schedules SET last_at = last_at - interval '5 hours', next_at = now()")
    fixture.fire()
    assert Counter(outcome for _, outcome in fixture.rows())["made"] >= 3


def test_a_definition_that_does_not_hold_any_more_stops_its_schedule_with_the_error(fixture):
    fixture.create(last="date_trunc('hour', now()) - interval '1 minute'")
    fixture.queue.sql('UPDATE dl_schedules SET overrides = overrides || \'{"zone": "Mars/Olympus"}\'')
    fixture.fire()

    stopped = fixture.schedules.get("s")
    assert (stopped.next_at, stopped.error) == (
        None,
        "zone: 'Mars/Olympus' is no IANA time zone, such as Europe/Moscow or UTC",
    )
    assert fixture.rows("outcome") == [("refused",)]


@pytest.mark.parametrize(
    ("overlap", "outcomes", "statuses"),
    [
        ("queue", ["made", "made"], ["queued", "queued"]),
        ("allow", ["made", "made"], ["queued", "queued"]),
        ("skip", ["made", "overlap_skipped"], ["queued"]),
        ("cancel", ["made", "made"], ["canceled", "queued"]),
    ],
)
def test_overlap_rules(fixture, overlap, outcomes, statuses):
    fixture.create(last="date_trunc('hour', now()) - interval '1 minute'", overlap=overlap, catch_up="all")
    fixture.fire()
    fixture.queue.sql("UPDATE dl_schedules SET last_at = last_at - interval '1 hour', next_at = now()")
    fixture.queue.sql("UPDATE dl_firings SET fire_at = fire_at - interval '1 hour'")
    fixture.queue.sql("UPDATE dl_jobs SET logical_at = logical_at - interval '1 hour', idempotency_key = 'earlier'")
    fixture.fire()

    assert [outcome for (outcome,) in fixture.rows("outcome")] == outcomes
    jobs = fixture.queue.sql("SELECT status::text, lock_key FROM dl_jobs ORDER BY logical_at")
    assert [status for status, _ in jobs] == statuses
    assert {key == "schedule:s" for _, key in jobs} == {overlap != "allow"}


def test_a_paused_schedule_does_not_fire_and_says_so_when_resumed(fixture):
    fixture.create(last="date_trunc('hour', now()) - interval '150 minutes'")
    paused = fixture.schedules.pause("s", reason="the source is down", changed_by="ann")
    fixture.fire()
    assert fixture.rows() == []

    hour = fixture.hour()
    fixture.schedules.resume(paused, Times(hour, hour + timedelta(hours=1)), skipped=(hour - timedelta(hours=2), hour))
    fixture.fire()

    assert fixture.rows("outcome, detail") == [("paused_skipped", "paused by ann: the source is down")]


def test_a_slice_that_another_job_loads_is_not_made_twice(fixture):
    fixture.create(
        last="date_trunc('hour', now()) - interval '1 minute'",
        catch_up="all",
        partitions={"unit": "day", "start": "2020-01-01"},
        args={"day": "{partition}"},
    )
    day = fixture.queue.fetch_row("SELECT (date_trunc('hour', now()) AT TIME ZONE 'UTC')::date - 1")
    other = fixture.queue.enqueue("other", task="t", live_key=f"slice:t:{day}", partition_key=str(day))
    fixture.fire()

    assert fixture.rows("outcome, job_id::text") == [("exists", str(other))]
    (run,) = fixture.queue.claim()
    assert (run.id, run.partition_key) == (other, str(day))
    fixture.queue.queue.settle([(run, SUCCEEDED)])
    assert fixture.queue.sql("SELECT partition_key, state::text, runs FROM dl_slices") == [(str(day), "succeeded", 1)]


def test_a_clock_that_jumps_ahead_is_looked_at_again_before_anything_is_fired(fixture, monkeypatch):
    fixture.create(last="date_trunc('hour', now()) - interval '1 minute'", catch_up="all")
    now = fixture.queue.fetch_row("SELECT now()")
    fixture.duty._clocks = (now - timedelta(hours=3), clock())

    assert fixture.duty.run() == schedules._CLOCK_CHECK_SEC
    assert fixture.rows() == []
    fixture.fire()
    assert len(fixture.rows()) == 1


def test_a_clock_that_jumps_back_fires_no_time_again(fixture):
    fixture.create(last="date_trunc('hour', now()) - interval '150 minutes'", catch_up="all")
    fixture.fire()
    before = fixture.rows("fire_at, job_id")
    fixture.queue.sql("UPDATE dl_schedules SET last_at = last_at - interval '2 hours', next_at = now()")
    fixture.fire()

    assert fixture.rows("fire_at, job_id")[-len(before) :] == before
    assert fixture.queue.fetch_row("SELECT count(*) FROM dl_jobs") == len(fixture.rows())


def test_a_key_that_a_long_transaction_holds_delays_its_own_schedule_only(fixture):
    partitions = {"unit": "day", "start": "2020-01-01"}
    fixture.create(
        "held", last="date_trunc('hour', now()) - interval '1 minute'", catch_up="all", partitions=partitions
    )
    for n in range(3):
        fixture.create(f"free-{n}", last="date_trunc('hour', now()) - interval '1 minute'", catch_up="all", task="u")
    day = fixture.queue.fetch_row("SELECT (date_trunc('hour', now()) AT TIME ZONE 'UTC')::date - 1")
    holder = fixture.queue.connect()
    holder.cursor().execute(
        "INSERT INTO dl_jobs (queue, task, lock_key, live_key) VALUES ('q', 't', 'k', %s)", (f"slice:t:{day}",)
    )
    fixture.duty.run()
    assert fixture.rows("outcome") == [("made",)] * 3

    holder.rollback()
    fixture.fire()
    assert fixture.rows("outcome") == [("made",)] * 4


def test_what_was_changed_while_it_was_fired_is_fired_by_one_definition_only(fixture):
    fixture.create(last="date_trunc('hour', now()) - interval '1 minute'", catch_up="all")
    read = fixture.schedules.due(limit=10)
    plan = fixture.duty.plan(read.schedules[0], read.now)
    fixture.queue.sql(
        'UPDATE dl_schedules SET version = version + 1, overrides = overrides || \'{"args": {"new": 1}}\''
    )

    assert fixture.schedules.fire([plan]) == []
    fixture.fire()
    assert fixture.queue.sql("SELECT args FROM dl_jobs") == [({"new": 1},)]


def register_worker(queue: QueueFixture, **info: Any) -> UUID:
    worker = WorkerInfo(uuid4(), "w", "1", ("q",), ("t",), 1, **info)
    WorkerLiveness(queue.session).beat(worker, heartbeat_sec=10)
    return worker.id


def test_a_declaration_of_an_older_process_changes_nothing(fixture):
    old, new = (register_worker(fixture.queue) for _ in range(2))
    fixture.queue.sql("UPDATE dl_workers SET started_at = now() - interval '1 hour' WHERE worker_id = %s", str(old))

    def declare(worker: Any, expression: str) -> None:
        definition = {**HOURLY, "expression": expression}
        fixture.schedules.declare([{"name": "s", "task": "t", "definition": definition}], worker)

    declare(new, "0 6 * * *")
    declare(old, "0 5 * * *")
    assert fixture.schedules.get("s").effective_definition["expression"] == "0 6 * * *"
    declare(new, "0 7 * * *")
    assert fixture.schedules.get("s").version == 2
    fixture.create("people's")
    assert fixture.schedules.declare([{"name": "people's", "task": "t", "definition": HOURLY}], new) == ["people's"]


def test_a_schedule_that_no_live_worker_declares_is_orphaned_and_fires_no_more(fixture):
    worker = register_worker(fixture.queue, schedules=("s",))
    fixture.schedules.declare([{"name": "s", "task": "t", "definition": HOURLY}], worker)
    fixture.queue.sql("UPDATE dl_schedules SET seen_at = now() - interval '11 minutes'")
    assert fixture.schedules.see() == []
    fixture.queue.sql("DELETE FROM dl_workers")
    fixture.queue.sql("UPDATE dl_schedules SET seen_at = now() - interval '11 minutes'")
    assert fixture.schedules.see() == ["s"]
    fixture.queue.sql(
        "UPDATE dl_schedules SET last_at = now() - interval '3 hours', next_at = now() - interval '2 hours'"
    )
    fixture.fire()
    assert fixture.rows() == []

    fixture.schedules.declare([{"name": "s", "task": "t", "definition": HOURLY}], register_worker(fixture.queue))
    assert fixture.schedules.get("s").orphaned_at is None


RACER = """
import sys
from app.db.connection import Session
from pipelines.contract import Context, Pipelines, schedule
from workers.schedules import SchedulesDuty
from workers.threads import clock
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


def test_racing_processes_that_are_killed_fire_each_time_exactly_once(fixture):
    start = fixture.queue.fetch_row("SELECT date_trunc('second', now())")
    for n in range(40):
        values = definition_from(
            {"task": "t", "queue": "q", "kind": "interval", "expression": "1", "overlap": "allow", "catch_up": "all"},
            zone="UTC",
        ).to_json()
        fixture.schedules.create(f"s-{n}", "t", values, Times(start, start + timedelta(seconds=1)))
    racers = [_start_racer(fixture.queue.dsn) for _ in range(6)]
    try:
        for racer in racers:
            assert racer.stdout.readline() == b"ready\n"
        for racer in racers:
            racer.stdin.write(b"go\n")
            racer.stdin.flush()
        for n in range(6):  # one by one they are killed, whatever they do
            fixture.queue.sql("SELECT pg_sleep(0.7)")
            os.kill(racers[n].pid, signal.SIGKILL)
            if n < 3:
                racers.append(_start_racer(fixture.queue.dsn))
                racers[-1].stdin.write(b"go\n")
                racers[-1].stdin.flush()
        fixture.queue.sql("SELECT pg_sleep(1)")
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate(timeout=30)
    end = fixture.queue.fetch_row("SELECT date_trunc('second', now())")
    fixture.fire()

    fired = fixture.queue.sql("SELECT schedule_id, fire_at, outcome, job_id FROM dl_firings WHERE fire_at <= %s", end)
    seconds = int((end - start).total_seconds())
    assert Counter(row[0] for row in fired) == dict.fromkeys((row[0] for row in fired), seconds)
    assert len({row[0] for row in fired}) == 40
    assert {row[2] for row in fired} == {"made"}
    jobs = fixture.queue.sql(
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


def produce(fixture: ScheduleFixture, *datasets: str) -> None:
    """A run that updates these datasets."""
    run = fixture.queue.enqueue_and_claim("producer", queue="producers")
    reports = Reports(datasets=tuple({"kind": "produced", "dataset": name} for name in datasets))
    fixture.queue.settle(run, reports=reports)


def by_dataset(fixture: ScheduleFixture, name: str = "s", **definition: Any) -> Schedule:
    values = {"kind": "dataset", "queue": "q", "task": "t", "after": ["a", "b"], **definition}
    now = fixture.queue.fetch_row("SELECT now()")
    created = definition_from(values, zone="UTC").to_json()
    return fixture.schedules.create(name, "t", created, Times(now, None))


def test_a_schedule_fires_when_all_its_datasets_or_one_have_been_updated(fixture):
    by_dataset(fixture, "all")
    by_dataset(fixture, "any", need="any", overlap="allow")
    by_dataset(fixture, "other", after=["c"])
    produce(fixture, "a")
    produce(fixture, "a", "d")
    fixture.fire()
    assert fixture.rows("made_by, outcome, detail") == [("dataset", "made", "updated: a")], "any"
    assert fixture.queue.fetch_row("SELECT count(*) FROM dl_dataset_updates") == 1, "one update of a is enough"

    produce(fixture, "b")
    fixture.fire()
    fixture.fire()

    jobs = fixture.queue.sql("SELECT producer, idempotency_key FROM dl_jobs WHERE queue = 'q' ORDER BY created_at")
    assert Counter(producer for producer, _ in jobs) == {"schedule:all": 1, "schedule:any": 2}
    assert "updated: a, b" in [detail for (detail,) in fixture.rows("detail")]
    assert fixture.queue.fetch_row("SELECT count(*) FROM dl_dataset_updates") == 0


def test_updates_before_a_queued_job_begins_are_served_by_it(fixture):
    by_dataset(fixture, need="any")
    for dataset in ("a", "a", "b"):
        produce(fixture, dataset)
        fixture.fire()
    ((job_id,),) = fixture.queue.sql("SELECT job_id FROM dl_jobs WHERE queue = 'q'")
    assert fixture.rows("outcome, job_id") == [("made", job_id), ("exists", job_id), ("exists", job_id)]

    (run,) = fixture.queue.claim()
    produce(fixture, "b")
    fixture.fire()
    assert [outcome for (outcome,) in fixture.rows("outcome")][3:] == ["made"], "the job that runs may not see it"
    assert fixture.queue.claim() == [], "it waits for the one that runs"
    fixture.queue.queue.settle([(run, SUCCEEDED)])
    assert len(fixture.queue.claim()) == 1


def test_updates_during_a_pause_are_dropped_or_kept(fixture):
    for name, keep in (("kept", True), ("dropped", False)):
        by_dataset(fixture, name, after=["a"])
        fixture.schedules.pause(name, reason="moving")
        produce(fixture, "a")
        fixture.fire()
        assert fixture.queue.fetch_row("SELECT count(*) FROM dl_jobs WHERE producer = %s", f"schedule:{name}") == 0
        paused = fixture.schedules.get(name)
        fixture.schedules.resume(paused, Times(paused.last_at, None), keep_updates=keep)
        fixture.fire()
    made = fixture.queue.sql("SELECT producer FROM dl_jobs WHERE queue = 'q' ORDER BY created_at")
    assert made[0] == ("schedule:kept",)
    assert ("schedule:dropped",) not in made
    dropped = fixture.queue.sql("SELECT detail FROM dl_firings WHERE outcome = 'paused_skipped'")
    assert dropped == [("paused: moving, updated: a",)]


def test_updates_outside_the_bounds_of_a_schedule_make_no_job(fixture):
    by_dataset(fixture, after=["a"], starts_at="2100-01-01T00:00:00+00:00")
    produce(fixture, "a")
    fixture.fire()

    assert fixture.rows() == []
    assert fixture.queue.fetch_row("SELECT count(*) FROM dl_dataset_updates") == 0


def test_a_settlement_and_a_firing_do_not_wait_for_one_another(fixture):
    """The firing waits for a key that the settlement ends; the settlement reports what the firing deletes."""
    by_dataset(fixture, after=["a"], partitions={"unit": "day", "start": "2020-01-01"}, need="any")
    produce(fixture, "a")
    read = fixture.schedules.due(limit=1)
    (found,) = read.schedules
    firing = fixture.duty.plan(found, read.now, read.updates[found.schedule_id])
    key = firing["firings"][0]["job"]["live_key"]
    run = fixture.queue.enqueue_and_claim("loads it", queue="producers", live_key=key)
    with ThreadPoolExecutor(1) as threads, fixture.queue.connect() as settling:
        cursor = settling.cursor()
        cursor.execute("UPDATE dl_jobs SET status = 'succeeded', finished_at = now() WHERE job_id = %s", (str(run.id),))
        fired = threads.submit(Schedules(QueueFixture(fixture.queue.dsn).session).fire, [firing])
        eventually(lambda: fixture.queue.fetch_row("SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
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


def test_an_update_that_commits_after_the_job_of_an_earlier_one_began_makes_another_job(fixture):
    by_dataset(fixture, after=["a"])
    produce(fixture, "a")
    run = fixture.queue.enqueue_and_claim("late", queue="producers")
    reports = json.dumps([{"run_id": str(run.run_id), "datasets": [{"kind": "produced", "dataset": "a"}]}])
    report = "SELECT dl_record_reports(%s::jsonb, ARRAY[%s]::uuid[])"
    with fixture.queue.connect() as settling, ThreadPoolExecutor(1) as threads:
        cursor = settling.cursor()
        cursor.execute("UPDATE dl_jobs SET status = 'succeeded', finished_at = now() WHERE job_id = %s", (str(run.id),))
        cursor.execute(report, (reports, str(run.id)))
        read = fixture.schedules.due(limit=1)
        (found,) = read.schedules
        firing = fixture.duty.plan(found, read.now, read.updates[found.schedule_id])
        fired = threads.submit(Schedules(QueueFixture(fixture.queue.dsn).session).fire, [firing])
        eventually(lambda: fixture.queue.fetch_row("SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
        settling.commit()
        assert len(fired.result(30)) == 1, "its job begins after the update"
    assert len(fixture.queue.claim()) == 1

    produce(fixture, "a")
    run = fixture.queue.enqueue_and_claim("later", queue="producers")
    with fixture.queue.connect() as firing, fixture.queue.connect() as settling:
        firing.cursor().execute("DELETE FROM dl_dataset_updates")
        cursor = settling.cursor()
        cursor.execute("UPDATE dl_jobs SET status = 'succeeded', finished_at = now() WHERE job_id = %s", (str(run.id),))
        reports = json.dumps([{"run_id": str(run.run_id), "datasets": [{"kind": "produced", "dataset": "a"}]}])
        cursor.execute(report, (reports, str(run.id)))
        firing.commit()
        settling.commit()
    assert fixture.queue.fetch_row("SELECT count(*) FROM dl_dataset_updates") == 1


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


def test_alerts_say_what_is_late_refused_or_behind(fixture):
    alerts = Alerts(fixture.queue.session)
    for kind, threshold in ((RuleKind.SCHEDULE_LATE, 60), (RuleKind.SCHEDULE_BEHIND, 3)):
        alerts.add(kind.value, kind, threshold)
    fixture.create("late", last="now() - interval '3 hours'")
    fixture.queue.sql("UPDATE dl_schedules SET next_at = now() - interval '2 hours' WHERE name = 'late'")
    fixture.create("paused", last="now() - interval '3 hours'")
    fixture.schedules.pause("paused")
    fixture.create("fine", last="now()")
    fixture.queue.sql("UPDATE dl_schedules SET next_at = now() + interval '1 hour' WHERE name = 'fine'")
    behind = fixture.create("behind", last="now()")
    for n in range(4):
        fixture.queue.enqueue(f"{n}", schedule_id=behind.schedule_id, logical_at=behind.created_at)
    fixture.queue.sql("UPDATE dl_schedules SET next_at = now() + interval '1 hour' WHERE name = 'behind'")
    alerts.check(interval_sec=15)

    assert {(alert.kind, alert.subject): alert.detail for alert in alerts.all()} == {
        ("schedule_late", "late"): "the schedule late is 7200 s late",
        ("schedule_behind", "behind"): "4 jobs of the schedule behind have not ended",
    }
    fixture.queue.sql("DELETE FROM dl_schedules WHERE name <> 'late'")
    fixture.queue.sql(
        'UPDATE dl_schedules SET overrides = overrides || \'{"args": {"x": "{partition}"}}\', version = 2'
    )
    fixture.fire()
    fixture.queue.sql("DELETE FROM dl_alerts")
    alerts.check(interval_sec=15)
    (refused,) = alerts.all()
    assert "fired refused: args" in refused.detail or "fired refused: x: this job has no partition" in refused.detail
