"""One worker process runs the periodic duties for all, one slice at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from app.admin.alerts import Alerts, RuleKind
from app.admin.bulk import BulkAction, BulkOperations, BulkState, Redrive
from app.admin.job_search import Filter
from app.admin.retention import DAY_SEC, RetentionPeriods
from app.admin.statistics import Statistics
from app.admin.webhooks import WebhookEvent, Webhooks
from app.errors import DatabaseUnavailable, SchemaOutdated
from app.net import AllowedHosts
from app.queue.job import Status
from app.queue.workers import BeatResult, WorkerInfo, WorkerLiveness
from pipelines.contract import Breaker, Pipelines
from tests.support.queue_fixture import QueueFixture
from tests.support.waiting import eventually
from tests.support.webhook_receiver import WebhookReceiver
from tests.support.worker_pool_fixture import WorkerPoolFixture
from workers import maintenance
from workers.maintenance import (
    Duty,
    Maintenance,
    MaintenanceOptions,
    RetentionDuty,
    duties,
    follower_duties,
    rest_sec,
)
from workers.threads import clock
from workers.webhook_sender import WebhookOptions


@pytest.fixture
def queue(dsn: str) -> Iterator[QueueFixture]:
    fixture = QueueFixture(dsn)
    yield fixture
    fixture.close()


def test_late_statistics_rest_less_and_then_not_at_all():
    assert rest_sec(0.1, 0.0) == pytest.approx(0.9)
    assert rest_sec(0.1, 30.0) == pytest.approx(0.45)
    assert rest_sec(0.1, 60.0) == rest_sec(0.1, 3600.0) == 0.0


def new_maintenance(queue: QueueFixture, *entries: Duty, followed: Sequence[Duty] = ()) -> Maintenance:
    session = queue.new_session(application_name="dataloader-maintenance")
    return Maintenance(session, queue.new_session(), entries, on_crash=pytest.fail, follower_duties=followed)


def leader_connections(queue: QueueFixture) -> int:
    return int(
        queue.fetch_row(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'dataloader-maintenance%%'"
        )
    )


def lock_is_free(queue: QueueFixture) -> bool:
    return not queue.fetch_row(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1684828527 AND objid = 5"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )


def run_steps(maintenance: Maintenance, count: int) -> None:
    for _ in range(count):
        maintenance.run_once()


# ── the list of duties ──────────────────────────────────────────────────────────────────────────────────────────────


def test_new_duty_is_one_entry(queue):
    runs: list[str] = []
    leader = new_maintenance(queue, Duty("remind", 30.0, lambda: runs.append("remind")))

    pause = leader.run_once()

    assert runs == ["remind"]
    assert 29.0 < pause <= 30.0


def test_duty_with_more_to_do_leaves_turns_to_the_others(queue):
    runs: list[str] = []

    def run_endless() -> float:
        runs.append("endless")
        return 0.0

    leader = new_maintenance(
        queue, Duty("endless", 30.0, run_endless), Duty("short", 0.0, lambda: runs.append("short"))
    )

    run_steps(leader, 20)

    assert runs.count("endless") >= 5
    assert runs.count("short") >= 5


@pytest.mark.parametrize(
    "error", [SchemaOutdated("permission denied"), DatabaseUnavailable("lock timeout"), KeyError("bug")]
)
def test_failing_duty_waits_and_the_others_run(queue, caplog, error):
    runs: list[str] = []

    def fail() -> None:
        runs.append("failing")
        raise error

    leader = new_maintenance(queue, Duty("failing", 30.0, fail), Duty("other", 0.0, lambda: runs.append("other")))

    run_steps(leader, 6)

    assert runs.count("failing") == 1
    assert runs.count("other") == 5
    assert "maintenance.failed" in caplog.text


def test_wake_runs_a_duty_before_its_interval(queue):
    runs: list[str] = []
    leader = new_maintenance(queue, Duty("bulk", 3600.0, lambda: runs.append("bulk"), first_delay_sec=3600.0))
    leader.run_once()

    leader.wake("bulk")
    leader.run_once()

    assert runs == ["bulk"]


# ── the leader ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_process_leads_until_its_connection_is_lost(queue):
    runs: list[str] = []
    first = new_maintenance(queue, Duty("duty", 0.0, lambda: runs.append("first")))
    second = new_maintenance(queue, Duty("duty", 0.0, lambda: runs.append("second")))
    first.run_once()
    second.run_once()
    assert (first.is_leader, second.is_leader) == (True, False)

    queue.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'dataloader-maintenance'"
    )
    eventually(lambda: lock_is_free(queue))
    second.run_once()
    first._session.close()  # as the next statement on it finds out
    first.run_once()

    assert (first.is_leader, second.is_leader) == (False, True)
    assert runs == ["first", "second"]


def test_former_leader_leads_again_without_a_beat(queue):
    leader = new_maintenance(queue, Duty("duty", 0.0, lambda: None))
    leader.run_once()
    leader.on_beat(BeatResult())

    leader._session.close()  # as the next statement on it finds out
    leader.run_once()

    assert leader.is_leader


def test_follower_keeps_no_connection_open(queue):
    idle = Duty("idle", 1.0, lambda: None)
    first, second = new_maintenance(queue, idle), new_maintenance(queue, idle)
    first.run_once()
    run_steps(second, 2)

    assert leader_connections(queue) == 1


def add_forgotten_job(queue: QueueFixture, key: str) -> UUID:
    """A job that is blocked although its key is free."""
    holder = queue.enqueue_and_claim(key, queue=key)
    job_id = queue.enqueue(key, queue=key)
    assert queue.claim(queue=key) == []
    queue.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(holder.id))
    assert queue.wait_state(job_id) == "blocked"
    return job_id


def test_next_leader_repairs_blocked_jobs_after_a_death(queue):
    first = new_maintenance(queue, duty(queue, "blocked"))
    second = new_maintenance(queue, duty(queue, "blocked"))
    first.run_once()
    second.run_once()
    assert first.is_leader
    job_id = add_forgotten_job(queue, "k")

    first.close()  # as the server does it when the process is gone
    eventually(lambda: lock_is_free(queue))
    second.run_once()

    assert second.is_leader
    assert queue.wait_state(job_id) == "ready"


def test_follower_repairs_blocked_jobs_of_frozen_leader(queue, monkeypatch):
    frozen = new_maintenance(queue, duty(queue, "blocked"))
    frozen.run_once()
    follower = new_maintenance(queue, followed=follower_duties(queue.new_session(), MaintenanceOptions(), Pipelines()))
    earlier = add_forgotten_job(queue, "k")
    follower.run_once()
    assert queue.wait_state(earlier) == "ready"

    later = add_forgotten_job(queue, "l")
    follower.run_once()
    assert queue.wait_state(later) == "blocked"  # a moment ago it has looked
    later_on = clock() + 31.0
    monkeypatch.setattr(maintenance, "clock", lambda: later_on)
    follower.run_once()

    assert queue.wait_state(later) == "ready"
    assert not follower.is_leader


@pytest.mark.parametrize(
    ("beat", "is_due"),
    [
        (BeatResult(), False),
        (BeatResult(is_led=False), True),
        (BeatResult(next_schedule_in_sec=-4.0), False),
        (BeatResult(next_schedule_in_sec=-6.0), True),
        (BeatResult(has_waiting_work=True), True),
    ],
)
def test_beat_that_asks_for_it_has_a_follower_check(queue, monkeypatch, beat, is_due):
    leader, follower = new_maintenance(queue, Duty("duty", 1.0, lambda: None)), new_maintenance(queue)
    leader.run_once()
    woken: list[str] = []
    for name, maintenance_of in (("leader", leader), ("follower", follower)):
        monkeypatch.setattr(maintenance_of.thread, "wake", lambda name=name: woken.append(name))
        maintenance_of.on_beat(beat)

    assert woken == (["follower"] if is_due else [])


def test_beats_replace_the_checks_of_a_follower(queue, monkeypatch):
    leader, checks = new_maintenance(queue, Duty("duty", 1.0, lambda: None)), list[str]()
    leader.run_once()
    follower = new_maintenance(queue, followed=[Duty("check", 0.0, lambda: checks.append("check"))])
    follower.run_once()
    assert len(checks) == 1

    follower.on_beat(BeatResult(has_waiting_work=True))  # it has looked a moment ago
    follower.run_once()
    assert len(checks) == 1

    now = clock() + 31.0
    monkeypatch.setattr(maintenance, "clock", lambda: now)
    follower.on_beat(BeatResult(has_waiting_work=True))
    follower.run_once()
    assert len(checks) == 2
    follower.on_beat(BeatResult(is_led=False))
    follower.run_once()
    assert len(checks) == 3


def test_follower_fires_the_late_schedule_of_a_frozen_leader(worker_pools: WorkerPoolFixture):
    queue = worker_pools.queue_fixture
    frozen = new_maintenance(queue, Duty("duty", 1.0, lambda: None))
    frozen.run_once()
    follower = worker_pools.listening_pool({"q": 1})
    queue.sql(
        "INSERT INTO dl_schedules (name, source, task, overrides, next_at)"
        " VALUES ('s', 'people', 'quick', '{}', clock_timestamp() - interval '4 s')"
    )

    eventually(lambda: queue.fetch_row("SELECT count(*) FROM dl_firings"), 15.0, "it is fired at a beat")

    assert frozen.is_leader
    assert not follower._maintenance.is_leader
    frozen.close()


def test_failing_duty_of_a_follower_ends_no_process(queue, caplog):
    """All followers have the same: none would be left to run jobs."""
    runs: list[str] = []

    def fail() -> None:
        raise KeyError("bug")

    leader = new_maintenance(queue, Duty("idle", 1.0, lambda: None))
    leader.run_once()
    other = Duty("other", 30.0, lambda: runs.append("other"))
    follower = new_maintenance(queue, followed=[Duty("failing", 30.0, fail), other])

    run_steps(follower, 2)

    assert runs == ["other"]
    assert caplog.text.count("maintenance.failed") == 1


def test_one_pool_of_two_runs_bulk_and_statistics(worker_pools: WorkerPoolFixture):
    for _ in range(2):
        worker_pools.listening_pool({"q": 1})
    bulk, statistics = (
        BulkOperations(worker_pools.queue_fixture.session),
        Statistics(worker_pools.queue_fixture.session),
    )
    for n in range(3):
        worker_pools.queue_fixture.enqueue(f"k{n}", queue="unused")

    operation = bulk.start(BulkAction.CANCEL, Filter(), expected=3)

    eventually(lambda: bulk.get(operation.bulk_id).state is BulkState.DONE, message="the operation is done")
    eventually(lambda: statistics.by_queue().get("unused"), message="events are aggregated")
    assert leader_connections(worker_pools.queue_fixture) == 1


def test_redrive_takes_its_time_and_another_leader_continues_it(worker_pools: WorkerPoolFixture):
    first = worker_pools.pool()
    jobs = [worker_pools.add_job("broken", max_attempts=1) for _ in range(6)]
    worker_pools.wait_for_all(jobs, Status.FAILED)
    worker_pools.queue_fixture.sql("UPDATE dl_jobs SET task = 'quick'")
    bulk = BulkOperations(worker_pools.queue_fixture.session)
    operation = bulk.start(BulkAction.REDRIVE, Filter(), expected=6, redrive=Redrive(per_minute=120))

    worker_pools.wait_for_all(jobs[:2])
    first.stop(grace=10)
    worker_pools.pool()
    worker_pools.wait_for_all(jobs)

    ended = eventually(lambda: over if (over := bulk.get(operation.bulk_id)).state.final else None)
    assert ended is not None
    assert (ended.state, ended.changed) == (BulkState.DONE, 6)
    (retries, sec) = worker_pools.queue_fixture.sql(
        "SELECT count(*), extract(epoch FROM max(ts) - min(ts))::float8 FROM dl_job_events"
        " WHERE kind = 'requeue' AND payload ->> 'reason' = 'redrive'"
    )[0]
    assert retries == 6
    assert sec > 2  # five pauses of half a second


def test_breaker_that_opens_stops_a_redrive(worker_pools: WorkerPoolFixture):
    tasks = Pipelines()

    @tasks.register("partner", breaker=Breaker(failures=2, resume=300))
    def call_partner(args: dict[str, Any]) -> None:
        raise OSError("still down")

    queue = worker_pools.queue_fixture
    for n in range(20):
        run = queue.enqueue_and_claim(f"k{n}", task="partner", max_attempts=1)
        queue.settle(run, Status.FAILED, error="down", error_fingerprint="OSError")
    worker_pools.pool(pipelines=tasks)
    eventually(lambda: queue.fetch_row("SELECT count(*) FROM dl_breakers"), message="the breaker is declared")
    bulk = BulkOperations(queue.session)
    operation = bulk.start(BulkAction.REDRIVE, Filter(), expected=20, redrive=Redrive(per_minute=120))

    stopped = eventually(lambda: over if (over := bulk.get(operation.bulk_id)).state.final else None)

    assert stopped is not None
    assert (stopped.state, "circuit breaker of partner" in str(stopped.error)) == (BulkState.STOPPED, True)
    assert 2 <= stopped.changed < 20


def test_another_pool_takes_over_when_the_leader_stops(worker_pools: WorkerPoolFixture):
    first = worker_pools.listening_pool({"q": 1})
    eventually(lambda: leader_connections(worker_pools.queue_fixture) == 1, message="one leads")
    worker_pools.listening_pool({"q": 1})

    first.stop(grace=1)

    bulk = BulkOperations(worker_pools.queue_fixture.session)
    worker_pools.queue_fixture.enqueue("k", queue="unused")
    operation = bulk.start(BulkAction.CANCEL, Filter(queue="unused"), expected=1)
    eventually(lambda: bulk.get(operation.bulk_id).state is BulkState.DONE, message="the other one does it")


def test_event_that_cannot_be_aggregated_stops_statistics_only(worker_pools: WorkerPoolFixture, caplog):
    worker_pools.queue_fixture.enqueue("k", queue="unused")
    worker_pools.queue_fixture.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE data_exception USING MESSAGE = 'no such number'; END $$;"
        " CREATE TRIGGER refusing BEFORE INSERT ON dl_statistics FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    worker_pools.listening_pool({"q": 1})
    eventually(lambda: "maintenance.failed" in caplog.text, message="it is logged")

    bulk = BulkOperations(worker_pools.queue_fixture.session)
    operation = bulk.start(BulkAction.CANCEL, Filter(queue="unused"), expected=1)

    eventually(lambda: bulk.get(operation.bulk_id).state is BulkState.DONE, message="bulk operations go on")
    assert worker_pools.crashes == []
    worker_pools.queue_fixture.sql("DROP TRIGGER refusing ON dl_statistics; DROP FUNCTION refuse()")


# ── retention ───────────────────────────────────────────────────────────────────────────────────────────────────────


def new_retention(queue: QueueFixture, *, deletion_enabled: bool = True) -> RetentionDuty:
    options = MaintenanceOptions(periods=RetentionPeriods(succeeded=DAY_SEC), deletion_enabled=deletion_enabled)
    return RetentionDuty(queue.new_session(), options)


def add_old_jobs(queue: QueueFixture, count: int) -> None:
    queue.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key, status, finished_at)"
        " SELECT 'q', 't', 'k' || n, 'succeeded', now() - interval '2 days' FROM generate_series(1, %s) n",
        count,
    )


def test_retention_deletes_a_batch_a_slice(queue, monkeypatch, logged):
    monkeypatch.setattr(maintenance, "_DELETE_BATCH", 2)
    add_old_jobs(queue, 5)
    retention = new_retention(queue)

    pauses, left = [], []
    for _ in range(3):
        pauses.append(retention.run())
        left.append(queue.fetch_row("SELECT count(*) FROM dl_jobs"))

    assert left == [3, 1, 0]
    assert None not in pauses[:2]
    assert pauses[2] is None, "the next slice is due after the interval"


def test_partitions_are_created_where_deletion_is_disabled(queue):
    add_old_jobs(queue, 1)
    before = queue.fetch_row("SELECT count(*) FROM dl_partitions('dl_job_events')")

    new_retention(queue, deletion_enabled=False).run()

    assert queue.fetch_row("SELECT count(*) FROM dl_jobs") == 1
    assert queue.fetch_row("SELECT count(*) FROM dl_partitions('dl_job_events')") > before


# ── other duties ────────────────────────────────────────────────────────────────────────────────────────────────────


def duty(queue: QueueFixture, name: str) -> Duty:
    return next(entry for entry in duties(queue.session, MaintenanceOptions(), Pipelines()) if entry.name == name)


def test_queues_with_waiting_jobs_are_notified(queue):
    listener = queue.listener()
    queue.enqueue(queue="x")
    queue.enqueue(queue="y")
    listener.payloads()

    duty(queue, "notify-waiting").run()

    assert sorted(listener.payloads()) == ["x", "y"]


def test_queue_whose_processes_do_not_listen_is_not_notified(queue):
    listener = queue.listener()
    for name, modes in (("off", ["off"]), ("mixed", ["off", "listening"]), ("dead", ["off"])):
        for mode in modes:
            info = WorkerInfo(uuid4(), name, "1", (name,), ("t",), 1)
            WorkerLiveness(queue.session).beat(info, heartbeat_sec=10)
            queue.sql("UPDATE dl_workers SET listener = %s WHERE worker_id = %s", mode, str(info.id))
        queue.enqueue(queue=name)
    queue.sql("UPDATE dl_workers SET seen_at = now() - interval '1 hour' WHERE name = 'dead'")
    listener.payloads()

    duty(queue, "notify-waiting").run()

    assert sorted(listener.payloads()) == ["dead", "mixed"]


def test_old_alerts_are_deleted(queue):
    queue.sql(
        "INSERT INTO dl_alerts (kind, name, subject, detail, ended_at)"
        " VALUES ('x', 'n', 's', 'd', now() - interval '100 days')"
    )

    duty(queue, "alerts-prune").run()

    assert queue.fetch_row("SELECT count(*) FROM dl_alerts") == 0


def test_unserved_queue_fires_an_alert_that_resolves(worker_pools: WorkerPoolFixture):
    session = worker_pools.queue_fixture.new_session()
    webhooks, alerts = Webhooks(session), Alerts(session)
    with WebhookReceiver() as receiver:
        webhooks.add(receiver.url, events=[WebhookEvent.ALERT_FIRING, WebhookEvent.ALERT_RESOLVED])
        alerts.add(name="old", kind=RuleKind.QUEUE_AGE, threshold=0.2, queue="other")
        options: dict[str, Any] = {
            "webhooks": WebhookOptions(allowed_hosts=AllowedHosts.parse(["127.0.0.0/8"])),
            "maintenance": MaintenanceOptions(alert_interval_sec=0.1),
        }
        worker_pools.pool({"q": 1}, **options)
        job = worker_pools.add_job(queue="other")

        (firing,) = receiver.wait_for(1)
        assert (firing.json["type"], firing.json["data"]["subject"]) == ("alert.firing", "other")
        worker_pools.pool({"other": 1}, **options)
        worker_pools.wait_for_status(job, Status.SUCCEEDED)
        _, resolved = receiver.wait_for(2)

    assert (resolved.json["type"], resolved.json["data"]["alert_id"]) == (
        "alert.resolved",
        firing.json["data"]["alert_id"],
    )
