"""Lineage events: what they say, and that none is lost, however the receiver behaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from dataloader.app.db.connection import Session
from dataloader.app.features.lineage import duty as lineage
from dataloader.app.features.lineage.duty import LineageDuty, LineageOptions, split_dataset
from dataloader.app.features.lineage.rows import LineageJob
from dataloader.app.queue.job import Status
from dataloader.pipelines.contract import Context
from dataloader.pipelines.portable import clock
from dataloader.workers.duties import MaintenanceOptions
from tests.support import eventually
from tests.support.queue_fixture import QueueFixture
from tests.support.webhook_receiver import ReceivedRequest, WebhookReceiver, drop_connection, hang, respond_with
from tests.support.worker_pool_fixture import WorkerPoolFixture

ACCEPT = respond_with(200, "Connection: close")


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver(ACCEPT) as made:
        yield made


def new_duty(
    queue_db: QueueFixture, receiver: WebhookReceiver, *, session: Session | None = None, **options: Any
) -> LineageDuty:
    """As another process has it, at the end of the events that exist if nothing has been sent."""
    url = f"http://127.0.0.1:{receiver.port}"
    lineage_options = LineageOptions(url=url, **{"first_retry_delay_sec": 0.002, **options})
    made = LineageDuty(session or queue_db.new_session(), lineage_options)
    made.run()
    return made


def saved_cursor(queue_db: QueueFixture) -> str:
    return str(queue_db.fetch_row("SELECT cursor FROM dl_lineage_state"))


def run_until(duty: LineageDuty, condition: Callable[[], object]) -> None:
    def is_met() -> bool:
        duty.run()
        return bool(condition())

    eventually(is_met)


def send_all(queue_db: QueueFixture, duty: LineageDuty) -> None:
    """Run until the newest event is behind the cursor."""
    newest = queue_db.fetch_row("SELECT max(event_id) FROM dl_job_events")
    run_until(duty, lambda: int(saved_cursor(queue_db).partition("~")[0]) >= newest)


def types_by_job(requests: list[ReceivedRequest]) -> list[tuple[str, str]]:
    return [(request.json["run"]["runId"], request.json["eventType"]) for request in requests]


# ── what an event says ──────────────────────────────────────────────────────────────────────────────────────────────


def load(args: dict[str, Any], ctx: Context) -> None:
    ctx.consumed("s3://raw/orders")
    ctx.produced("warehouse.sales", rows=2, partition="a", schema={"id": "bigint"})
    ctx.produced("warehouse.sales", rows=3, partition="b", schema={"id": "bigint"})
    ctx.produced("report", schema=["id"])


def test_pool_sends_start_and_complete_with_datasets(worker_pools: WorkerPoolFixture, receiver: WebhookReceiver):
    worker_pools.pipelines.register("load")(load)
    url = f"http://127.0.0.1:{receiver.port}/base"
    options = LineageOptions(url=url, read_key=lambda: "key-of-lineage", version="1")
    worker_pools.listening_pool(maintenance=MaintenanceOptions(features={"lineage": options}))
    eventually(lambda: worker_pools.queue_fixture.fetch_row("SELECT cursor IS NOT NULL FROM dl_lineage_state"))

    job_id = str(worker_pools.add_job("load"))
    start, complete = receiver.wait_for(2)

    assert start.path == "/base/api/v1/lineage"
    assert start.headers["authorization"] == "Bearer key-of-lineage"
    assert types_by_job([start, complete]) == [(job_id, "START"), (job_id, "COMPLETE")]
    assert start.json["job"]["namespace"] == "default"
    assert start.json["job"]["name"] == "load"
    assert start.json["producer"] == "urn:dataloader:1"
    assert start.json["inputs"] == start.json["outputs"] == []
    (orders,) = complete.json["inputs"]
    assert (orders["namespace"], orders["name"]) == ("s3://raw", "orders")
    report, sales = complete.json["outputs"]
    assert (report["name"], report["facets"], report["outputFacets"]) == ("report", {}, {})
    assert (sales["namespace"], sales["name"]) == ("default", "warehouse.sales")
    assert sales["outputFacets"]["outputStatistics"]["rowCount"] == 5, "the partitions together"
    assert [(f["name"], f["type"]) for f in sales["facets"]["schema"]["fields"]] == [("id", "bigint")]


@pytest.mark.parametrize(("status", "sent"), [(Status.FAILED, "FAIL"), (Status.LOST, "FAIL")])
def test_unsuccessful_job_sends_fail_with_its_error(queue_db, receiver, status, sent):
    duty = new_duty(queue_db, receiver)
    run = queue_db.enqueue_and_claim()
    if status is Status.LOST:
        queue_db.sql("UPDATE dl_jobs SET max_attempts = 1")
        queue_db.lose_attempt(run)
    else:
        queue_db.settle(run, Status.FAILED, error="ValueError: no rows")

    send_all(queue_db, duty)

    assert types_by_job(receiver.received) == [(str(run.id), "START"), (str(run.id), sent)]
    message = receiver.received[-1].json["run"]["facets"]["errorMessage"]["message"]
    assert message == queue_db.job(run.id).error


def test_canceled_job_sends_abort_if_it_has_started(queue_db, receiver):
    duty = new_duty(queue_db, receiver)
    run = queue_db.enqueue_and_claim("a")
    queue_db.settle(run, Status.CANCELED)
    retried = queue_db.enqueue_and_claim("b")
    queue_db.settle(retried, Status.QUEUED, retry_in_sec=3600.0)
    queue_db.queue.cancel(retried.id)
    queue_db.queue.cancel(queue_db.enqueue("never started"))

    send_all(queue_db, duty)

    assert types_by_job(receiver.received) == [
        (str(job.id), kind) for job in (run, retried) for kind in ("START", "ABORT")
    ]


def test_data_interval_is_the_nominal_time(queue_db, receiver):
    duty = new_duty(queue_db, receiver)
    run = queue_db.enqueue_and_claim()
    queue_db.sql("UPDATE dl_jobs SET interval_start = '2030-01-31T00:00Z', interval_end = '2030-02-01T00:00Z'")
    queue_db.settle(run)

    send_all(queue_db, duty)

    facet = receiver.received[0].json["run"]["facets"]["nominalTime"]
    assert (facet["nominalStartTime"], facet["nominalEndTime"]) == (
        "2030-01-31T00:00:00+00:00",
        "2030-02-01T00:00:00+00:00",
    )


@pytest.mark.parametrize(
    ("dataset", "parts"),
    [
        ("s3://raw/orders/2030", ("s3://raw", "orders/2030")),
        ("postgres://host:5432/db.public.sales", ("postgres://host:5432", "db.public.sales")),
        ("warehouse.sales", ("default", "warehouse.sales")),
        ("s3://raw", ("default", "s3://raw")),
        ("file:///data/sales.csv", ("default", "file:///data/sales.csv")),
    ],
)
def test_url_of_a_dataset_is_namespace_and_name(dataset, parts):
    assert split_dataset(dataset) == parts


# ── delivery ────────────────────────────────────────────────────────────────────────────────────────────────────────


def run_jobs(queue_db: QueueFixture, count: int) -> list[tuple[str, str]]:
    """Run jobs one after another; return what is to be sent, in order."""
    expected = []
    for number in range(count):
        run = queue_db.enqueue_and_claim(f"k{number}")
        queue_db.settle(run)
        expected += [(str(run.id), "START"), (str(run.id), "COMPLETE")]
    return expected


@pytest.mark.parametrize("failure", [drop_connection, *map(respond_with, (500, 429, 401, 404, 302))])
def test_outage_of_the_receiver_loses_nothing(queue_db, receiver, logged, failure):
    duty = new_duty(queue_db, receiver)
    receiver.set_behavior(ACCEPT, ACCEPT, ACCEPT, failure)
    expected = run_jobs(queue_db, 3)
    run_until(duty, lambda: len(receiver.received) >= 10)
    before = saved_cursor(queue_db)
    expected += run_jobs(queue_db, 1)
    receiver.set_behavior(ACCEPT)

    send_all(queue_db, duty)

    assert set(types_by_job(receiver.received[3:-5])) == {expected[3]}, "the first that failed, until it is accepted"
    assert types_by_job(receiver.received[:3] + receiver.received[-5:]) == expected
    assert int(before.partition("~")[0]) < int(saved_cursor(queue_db).partition("~")[0])
    assert len(logged("lineage.unavailable")) == len(logged("lineage.available")) == 1


def test_redirect_is_not_followed(queue_db, receiver):
    duty = new_duty(queue_db, receiver)
    with WebhookReceiver(ACCEPT) as other:
        receiver.set_behavior(
            respond_with(302, f"Location: http://127.0.0.1:{other.port}/", "Connection: close"), ACCEPT
        )
        expected = run_jobs(queue_db, 1)

        send_all(queue_db, duty)

        assert other.received == []
    assert types_by_job(receiver.received) == [expected[0], *expected]


def received_count_is(receiver: Any, count: int) -> bool:
    return len(receiver.received) == count


def test_retries_come_less_and_less_often(queue_db, receiver, monkeypatch):
    monkeypatch.setattr(lineage, "_MAX_RETRY_DELAY_SEC", 5000.0)
    receiver.set_behavior(respond_with(503, "Connection: close"))
    duty = new_duty(queue_db, receiver, first_retry_delay_sec=1000.0)
    now = [clock()]
    monkeypatch.setattr(lineage, "clock", lambda: now[0])
    run_jobs(queue_db, 1)

    pauses = []
    for count in range(1, 5):
        run_until(duty, partial(received_count_is, receiver, count))
        pauses.append(float(eventually(lambda: pause if (pause := duty.run() or 0.0) > 1 else None) or 0.0))
        now[0] += pauses[-1] + 1

    assert pauses == [pytest.approx(sec) for sec in (1000, 2000, 4000, 5000)]


def test_restart_in_the_middle_loses_nothing(queue_db, receiver):
    duty = new_duty(queue_db, receiver)
    receiver.set_behavior(ACCEPT, ACCEPT, ACCEPT, respond_with(503, "Connection: close"))
    expected = run_jobs(queue_db, 3)
    run_until(duty, lambda: len(receiver.received) >= 4)

    del duty
    receiver.set_behavior(ACCEPT)
    count = len(receiver.received)
    send_all(queue_db, new_duty(queue_db, receiver))

    assert types_by_job(receiver.received[:3]) == expected[:3]
    assert types_by_job(receiver.received[count:]) == expected, "all after the saved cursor, in order"


def test_restart_after_all_was_sent_repeats_nothing(queue_db, receiver):
    expected = run_jobs(queue_db, 1)
    first = new_duty(queue_db, receiver)
    expected = run_jobs(queue_db, 2)
    send_all(queue_db, first)

    second = new_duty(queue_db, receiver)
    expected += run_jobs(queue_db, 1)
    send_all(queue_db, second)

    assert types_by_job(receiver.received) == expected, "events from before the first start are not sent"


def test_lost_connection_resumes_at_the_cursor(queue_db, receiver):
    session = queue_db.new_session()
    duty = new_duty(queue_db, receiver, session=session)
    expected = run_jobs(queue_db, 1)
    send_all(queue_db, duty)
    session.close()
    session.execute("lineage_cursor")  # as the leader opens it, to have the lock again

    expected += run_jobs(queue_db, 1)
    send_all(queue_db, duty)

    assert types_by_job(receiver.received) == expected


@pytest.mark.parametrize("status", [400, 413, 422])
def test_refused_event_is_skipped_after_some_attempts(queue_db, receiver, logged, status):
    duty = new_duty(queue_db, receiver)
    receiver.set_behavior(*[respond_with(status, "Connection: close")] * 5, ACCEPT)
    expected = run_jobs(queue_db, 2)

    send_all(queue_db, duty)

    assert types_by_job(receiver.received) == [expected[0]] * 5 + expected[1:]
    (skipped,) = logged("lineage.event_skipped")
    assert (skipped["job"], skipped["event"]) == expected[0]
    assert str(status) in str(skipped["error"])
    assert logged("lineage.unavailable") == []


def test_outage_does_not_count_as_refusal(queue_db, receiver, logged):
    duty = new_duty(queue_db, receiver)
    receiver.set_behavior(*[respond_with(503, "Connection: close")] * 8, respond_with(400, "Connection: close"), ACCEPT)
    expected = run_jobs(queue_db, 1)

    send_all(queue_db, duty)

    assert types_by_job(receiver.received) == [expected[0]] * 10 + expected[1:]
    assert logged("lineage.event_skipped") == []


def test_event_that_cannot_be_made_is_skipped_at_once(queue_db, receiver, logged, monkeypatch):
    build = lineage.EventBuilder.build
    run = queue_db.enqueue_and_claim("odd")

    def build_but_odd(self: Any, event: Any, job: LineageJob) -> Any:
        if event.job_id == run.id:
            raise ValueError("odd")
        return build(self, event, job)

    monkeypatch.setattr(lineage.EventBuilder, "build", build_but_odd)
    duty = new_duty(queue_db, receiver)
    queue_db.settle(run)
    expected = run_jobs(queue_db, 1)

    send_all(queue_db, duty)

    assert types_by_job(receiver.received) == expected
    assert logged("lineage.event_skipped") == [{"job": str(run.id), "event": "COMPLETE", "error": "ValueError: odd"}]


def test_deleted_job_is_left_out(queue_db, receiver):
    duty = new_duty(queue_db, receiver)
    run = queue_db.enqueue_and_claim("gone")
    queue_db.settle(run)
    queue_db.sql("DELETE FROM dl_jobs WHERE job_id = %s", str(run.id))
    expected = run_jobs(queue_db, 1)

    send_all(queue_db, duty)

    assert types_by_job(receiver.received) == expected


def test_many_events_are_sent_in_order(queue_db, receiver, monkeypatch):
    monkeypatch.setattr(lineage, "_BATCH_SIZE", 3)
    duty = new_duty(queue_db, receiver)
    expected = run_jobs(queue_db, 10)

    send_all(queue_db, duty)

    assert types_by_job(receiver.received) == expected


# ── out of the way ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_receiver_that_hangs_delays_no_duty(queue_db, receiver):
    receiver.set_behavior(hang)
    duty = new_duty(queue_db, receiver, timeout_sec=60.0)
    run_jobs(queue_db, 1)
    run_until(duty, lambda: receiver.received)

    for _ in range(3):
        assert 0 < (duty.run() or 0) <= 1, "the thread of the duties does not wait for the answer"
    assert len(receiver.received) == 1


def test_jobs_run_while_the_receiver_hangs(worker_pools: WorkerPoolFixture, receiver: WebhookReceiver):
    receiver.set_behavior(hang)
    options = LineageOptions(url=f"http://127.0.0.1:{receiver.port}", timeout_sec=60.0)
    worker_pools.listening_pool(maintenance=MaintenanceOptions(features={"lineage": options}))
    eventually(lambda: worker_pools.queue_fixture.fetch_row("SELECT cursor IS NOT NULL FROM dl_lineage_state"))
    worker_pools.add_job()
    receiver.wait_for(1)

    jobs = [worker_pools.add_job() for _ in range(5)]
    worker_pools.wait_for_all(jobs)

    assert len(receiver.received) == 1, "it still hangs"
