"""The duties of the maintenance leader: retention, notification of queues, alerts, and operations on many jobs."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from dataloader.app.features.alerts.rows import Alerts, RuleKind
from dataloader.app.features.bulk.rows import BulkAction, BulkOperations, BulkState, Redrive
from dataloader.app.features.jobs.job_search import Filter
from dataloader.app.features.retention import duty as retention_duty
from dataloader.app.features.retention.duty import RetentionDuty
from dataloader.app.features.webhooks.rows import Webhooks
from dataloader.app.features.webhooks.sender import WebhookOptions
from dataloader.app.queue.job import Status
from dataloader.app.queue.retention_periods import DAY_SEC, RetentionPeriods
from dataloader.app.queue.webhook_events import WebhookEvent
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from dataloader.pipelines.contract import Breaker, Pipelines
from dataloader.workers.duties import MaintenanceOptions
from tests.support.duties import duty
from tests.support.queue_fixture import QueueFixture
from tests.support.waiting import eventually
from tests.support.webhook_receiver import LOOPBACK, WebhookReceiver
from tests.support.worker_pool_fixture import WorkerPoolFixture


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

    queue_db = worker_pools.queue_fixture
    for n in range(20):
        run = queue_db.enqueue_and_claim(f"k{n}", task="partner", max_attempts=1)
        queue_db.settle(run, Status.FAILED, error="down", error_fingerprint="OSError")
    worker_pools.pool(pipelines=tasks)
    eventually(lambda: queue_db.fetch_row("SELECT count(*) FROM dl_breakers"), message="the breaker is declared")
    bulk = BulkOperations(queue_db.session)
    operation = bulk.start(BulkAction.REDRIVE, Filter(), expected=20, redrive=Redrive(per_minute=120))

    stopped = eventually(lambda: over if (over := bulk.get(operation.bulk_id)).state.final else None)

    assert stopped is not None
    assert (stopped.state, "circuit breaker of partner" in str(stopped.error)) == (BulkState.STOPPED, True)
    assert 2 <= stopped.changed < 20


# ── retention ───────────────────────────────────────────────────────────────────────────────────────────────────────


def new_retention(queue_db: QueueFixture, *, deletion_enabled: bool = True) -> RetentionDuty:
    options = MaintenanceOptions(periods=RetentionPeriods(succeeded=DAY_SEC), deletion_enabled=deletion_enabled)
    return RetentionDuty(queue_db.new_session(), options)


def add_old_jobs(queue_db: QueueFixture, count: int) -> None:
    queue_db.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key, status, finished_at)"
        " SELECT 'q', 't', 'k' || n, 'succeeded', now() - interval '2 days' FROM generate_series(1, %s) n",
        count,
    )


def test_retention_deletes_a_batch_a_slice(queue_db, monkeypatch, logged):
    monkeypatch.setattr(retention_duty, "_DELETE_BATCH", 2)
    add_old_jobs(queue_db, 5)
    retention = new_retention(queue_db)

    pauses, left = [], []
    for _ in range(3):
        pauses.append(retention.run())
        left.append(queue_db.fetch_row("SELECT count(*) FROM dl_jobs"))

    assert left == [3, 1, 0]
    assert None not in pauses[:2]
    assert pauses[2] is None, "the next slice is due after the interval"


def test_partitions_are_created_where_deletion_is_disabled(queue_db):
    add_old_jobs(queue_db, 1)
    before = queue_db.fetch_row("SELECT count(*) FROM dl_partitions('dl_job_events')")

    new_retention(queue_db, deletion_enabled=False).run()

    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 1
    assert queue_db.fetch_row("SELECT count(*) FROM dl_partitions('dl_job_events')") > before


# ── other duties ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_queues_with_waiting_jobs_are_notified(queue_db):
    listener = queue_db.listener()
    queue_db.enqueue(queue="x")
    queue_db.enqueue(queue="y")
    listener.payloads()

    duty(queue_db, "notify-waiting").run()

    assert sorted(listener.payloads()) == ["x", "y"]


def test_queue_whose_processes_do_not_listen_is_not_notified(queue_db):
    listener = queue_db.listener()
    for name, modes in (("off", ["off"]), ("mixed", ["off", "listening"]), ("dead", ["off"])):
        for mode in modes:
            info = WorkerInfo(uuid4(), name, "1", (name,), ("t",), 1)
            WorkerLiveness(queue_db.session).send_heartbeat(info, heartbeat_sec=10)
            queue_db.sql("UPDATE dl_workers SET listener = %s WHERE worker_id = %s", mode, str(info.id))
        queue_db.enqueue(queue=name)
    queue_db.sql("UPDATE dl_workers SET seen_at = now() - interval '1 hour' WHERE name = 'dead'")
    listener.payloads()

    duty(queue_db, "notify-waiting").run()

    assert sorted(listener.payloads()) == ["dead", "mixed"]


def test_old_alerts_are_deleted(queue_db):
    queue_db.sql(
        "INSERT INTO dl_alerts (kind, name, subject, detail, ended_at)"
        " VALUES ('x', 'n', 's', 'd', now() - interval '100 days')"
    )

    duty(queue_db, "alerts-prune").run()

    assert queue_db.fetch_row("SELECT count(*) FROM dl_alerts") == 0


def test_unserved_queue_fires_an_alert_that_resolves(worker_pools: WorkerPoolFixture):
    session = worker_pools.queue_fixture.new_session()
    webhooks, alerts = Webhooks(session), Alerts(session)
    with WebhookReceiver() as receiver:
        webhooks.add(receiver.url, events=[WebhookEvent.ALERT_FIRING, WebhookEvent.ALERT_RESOLVED])
        alerts.add(name="old", kind=RuleKind.QUEUE_AGE, threshold=0.2, queue="other")
        options: dict[str, Any] = {
            "maintenance": MaintenanceOptions(
                alert_interval_sec=0.1, features={"webhooks": WebhookOptions(allowed_hosts=LOOPBACK)}
            ),
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
