"""A job's life as its caller sees it."""

from __future__ import annotations

import psycopg2
import pytest

from dataloader.app.queue.job import Status
from tests.support import eventually
from tests.support.queue_fixture import list_jobs

STATUS_KEYS = ["job_id", "status", "attempt", "started_at", "finished_at", "heartbeat_at", "error", "progress"]
NO_ONE = "00000000-0000-0000-0000-000000000000"


def test_a_triggered_job_is_in_the_queue(client, queue, trigger):
    job_id = trigger(args={"sleep1": 1}, priority=7, producer="me")

    (job,) = list_jobs(queue)
    assert str(job.id) == job_id
    assert (job.queue, job.task, job.lock_key, job.args, job.priority) == ("etl", "noop", "noop", {"sleep1": 1}, 7)
    assert job.status is Status.QUEUED


def test_the_answer_to_a_trigger_is_the_job_and_its_status(client, request_body):
    response = client.post("/api/v1/jobs/trigger", json=request_body)

    assert response.status_code == 200
    assert list(response.json) == ["job_id", "status", "warnings"]
    assert response.json["status"] == "queued"
    assert response.json["warnings"] == ["no worker process is live; the job waits until one is started"]


def test_task_unknown_here_is_accepted(client, request_body):
    assert client.post("/api/v1/jobs/trigger", json={**request_body, "task": "elsewhere"}).status_code == 200


def test_same_idempotency_key_returns_same_job_and_status(client, queue, trigger):
    first = trigger(idempotency_key="daily")
    client.post(f"/api/v1/jobs/{first}/cancel")

    response = client.post(
        "/api/v1/jobs/trigger",
        json={"queue": "etl", "task": "noop", "lock_key": "noop", "idempotency_key": "daily"},
    )

    assert response.json == {"job_id": first, "status": "canceled"}
    assert len(list_jobs(queue)) == 1


@pytest.mark.parametrize("other", [{"queue": "other"}, {"task": "other"}, {"args": {"other": 1}}])
def test_idempotency_conflict_names_existing_job(client, trigger, request_body, other):
    first = trigger(idempotency_key="daily")

    response = client.post("/api/v1/jobs/trigger", json={**request_body, "idempotency_key": "daily", **other})

    assert response.status_code == 409
    assert response.json["code"] == "idempotency_conflict"
    assert response.json["job_id"] == first
    assert response.json["instance"] == f"/api/v1/jobs/{first}"
    assert first in response.json["detail"]


def test_a_status_has_the_keys_of_the_contract_in_their_order(client, trigger):
    job_id = trigger()

    response = client.get(f"/api/v1/jobs/{job_id}/status")

    assert response.status_code == 200
    assert list(response.json) == STATUS_KEYS
    assert response.json == {
        **dict.fromkeys(STATUS_KEYS),
        "job_id": job_id,
        "status": "queued",
        "attempt": 0,
        "progress": {},
    }


def test_times_have_a_zone(client, trigger, dsn):
    job_id = trigger()
    _update(dsn, "started_at = '2030-01-31 08:00:00.5+03', heartbeat_at = '1900-01-01 00:00:00+00'")

    result = client.get(f"/api/v1/jobs/{job_id}/status").json

    assert result["started_at"] == "2030-01-31T05:00:00.500000Z"
    assert result["heartbeat_at"] == "1900-01-01T00:00:00Z"


def test_a_waiting_job_is_canceled_at_once(client, trigger):
    job_id = trigger()

    response = client.post(f"/api/v1/jobs/{job_id}/cancel")

    assert response.status_code == 200
    assert list(response.json) == STATUS_KEYS
    assert response.json["status"] == "canceled"
    assert response.json["finished_at"] is not None


def test_a_running_job_is_asked_to_stop(client, trigger, queue):
    from dataloader.app.queue.job import new_run_ids

    job_id = trigger()
    eventually(lambda: queue.claim("etl", ["noop"], new_run_ids(1), "a worker")[0])

    response = client.post(f"/api/v1/jobs/{job_id}/cancel")

    assert response.json["status"] == "running"
    assert response.json["attempt"] == 1
    assert client.get(f"/api/v1/jobs/{job_id}").json["cancel_requested"] is True


def test_a_finished_job_is_left_as_it_is(client, trigger):
    job_id = trigger()
    before = client.post(f"/api/v1/jobs/{job_id}/cancel").json

    assert client.post(f"/api/v1/jobs/{job_id}/cancel").json == before


def test_a_canceled_job_can_be_retried_once(client, trigger):
    job_id = trigger()
    client.post(f"/api/v1/jobs/{job_id}/cancel")

    again = client.post(f"/api/v1/jobs/{job_id}/retry")
    refused = client.post(f"/api/v1/jobs/{job_id}/retry")

    assert again.status_code == 200
    assert again.json["status"] == "queued"
    assert refused.status_code == 409
    assert refused.json["code"] == "not_retryable"


@pytest.mark.parametrize(
    ("method", "path"), [("get", "/status"), ("post", "/cancel"), ("post", "/retry"), ("get", ""), ("get", "/events")]
)
@pytest.mark.parametrize(
    "job_id", [NO_ONE, "7", "{" + NO_ONE + "}", NO_ONE.replace("-", ""), "urn:uuid:" + NO_ONE, "٠" * 36]
)
def test_an_id_of_no_job_is_a_404(lasting_client, method, path, job_id):
    response = getattr(lasting_client, method)(f"/api/v1/jobs/{job_id}{path}")

    assert response.status_code == 404
    assert response.json["code"] == "job_not_found"


def test_an_id_may_be_written_in_capitals(client, trigger):
    job_id = trigger()

    assert client.get(f"/api/v1/jobs/{job_id.upper()}/status").json["job_id"] == job_id


def test_the_newest_jobs_come_first_and_can_be_chosen(client, trigger):
    first, second, third = trigger(), trigger(queue="other"), trigger(task="load")
    client.post(f"/api/v1/jobs/{first}/cancel")

    def found(query: str) -> list[str]:
        return [job["job_id"] for job in client.get(f"/api/v1/jobs?{query}").json["jobs"]]

    assert found("") == [third, second, first]
    assert found("limit=1") == [third]
    assert found("queue=other") == [second]
    assert found("status=canceled") == [first]
    assert found("task=load") == [third]
    assert found("task=load&queue=other") == []


def test_job_page_shows_every_field(client, trigger):
    job_id = trigger(args={"a": [1, None]}, idempotency_key="i", lease_ttl_sec=20)

    result = client.get(f"/api/v1/jobs/{job_id}").json

    assert result["args"] == {"a": [1, None]}
    assert result["idempotency_key"] == "i"
    assert result["lease_ttl_sec"] == 20
    assert {"result", "traceback", "worker", "run_id", "lease_expires_at", "created_at"} <= set(result)


def test_any_number_of_another_service_can_be_shown(client, trigger, dsn):
    job_id = trigger()
    _update(dsn, """args = '{"a": 1e5000, "b": 1e400, "c": [-1e310, 1.5]}'""")

    response = client.get(f"/api/v1/jobs/{job_id}")

    assert response.status_code == 200
    assert set(response.json["args"]) == {"a", "b", "c"}


def test_the_journal_is_read_from_the_beginning(client, trigger):
    job_id = trigger()
    client.post(f"/api/v1/jobs/{job_id}/cancel")

    result = client.get(f"/api/v1/jobs/{job_id}/events").json

    assert result["job_id"] == job_id
    assert [event["kind"] for event in result["events"]] == ["queued", "canceled"]
    assert list(result["events"][0]) == ["event_id", "job_id", "queue", "ts", "kind", "payload"]
    assert result["events"][0]["ts"].endswith("Z")


def _update(dsn: str, change: str) -> None:
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(f"UPDATE dl_jobs SET {change}")
    finally:
        connection.close()
