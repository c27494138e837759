"""Schedules over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from dataloader.app.db.connection import Session
from dataloader.app.features.schedules.rows import Schedules
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from tests.support.databases import execute_sql

DAILY = {"name": "sales", "task": "unknown.task", "queue": "etl", "expression": "0 6 * * *", "zone": "Europe/Berlin"}


@pytest.fixture(autouse=True)
def none_before(dsn):
    execute_sql(dsn, "DELETE FROM dl_schedules; DELETE FROM dl_jobs; DELETE FROM dl_workers")


@pytest.fixture
def pipelines(pipelines):
    @pipelines.register(
        "typed", args={"type": "object", "required": ["day"], "properties": {"day": {"type": "string"}}}
    )
    def typed(args): ...

    return pipelines


@pytest.fixture
def in_code(dsn):
    """A schedule that a live worker declares."""
    session = Session(dsn, application_name="declares")
    worker = WorkerInfo(uuid4(), "w", "1", ("etl",), ("noop",), 1, schedules=("nightly",))
    WorkerLiveness(session).send_heartbeat(worker, heartbeat_sec=10)
    definition = {"expression": "0 2 * * *", "zone": "UTC", "queue": "etl", "task": "noop", "args": {}}
    Schedules(session).declare([{"name": "nightly", "task": "noop", "definition": definition}], worker.id)
    yield session
    session.close()


def create(client, **fields):
    response = client.post("/api/v1/schedules", json={**DAILY, **fields})
    assert response.status_code == 200, response.json
    return response.json


def test_a_schedule_is_created_changed_paused_and_deleted(client):
    made = create(client, args={"day": "{interval_start:%Y-%m-%d}"})
    assert (made["source"], made["version"], made["paused_at"]) == ("people", 1, None)
    assert made["explanation"] == "At 06:00 every day, Europe/Berlin"
    following = datetime.fromisoformat(made["next_at"])
    assert datetime.now(UTC) < following <= datetime.now(UTC) + timedelta(days=1, hours=1)
    assert [s["name"] for s in client.get("/api/v1/schedules").json["schedules"]] == ["sales"]
    assert client.get("/api/v1/schedules?task=other").json["schedules"] == []

    read = client.get("/api/v1/schedules/sales")
    changed = client.patch(
        "/api/v1/schedules/sales", json={"expression": "0 7 * * *"}, headers={"If-Match": read.headers["ETag"]}
    )
    assert changed.json["definition"]["expression"] == "0 7 * * *"
    assert changed.json["definition"]["args"] == {"day": "{interval_start:%Y-%m-%d}"}
    stale = client.patch(
        "/api/v1/schedules/sales", json={"expression": "0 8 * * *"}, headers={"If-Match": read.headers["ETag"]}
    )
    assert (stale.status_code, stale.json["code"]) == (412, "changed")

    paused = client.post("/api/v1/schedules/sales/pause", json={"reason": "the source moves"}).json
    assert paused["paused_reason"] == "the source moves"
    assert client.post("/api/v1/schedules/sales/resume").json["paused_at"] is None
    assert client.delete("/api/v1/schedules/sales").json == {"deleted": True}
    assert client.get("/api/v1/schedules/sales").json["code"] == "schedule_not_found"


def test_unknown_names_of_a_schedule_are_warned_of(client):
    made = create(client, queue="nowhere")
    changed = client.patch("/api/v1/schedules/sales", json={"queue": "elsewhere"}).json
    kept = client.patch("/api/v1/schedules/sales", json={"priority": 7}).json

    assert made["warnings"][0].startswith("there is no queue 'nowhere'; known: ")
    assert changed["warnings"][0].startswith("there is no queue 'elsewhere'; known: ")
    assert kept["warnings"] == []


def test_jobs_without_a_queue_go_to_the_default_one(client):
    create(client, queue=None, task="noop", args={})

    client.post("/api/v1/schedules/sales/run", json={})

    (job,) = client.get("/api/v1/jobs").json["jobs"]
    assert job["queue"] == "etl.default"


def test_a_name_is_taken_once(client):
    create(client)

    again = client.post("/api/v1/schedules", json=DAILY)

    assert (again.status_code, again.json["code"]) == (409, "schedule_exists")


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"expression": "0 0 30 2 *"}, "expression", "never fires"),
        ({"expression": "61 * * * *"}, "expression", "'61' is no valid minute"),
        ({"expression": ""}, "expression", "five fields"),
        ({"zone": "Mars/Olympus"}, "zone", "is no IANA time zone"),
        ({"zone": None, "expression": "never"}, "expression", "five fields"),
        ({"args": {"day": "{interval_begin}"}}, "args", "{interval_begin} is none of the placeholders"),
        ({"args": {"a": ["{logical_at:%Q}"]}}, "args", "'%Q' is no strftime format"),
        ({"kind": "interval", "expression": "0"}, "expression", "an interval has 1 to"),
        ({"kind": "dataset"}, "body", "after names the datasets"),
        ({"starts_at": "2030-02-30T00:00:00Z"}, "starts_at", "is no RFC 3339 time"),
        ({"starts_at": "2030-01-02T00:00:00Z", "ends_at": "2030-01-01T00:00:00Z"}, "ends_at", "not later"),
        ({"excluded": ["2030-02-30"]}, "excluded[0]", "is no day of the calendar"),
        ({"jitter_sec": -1}, "jitter_sec", "greater than or equal to 0"),
        ({"catch_up": "some"}, "catch_up", "'last', 'all' or 'skip'"),
        ({"task": "typed", "args": {"day": 1}}, "args.day", ""),
        ({"task": "typed"}, "args.day", "is required"),
        ({"retry": {"kind": "never"}}, "retry", ""),
        ({"limits": {"warehouse": 0}}, "limits", "the weight of 'warehouse'"),
        ({"name": "a/b"}, "name", "without a slash"),
        ({"name": "x" * 201}, "name", "200"),
        ({"color": "red"}, "color", "is no field of this request"),
        ({"priority": "1"}, "priority", ""),
    ],
)
def test_what_makes_no_schedule_is_refused_by_field(client, fields, field, message):
    response = client.post("/api/v1/schedules", json={**DAILY, **fields})

    assert response.status_code == 400
    (error,) = response.json["errors"]
    assert (error["field"], message in error["message"]) == (field, True), error
    assert client.get("/api/v1/schedules").json == {"schedules": []}


def test_a_change_is_checked_as_a_whole(client):
    create(client, starts_at="2030-01-02T00:00:00Z")

    refused = client.patch("/api/v1/schedules/sales", json={"ends_at": "2030-01-01T00:00:00Z"})

    assert (refused.status_code, refused.json["errors"][0]["field"]) == (400, "ends_at")
    assert client.patch("/api/v1/schedules/sales", json={}).status_code == 400


def test_a_schedule_runs_now_and_for_another_time_once(client):
    create(client, args={"day": "{interval_start:%Y-%m-%d}"})

    first = client.post("/api/v1/schedules/sales/run", json={"at": "2030-01-31T06:00:00+01:00"})
    assert first.json["created"] is True
    job = client.get(f"/api/v1/jobs/{first.json['job_id']}").json
    assert job["args"] == {"day": "2030-01-30"}
    assert (job["logical_at"], job["interval_start"]) == ("2030-01-31T05:00:00Z", "2030-01-30T05:00:00Z")
    repeated = client.post("/api/v1/schedules/sales/run", json={"at": "2030-01-31T06:00:00+01:00"})
    assert (repeated.status_code, repeated.json["code"]) == (409, "time_has_fired")
    again = client.post("/api/v1/schedules/sales/run", json={"at": "2030-01-31T06:00:00+01:00", "again": True})
    assert again.json["created"] is True
    assert again.json["job_id"] != first.json["job_id"]
    assert client.post("/api/v1/schedules/sales/run", json={}).json["created"] is True

    firings = client.get("/api/v1/schedules/sales/firings").json["firings"]
    assert [(f["made_by"], f["outcome"]) for f in firings] == [("person", "made")] * 2
    assert firings[0]["job_id"] == again.json["job_id"]


def test_a_preview_shows_daylight_saving_and_the_jobs(client):
    body = {**DAILY, "expression": "30 2 * * *", "args": {"day": "{interval_start:%Y-%m-%d}"}}

    shown = client.post("/api/v1/schedules/preview?n=2&from=2030-03-30T12:00:00Z", json=body).json

    assert [(t["local_time"], t["note"]) for t in shown["times"]] == [
        ("2030-03-31T03:00:00+02:00", "moved"),
        ("2030-04-01T02:30:00+02:00", None),
    ]
    assert shown["times"][1]["args"] == {"day": "2030-03-31"}
    assert client.get("/api/v1/schedules").json == {"schedules": []}


def test_a_preview_says_why_a_job_cannot_be_made(client):
    body = {**DAILY, "args": {"day": "{partition}"}}

    (time,) = client.post("/api/v1/schedules/preview?n=1", json=body).json["times"]

    assert time["problem"] == "day: this job has no partition"
    assert time["args"] is None


def test_times_of_a_pause_are_one_skipped_range(client, dsn):
    create(client, kind="interval", expression="3600")
    client.post("/api/v1/schedules/sales/pause", json={"reason": "moving"})
    execute_sql(dsn, "UPDATE dl_schedules SET last_at = last_at - interval '5 hours'")

    resumed = client.post("/api/v1/schedules/sales/resume").json
    (firing,) = client.get("/api/v1/schedules/sales/firings").json["firings"]

    assert datetime.fromisoformat(resumed["next_at"]) > datetime.now(UTC)
    assert (firing["outcome"], firing["job_id"]) == ("paused_skipped", None)
    assert firing["detail"].endswith(": moving")
    span = datetime.fromisoformat(firing["until"]) - datetime.fromisoformat(firing["fire_at"])
    assert timedelta(hours=3) <= span <= timedelta(hours=5)


def test_people_override_fields_of_code_and_reset_them(client, in_code):
    changed = client.patch("/api/v1/schedules/nightly", json={"expression": "0 3 * * *"}).json
    assert (changed["source"], changed["differs_from_code"]) == ("code", ["expression"])
    assert (changed["declared"]["expression"], changed["definition"]["expression"]) == ("0 2 * * *", "0 3 * * *")
    assert client.patch("/api/v1/schedules/nightly", json={"task": "other"}).json["errors"][0]["field"] == "task"

    reset = client.post("/api/v1/schedules/nightly/reset", json={}).json
    assert (reset["differs_from_code"], reset["definition"]["expression"]) == ([], "0 2 * * *")
    unknown = client.post("/api/v1/schedules/nightly/reset", json={"fields": ["expresion"]})
    assert unknown.json["errors"] == [
        {"field": "fields", "message": "'expresion' is no field of a schedule, such as expression"}
    ]
    create(client)
    assert client.post("/api/v1/schedules/sales/reset", json={}).status_code == 400


def test_an_orphaned_schedule_is_adopted(client, in_code):
    refused = client.post("/api/v1/schedules/nightly/adopt")
    assert (refused.status_code, refused.json["code"]) == (409, "not_orphaned")
    in_code.execute_raw("UPDATE dl_schedules SET orphaned_at = now()")

    adopted = client.post("/api/v1/schedules/nightly/adopt").json

    assert (adopted["source"], adopted["orphaned_at"], adopted["declared"]) == ("people", None, {})
    assert adopted["definition"]["expression"] == "0 2 * * *"


def test_the_calendar_has_what_was_made_and_what_will_be(client):
    create(client)
    client.post("/api/v1/schedules/sales/run", json={})
    begin = datetime.now(UTC) - timedelta(hours=1)
    end = begin + timedelta(days=3)

    found = client.get("/api/v1/calendar", query_string={"from": begin.isoformat(), "to": end.isoformat()}).json

    assert [firing["outcome"] for firing in found["past"]] == ["made"]
    assert len(found["future"]) in (2, 3)
    assert found["complete"] is True
    too_long = {"from": begin.isoformat(), "to": (begin + timedelta(days=100)).isoformat()}
    assert client.get("/api/v1/calendar", query_string=too_long).json["errors"][0]["field"] == "to"


def test_changes_are_audited(client):
    create(client)
    client.post("/api/v1/schedules/sales/pause", json={})

    entries = client.get("/api/v1/audit?subject=schedule").json["entries"]

    assert {entry["action"] for entry in entries} >= {"create_schedule", "pause_schedule"}
