"""Graphs over HTTP and on their page."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from dataloader.app.features.bulk.rows import BulkOperations
from dataloader.app.queue.job import Released, ReleaseReason, Settlement, Status
from tests.support.databases import execute_sql


@pytest.fixture(autouse=True)
def none_before(dsn):
    execute_sql(dsn, "DELETE FROM dl_jobs; DELETE FROM dl_graphs")


@pytest.fixture
def body(request_body):
    base = {name: request_body[name] for name in ("queue", "task", "args") if name in request_body}

    def make(jobs, **more):
        items = [
            {**base, "key": key, "lock_key": key, "after": [{"job": name} for name in after]}
            for key, after in jobs.items()
        ]
        return {"jobs": items, **more}

    return make


def end(queue, status=Status.SUCCEEDED):
    """Claim one job and end it."""
    runs, _ = queue.claim("etl", ["noop"], [str(uuid4())], "w")
    queue.settle([(run, Settlement(status, error="broken" if status is Status.FAILED else None)) for run in runs])
    return [str(run.id) for run in runs]


def test_a_graph_is_created_in_any_order_and_runs(client, queue, body):
    made = client.post(
        "/api/v1/graphs", json=body({"report": ["load"], "load": ["extract"], "extract": []}, name="daily")
    )

    assert made.status_code == 200
    jobs = made.json["jobs"]
    assert [end(queue)[0] for _ in range(3)] == [jobs["extract"], jobs["load"], jobs["report"]]
    shown = client.get(f"/api/v1/graphs/{made.json['graph_id']}").json
    assert shown["name"] == "daily"
    assert {job["status"] for job in shown["jobs"]} == {"succeeded"}
    assert {edge["met"] for edge in shown["edges"]} == {True}


def test_a_failure_is_shown_explained_and_retried(client, queue, body):
    made = client.post("/api/v1/graphs", json=body({"extract": [], "load": ["extract"]})).json
    waiting = client.get(f"/api/v1/jobs/{made['jobs']['load']}/why").json["reasons"][0]
    end(queue, Status.FAILED)
    skipped = client.get(f"/api/v1/jobs/{made['jobs']['load']}/why").json["reasons"][0]
    page = client.get(f"/graphs/{made['graph_id']}").text

    assert waiting["code"] == "waits_for_jobs"
    assert "extract (queued" in waiting["message"]
    assert (skipped["code"], "extract" in skipped["message"]) == ("skipped", True)
    assert "not needed" in page
    assert client.post(f"/api/v1/graphs/{made['graph_id']}/retry").json["jobs"] == 2
    assert [end(queue)[0], end(queue)[0]] == [made["jobs"]["extract"], made["jobs"]["load"]]


def test_a_graph_is_canceled(client, queue, body):
    made = client.post("/api/v1/graphs", json=body({"a": [], "b": ["a"]})).json

    assert client.post(f"/api/v1/graphs/{made['graph_id']}/cancel").json["jobs"] == 2
    assert {job["status"] for job in client.get(f"/api/v1/graphs/{made['graph_id']}").json["jobs"]} == {"canceled"}
    assert client.post(f"/graphs/{made['graph_id']}/retry", data={"csrf_token": ""}).status_code == 303


def test_a_repeated_request_returns_the_same_graph(client, body):
    request = body({"a": [], "b": ["a"]}, idempotency_key="daily")

    first, second = (client.post("/api/v1/graphs", json=request).json for _ in range(2))

    assert (first["created"], second["created"]) == (True, False)
    assert (first["graph_id"], first["jobs"]) == (second["graph_id"], second["jobs"])


@pytest.mark.parametrize("other", [{"a": []}, {"a": [], "b": ["a"], "c": ["a"]}, {"a": [], "c": ["a"]}])
def test_graph_with_other_jobs_under_its_key_is_a_conflict(client, body, other):
    first = client.post("/api/v1/graphs", json=body({"a": [], "b": ["a"]}, idempotency_key="daily")).json

    answer = client.post("/api/v1/graphs", json=body(other, idempotency_key="daily"))

    assert (answer.status_code, answer.json["code"]) == (409, "idempotency_conflict")
    assert len(client.get(f"/api/v1/graphs/{first['graph_id']}").json["jobs"]) == 2


def test_a_circle_is_spelt_out(client, body):
    answer = client.post("/api/v1/graphs", json=body({"a": ["c"], "b": ["a"], "c": ["b"]}))

    assert answer.status_code == 400
    (error,) = answer.json["errors"]
    assert error["field"] == "jobs"
    circle = error["message"].rpartition(": ")[2].split(" → ")
    assert circle[0] == circle[-1]
    assert set(circle) == {"a", "b", "c"}
    assert client.get("/api/v1/jobs").json["jobs"] == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"after": [{"job": "x"}]}, "jobs[1].after[0].job"),
        ({"after": [{"job": "a", "on": "often"}]}, "jobs[1].after[0].on"),
        ({"key": "a"}, "jobs[1].key"),
        ({"key": "k" * 10_000}, "jobs[1].key"),
        ({"idempotency_key": "x"}, "jobs[1].idempotency_key"),
        ({"priority": -1}, "jobs[1].priority"),
        ({"strange": 1}, "jobs[1].strange"),
        ({"task": None}, "jobs[1].task"),
    ],
)
def test_a_job_that_cannot_be_is_named(client, body, change, field):
    request = body({"a": [], "b": ["a"]})
    request["jobs"][1] |= change

    answer = client.post("/api/v1/graphs", json=request)

    assert answer.status_code == 400
    assert answer.json["errors"][0]["field"] == field
    assert client.get("/api/v1/jobs").json["jobs"] == []


def test_too_many_jobs_are_refused(client, body):
    assert client.post("/api/v1/graphs", json={"jobs": [{}] * 10_001}).status_code == 400


def test_a_trigger_waits_for_a_job(client, queue, trigger):
    parent = trigger(lock_key="a")
    child = trigger(lock_key="b", after=[{"job_id": parent, "on": "ended"}])

    assert client.get(f"/api/v1/jobs/{child}").json["wait_state"] == "waiting"
    assert end(queue, Status.FAILED) == [parent]
    assert end(queue) == [child]


def test_a_trigger_with_a_parent_that_does_not_exist_names_the_field(client, request_body):
    answer = client.post("/api/v1/jobs/trigger", json={**request_body, "after": [{"job_id": str(uuid4())}]})

    assert answer.status_code == 400
    assert answer.json["errors"][0]["field"] == "after"


def test_unknown_graphs_are_404(client):
    for path in (f"/api/v1/graphs/{uuid4()}", f"/graphs/{uuid4()}"):
        assert client.get(path).status_code == 404


def test_results_of_parents_are_accepted_in_args_and_no_others(client, request_body, body):
    graph = body({"extract": [], "report": ["extract"]})
    graph["jobs"][1]["args"] = {"sleep1": {"$result": "extract.rows"}}
    assert client.post("/api/v1/graphs", json=graph).status_code == 200
    graph["jobs"][1]["args"] = {"sleep1": {"$result": "extrac.rows"}}
    refused = client.post("/api/v1/graphs", json=graph)
    assert refused.status_code == 400
    assert refused.json["errors"][0]["field"] == "jobs[1].args.sleep1"

    args = {"sleep1": {"$result": "extract.rows"}}
    refused = client.post("/api/v1/jobs/trigger", json={**request_body, "args": args})
    assert refused.status_code == 400
    (error,) = refused.json["errors"]
    assert error["field"] == "args.sleep1"
    assert "name its parents in `after`" in error["message"]
    unknown = {**request_body, "task": "elsewhere", "args": args}
    assert client.post("/api/v1/jobs/trigger", json=unknown).status_code == 400
    assert client.post("/api/v1/jobs/batch", json={"jobs": [unknown]}).json["invalid"] == 1

    parent = client.post("/api/v1/jobs/trigger", json=request_body).json["job_id"]
    child = {**request_body, "args": {"sleep1": {"$result": f"{parent}.rows"}}, "after": [{"job_id": parent}]}
    assert client.post("/api/v1/jobs/trigger", json=child).status_code == 200


def test_a_job_that_waits_for_jobs_of_another_graph_is_shown(client, queue, request_body):
    job = {name: request_body[name] for name in ("queue", "task")}
    graphs = [
        client.post("/api/v1/graphs", json={"jobs": [{**job, "key": "load", "lock_key": f"{uuid4()}"}]}).json
        for _ in range(2)
    ]
    waiting, awaited = (UUID(graph["jobs"]["load"]) for graph in graphs)
    (run,) = [run for run in queue.claim("etl", ["noop"], [str(uuid4())] * 1, "w")[0] if run.id == waiting]

    queue.release([(run, Released(ReleaseReason.WAITS, awaited=[awaited]))])

    for path in (f"/jobs/{waiting}", f"/jobs/{awaited}", *(f"/graphs/{graph['graph_id']}" for graph in graphs)):
        assert client.get(path).status_code == 200, path
    assert str(awaited) in client.get(f"/jobs/{waiting}").text
    reason = client.get(f"/api/v1/jobs/{waiting}/why").json["reasons"][0]
    assert (reason["code"], reason["details"]["open"]) == ("waits_for_jobs", 1)
    assert client.get(f"/api/v1/graphs/{graphs[0]['graph_id']}").json["edges"] == []


# ── deletion ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ended_parent_of_open_graph_is_not_deleted(client, queue, body, pool):
    made = client.post("/api/v1/graphs", json=body({"a": [], "b": ["a"]})).json
    ids = {job["key"]: job["job_id"] for job in client.get(f"/api/v1/graphs/{made['graph_id']}").json["jobs"]}
    end(queue)

    refused = client.delete(f"/api/v1/jobs/{ids['a']}")
    page = client.post(f"/jobs/{ids['a']}/delete", headers={"Sec-Fetch-Site": "same-origin"})
    client.post("/api/v1/bulk", json={"action": "delete", "filter": {"status": ["succeeded"]}, "expected": 1})
    bulk = BulkOperations(pool)
    while bulk.run_batch():
        pass

    assert (refused.status_code, refused.json["code"]) == (409, "not_deletable")
    assert f"its graph {made['graph_id']} is open" in refused.json["detail"]
    assert (page.status_code, "is open" in page.text) == (409, True)
    assert client.get(f"/api/v1/jobs/{ids['a']}").status_code == 200
    client.post(f"/api/v1/jobs/{ids['b']}/cancel")
    assert client.delete(f"/api/v1/jobs/{ids['a']}").status_code == 200
