"""What is known of a task counts for the requests for it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.http.schemas import RETRY_POLICY_KINDS
from dataloader.pipelines.contract import Pipelines, read_policy
from dataloader.pipelines.noop import NoopArguments
from dataloader.pipelines.partitions import Daily
from dataloader.pipelines.retry import Exponential
from dataloader.pipelines.schedules import schedule
from tests.support.queue_fixture import list_jobs

TRIGGER = "/api/v1/jobs/trigger"


class Rates(BaseModel):
    day: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    currencies: list[Literal["USD", "EUR"]] = []


@pytest.fixture
def pipelines():
    known = Pipelines()

    @known.register("rates", args=Rates, queue="etl", lock_key="rates:{day}")
    def rates(args):
        """Load rates."""

    @known.register("plain")
    def plain(args): ...

    known.command(
        "legacy",
        ["python", "legacy.py", "{day}"],
        env={"PASSWORD": "hunter2"},
        args={"type": "object", "required": ["day"], "additionalProperties": False, "properties": {"day": {}}},
        lock_key="legacy",
        retry=Exponential(5),
        no_retry=[ValueError, "23505"],
        time_limit=60,
    )
    return known


@pytest.fixture
def client(queue, pipelines, pool):
    return create_app(queue, pipelines, WebOptions(version="1"), pool=pool).test_client()


def faults(response):
    assert response.status_code == 400, response.text
    return {error["field"]: error["message"] for error in response.json["errors"]}


def test_queue_and_lock_key_default_to_those_of_the_task(client, queue):
    response = client.post(TRIGGER, json={"task": "rates", "args": {"day": "2026-11-21"}})

    assert response.status_code == 200, response.text
    (job,) = list_jobs(queue)
    assert (job.queue, job.lock_key) == ("etl", "rates:2026-11-21")


def test_fields_of_the_request_override_task_defaults(client, queue):
    body = {"task": "rates", "queue": "other", "lock_key": "mine", "args": {"day": "2026-11-21"}}

    assert client.post(TRIGGER, json=body).status_code == 200
    (job,) = list_jobs(queue)
    assert (job.queue, job.lock_key) == ("other", "mine")


@pytest.mark.parametrize("task", ["plain", "of nobody here"])
def test_without_a_default_both_are_required(client, task):
    assert faults(client.post(TRIGGER, json={"task": task})) == {"queue": "is required", "lock_key": "is required"}


def test_a_task_may_have_a_default_for_one_of_them(client):
    assert faults(client.post(TRIGGER, json={"task": "legacy"})) == {"queue": "is required"}


@pytest.mark.parametrize("null", ["queue", "lock_key"])
def test_null_is_no_way_to_leave_them_out(client, null):
    assert list(faults(client.post(TRIGGER, json={"task": "rates", "args": {"day": "2026-11-21"}, null: None}))) == [
        null
    ]


@pytest.mark.parametrize("args", [{}, {"day": ["s3cret"]}, {"day": None}, "s3cret", ["s3cret"]])
def test_missing_arg_of_a_lock_key_is_a_field_error(client, args):
    response = client.post(TRIGGER, json={"task": "rates", "args": args})

    assert "args.day" in faults(response)
    assert "lock_key" not in faults(response)
    assert "s3cret" not in response.text


def test_misspelt_arg_of_a_lock_key_is_named_with_its_name(client, pipelines):
    pipelines.register("orders", queue="q", lock_key="orders:{day}")(lambda args: None)

    refused = client.post(TRIGGER, json={"task": "orders", "args": {"dya": "2026-01-31"}})
    batch = client.post("/api/v1/jobs/batch", json={"jobs": [{"task": "orders", "args": {}}]})

    assert faults(refused) == {"args.day": "is missing, which 'orders:{day}' needs; is 'dya' misspelt?"}
    (item,) = batch.json["items"]
    assert [error["field"] for error in item["problem"]["errors"]] == ["args.day"]


def test_lock_key_and_limits_have_the_defaults_of_the_args(client, queue, pipelines):
    class Load(BaseModel):
        day: date
        source: str = "shop"

    options = {"queue": "q", "lock_key": "{source}:{day}", "limits": {"source:{source}": 1}}
    schema = {"type": "object", "properties": {"day": {}, "source": {"default": "shop"}}}
    pipelines.register("by model", args=Load, **options)(lambda args: None)
    pipelines.register("by schema", args=schema, **options)(lambda args: None)
    pipelines.register("by signature", spread=True, **options)(lambda day, source="shop": None)

    for name in ("by model", "by schema", "by signature"):
        response = client.post(TRIGGER, json={"task": name, "args": {"day": "2026-01-31"}})
        assert response.status_code == 200, response.text

    found = [(job.lock_key, job.limits, job.args) for job in list_jobs(queue)]
    assert found == [("shop:2026-01-31", {"source:shop": 1}, {"day": "2026-01-31"})] * 3


@pytest.fixture
def daily(pipelines):
    @pipelines.register("daily", queue="q", lock_key="daily:{day}", partitions=Daily("2026-01-01", zone="UTC"))
    @schedule("0 6 * * *", zone="UTC", args={"day": "{partition}", "kind": "all"})
    def load(args): ...


OF_A_SLICE = {"task": "daily", "args": {"day": "2026-01-31", "kind": "all"}}


@pytest.mark.usefixtures("daily")
def test_job_with_the_args_of_a_slice_is_that_slice(client, queue):
    first = client.post(TRIGGER, json=OF_A_SLICE).json["job_id"]
    again = client.post(TRIGGER, json=OF_A_SLICE | {"idempotency_key": "another"}).json["job_id"]
    batch = client.post("/api/v1/jobs/batch", json={"jobs": [OF_A_SLICE]}).json["items"]

    (job,) = list_jobs(queue)
    assert (job.partition_key, job.live_key) == ("2026-01-31", "slice:daily:2026-01-31")
    assert job.interval_start == datetime(2026, 1, 31, tzinfo=UTC)
    assert (again, batch[0]["job_id"]) == (first, first)


@pytest.mark.usefixtures("daily")
@pytest.mark.parametrize(
    "changes",
    [
        {"args": {"day": "2026-01-31", "kind": "some"}},  # less than the slice
        {"args": {"day": "2025-12-31", "kind": "all"}},  # before the first one
        {"args": {"day": "soon", "kind": "all"}},
        {"live_key": "mine"},
        {"partition_key": "mine"},
        {"throttle": {"key": "k", "per_sec": 60}},
    ],
)
def test_job_with_other_args_or_keys_is_no_slice(client, queue, changes):
    response = client.post(TRIGGER, json=OF_A_SLICE | changes)

    assert response.status_code == 200, response.text
    (job,) = list_jobs(queue)
    assert not (job.live_key or "").startswith("slice:")


@pytest.mark.usefixtures("daily")
def test_job_of_a_graph_is_no_slice(client, queue):
    response = client.post("/api/v1/graphs", json={"jobs": [{"key": "a", **OF_A_SLICE}]})

    assert response.status_code == 200, response.text
    (job,) = list_jobs(queue)
    assert (job.partition_key, job.live_key) == ("", None)


def test_lock_key_made_of_args_is_validated(client):
    response = client.post(TRIGGER, json={"task": "rates", "args": {"day": "x" * 2000}})

    assert list(faults(response)) == ["lock_key"]


@pytest.mark.parametrize(
    ("own", "limits"),
    [
        ({}, {"source": 2, "day:2026-11-21": 1}),
        ({"limits": None}, {"source": 2, "day:2026-11-21": 1}),
        ({"limits": {"other": 1}}, {"other": 1}),
        ({"limits": {}}, {}),
    ],
)
def test_limits_default_to_those_of_the_task(client, queue, pipelines, own, limits):
    options = {"queue": "q", "lock_key": "k", "limits": {"source": 2, "day:{day}": 1}}
    pipelines.register("limited", args=Rates, **options)(lambda args: None)
    body = {"task": "limited", "args": {"day": "2026-11-21"}, **own}

    assert client.post(TRIGGER, json=body).status_code == 200
    assert client.post("/api/v1/jobs/batch", json={"jobs": [body]}).json["created"] == 1

    assert [job.limits for job in list_jobs(queue)] == [limits, limits]


def test_missing_arg_of_a_limit_is_a_field_error(client, pipelines):
    pipelines.register("limited", queue="q", lock_key="k", limits={"day:{day}": 1})(lambda args: None)

    assert "'day:{day}'" in faults(client.post(TRIGGER, json={"task": "limited"}))["args.day"]


@pytest.mark.parametrize("task", [7, None, ["rates"]])
def test_task_that_is_not_a_string_is_a_field_error(client, task):
    assert "task" in faults(client.post(TRIGGER, json={"task": task}))


def test_each_invalid_arg_is_one_field_error(client, queue):
    response = client.post(TRIGGER, json={"task": "rates", "args": {"day": "s3cret", "currencies": ["USD", "s3cret"]}})

    assert set(faults(response)) == {"args.day", "args.currencies[1]"}
    assert "s3cret" not in response.text
    assert list_jobs(queue) == []


def test_args_are_held_to_a_json_schema_as_well(client):
    response = client.post(TRIGGER, json={"task": "legacy", "queue": "q", "args": {"dey": 1, "a b": 2}})

    assert faults(response) == {
        "args.day": "is required",
        "args.dey": "is no argument of this task; leave it out",
        'args["a b"]': "is no argument of this task; leave it out",
    }


class Grumpy(BaseModel):
    @classmethod
    def model_validate_json(cls, *_, **__):
        raise KeyError("s3cret")


def test_a_model_that_fails_itself_is_no_fault_of_the_service(client, pipelines):
    pipelines.register("grumpy", args=Grumpy, queue="q", lock_key="k")(lambda args: None)

    response = client.post(TRIGGER, json={"task": "grumpy"})

    assert list(faults(response)) == ["args"]
    assert "s3cret" not in response.text


def test_live_key_returns_the_queued_job(client, queue):
    body = {"task": "plain", "queue": "q", "lock_key": "k", "live_key": "daily"}

    first, second = (client.post(TRIGGER, json=body) for _ in range(2))
    client.post(f"/api/v1/jobs/{first.json['job_id']}/cancel")
    third = client.post(TRIGGER, json=body)

    assert second.status_code == 200
    assert second.json == first.json
    assert third.json["job_id"] != first.json["job_id"]
    assert len(list_jobs(queue)) == 2


def test_job_has_the_options_of_its_trigger(client):
    policy = {"kind": "table", "seconds": [60, 300]}
    body = {"task": "plain", "queue": "q", "lock_key": "k", "live_key": "l", "time_limit_sec": 90, "retry": policy}

    job_id = client.post(TRIGGER, json=body).json["job_id"]
    result = client.get(f"/api/v1/jobs/{job_id}").json

    assert (result["live_key"], result["time_limit_sec"], result["retry"]) == ("l", 90, policy)
    assert (result["parent_id"], result["crashes"], result["checkpoint"]) == (None, 0, None)


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("live_key", ""),
        ("live_key", "x" * 1001),
        ("live_key", 7),
        ("time_limit_sec", 0),
        ("time_limit_sec", 1.5),
        ("time_limit_sec", 2**31),
        ("retry", "s3cret"),
        ("retry", {}),
        ("retry", {"kind": "s3cret"}),
        ("retry", {"kind": "table", "seconds": ["s3cret"]}),
        ("retry", {"kind": "fixed", "seconds": 1, "{s3cret}": 2}),
    ],
)
def test_invalid_job_options_are_rejected(client, field, bad):
    response = client.post(TRIGGER, json={"task": "plain", "queue": "q", "lock_key": "k", field: bad})

    assert list(faults(response)) == [field]
    assert "s3cret" not in response.text


def test_every_kind_of_policy_is_described():
    for kind in RETRY_POLICY_KINDS:
        seconds = {"fixed": 1, "table": [1]}
        assert read_policy({"kind": kind} | ({"seconds": seconds[kind]} if kind in seconds else {})).pause(1) > 0
    with pytest.raises(ValueError, match=", ".join(RETRY_POLICY_KINDS) + "$"):
        read_policy({"kind": "another"})


def test_args_that_cannot_fit_the_signature_are_400_by_field(client, queue, pipelines):
    pipelines.register("spread")(lambda customer_id, since: None)
    pipelines.register("noop", args=NoopArguments)(lambda args: None)
    job = {"queue": "etl", "lock_key": "k"}

    spread = client.post(TRIGGER, json={**job, "task": "spread", "args": {"customer_id": 7, "sinse": 1}})
    noop = client.post(TRIGGER, json={**job, "task": "noop", "args": {"sleep1": "x"}})

    assert faults(spread) == {
        "args.since": "is required",
        "args.sinse": "is no argument of this task; leave it out",
    }
    assert list(faults(noop)) == ["args.sleep1"]
    fits = client.post(TRIGGER, json={**job, "task": "spread", "args": {"customer_id": 7, "since": 1}})
    assert fits.status_code == 200, fits.text


def test_known_tasks_are_listed_with_options_and_args_schema(client):
    listed = {task["name"]: task for task in client.get("/api/v1/tasks").json["tasks"]}

    assert list(listed) == ["legacy", "plain", "rates"]
    assert listed["plain"] == {
        "name": "plain",
        "kind": "function",
        "description": "",
        "options": {
            "queue": None,
            "lock_key": None,
            "limits": {},
            "unique_by": [],
            "on_failed": None,
            "retry": {"kind": "linear", "step": 30.0, "cap": 604800.0},
            "rules": {},
            "time_limit_sec": None,
            "isolation": "thread",
            "interrupt": False,
            "memory_mb": None,
            "cpu_sec": None,
            "connection_check": True,
            "argv": None,
            "python": None,
            "requires": {},
            "target": None,
        },
        "args_schema": None,
    }
    assert listed["rates"]["description"] == "Load rates."
    assert listed["rates"]["args_schema"]["required"] == ["day"]
    assert listed["legacy"]["kind"] == "command"
    assert listed["legacy"]["options"]["rules"] == {"builtins.ValueError": "fail", "23505": "fail"}
    assert listed["legacy"]["options"]["retry"]["kind"] == "exponential"
    assert "hunter2" not in str(listed)


def test_the_document_requires_only_a_task(client):
    schema = client.get("/openapi.json").json["components"]["schemas"]["TriggerRequest"]

    assert schema["required"] == ["task"]
