"""Limits over HTTP, on the page, and in the reasons of waiting jobs."""

from __future__ import annotations

import pytest

from tests.support.databases import execute_sql


@pytest.fixture(autouse=True)
def none_before(dsn):
    execute_sql(dsn, "TRUNCATE dl_limits, dl_limit_starts; DELETE FROM dl_jobs")


def claim(queue, count=1):
    runs, _ = queue.claim("etl", ["noop"], [f"00000000-0000-4000-8000-00000000000{n}" for n in range(count)], "w")
    return runs


def test_a_limit_is_set_shown_and_deleted(client):
    made = client.put("/api/v1/limits/warehouse", json={"concurrency": 2, "note": "small"}).json
    rated = client.put("/api/v1/limits/partner:*", json={"rate": 10}).json

    assert (made["concurrency"], made["note"], made["used"], made["waiting"]) == (2, "small", 0, 0)
    assert (rated["rate"], rated["per_sec"], rated["concurrency"]) == (10, 1.0, None)
    assert [limit["name"] for limit in client.get("/api/v1/limits").json["limits"]] == ["partner:*", "warehouse"]
    assert client.get("/api/v1/limits/warehouse").json["holders"] == []
    assert client.delete("/api/v1/limits/warehouse").json == {"deleted": True}
    assert client.delete("/api/v1/limits/warehouse").json["code"] == "limit_not_found"
    assert client.get("/api/v1/limits/warehouse").status_code == 404


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("a", {}, "body"),
        ("a", {"concurrency": -1}, "concurrency"),
        ("a", {"rate": 0}, "rate"),
        ("a", {"rate": 1, "per_sec": 0}, "per_sec"),
        ("a", {"concurrency": 1, "burst": 2}, "burst"),
        ("a*", {"concurrency": 1}, "name"),
        ("x" * 201, {"concurrency": 1}, "name"),
        ("a%0Ab", {"concurrency": 1}, "name"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(lasting_client, name, body, field):
    answer = lasting_client.put(f"/api/v1/limits/{name}", json=body)

    assert answer.status_code == 400
    assert answer.json["errors"][0]["field"] == field


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"warehouse": 3}, "asks for 3"),
        ({"warehouse": 0}, "whole number from 1"),
        ({"k" * 10_000: 1}, "200 bytes"),
        ({"queue:etl": 1}, "applies by itself"),
        ({f"l{n}": 1 for n in range(5)}, "at most 4"),
        ({"tenant:*": 1}, "ends in"),
    ],
)
def test_a_trigger_with_limits_that_cannot_be_names_the_field(client, request_body, limits, problem):
    client.put("/api/v1/limits/warehouse", json={"concurrency": 2})

    answer = client.post("/api/v1/jobs/trigger", json={**request_body, "limits": limits})

    assert answer.status_code == 400
    (error,) = answer.json["errors"]
    assert error["field"] == "limits"
    assert problem in error["message"]


def test_a_limited_job_says_what_it_waits_for(client, queue, trigger):
    client.put("/api/v1/limits/warehouse", json={"concurrency": 1})
    first, second = trigger(limits={"warehouse": 1}, lock_key="a"), trigger(limits={"warehouse": 1}, lock_key="b")
    claim(queue, 2)

    detail = client.get(f"/api/v1/jobs/{second}").json
    why = client.get(f"/api/v1/jobs/{second}/why").json
    (listed,) = client.get("/api/v1/jobs", query_string={"status": "queued"}).json["jobs"]

    assert (detail["wait_state"], detail["waits_on"], detail["limits"]) == ("limited", "warehouse", {"warehouse": 1})
    assert listed["job_id"] == second
    (reason,) = [reason for reason in why["reasons"] if reason["code"] == "limit_full"]
    assert "1 of 1 in use" in reason["message"]
    assert reason["details"]["holders"][0]["job_id"] == first
    assert why["position"] == 1
    holder = client.get("/api/v1/limits/warehouse").json
    assert (holder["used"], holder["waiting"], holder["holders"][0]["job_id"]) == (1, 1, first)
    page = client.get("/limits").text
    assert "warehouse" in page
    assert f"/jobs/{first}" in page


@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ({"concurrency": 0, "note": "maintenance"}, "limit_closed", "closed since"),
        ({"rate": 1, "per_sec": 600}, "rate_limited", "allows the next start in"),
    ],
)
def test_closed_limits_and_rates_are_explained(client, queue, trigger, setting, code, words):
    client.put("/api/v1/limits/partner", json=setting)
    trigger(limits={"partner": 1}, lock_key="a")
    second = trigger(limits={"partner": 1}, lock_key="b")
    claim(queue, 2)

    reasons = client.get(f"/api/v1/jobs/{second}/why").json["reasons"]

    (reason,) = [reason for reason in reasons if reason["code"] == code]
    assert words in reason["message"]


def test_the_page_sets_and_deletes(client):
    made = client.post("/limits", data={"name": "api", "rate": "10", "burst": "2"})
    assert made.status_code == 303
    assert client.get("/api/v1/limits/api").json["burst"] == 2
    assert client.post("/limits", data={"name": "api"}).status_code == 422
    assert client.post("/limits", data={"name": "api", "rate": "fast"}).status_code == 422
    client.post("/limits", data={"name": "api", "action": "delete"})
    assert client.get("/api/v1/limits/api").status_code == 404
