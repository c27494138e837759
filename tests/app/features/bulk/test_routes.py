from __future__ import annotations

import pytest
from pydantic import BaseModel

from dataloader.app.features.bulk.rows import BulkOperations
from dataloader.app.queue.job import Settlement, Status, new_run_ids
from tests.support.databases import execute_sql


@pytest.fixture(autouse=True)
def none_before(dsn):
    execute_sql(dsn, "TRUNCATE dl_bulk")


def test_all_that_fit_are_counted_confirmed_done_and_watched(client, trigger, pool):
    client.post(f"/api/v1/jobs/{trigger(lock_key='ended')}/cancel")
    jobs = [trigger(lock_key=f"k{n}") for n in range(3)]
    wanted = {"action": "cancel", "filter": {"queue": "etl"}}

    assert client.post("/api/v1/bulk/count", json=wanted).json == {"jobs": 3, "exact": True, "scanned": 3}
    refused = client.post("/api/v1/bulk", json={**wanted, "action": "delete", "filter": {}, "expected": 0})
    started = client.post("/api/v1/bulk", json={**wanted, "expected": 3}).json
    bulk = BulkOperations(pool)
    while bulk.run_batch():
        pass

    assert (refused.status_code, refused.json["code"], refused.json["matching_count"]) == (409, "bulk_mismatch", 1)
    assert (started["state"], started["filter"]) == ("waiting", {"queue": "etl", "status": ["queued", "running"]})
    result = client.get(f"/api/v1/bulk/{started['bulk_id']}").json
    assert (result["state"], result["changed"]) == ("done", 3)
    assert [one["bulk_id"] for one in client.get("/api/v1/bulk").json["operations"]] == [started["bulk_id"]]
    assert {client.get(f"/api/v1/jobs/{job}/status").json["status"] for job in jobs} == {"canceled"}
    assert client.post(f"/api/v1/bulk/{started['bulk_id']}/cancel").json["state"] == "done"


@pytest.mark.parametrize(
    "wrong",
    [{"action": "burn"}, {"filter": {"size": 1}}, {"priority": 1}, {"action": "reprioritise"}, {"expected": -1}],
)
def test_what_cannot_be_done_in_bulk_is_a_400(lasting_client, wrong):
    asked = {"action": "cancel", "filter": {}, "expected": 0, **wrong}

    assert lasting_client.post("/api/v1/bulk", json=asked).status_code == 400


def test_an_operation_that_is_not_there_is_a_404(lasting_client):
    result = lasting_client.get("/api/v1/bulk/00000000-0000-0000-0000-000000000000")

    assert (result.status_code, result.json["code"]) == (404, "bulk_not_found")


# ── redrive ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class SalesArgs(BaseModel):
    day: int


@pytest.fixture
def fail(queue, pipelines, trigger):
    @pipelines.register("sales", args=SalesArgs)
    def load_sales(args: SalesArgs) -> None:
        """Takes a day."""

    def fail(key: str, *, fingerprint: str = "KeyError a.py:b", **fields: object) -> str:
        job_id: str = trigger(lock_key=key, **fields)
        (job,), _ = queue.claim("etl", ["noop", "sales"], new_run_ids(1), "worker")
        queue.settle([(job, Settlement(Status.FAILED, error="no", error_fingerprint=fingerprint))])
        return job_id

    return fail


def redrive(**fields: object) -> dict[str, object]:
    return {"action": "redrive", "filter": {}, "per_minute": 60, "expected": 1, **fields}


def test_redrive_is_counted_started_and_shown(client, pool, fail):
    for n in range(2):
        fail(f"other{n}", fingerprint="OSError")
    job_id = fail("k")
    only = {"action": "redrive", "filter": {"task": "noop"}, "only_error": "KeyError a.py:b"}

    assert client.post("/api/v1/bulk/count", json=only).json["jobs"] == 1
    started = client.post(
        "/api/v1/bulk",
        json={**only, "expected": 1, "per_minute": 60, "max": 5, "args_patch": {"token": "s3cret", "n": 1}},
    ).json
    bulk = BulkOperations(pool)
    while bulk.run_batch():
        pass

    assert started["filter"]["fingerprint"] == "KeyError a.py:b"
    assert (started["per_minute"], started["max"], started["next_step_at"]) == (60, 5, None)
    assert started["args_patch"] == {"token": "***", "n": 1}
    result = client.get(f"/api/v1/bulk/{started['bulk_id']}").json
    assert (result["state"], result["changed"]) == ("done", 1)
    assert client.get(f"/api/v1/jobs/{job_id}/status").json["status"] == "queued"
    event = client.get(f"/api/v1/jobs/{job_id}/events").json["events"][-1]
    assert (event["payload"]["reason"], event["payload"]["args_patch"]["token"]) == ("redrive", "***")
    page = client.get(f"/bulk/{started['bulk_id']}").text
    assert "at most 60" in page
    assert "s3cret" not in page


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"per_minute": 0}, "per_minute"),
        ({"per_minute": None}, "per_minute"),
        ({"per_minute": 1_000_000}, "per_minute"),
        ({"per_minute": "fast"}, "per_minute"),
        ({"max": 0}, "max"),
        ({"args_patch": ["a"]}, "args_patch"),
        ({"args_patch": {}}, "args_patch"),
        ({"args_patch": {"a": "x" * 70_000}}, "args_patch"),
        ({"args_patch": {"a": "\x00"}}, "args_patch.a"),
        ({"speed": 1}, "speed"),
        ({"filter": {"fingerprint": "a"}, "only_error": "b"}, "only_error"),
        ({"action": "retry"}, "per_minute"),
        ({"action": "retry", "per_minute": None, "args_patch": {"a": 1}}, "args_patch"),
        ({"action": "retry", "per_minute": None, "max": 1}, "max"),
        ({"action": "retry", "per_minute": None, "only_error": "a"}, "only_error"),
    ],
)
def test_redrive_that_cannot_be_names_the_field(client, fail, fields, field):
    fail("k")

    answer = client.post("/api/v1/bulk", json=redrive(**fields))

    assert answer.status_code == 400
    assert [error["field"] for error in answer.json["errors"]] == [field], answer.json
    assert client.get("/api/v1/bulk").json["operations"] == []


def test_patch_must_fit_the_args_of_the_task(client, fail):
    job_id = fail("k", task="sales", args={"day": 1})

    answer = client.post("/api/v1/bulk", json=redrive(args_patch={"day": "soon"}))
    accepted = client.post("/api/v1/bulk", json=redrive(args_patch={"day": 2}))

    assert answer.status_code == 400
    (error,) = answer.json["errors"]
    assert error["field"] == "args_patch"
    assert job_id in error["message"]
    assert "args.day" in error["message"]
    assert accepted.status_code == 200


def test_page_of_jobs_previews_and_starts_a_redrive(client, pool, fail):
    fail("k")
    form = {"filter": "status=failed&fingerprint=KeyError+a.py%3Ab", "action": "redrive", "all": "on"}

    preview = client.post("/jobs/bulk", data=form)
    refused = client.post("/jobs/bulk", data={**form, "per_minute": "0", "expected": "1"})
    started = client.post("/jobs/bulk", data={**form, "per_minute": "30", "expected": "1"})

    assert "Retry 1 job?" in preview.text
    assert refused.status_code == 422
    assert "per_minute: Input should be greater than or equal to 1" in refused.text
    assert started.status_code == 303
    assert client.get("/api/v1/bulk").json["operations"][0]["per_minute"] == 30


def test_page_of_jobs_acts_on_checked_jobs_alone(client, trigger):
    first, second, other = trigger(lock_key="a"), trigger(lock_key="b"), trigger(lock_key="c")

    preview = client.post("/jobs/bulk", data={"action": "cancel", "job_id": [first, second]})
    none = client.post("/jobs/bulk", data={"action": "cancel"})
    row = client.post("/jobs/bulk", data={"filter": "queue=etl", "row": f"cancel {other}"})
    unknown = client.post("/jobs/bulk", data={"row": f"delete {other}"})

    assert "Cancel 2 jobs?" in preview.text
    assert f"{first}%2C{second}" in preview.text
    assert (none.status_code, "No jobs are selected" in none.text) == (409, True)
    assert (row.status_code, row.headers["Location"]) == (303, "/jobs?queue=etl")
    assert client.get(f"/api/v1/jobs/{other}").json["status"] == "canceled"
    assert unknown.status_code == 409


def test_bulk_takes_ids_of_jobs(client, trigger):
    first, second = trigger(lock_key="a"), trigger(lock_key="b")
    trigger(lock_key="c")
    wanted = {"action": "cancel", "filter": {"job_id": f"{first},{second}"}}

    count = client.post("/api/v1/bulk/count", json=wanted)
    started = client.post("/api/v1/bulk", json={**wanted, "expected": 2})

    assert count.json == {"jobs": 2, "exact": True, "scanned": 2}
    assert started.status_code == 200
    assert started.json["filter"]["job_id"] == sorted([first, second])
