"""Circuit breakers over HTTP and on the dashboard."""

from __future__ import annotations

import pytest

from tests.support.databases import execute_sql


@pytest.fixture(autouse=True)
def none_before(dsn):
    execute_sql(dsn, "DELETE FROM dl_breakers; DELETE FROM dl_jobs")


def test_a_task_is_paused_and_resumed(client):
    paused = client.put("/api/v1/tasks/load.sales/breaker", json={"state": "open", "reason": "moving"})
    assert (paused.status_code, paused.json["state"], paused.json["reason"]) == (200, "open", "moving")
    assert paused.json["probe_at"] is None

    assert [b["task"] for b in client.get("/api/v1/breakers").json["breakers"]] == ["load.sales"]
    assert client.get("/api/v1/tasks/load.sales/breaker").json["state"] == "open"
    overview = client.get("/").text
    assert "load.sales" in overview
    assert " is paused" in overview
    page = client.get("/limits").text
    assert "load.sales" in page
    assert "Resume" in page

    assert client.put("/api/v1/tasks/load.sales/breaker", json={"state": "closed"}).json["state"] == "closed"
    assert client.delete("/api/v1/tasks/load.sales/breaker").json == {"deleted": True}
    assert client.get("/api/v1/tasks/load.sales/breaker").json["code"] == "breaker_not_found"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "there is no change"),
        ({"failures": 0}, "greater than or equal to 1"),
        ({"window_sec": 60}, "belongs to failures"),
        ({"reason": "why"}, "belongs to a state"),
        ({"state": "half_open"}, "'open' or 'closed'"),
        ({"failures": 3, "threshold": 1}, "is no field of this request"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(lasting_client, body, message):
    answer = lasting_client.put("/api/v1/tasks/t/breaker", json=body)
    assert answer.status_code == 400
    assert message in str(answer.json["errors"])
    assert lasting_client.get("/api/v1/breakers").json == {"breakers": []}
