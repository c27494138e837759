"""Backfills and slices over HTTP."""

from __future__ import annotations

from uuid import uuid4

import psycopg2
import pytest

from dataloader.app.db.connection import Session
from dataloader.app.features.backfills.duty import BackfillsDuty
from dataloader.app.features.statistics.rows import StatisticsWriter
from dataloader.app.queue.job import SUCCEEDED
from dataloader.pipelines.contract import Daily, Pipelines
from tests.support.queue_fixture import QueueFixture

JANUARY = {"task": "visits", "slices": {"from": "2026-01-01", "to": "2026-01-31"}}


@pytest.fixture(autouse=True)
def none_before(dsn):
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM dl_backfills; DELETE FROM dl_slices; DELETE FROM dl_schedules; DELETE FROM dl_jobs")
        cursor.execute("DELETE FROM dl_limits")
    connection.close()


@pytest.fixture
def pipelines(pipelines):
    @pipelines.register("visits", queue="etl", partitions=Daily("2024-01-01", zone="Europe/Moscow"))
    def visits(args): ...

    schema = {"type": "object", "required": ["day"], "additionalProperties": False, "properties": {"day": {}}}

    @pipelines.register("typed", queue="etl", args=schema, partitions=Daily("2024-01-01", zone="Europe/Moscow"))
    def typed(args): ...

    return pipelines


def make(dsn):
    session = Session(dsn, application_name="makes")
    duty = BackfillsDuty(session, Pipelines(), default_lease_sec=60)
    while duty.run() == 0.0:
        pass
    session.close()


def test_backfill_with_a_key_is_made_once(client):
    request = {**JANUARY, "idempotency_key": "january"}
    first = client.post("/api/v1/backfills", json=request).json
    changed = client.patch(f"/api/v1/backfills/{first['backfill']['backfill_id']}", json={"concurrency": 7})
    second = client.post("/api/v1/backfills", json=request).json
    others = [
        client.post("/api/v1/backfills", json={**request, **fields})
        for fields in ({"mode": "all"}, {"queue": "other"}, {"slices": {"from": "2026-01-01", "to": "2026-01-30"}})
    ]

    assert (first["created"], second["created"]) == (True, False)
    assert second["backfill"] == changed.json
    assert {(other.status_code, other.json["code"]) for other in others} == {(409, "idempotency_conflict")}
    assert len(client.get("/api/v1/backfills").json["backfills"]) == 1


def test_a_backfill_is_planned_created_paused_and_canceled(client, dsn):
    planned = client.post("/api/v1/backfills", json={**JANUARY, "dry_run": True}).json
    assert planned["backfill"] is None
    assert (planned["plan"]["total"], planned["plan"]["selected"]) == (31, 31)
    assert (planned["plan"]["first"][0], planned["plan"]["last"][-1]) == ("2026-01-01", "2026-01-31")
    assert client.get("/api/v1/backfills").json == {"backfills": []}

    made = client.post("/api/v1/backfills", json={**JANUARY, "concurrency": 3, "note": "the source was wrong"}).json
    path = f"/api/v1/backfills/{made['backfill']['backfill_id']}"
    make(dsn)
    found = client.get(path).json
    assert (found["state"], found["made"], found["by_state"]) == ("open", 31, {"queued": 31})
    assert found["created_by"]
    slices = client.get(f"{path}/slices?limit=2").json["slices"]
    assert [s["partition_key"] for s in slices] == ["2026-01-01", "2026-01-02"]
    assert slices[0]["interval_start"] == "2025-12-31T21:00:00Z"
    of_task = client.get("/api/v1/tasks/visits/slices?from=2026-01-30T00:00:00Z").json["slices"]
    assert [s["partition_key"] for s in of_task] == ["2026-01-31"]

    assert client.patch(path, json={"concurrency": 1}).json["concurrency"] == 1
    assert client.post(f"{path}/pause").json["state"] == "paused"
    assert client.post(f"{path}/resume").json["state"] == "open"
    canceled = client.post(f"{path}/cancel").json
    assert (canceled["state"], canceled["by_state"]) == ("canceled", {"canceled": 31})
    assert client.post(f"{path}/pause").json["code"] == "backfill_ended"
    assert client.post(f"{path}/retry").json["state"] == "open"


def test_a_plan_estimates_how_long_it_takes_and_names_the_limits_that_bind(client, dsn):
    request = {**JANUARY, "dry_run": True, "concurrency": 4}
    plan = client.post("/api/v1/backfills", json=request).json["plan"]
    assert (plan["estimated_sec"], plan["limits"]) == (None, {}), "it has not run yet"

    queue = QueueFixture(dsn)
    for _ in range(3):
        queue.queue.settle([(queue.enqueue_and_claim(uuid4().hex, task="visits", queue="etl"), SUCCEEDED)])
    queue.sql("UPDATE dl_job_events SET ts = ts - interval '60 seconds' WHERE kind <> 'done'")
    while StatisticsWriter(queue.session).aggregate() is not None:
        pass
    queue.close()
    plan = client.post("/api/v1/backfills", json=request).json["plan"]
    assert 8 * 60 * 0.8 <= plan["estimated_sec"] <= 8 * 60 * 1.2, "31 slices, four at a time"

    client.put("/api/v1/limits/task:visits", json={"concurrency": 1})
    client.patch("/api/v1/queues", json={"queue": "etl", "concurrency": 3})
    slow = client.post("/api/v1/backfills", json=request).json["plan"]
    assert slow["limits"] == {"task:visits": 1, "queue:etl": 3}
    assert slow["estimated_sec"] == pytest.approx(plan["estimated_sec"] * 31 / 8)


def test_args_are_those_of_the_only_schedule_of_the_task(client):
    client.post(
        "/api/v1/schedules",
        json={"name": "s", "task": "typed", "expression": "0 6 * * *", "args": {"day": "{interval_start:%d.%m.%Y}"}},
    )
    plan = client.post(
        "/api/v1/backfills", json={**JANUARY, "task": "typed", "slices": {"list": ["2026-01-05"]}, "dry_run": True}
    ).json["plan"]

    # The zone of the placeholders is that of the schedule.
    assert plan["args"]["day"] in ("05.01.2026", "04.01.2026")
    assert plan["total"] == 1


def test_a_task_that_this_process_does_not_know_takes_its_unit(client):
    slices = {"from": "2026-W01", "to": "2026-W04", "unit": "week", "zone": "UTC"}
    body = {"task": "elsewhere", "queue": "etl", "slices": slices, "args": {"week": "{partition}"}, "dry_run": True}

    plan = client.post("/api/v1/backfills", json=body).json["plan"]

    assert (plan["total"], plan["args"]) == (4, {"week": "2026-W01"})


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"slices": {"from": "2026-02-30", "to": "2026-03-01"}}, "slices", "2026-02-30"),
        ({"slices": {"from": "2026-01-31", "to": "2026-01-01"}}, "slices", ""),
        ({"slices": {"from": "2026-01-01"}}, "slices", "takes from and to, or a list"),
        ({"slices": {"from": "1026-01-01", "to": "2026-01-01"}}, "slices", ""),
        ({"slices": {"from": "2000-01-01", "to": "3999-01-01", "unit": "hour", "zone": "UTC"}}, "slices", "slices"),
        ({"slices": {"from": "2026-01", "to": "2026-01", "unit": "day", "zone": "Mars"}}, "slices", "Mars"),
        ({"slices": {"list": ["2026-01-01", "2026-13-01"]}}, "slices", "2026-13-01"),
        ({"slices": {"list": []}}, "slices.list", ""),
        ({"task": "elsewhere", "queue": "q"}, "slices", "unit is required: this service does not know the task"),
        ({"task": "elsewhere", "slices": {"from": "2026", "to": "2026", "unit": "day"}, "queue": "q"}, "slices", ""),
        ({"task": "typed"}, "args.day", "of the slice 2026-01-31: is required"),
        ({"args": {"x": "{parttion}"}}, "args", "{parttion} is none of the placeholders"),
        ({"concurrency": 0}, "concurrency", ""),
        ({"mode": "some"}, "mode", ""),
        ({"colour": 1}, "colour", "is no field"),
    ],
)
def test_what_makes_no_backfill_is_refused_by_field(client, changes, field, message):
    response = client.post("/api/v1/backfills", json={**JANUARY, **changes})

    assert response.status_code == 400, response.json
    error = response.json["errors"][0]
    assert (error["field"], message in error["message"]) == (field, True), error
    assert client.get("/api/v1/backfills").json == {"backfills": []}
    assert not any(limit["name"].startswith("backfill:") for limit in client.get("/api/v1/limits").json["limits"])


def test_ten_million_slices_are_refused_with_their_number(client):
    slices = {"from": "1900-01-01", "to": "3100-01-01", "unit": "hour", "zone": "UTC"}

    error = client.post("/api/v1/backfills", json={**JANUARY, "slices": slices}).json["errors"][0]

    assert error["message"].startswith("names 10,")


def test_an_unknown_backfill_is_a_404(client):
    assert client.get(f"/api/v1/backfills/{uuid4()}").json["code"] == "backfill_not_found"
    assert client.post(f"/api/v1/backfills/{uuid4()}/cancel").json["code"] == "backfill_not_found"
