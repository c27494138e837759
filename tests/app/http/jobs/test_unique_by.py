"""Tasks whose jobs are unique by some of their args: a further trigger gets the live job."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dataloader.pipelines.contract import Daily, Pipelines
from dataloader.pipelines.schedule_definition import definition_from, scheduled_job
from tests.support.databases import execute_sql


@pytest.fixture
def pipelines(pipelines):
    @pipelines.register("load", queue="etl", lock_key="load", spread=True, unique_by=("shop", "day"))
    def load(shop, day="2030-01-01", limit=0): ...

    return pipelines


def trigger(client, **request):
    return client.post("/api/v1/jobs/trigger", json={"task": "load", **request})


def test_trigger_with_equal_args_gets_the_live_job(client, dsn):
    first = trigger(client, args={"shop": 7, "day": "2030-01-01"}).json["job_id"]

    again = trigger(client, args={"shop": 7, "limit": 5}, idempotency_key="other")
    assert (again.status_code, again.json["job_id"]) == (200, first)
    assert client.get(f"/api/v1/jobs/{first}").json["live_key"] == 'unique:load:[7,"2030-01-01"]'
    batch = client.post(
        "/api/v1/jobs/batch", json={"jobs": [{"task": "load", "args": {"shop": shop}} for shop in (7, 8)]}
    )
    assert [item["outcome"] for item in batch.json["items"]] == ["exists", "created"]
    assert client.post(f"/api/v1/jobs/{first}/clone", json={}).json["job_id"] == first
    form = client.post("/tasks/load", data={"args": '{"shop": 7}', "queue": "etl", "lock_key": "load"})
    assert form.headers["Location"].endswith(first)

    execute_sql(dsn, "UPDATE dl_jobs SET status = 'succeeded', finished_at = now() WHERE live_key LIKE 'unique:%'")
    assert trigger(client, args={"shop": 7}).json["job_id"] != first


@pytest.mark.parametrize(
    "rule", [{"live_key": "own"}, {"throttle": {"key": "k", "per_sec": 60}}, {"debounce": {"key": "k", "wait_sec": 60}}]
)
def test_another_rule_of_the_request_takes_its_place(client, rule):
    job_id = trigger(client, args={"shop": 7}, **rule).json["job_id"]

    assert client.get(f"/api/v1/jobs/{job_id}").json["live_key"] == rule.get("live_key")


def test_job_of_a_schedule_is_unique(pipelines):
    definition = definition_from({"task": "load", "expression": "0 6 * * *", "args": {"shop": 7}}, zone="UTC")

    job = scheduled_job(
        "daily", "id", definition, datetime(2030, 1, 1, 6, tzinfo=UTC), pipelines.get("load"), default_lease_sec=60
    )

    assert job["live_key"] == 'unique:load:[7,"2030-01-01"]'


def test_jobs_of_a_graph_are_not_unique(client):
    jobs = [{"key": key, "task": "load", "args": {"shop": 7}} for key in "ab"]

    assert client.post("/api/v1/graphs", json={"jobs": jobs}).status_code == 200


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"unique_by": ("month",)}, "'month' is no argument of this task"),
        ({"unique_by": ("",)}, "unique_by names args"),
        ({"unique_by": ("day",), "partitions": Daily("2030-01-01")}, "takes no unique_by"),
    ],
)
def test_options_that_cannot_be_are_refused(options, problem):
    with pytest.raises(ValueError, match=problem):
        Pipelines().register("load", **options)(lambda shop, day: None)


def test_one_text_is_no_list_of_args():
    with pytest.raises(TypeError, match=r"unique_by is a list, such as \['day'\]"):
        Pipelines().register("load", unique_by="day")


def test_long_values_are_hashed():
    known = Pipelines()
    known.register("load", unique_by=["shop"])(lambda args: None)
    (task,) = known

    keys = {task.unique_live_key({"shop": text * 5000}) for text in ("é", "x")}

    assert len(keys) == 2
    assert all(len(key) == len("unique:load:") + 64 for key in keys if key)
