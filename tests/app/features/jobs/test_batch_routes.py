"""Many triggers in one request."""

from __future__ import annotations

from typing import Any

import pytest

from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.pipelines.contract import Pipelines
from tests.support.queue_fixture import list_jobs

URL = "/api/v1/jobs/batch"


def wanted(n: int = 1, **fields: Any) -> dict[str, Any]:
    return {"queue": "etl", "task": "noop", "lock_key": f"k{n}", "args": {"n": n}, **fields}


def outcomes(response: Any) -> list[str]:
    return [item["outcome"] for item in response.json["items"]]


def test_each_request_has_an_outcome_in_its_order(client, queue):
    body = {
        "jobs": [
            wanted(1, idempotency_key="a"),
            wanted(1, idempotency_key="a"),
            wanted(2, idempotency_key="a"),
            wanted(3, priority=-1, colour="red"),
            "no object",
            wanted(4, live_key="l", available_at="2100-01-01T00:00:00+03:00"),
            wanted(5, live_key="l"),
        ]
    }

    response = client.post(URL, json=body)

    assert response.status_code == 200, response.text
    assert outcomes(response) == ["created", "exists", "conflict", "invalid", "invalid", "created", "exists"]
    result = response.json
    assert (result["created"], result["exists"], result["conflict"], result["invalid"], result["skipped"]) == (
        2,
        2,
        1,
        2,
        0,
    )
    first, again, conflict, invalid, *_, late = result["items"]
    assert first["job_id"] == again["job_id"] == conflict["job_id"]
    assert conflict["problem"]["code"] == "idempotency_conflict"
    assert {error["field"] for error in invalid["problem"]["errors"]} == {"priority", "colour"}
    assert invalid["job_id"] is None
    assert late["status"] == "queued"
    job = queue.get(first["job_id"])
    assert (job.args, job.lock_key, job.max_attempts) == ({"n": 1}, "k1", 5)


@pytest.mark.parametrize("spoiler", [{"priority": -1}, {"idempotency_key": "taken"}])
def test_all_or_none_does_nothing_when_something_is_wrong(client, queue, trigger, spoiler):
    trigger(idempotency_key="taken", args={"other": True})
    body = {"jobs": [wanted(1), wanted(2, **spoiler), wanted(3)], "mode": "all_or_none"}

    response = client.post(URL, json=body)

    assert (response.status_code, response.json["code"]) == (409, "batch_refused")
    result = outcomes(response)
    assert (result[0], result[2]) == ("skipped", "skipped")
    assert result[1] in ("invalid", "conflict")
    assert len(list_jobs(queue)) == 1


def test_valid_all_or_none_batch_succeeds_and_repeats(client):
    body = {"jobs": [wanted(n, idempotency_key=f"i{n}") for n in range(3)], "mode": "all_or_none"}

    assert outcomes(client.post(URL, json=body)) == ["created"] * 3
    assert outcomes(client.post(URL, json=body)) == ["exists"] * 3


def test_jobs_of_a_batch_are_claimed_in_their_order(client, queue):
    client.post(URL, json={"jobs": [wanted(n) for n in range(20)]})

    assert [job.args["n"] for job in reversed(list_jobs(queue))] == list(range(20))


def test_defaults_and_checks_of_known_tasks_hold_in_a_batch_too(queue, pool):
    known = Pipelines()

    @known.register("sized", queue="etl", lock_key="sized:{n}")
    def sized(args: dict[str, Any]) -> None:
        """Needs a number for its key."""

    client = create_app(queue, known, WebOptions(version="1"), pool=pool).test_client()
    response = client.post(URL, json={"jobs": [{"task": "sized", "args": {"n": 7}}, {"task": "sized"}]})

    assert outcomes(response) == ["created", "invalid"]
    assert list_jobs(queue)[0].lock_key == "sized:7"


def test_a_batch_has_a_limit_of_its_own_in_bytes_and_in_jobs(client, queue, pool):
    small = WebOptions(version="1", max_body_bytes=1024, max_batch_bytes=4096)
    limited: Any = create_app(queue, Pipelines(), small, pool=pool).test_client()

    assert limited.post(URL, json={"jobs": [wanted(n) for n in range(20)]}).status_code == 200
    assert limited.post(URL, json={"jobs": [wanted(n) for n in range(100)]}).json["code"] == "body_too_large"
    assert limited.post("/api/v1/jobs/trigger", json=wanted(args={"x": "y" * 2000})).json["code"] == "body_too_large"
    assert client.post(URL, json={"jobs": []}).json["code"] == "invalid_request"
    assert client.post(URL, json={"jobs": [1] * 10_001}).json["code"] == "invalid_request"
    assert client.get(URL).status_code == 405
