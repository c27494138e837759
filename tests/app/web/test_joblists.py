from __future__ import annotations

import pytest

from app.queue.job import Status
from tests.support.desk import Desk


@pytest.fixture
def desk(dsn):
    made = Desk(dsn)
    yield made
    made.close()


def listed(client, **query):
    response = client.get("/api/v1/jobs", query_string=query)
    assert response.status_code == 200, response.text
    return response.json


def test_a_list_is_filtered_sorted_cut_to_fields_counted_and_goes_on_page_by_page(client, trigger):
    made = [trigger(lock_key=f"k{n}", priority=n) for n in range(3)]
    trigger(queue="other")

    first = listed(
        client, status="queued,running", queue="etl", sort="priority", limit=2, count="true", fields="job_id"
    )
    rest = listed(client, status="queued,running", queue="etl", sort="priority", limit=2, after=first["next"])

    assert first["jobs"] == [{"job_id": made[0]}, {"job_id": made[1]}]
    assert first["count"] == {"jobs": 3, "exact": True}
    assert [job["job_id"] for job in rest["jobs"]] == [made[2]]
    assert rest["next"] is None
    newest = listed(client, queue="etl", limit=1)
    assert [job["job_id"] for job in newest["jobs"]] == [made[2]]
    assert [job["job_id"] for job in listed(client, queue="etl", after=newest["next"])["jobs"]] == [made[1], made[0]]
    assert newest["looked_to"] == newest["jobs"][0]["created_at"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"status": "queued,gone"}, "status"),
        ({"fields": "job_id,args"}, "fields"),
        ({"sort": "size"}, "sort"),
        ({"sort": "priority"}, "sort"),
        ({"after": "nonsense"}, "after"),
        ({"after": "WzFd"}, "after"),
        ({"created_from": "yesterday"}, "created_from"),
        ({"text": ""}, "text"),
    ],
)
def test_what_a_list_cannot_be_asked_is_told_by_field(lasting_client, query, field):
    response = lasting_client.get("/api/v1/jobs", query_string=query)

    assert response.status_code == 400
    assert [error["field"] for error in response.json["errors"]] == [field]


def test_a_cursor_belongs_to_its_order(client, trigger):
    trigger(lock_key="a")
    trigger(lock_key="b")
    cursor = listed(client, limit=1)["next"]

    assert client.get("/api/v1/jobs", query_string={"after": cursor, "sort": "created_at"}).status_code == 400


def test_everything_about_a_job_has_its_tries_its_children_and_who_holds_its_key(client, desk):
    run = desk.claimed("k", max_attempts=2)
    desk.settle(run, Status.QUEUED, error="first", retry_in=0)
    (again,) = desk.claim()
    child = desk.enqueue("k", parent_id=run.id)
    desk.look()

    told = client.get(f"/api/v1/jobs/{run.id}").json
    waiting = client.get(f"/api/v1/jobs/{child}").json

    assert [(one["attempt"], one["error"]) for one in told["tries"]] == [(1, "first"), (2, None)]
    assert [one["job_id"] for one in told["children"]] == [str(child)]
    assert (waiting["place"], waiting["parent"]["job_id"], waiting["key_holder"]["job_id"]) == (
        "parked", str(run.id), str(again.id),
    )  # fmt: skip


def test_a_journal_is_paged(client, desk):
    run = desk.claimed("k")
    address = f"/api/v1/jobs/{run.id}/events"
    first = client.get(address, query_string={"limit": 1}).json["events"]
    rest = client.get(address, query_string={"after": first[0]["event_id"]}).json["events"]

    assert [event["kind"] for event in first + rest] == ["queued", "picked"]


def test_why_tells_reasons_for_programs_and_sentences_for_people(client, desk):
    holder = desk.claimed("k")
    waiting = desk.enqueue("k")
    desk.look()

    told = client.get(f"/api/v1/jobs/{waiting}/why").json

    assert [reason["code"] for reason in told["reasons"]] == ["no_worker", "key_busy"]
    assert told["reasons"][1]["facts"]["job_id"] == str(holder.id)
    assert told["position"] == 1
    assert client.get("/api/v1/jobs/x/why").status_code == 404


def test_an_answer_that_has_not_changed_is_a_304_and_another_one_has_another_tag(client, trigger):
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
