"""Two teams, each with a key for its task and queue: no argument that names a job shows one of the other team."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import psycopg2
import pytest

from dataloader._job_fields import REQUEST_FIELDS, Kind
from dataloader.app.features.graphs.rows import Graphs, NewGraphJob
from dataloader.app.http.app import OPERATIONS
from dataloader.app.http.auth.api_keys import Scope
from dataloader.app.queue.job import NewJob

TRIGGER, BATCH, GRAPHS, FORM = "/api/v1/jobs/trigger", "/api/v1/jobs/batch", "/api/v1/graphs", "/tasks/load"
# Operations that a key with `trigger` alone may call, and what tries each. A new one needs a test before it is listed.
OPERATIONS_OF_A_TRIGGER_KEY = {
    "trigger_job": "here",
    "trigger_jobs": "here",
    "trigger_graph": "here; its jobs are parents of each other only, and have no key of their own",
    "get_job_status": "here",
    "get_job_progress": "here",
    "list_tasks": "test_guard",
    "list_queues": "test_guard",
    "like_service": "has no argument",
    "dislike_service": "has no argument",
    "get_info": "has no argument",
    "get_openapi": "has no argument",
    "show_docs": "shows the document",
    "choose_zone": "sets a cookie",
    "submit_task_start": "here",
}
NAMES_OF_JOBS = {"after", "args", "idempotency_key", "live_key", "debounce", "throttle"}
MINE: dict[str, Any] = {"queue": "mine", "task": "load", "lock_key": "k"}
INPUTS = {"queue": "mine", "lock_key": "k", "args": "{}"}  # of the form that starts a task
RULES: dict[str, dict[str, Any]] = {
    "idempotency_key": {"idempotency_key": "shared"},
    "live_key": {"live_key": "shared"},
    "debounce": {"debounce": {"key": "shared", "wait_sec": 600}},
    "throttle": {"throttle": {"key": "shared", "per_sec": 2_678_400}},
}


@pytest.fixture
def headers(make) -> dict[str, str]:
    key = make(Scope.TRIGGER, tasks=frozenset({"load"}), queues=frozenset({"mine"}))
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def foreign(queue, dsn) -> str:
    """A job of the other team, which has ended with a result."""
    job_id = str(queue.enqueue(NewJob(queue="theirs", task="report", lock_key="k")).job_id)
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(
            "UPDATE dl_jobs SET status = 'succeeded', finished_at = now(), result = '{\"total\": 1}' WHERE job_id = %s",
            (job_id,),
        )
    connection.close()
    return job_id


def test_every_operation_and_field_of_a_trigger_key_is_listed(app):
    operations = app.application.extensions[OPERATIONS]
    allowed = {op.name for op in operations if Scope.TRIGGER in op.required_scopes}

    assert allowed == set(OPERATIONS_OF_A_TRIGGER_KEY)
    kinds = {Kind.PARENTS, Kind.ARGS, Kind.KEY, Kind.DEBOUNCE, Kind.THROTTLE}  # whose values may name jobs
    assert {field.name for field in REQUEST_FIELDS.values() if field.kind in kinds} == NAMES_OF_JOBS


def test_a_foreign_parent_is_one_that_does_not_exist(app, headers, foreign):
    unknown = str(uuid4())
    answers = []
    for job_id in (foreign, unknown):
        for on in ("succeeded", "ended", "failed"):
            body = {**MINE, "after": [{"job_id": job_id, "on": on}], "args": {"data": {"$result": job_id}}}
            one = app.post(TRIGGER, json=body, headers=headers)
            many = app.post(BATCH, json={"jobs": [body]}, headers=headers)
            assert one.status_code == 400, one.json
            item = many.json["items"][0]
            assert item["outcome"] == "invalid"
            answers.append((one.json["detail"], one.json["errors"], item["problem"]))
        for route in ("status", "progress"):
            assert app.get(f"/api/v1/jobs/{job_id}/{route}", headers=headers).status_code == 404

    assert str(answers[:3]).replace(foreign, unknown) == str(answers[3:])


def test_the_form_hides_a_foreign_parent(app, headers, foreign):
    unknown, answers = str(uuid4()), []
    for job_id in (foreign, unknown):
        answer = app.post(FORM, data={**INPUTS, "after": job_id}, headers=headers)
        assert (answer.status_code, f"there is no job {job_id}" in answer.text) == (409, True)
        answers.append(answer.text)

    assert answers[0].replace(foreign, unknown) == answers[1]


def test_an_own_parent_is_accepted(app, headers):
    parent = app.post(TRIGGER, json=MINE, headers=headers).json["job_id"]

    child = app.post(TRIGGER, json={**MINE, "after": [{"job_id": parent}]}, headers=headers)

    assert child.status_code == 200, child.json


@pytest.mark.parametrize("name", RULES)
def test_a_key_of_a_foreign_job_is_a_conflict(app, headers, queue, name):
    theirs = queue.enqueue(NewJob(queue="theirs", task="report", lock_key="k", **RULES[name])).job_id

    one = app.post(TRIGGER, json={**MINE, **RULES[name]}, headers=headers)
    many = app.post(BATCH, json={"jobs": [{**MINE, **RULES[name]}]}, headers=headers)

    assert (one.status_code, one.json["code"]) == (409, "idempotency_conflict")
    assert "the key 'shared' already belongs to a job that this key may not see" in one.json["detail"]
    assert many.json["items"][0]["outcome"] == "conflict"
    assert str(theirs) not in one.text + many.text
    assert queue.get(theirs).args == {}


@pytest.mark.parametrize("name", RULES)
def test_the_form_refuses_a_key_of_a_foreign_job(app, headers, queue, name):
    queue.enqueue(NewJob(queue="theirs", task="report", lock_key="k", **RULES[name]))

    answer = app.post(FORM, data={**INPUTS, "more": json.dumps(RULES[name])}, headers=headers)

    assert (answer.status_code, "already belongs to a job that" in answer.text) == (409, True)


def test_a_slice_that_a_foreign_queue_loads_is_a_conflict(app, headers, queue):
    key: dict[str, Any] = {"live_key": "slice:load:2030-01-01"}
    theirs = str(queue.enqueue(NewJob(queue="theirs", task="load", lock_key="k", **key)).job_id)

    one = app.post(TRIGGER, json={**MINE, **key}, headers=headers)
    many = app.post(BATCH, json={"jobs": [{**MINE, **key}]}, headers=headers)

    assert (one.status_code, one.json["code"]) == (409, "idempotency_conflict")
    assert [item["job_id"] for item in many.json["items"]] == [None]
    assert theirs not in one.text + many.text


@pytest.mark.parametrize(
    "own", [{}, {"queue": "theirs"}, {"task": "report"}, {"args": {"day": 1}}], ids=lambda own: next(iter(own), "same")
)
def test_the_key_of_a_graph_of_other_jobs_is_a_conflict(app, headers, queue, own):
    fields = {**MINE, **own}
    theirs = NewGraphJob(key="a", job=NewJob(**fields))
    graph = Graphs(queue.executor).enqueue([theirs], idempotency_key="shared")

    answer = app.post(GRAPHS, json={"idempotency_key": "shared", "jobs": [{"key": "a", **MINE}]}, headers=headers)

    if own:
        assert (answer.status_code, answer.json["code"]) == (409, "idempotency_conflict")
        assert str(graph.graph_id) not in answer.text
        assert str(graph.jobs["a"]) not in answer.text
    else:
        assert answer.json == {"graph_id": str(graph.graph_id), "created": False, "jobs": {"a": str(graph.jobs["a"])}}


def test_the_key_of_a_graph_with_more_jobs_is_a_conflict(app, headers, queue):
    jobs = [NewGraphJob(key=key, job=NewJob(**MINE)) for key in ("a", "b")]
    Graphs(queue.executor).enqueue(jobs, idempotency_key="shared")

    answer = app.post(GRAPHS, json={"idempotency_key": "shared", "jobs": [{"key": "a", **MINE}]}, headers=headers)

    assert answer.status_code == 409
