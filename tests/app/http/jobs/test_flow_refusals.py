"""Requests about limits, graphs, breakers and rules that make no sense: a 4xx names the field, and nothing is made."""

from __future__ import annotations

from uuid import uuid4

import psycopg2
import pytest

JOB = {"queue": "etl", "task": "noop", "lock_key": "k"}


@pytest.fixture
def database(dsn):
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM dl_limits; DELETE FROM dl_jobs; DELETE FROM dl_graphs")
        yield cursor
        cursor.execute("DELETE FROM dl_limits; DELETE FROM dl_jobs; DELETE FROM dl_graphs")
    connection.close()


def refusal(client, database, path, body, method="post"):
    answer = getattr(client, method)(path, json=body)
    assert 400 <= answer.status_code < 500, answer.text
    database.execute(
        "SELECT (SELECT count(*) FROM dl_jobs), (SELECT count(*) FROM dl_graphs), (SELECT count(*) FROM dl_edges)"
    )
    assert database.fetchone() == (0, 0, 0)
    (error, *_) = answer.json["errors"] or [{"field": None, "message": answer.json["detail"]}]
    return error["field"], error["message"]


def trigger(client, database, **fields):
    return refusal(client, database, "/api/v1/jobs/trigger", JOB | fields)


def graph(client, database, *jobs):
    body = {"jobs": [JOB | {"lock_key": job["key"]} | job for job in jobs]}
    return refusal(client, database, "/api/v1/graphs", body)


def test_a_weight_above_its_limit(client, database):
    database.execute("INSERT INTO dl_limits (name, concurrency) VALUES ('warehouse', 2)")
    field, message = trigger(client, database, limits={"warehouse": 3})
    assert field == "limits"
    assert 'asks for 3 of "warehouse", which has 2' in message


def test_a_limit_that_does_not_exist(client, database):
    for method in ("get", "delete"):
        answer = getattr(client, method)("/api/v1/limits/nothing")
        assert (answer.status_code, answer.json["code"]) == (404, "limit_not_found")
    assert "there is no limit 'nothing'" in answer.json["detail"]


def test_a_circle_is_spelt_out(client, database):
    field, message = graph(
        client,
        database,
        {"key": "a", "after": [{"job": "c"}]},
        {"key": "b", "after": [{"job": "a"}]},
        {"key": "c", "after": [{"job": "b"}]},
    )
    assert field == "jobs"
    assert "a" in message
    assert "b" in message
    assert "→" in message or "after" in message


def test_a_parent_that_does_not_exist_or_is_deleted(client, database):
    field, message = graph(client, database, {"key": "a", "after": [{"job": "nobody"}]})
    assert field.startswith("jobs[0].after[0]")
    assert "nobody" in message

    parent = str(uuid4())
    field, message = trigger(client, database, after=[{"job_id": parent}])
    assert field.startswith("after")
    assert parent in message

    made = client.post("/api/v1/jobs/trigger", json=JOB).json["job_id"]
    client.post(f"/api/v1/jobs/{made}/cancel")
    assert client.delete(f"/api/v1/jobs/{made}").status_code == 200
    field, message = trigger(client, database, after=[{"job_id": made}])
    assert field.startswith("after")
    assert made in message


def test_more_jobs_than_a_graph_may_have(client, database):
    field, message = graph(client, database, *({"key": f"job {n}"} for n in range(10_001)))
    assert field == "jobs"
    assert "10000" in message.replace(",", "").replace("_", "")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/v1/limits/partner", {"rate": 0}, "rate"),
        ("/api/v1/limits/partner", {"rate": 1, "per_sec": 0}, "per_sec"),
        ("/api/v1/limits/partner", {"rate": 1, "burst": 0}, "burst"),
        (f"/api/v1/limits/{'x' * 10_000}", {"concurrency": 1}, "name"),
        ("/api/v1/tasks/t/breaker", {"failures": 0}, "failures"),
        ("/api/v1/tasks/t/breaker", {"resume_sec": 0}, "resume_sec"),
    ],
)
def test_a_setting_out_of_range(lasting_client, database, path, body, field):
    assert refusal(lasting_client, database, path, body, "put")[0] == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"limits": {"x" * 10_000: 1}}, "limits"),
        ({"limits": {"a": 0}}, "limits"),
        ({"debounce": {"key": "x" * 10_000, "wait_sec": 1}}, "debounce.key"),
        ({"debounce": {"key": "k", "wait_sec": 0}}, "debounce.wait_sec"),
        ({"debounce": {"key": "k"}}, "debounce.wait_sec"),
        ({"throttle": {"key": "x" * 10_000, "per_sec": 1}}, "throttle.key"),
        ({"throttle": {"key": "k", "per_sec": 0}}, "throttle.per_sec"),
        ({"fair_key": "x" * 10_000}, "fair_key"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"start_within_sec": 0}, "start_within_sec"),
        ({"need": "most", "after": [{"job_id": str(uuid4())}]}, "need"),
    ],
)
def test_a_field_out_of_range(lasting_client, database, fields, field):
    assert trigger(lasting_client, database, **fields)[0] == field


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"fair": "tenant"}, "fair"),
        ({"share": 0}, "share"),
        ({"share": 2}, "share"),
        ({"weights": {"acme": 0}}, "weights.acme"),
        ({"weights": {"x" * 10_000: 1}}, "weights"),
    ],
)
def test_a_queue_that_cannot_be_fair_so(lasting_client, database, body, field):
    assert refusal(lasting_client, database, "/api/v1/queues", {"queue": "etl"} | body, "patch")[0].startswith(field)
