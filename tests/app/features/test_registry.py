"""A service without each of its features in turn, and without any: the queue works all the same."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from dataloader.app.acts.feature import Feature, load_all, load_task_call
from dataloader.app.db.connection import Session
from dataloader.app.features.limits.breakers import Breakers, BreakerState
from dataloader.app.features.registry import FEATURES
from dataloader.app.features.schedules.rows import Schedules, Times
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.job import NewJob, Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Daily, Pipelines
from dataloader.workers.pool import WorkerPool
from dataloader.workers.pool_options import PoolOptions
from tests.support import eventually
from tests.support.databases import execute_sql

_NO_PARTS = {"name", "navigation", "has_commands", "job_panels", "subjects"}
_ADDRESS = re.compile(r' (?:href|action)="(/[^"?#]*)')
_FOLDERS = Path(__file__).parents[3] / "app" / "features"


def _dead_links(client: FlaskClient, page: str) -> set[str]:
    """The addresses of links and forms that no route has."""
    routes = client.application.url_map.bind("localhost")
    links = {html.unescape(link) for link in _ADDRESS.findall(page)}
    return {link for link in links if not any(routes.test(unquote(link), method) for method in ("GET", "POST"))}


def make_client(queue: JobQueue, features: Sequence[Feature]) -> FlaskClient:
    pipelines = Pipelines()
    pipelines.register("noop")(lambda args: None)
    return create_app(queue, pipelines, WebOptions(version="1"), features=features).test_client()


def get_json(response: TestResponse) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.get_json()
    return result


def test_all_that_features_name_exists():
    for part in {field.name for field in fields(Feature)} - _NO_PARTS:
        assert all(callable(loaded) for loaded in load_all(FEATURES, part)), part


def test_each_folder_with_a_feature_is_in_the_registry():
    assert {path.parent.name for path in _FOLDERS.glob("*/feature.py")} == {feature.name for feature in FEATURES}


@pytest.mark.parametrize("left_out", FEATURES, ids=lambda feature: feature.name)
def test_pages_of_the_other_features_work(queue: JobQueue, left_out: Feature):
    features = [feature for feature in FEATURES if feature is not left_out]
    client = make_client(queue, features)

    job_id = queue.enqueue(NewJob(queue="etl", task="noop", lock_key="noop")).job_id

    # Without /docs, which takes seconds to describe all routes.
    pages = [link.path for feature in features for link in feature.navigation if link.path != "/docs"]
    pages += [f"/jobs/{job_id}"] if left_out.name != "jobs" else []
    pages += ["/tasks/noop"] if left_out.name != "tasks" else []
    pages += [f"/api/v1/{kind}/why" for kind in (f"jobs/{job_id}", "tasks/noop")] if left_out.name != "why" else []
    answers = {path: client.get(path) for path in pages}
    assert {path: answer.status_code for path, answer in answers.items() if answer.status_code != 200} == {}
    dead = {(path, link) for path, answer in answers.items() for link in _dead_links(client, answer.text)}
    assert dead == set()
    for link in left_out.navigation:
        if link.path != "/docs":
            assert client.get(link.path).status_code == 404
            assert f'<li><a href="{link.path}"' not in client.get(pages[0]).text


def test_page_shows_links_to_a_feature_left_out_as_text(queue: JobQueue):
    queue.enqueue(NewJob(queue="etl", task="noop", lock_key="noop"))
    features = [feature for feature in FEATURES if feature.name not in ("tasks", "search")]

    pages = [make_client(queue, made).get("/jobs").text for made in (FEATURES, features)]

    assert ['<a href="/tasks/noop"' in page for page in pages] == [True, False]
    assert ["<a>noop</a>" in page for page in pages] == [False, True]
    assert ['<form role="search" hidden>' in page for page in pages] == [False, True]
    assert ['href="/static/' in page for page in pages] == [True, True]
    assert 'href="/static/vendor/uplot.min.css"' in make_client(queue, features).get("/charts").text
    below_path = make_client(queue, features).get("/jobs", base_url="http://localhost/etl").text
    assert 'href="/etl/static/' in below_path


def test_page_without_jobs_does_not_link_to_their_logs(queue: JobQueue, dsn: str):
    job_id = queue.enqueue(NewJob(queue="etl", task="noop", lock_key="noop")).job_id
    execute_sql(
        dsn,
        "INSERT INTO dl_job_logs (job_id, attempt, ts, level, stream, line)"
        f" VALUES ('{job_id}', 1, now(), 'INFO', 'log', 'reading')",
    )
    clients = {name: make_client(queue, [f for f in FEATURES if f.name != name]) for name in ("", "jobs")}

    pages = {name: client.get("/logs?text=reading").text for name, client in clients.items()}

    assert [f'href="/jobs/{job_id}/log?' in page for page in pages.values()] == [True, False]
    assert "reading" in pages["jobs"]
    assert _dead_links(clients["jobs"], pages["jobs"]) == set()  # `where` has other pages of a job


def test_page_of_a_task_has_the_parts_of_its_features_alone(queue: JobQueue, dsn: str):
    pipelines = Pipelines()
    pipelines.register("sliced", partitions=Daily("2026-01-01"))(lambda args: None)
    execute_sql(
        dsn,
        "INSERT INTO dl_checks (task, name, job_id, attempt, partition_key, value, outcome)"
        " VALUES ('sliced', 'rows', gen_random_uuid(), 1, '', 7, 'passed')",
    )

    def headings(*left_out: str) -> list[str]:
        features = [feature for feature in FEATURES if feature.name not in left_out]
        client = create_app(queue, pipelines, WebOptions(version="1"), features=features).test_client()
        return re.findall(r"<h2[^>]*>(Slices|Data checks|Schedule|Checks)<", client.get("/tasks/sliced").text)

    assert headings() == ["Slices", "Data checks", "Schedule", "Checks"]
    assert headings("backfills") == ["Data checks", "Schedule", "Checks"]
    assert headings("quality", "schedules") == ["Slices"]


def test_search_without_a_feature_finds_none_of_its_names(queue: JobQueue):
    queue.enqueue(NewJob(queue="noop", task="noop", lock_key="noop"))

    def found(*left_out: str) -> set[tuple[str, str]]:
        """The path and the kind of each; without a path those whose page the service does not have."""
        features = [feature for feature in FEATURES if feature.name not in left_out]
        page = make_client(queue, features).get("/search?q=noop").text
        return set(re.findall(r'<tr><th [^>]*><a(?: href="([^"]*)")?>noop</a></th><td data-l="Kind">([^<]*)<', page))

    assert found() == {("/tasks/noop", "task"), ("/queues/noop", "queue"), ("/jobs?lock_key=noop", "lock key")}
    assert found("queues") == {("/tasks/noop", "task"), ("/jobs?lock_key=noop", "lock key")}
    assert found("jobs") == {("/tasks/noop", "task"), ("/queues/noop", "queue")}


def test_search_without_jobs_leads_to_no_list_of_jobs(queue: JobQueue):
    client = make_client(queue, [feature for feature in FEATURES if feature.name != "jobs"])

    nothing, empty = client.get("/search?q=nowhere"), client.get("/search")

    assert (nothing.status_code, "Nothing of this name." in nothing.text) == (200, True)
    assert (empty.status_code, empty.headers["Location"]) == (303, "/")


def test_service_without_features_triggers_cancels_and_retries(queue: JobQueue):
    client = make_client(queue, ())
    body = {"queue": "etl", "task": "noop", "lock_key": "noop"}

    job = "/api/v1/jobs/" + get_json(client.post("/api/v1/jobs/trigger", json=body))["job_id"]
    assert get_json(client.get(f"{job}/status"))["status"] == "queued"
    assert get_json(client.post(f"{job}/cancel"))["status"] == "canceled"
    assert get_json(client.post(f"{job}/retry"))["status"] == "queued"
    assert {client.get(path).status_code for path in ("/health", "/info", "/docs", "/openapi.json")} == {200}
    assert {client.get(path).status_code for path in ("/", "/jobs", "/api/v1/jobs", "/api/v1/limits")} == {404}


def test_worker_without_features_runs_and_reaps(own_dsn: str):
    pipelines, runs = Pipelines(), []

    @pipelines.register("count")
    def count(args: dict[str, int]) -> None:
        runs.append(args["n"])

    pool = WorkerPool(pipelines, PoolOptions(dsn=own_dsn, queues={"q": 2}, heartbeat_sec=1.0), features=())
    session = Session(own_dsn, application_name="reader")
    pool.start()
    try:
        queue = JobQueue(session)
        new_jobs = [NewJob(queue="q", task="count", lock_key=f"k{n}", args={"n": n}) for n in range(3)]
        jobs = [queue.enqueue(new_job).job_id for new_job in new_jobs]
        eventually(lambda: sorted(runs) == [0, 1, 2])
        eventually(lambda: all(job.status is Status.SUCCEEDED for job in map(queue.get, jobs) if job is not None))
    finally:
        assert pool.stop(grace=10)
        session.close()


def test_job_page_without_why_has_no_note(queue: JobQueue):
    job_id = queue.enqueue(NewJob(queue="etl", task="noop", lock_key="noop")).job_id
    without = [feature for feature in FEATURES if feature.name != "why"]

    shown, left_out = (make_client(queue, features).get(f"/jobs/{job_id}").text for features in (FEATURES, without))

    assert "No live worker serves queue" in shown
    assert "No live worker serves queue" not in left_out
    assert "Attempts" in left_out


def test_why_without_a_feature_lacks_its_reasons_alone(queue: JobQueue):
    times = Times(datetime(2020, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC))
    Schedules(queue.executor).create("of left out", "t.left", {"kind": "interval", "expression": "60"}, times)
    Breakers(queue.executor).set("t.left", state=BreakerState.OPEN, reason="broken", changed_by="ann")

    def codes(*left_out: str) -> list[str]:
        client = make_client(queue, [feature for feature in FEATURES if feature.name not in left_out])
        return [reason["code"] for reason in get_json(client.get("/api/v1/tasks/t.left/why"))["reasons"]]

    complete = codes()
    assert (complete[0], complete[-1]) == ("task_paused", "schedule_next")
    assert codes("limits") == complete[1:]
    assert codes("schedules") == ["task_paused", "task_unknown"]  # the queue without a worker is the schedule's
    assert codes("limits", "schedules") == ["task_unknown"]


def test_task_call_of_a_feature_that_is_left_out_is_refused():
    with pytest.raises(RuntimeError, match="'count_calls'"):
        load_task_call([feature for feature in FEATURES if feature.name != "limits"], "count_calls")
