from __future__ import annotations

from uuid import uuid4

import pytest

from dataloader.app.features.statistics.rows import StatisticsWriter
from dataloader.app.http.caches import QueueSettingsCache
from dataloader.app.queue.workers import WorkerInfo, WorkerLiveness
from tests.support.databases import execute_sql


@pytest.fixture(autouse=True)
def none_before(dsn):
    execute_sql(dsn, "TRUNCATE dl_queues, dl_workers, dl_statistics, dl_recent_runs, dl_queue_depths")


def test_queue_settings_are_changed_and_shown(client, trigger):
    trigger()
    ruled = client.patch(
        "/api/v1/queues", json={"queue": "etl", "state": "paused", "concurrency": 3, "per_worker": 1, "note": "later"}
    ).json
    (line,) = client.get("/api/v1/queues", query_string={"queue": "etl"}).json["queues"]
    opened = client.patch("/api/v1/queues", json={"queue": "etl", "state": "open", "concurrency": None}).json

    assert (ruled["state"], ruled["concurrency"], ruled["note"]) == ("paused", 3, "later")
    assert (line["state"], line["ready"], line["running"], line["is_drained"]) == ("paused", 1, 0, True)
    assert (opened["state"], opened["concurrency"], opened["per_worker"], opened["note"]) == ("open", None, 1, None)


def test_misspelt_queue_is_warned_of_or_refused_if_strict(client, trigger):
    trigger()
    body = {"queue": "etk", "state": "paused"}

    refused = client.patch("/api/v1/queues?strict=true", json=body)
    warned = client.patch("/api/v1/queues", json=body)
    again = client.patch("/api/v1/queues?strict=true", json=body)
    known = client.patch("/api/v1/queues?strict=true", json={"queue": "etl", "note": "fine"})

    assert (refused.status_code, refused.json["code"]) == (404, "name_not_found")
    assert refused.json["detail"].startswith("there is no queue 'etk'; known: etl")
    assert warned.json["warnings"] == [refused.json["detail"]]
    assert (again.status_code, again.json["warnings"]) == (200, []), "its settings make it known"
    assert (known.status_code, known.json["warnings"]) == (200, [])


@pytest.mark.parametrize(
    ("method", "path", "body", "warned"),
    [
        ("put", "/api/v1/limits/task:nope", {"concurrency": 1}, "no task 'nope'"),
        ("put", "/api/v1/limits/queue:nope", {"concurrency": 1}, "no queue 'nope'"),
        ("put", "/api/v1/limits/task:*", {"concurrency": 1}, None),
        ("put", "/api/v1/limits/warehouse", {"concurrency": 1}, None),
        ("put", "/api/v1/limits/task:noop", {"concurrency": 1}, None),
        ("put", "/api/v1/tasks/nope/breaker", {"failures": 2}, "no task 'nope'"),
        ("post", "/api/v1/alerts/rules", {"name": "a", "kind": "stalled", "threshold": 9, "task": "nil"}, "task 'nil'"),
        ("post", "/api/v1/alerts/rules", {"name": "b", "kind": "stalled", "threshold": 9}, None),
    ],
)
def test_misspelt_name_in_setting_is_warned_of(client, queue, method, path, body, warned):
    info = WorkerInfo(uuid4(), "w", "1", ("etl",), ("noop",), 1)
    WorkerLiveness(queue.executor).send_heartbeat(info, heartbeat_sec=60)

    response = getattr(client, method)(path, json=body)

    assert response.status_code == 200, response.json
    assert [warned in text for text in response.json["warnings"]] == ([True] if warned else [])


def test_a_draining_queue_takes_no_new_jobs(client, request_body, monkeypatch):
    monkeypatch.setattr("dataloader.app.http.caches._SETTINGS_MAX_AGE_SEC", 0.0)
    client.patch("/api/v1/queues", json={"queue": "etl", "state": "draining", "note": "moving"})

    refused = client.post("/api/v1/jobs/trigger", json=request_body)
    other = client.post("/api/v1/jobs/trigger", json={**request_body, "queue": "other"})

    assert (refused.status_code, refused.json["code"]) == (409, "queue_draining")
    assert "moving" in refused.json["detail"]
    assert other.status_code == 200


def test_with_the_database_away_no_queue_is_known_to_drain(broken):
    from dataloader.app.errors import DatabaseUnavailable
    from dataloader.app.state.queues import Queues

    QueueSettingsCache(Queues(broken(DatabaseUnavailable("away")))).reject_if_draining("etl")


@pytest.mark.parametrize(
    "wrong", [{}, {"queue": "q"}, {"queue": "q", "state": "shut"}, {"queue": "q", "concurrency": 0}]
)
def test_a_rule_that_cannot_be_is_a_400(lasting_client, wrong):
    assert lasting_client.patch("/api/v1/queues", json=wrong).status_code == 400


def test_workers_are_listed_and_drained(client, queue):
    info = WorkerInfo(uuid4(), "host:1", "1.2.3", ("etl",), ("noop",), 4)
    WorkerLiveness(queue.executor).send_heartbeat(info, heartbeat_sec=60)

    drained = client.post(f"/api/v1/workers/{info.id}/drain").json
    (line,) = client.get("/api/v1/workers").json["workers"]
    undrained = client.post(f"/api/v1/workers/{info.id}/undrain").json

    assert (drained["draining"], line["draining"], undrained["draining"]) == (True, True, False)
    assert (line["name"], line["threads"], line["busy"], line["alive"]) == ("host:1", 4, 0, True)
    assert client.post(f"/api/v1/workers/{uuid4()}/drain").json["code"] == "worker_not_found"


def test_charts_and_tasks_show_what_happened(client, trigger, pool, queue):
    trigger()
    trigger(task="elsewhere", lock_key="e")
    while StatisticsWriter(pool).aggregate() is not None:
        pass

    chart = client.get("/api/v1/charts", query_string={"period": "24h", "queue": "etl"}).json
    tasks = client.get("/api/v1/tasks").json
    without = client.get("/api/v1/tasks", query_string={"statistics": "false"}).json

    assert chart["bucket_sec"] == 900
    assert sum(point["statistics"]["queued"] for point in chart["points"]) == 2
    assert [task["name"] for task in tasks["tasks"]] == ["noop"]
    assert {line["name"]: line["recent"]["queued"] for line in tasks["statistics"]} == {"elsewhere": 1, "noop": 1}
    assert without["statistics"] == []
