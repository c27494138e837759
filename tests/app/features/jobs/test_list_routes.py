from __future__ import annotations

import pytest

from dataloader.app.queue.job import Status
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def queue_db(dsn):
    made = QueueFixture(dsn)
    yield made
    made.close()


def listed(client, **query):
    response = client.get("/api/v1/jobs", query_string=query)
    assert response.status_code == 200, response.text
    return response.json


def test_list_filters_sorts_selects_fields_counts_and_pages(client, trigger):
    made = [trigger(lock_key=f"k{n}", priority=n) for n in range(3)]
    trigger(queue="other")

    first = listed(
        client, status="queued,running", queue="etl", sort="priority", limit=2, count="true", fields="job_id"
    )
    rest = listed(client, status="queued,running", queue="etl", sort="priority", limit=2, after=first["next"])

    assert first["jobs"] == [{"job_id": made[0]}, {"job_id": made[1]}]
    assert first["count"] == {"jobs": 3, "exact": True, "scanned": 3}
    assert [job["job_id"] for job in rest["jobs"]] == [made[2]]
    assert rest["next"] is None
    newest = listed(client, queue="etl", limit=1)
    assert [job["job_id"] for job in newest["jobs"]] == [made[2]]
    assert [job["job_id"] for job in listed(client, queue="etl", after=newest["next"])["jobs"]] == [made[1], made[0]]
    assert newest["scanned_to"] == newest["jobs"][0]["created_at"]


def test_list_takes_ids_and_keys(client, trigger):
    first = trigger(lock_key="a", idempotency_key="i", consumer_group="g", tags=["finance", "daily"])
    second = trigger(lock_key="b", tags=["finance"])
    trigger(lock_key="c")

    for query, expected in (
        ({"job_id": f"{first},{second}"}, [second, first]),
        ({"idempotency_key": "i"}, [first]),
        ({"lock_key": "b"}, [second]),
        ({"consumer_group": "g"}, [first]),
        ({"tag": "daily"}, [first]),
        ({"tag": "finance"}, [second, first]),
        ({"tag": "finance", "lock_key": "b"}, [second]),
        ({"tag": "fin"}, []),
    ):
        assert [job["job_id"] for job in listed(client, **query)["jobs"]] == expected


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"status": "queued,gone"}, "status"),
        ({"fields": "job_id,args"}, "fields"),
        ({"job_id": "-" * 36}, "job_id"),
        ({"job_id": "1"}, "job_id"),
        ({"sort": "size"}, "sort"),
        ({"sort": "priority"}, "sort"),
        ({"after": "nonsense"}, "after"),
        ({"after": "WzFd"}, "after"),
        ({"created_from": "yesterday"}, "created_from"),
        ({"text": ""}, "text"),
    ],
)
def test_invalid_list_query_has_field_errors(lasting_client, query, field):
    response = lasting_client.get("/api/v1/jobs", query_string=query)

    assert response.status_code == 400
    assert [error["field"] for error in response.json["errors"]] == [field]


def test_lists_and_details_mask_secrets_in_progress(client, queue_db):
    run = queue_db.enqueue_and_claim("k")
    queue_db.sql(
        f'UPDATE dl_jobs SET progress = \'{{"token": "hunter2", "processed": 1}}\' WHERE job_id = \'{run.id}\''
    )

    (job,) = listed(client, fields="job_id,progress")["jobs"]

    assert "hunter2" not in str(job)
    assert job["progress"]["processed"] == 1
    assert job["progress"] == client.get(f"/api/v1/jobs/{run.id}").json["progress"]


def test_a_cursor_belongs_to_its_order(client, trigger):
    trigger(lock_key="a")
    trigger(lock_key="b")
    cursor = listed(client, limit=1)["next"]

    assert client.get("/api/v1/jobs", query_string={"after": cursor, "sort": "created_at"}).status_code == 400


def test_job_detail_has_attempts_related_jobs_and_lock_holder(client, queue_db):
    run = queue_db.enqueue_and_claim("k", max_attempts=2)
    queue_db.settle(run, Status.QUEUED, error="first", retry_in_sec=0)
    (again,) = queue_db.claim()
    child = queue_db.enqueue("k", parent_id=run.id)
    queue_db.claim_once()

    result = client.get(f"/api/v1/jobs/{run.id}").json
    waiting = client.get(f"/api/v1/jobs/{child}").json

    assert [(one["attempt"], one["error"]) for one in result["attempts"]] == [(1, "first"), (2, None)]
    assert [one["job_id"] for one in result["follow_up_jobs"]] == [str(child)]
    assert (waiting["wait_state"], waiting["parent"]["job_id"], waiting["lock_holder"]["job_id"]) == (
        "blocked", str(run.id), str(again.id),
    )  # fmt: skip


def test_a_journal_is_paged(client, queue_db):
    run = queue_db.enqueue_and_claim("k")
    address = f"/api/v1/jobs/{run.id}/events"
    first = client.get(address, query_string={"limit": 1}).json["events"]
    rest = client.get(address, query_string={"after": first[0]["event_id"]}).json["events"]

    assert [event["kind"] for event in first + rest] == ["queued", "picked"]


def test_why_has_reason_codes_and_sentences(client, queue_db):
    holder = queue_db.enqueue_and_claim("k")
    waiting = queue_db.enqueue("k")
    queue_db.claim_once()

    result = client.get(f"/api/v1/jobs/{waiting}/why").json

    assert [reason["code"] for reason in result["reasons"]] == ["no_worker", "key_busy"]
    assert result["reasons"][1]["details"]["job_id"] == str(holder.id)
    assert result["position"] == 1
    assert client.get("/api/v1/jobs/x/why").status_code == 404


def test_unchanged_response_is_304_and_changed_has_new_etag(client, trigger):
    job_id = trigger()
    for address in (f"/api/v1/jobs/{job_id}", f"/api/v1/jobs/{job_id}/status", "/api/v1/jobs"):
        first = client.get(address)
        again = client.get(address, headers={"If-None-Match": first.headers["ETag"]})

        assert again.status_code == 304
        assert again.data == b""
        assert again.headers["ETag"] == first.headers["ETag"]
        assert first.headers["Cache-Control"] == "private, no-cache"
    tag = client.get(f"/api/v1/jobs/{job_id}").headers["ETag"]
    client.post(f"/api/v1/jobs/{job_id}/cancel")

    assert client.get(f"/api/v1/jobs/{job_id}", headers={"If-None-Match": tag}).status_code == 200
