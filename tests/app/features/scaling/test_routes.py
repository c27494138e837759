from __future__ import annotations

import pytest

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.pipelines.contract import Pipelines


@pytest.fixture
def fresh_client(queue, pool):
    return create_app(queue, Pipelines(), WebOptions(version="1", queues=("etl",)), pool=pool).test_client()


def test_scaling_sums_its_queues_and_filters_one(fresh_client, trigger):
    trigger(lock_key="a")
    trigger(lock_key="b")
    trigger(lock_key="c", queue="other")

    every = fresh_client.get("/api/v1/scaling").json
    one = fresh_client.get("/api/v1/scaling?queue=etl&target_wait_sec=5").json
    metrics = fresh_client.get("/metrics").text

    assert (every["wanted_threads"], every["target_wait_sec"], one["target_wait_sec"]) == (3, 60, 5)
    assert {queue["queue"]: queue["wanted_threads"] for queue in every["queues"]} == {"etl": 2, "other": 1}
    assert [queue["queue"] for queue in one["queues"]] == ["etl"]
    assert 'dataloader_wanted_threads{queue="etl"} 2.0' in metrics
    assert 'dataloader_wanted_threads{queue="other"}' not in metrics


def test_scaling_is_read_once_for_all_requests_of_two_seconds(fresh_client, trigger):
    before = fresh_client.get("/api/v1/scaling").json["wanted_threads"]
    trigger()

    assert fresh_client.get("/api/v1/scaling").json["wanted_threads"] == before == 0


def test_scaling_without_database_is_unavailable(app_without_database, broken):
    client = app_without_database(broken(DatabaseUnavailable("away")), auth_disabled=True, queues=("etl",))

    assert client.get("/api/v1/scaling").status_code == 503
    assert "dataloader_wanted_threads" not in client.get("/metrics").text
