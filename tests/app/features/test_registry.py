"""A service without each of its features in turn, and without any: the queue works all the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from dataloader.app.acts.feature import Feature, load_all
from dataloader.app.features.registry import FEATURES
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.job import NewJob, Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from dataloader.workers.pool import WorkerPool
from dataloader.workers.pool_options import PoolOptions
from tests.support import eventually

_NO_PARTS = {"name", "navigation", "has_commands"}
_FOLDERS = Path(__file__).parents[3] / "app" / "features"


def make_client(queue: JobQueue, features: Sequence[Feature]) -> FlaskClient:
    return create_app(queue, Pipelines(), WebOptions(version="1"), features=features).test_client()


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

    pages = [link.path for feature in features for link in feature.navigation]
    answers = {path: client.get(path).status_code for path in pages}
    assert {path: status for path, status in answers.items() if status != 200} == {}
    for link in left_out.navigation:
        if link.path != "/docs":
            assert client.get(link.path).status_code == 404
            assert f'<li><a href="{link.path}"' not in client.get("/docs").text


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
    pool.start()
    try:
        queue = JobQueue(pool._sessions.settle)
        new_jobs = [NewJob(queue="q", task="count", lock_key=f"k{n}", args={"n": n}) for n in range(3)]
        jobs = [queue.enqueue(new_job).job_id for new_job in new_jobs]
        eventually(lambda: sorted(runs) == [0, 1, 2])
        eventually(lambda: all(job.status is Status.SUCCEEDED for job in map(queue.get, jobs) if job is not None))
    finally:
        assert pool.stop(grace=10)
