"""The client and `enqueue` against a real service and a real database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg2
import pytest

from dataloader import Client, Conflict, Refused, enqueue
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.partitions import Daily
from tests.support import Databases
from tests.support.api_server import serving
from tests.support.processes import ROOT
from tests.support.queue_fixture import QueueFixture


@pytest.fixture(scope="module")
def dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh() as made:
        yield made


@pytest.fixture(scope="module")
def url(dsn: str) -> Iterator[str]:
    known = Pipelines()

    @known.register("load a/b", queue="q", lock_key="load:{day}", partitions=Daily("2026-01-01"))
    def load(args):
        pass

    with serving(dsn, known) as address:
        yield address


@pytest.fixture
def client(url: str) -> Client:
    return Client(url)


@pytest.fixture
def queue(dsn: str) -> Iterator[QueueFixture]:
    fixture = QueueFixture(dsn)
    fixture.sql(
        "TRUNCATE dl_jobs, dl_job_events, dl_workers, dl_bulk, dl_queues, dl_schedules, dl_slices, dl_backfills CASCADE"
    )
    yield fixture
    fixture.close()


@pytest.fixture
def connection(dsn: str) -> Iterator[Any]:
    opened = psycopg2.connect(dsn)
    yield opened
    opened.close()


def test_edit_with_old_etag_is_refused_and_null_clears(client, queue):
    job_id = queue.enqueue("k", time_limit_sec=5)
    path = f"/api/v1/jobs/{job_id}"
    job = client.job(job_id)
    etag = client.etag

    changed = client.request("PATCH", path, body={"priority": 1}, headers={"If-Match": etag})
    with pytest.raises(Refused) as refused:
        client.request("PATCH", path, body={"priority": 2}, headers={"If-Match": etag})
    cleared = client.request("PATCH", path, body={"time_limit_sec": None})

    assert (job["time_limit_sec"], changed["time_limit_sec"], cleared["time_limit_sec"]) == (5, 5, None)
    assert (refused.value.status, refused.value.code) == (412, "changed")


def test_times_flags_and_filters_reach_the_service(client, queue):
    job_id = queue.enqueue("k", queue="q & a")
    since = datetime.now(UTC) - timedelta(hours=1)

    page = client.request("GET", "/api/v1/jobs", query={"queue": "q & a", "created_from": since, "count": True})

    assert [job["job_id"] for job in page["jobs"]] == [str(job_id)]
    assert (page["count"]["jobs"], page["count"]["exact"]) == (1, True)
    assert [job["job_id"] for job in client.jobs(queue="q & a", limit=5)] == [str(job_id)]
    client.request("POST", f"/api/v1/jobs/{job_id}/cancel")
    with pytest.raises(Conflict, match="expected 0"):
        client.request("POST", "/api/v1/bulk", body={"action": "delete", "filter": {}, "expected": 0})


def test_batch_reports_an_outcome_for_each_job(client):
    jobs = [{"queue": "q", "task": "t", "lock_key": "k"}, {"queue": "q", "task": "t", "priority": -1}]

    some = client.trigger_many(jobs)
    none = client.trigger_many(jobs, all_or_none=True)

    assert [item["outcome"] for item in some["items"]] == ["created", "invalid"]
    assert [item["outcome"] for item in none["items"]] == ["skipped", "invalid"]


def test_stream_continues_behind_a_cursor(client, queue):
    events = client.stream(after="0", queue="streamed")
    job_id = queue.enqueue("k", queue="streamed")

    with closing(events):
        event = next(events)
    queue.claim(queue="streamed")
    with closing(client.stream(after=event["cursor"], kind="picked")) as later_events:
        following = next(later_events)

    assert (event["job_id"], event["kind"], event["queue"]) == (str(job_id), "queued", "streamed")
    assert following["job_id"] == str(job_id)


def test_wait_returns_the_final_state(client, queue):
    job_id = queue.enqueue("k")
    queue.queue.cancel(job_id)

    assert client.wait(job_id)["status"] == "canceled"


def test_a_schedule_is_run_paused_and_resumed(client, queue):
    name, path = "load each day?", "/api/v1/schedules/load%20each%20day%3F"
    definition = {
        "task": "load a/b",
        "kind": "cron",
        "expression": "0 6 * * *",
        "zone": "UTC",
        "args": {"day": "{partition}"},
    }
    client.request("PUT", path, body=definition)
    assert client.request("GET", path)["name"] == name
    at = datetime(2026, 1, 2, 6, tzinfo=UTC)

    made = client.run_schedule(name, at=at)
    with pytest.raises(Conflict):
        client.run_schedule(name, at=at)
    again = client.run_schedule(name, at=at, again=True)
    paused = client.pause_schedule(name, "audit")
    (listed,) = client.schedules(task="load a/b")
    resumed = client.resume_schedule(name, catch_up=True)

    assert queue.job(UUID(made["job_id"])).args == {"day": "2026-01-01"}
    assert again["job_id"] is not None
    assert paused["paused_reason"] == listed["paused_reason"] == "audit"
    assert resumed["paused_at"] is None
    assert client.schedules(task="other") == []


def test_a_backfill_makes_slices(client, queue):
    planned = client.backfill("load a/b", "2026-01-01", "2026-01-04", args={"day": "{partition}"}, dry_run=True)
    assert client.backfills() == []
    made = client.backfill("load a/b", "2026-01-01", "2026-01-04", args={"day": "{partition}"}, concurrency=2)
    listed = client.backfill("load a/b", keys=["2026-01-09"], args={"day": "{partition}"})

    assert (planned["plan"]["selected"], planned["backfill"]) == (4, None)
    assert made["backfill"]["concurrency"] == 2
    assert [one["backfill_id"] for one in client.backfills(task="load a/b")] == [
        listed["backfill"]["backfill_id"], made["backfill"]["backfill_id"],
    ]  # fmt: skip
    assert client.slices("load a/b", state="queued") == []


def test_a_graph_is_read_and_canceled(client, queue):
    jobs = [
        {"key": "a", "queue": "q", "task": "t", "lock_key": "a"},
        {"key": "b", "queue": "q", "task": "t", "lock_key": "b", "after": [{"job": "a"}]},
    ]
    graph_id = client.trigger_graph(jobs, name="nightly")["graph_id"]

    graph = client.graph(graph_id)
    client.cancel_graph(graph_id)

    assert (graph["name"], len(graph["jobs"]), len(graph["edges"])) == ("nightly", 2, 1)
    assert {job["status"] for job in client.jobs(queue="q")} == {"canceled"}


def test_limits_and_datasets_are_listed(client, queue):
    client.request("PUT", "/api/v1/limits/partner", body={"concurrency": 3})

    assert {limit["name"]: limit["concurrency"] for limit in client.limits()}["partner"] == 3
    assert client.datasets(limit=1) == []


def test_metrics_are_text(client, queue):
    assert "requests_total" in client.metrics()


def test_enqueue_commits_with_the_callers_transaction(connection, queue):
    at = datetime(2030, 1, 1, tzinfo=UTC)

    rolled_back = enqueue(connection, "t", queue="q", lock_key="k")
    connection.rollback()
    job_id = enqueue(
        connection, "t", {"n": 1}, queue="q", lock_key="k", schema="public", priority=0, available_at=at,
        retry={"kind": "fixed", "seconds": 5}, idempotency_key=None,
    )  # fmt: skip
    connection.commit()

    assert queue.queue.get(rolled_back) is None
    job = queue.job(job_id)
    assert isinstance(job_id, UUID)
    assert (job.task, job.args, job.priority, job.available_at) == ("t", {"n": 1}, 0, at)


def test_enqueue_with_the_same_key_returns_the_same_job(connection, queue):
    first = enqueue(connection, "t", queue="q", lock_key="k", idempotency_key="once")
    again = enqueue(connection, "t", queue="q", lock_key="k", idempotency_key="once")

    with pytest.raises(psycopg2.errors.UniqueViolation):
        enqueue(connection, "other", queue="q", lock_key="k", idempotency_key="once")
    assert first == again


def test_conflict_clause_of_the_page_prevents_a_second_live_job(connection, queue):
    (statement,) = re.findall(
        r"^```sql\n(INSERT INTO dl_jobs .*?)^```$", (ROOT / "docs/bulk.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)
        first = cursor.fetchall()
        cursor.execute(statement)
        second = cursor.fetchall()
    queue.queue.cancel(UUID(first[0][0]))
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)
        third = cursor.fetchall()

    assert (len(first), second, len(third)) == (1, [], 1)
    assert third != first


def test_enqueue_rejects_unknown_options_and_invalid_values(connection):
    with pytest.raises(TypeError, match="prioritty"):
        enqueue(connection, "t", queue="q", lock_key="k", prioritty=1)  # type: ignore[call-arg]
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="priority"):
        enqueue(connection, "t", queue="q", lock_key="k", priority=-1)


def test_scaling_of_one_queue_is_read(client: Client):
    client.trigger("noop", queue="scaled", lock_key="scaled")

    found = client.scaling(queue="scaled", target_wait_sec=30)

    assert found["target_wait_sec"] == 30
    assert {queue["queue"] for queue in found["queues"]} <= {"scaled"}
    assert found["wanted_threads"] == sum(queue["wanted_threads"] for queue in found["queues"])
    assert client.scaling()["target_wait_sec"] == 60
