from __future__ import annotations

from uuid import UUID

import pytest

from dataloader.app.queue.job import NewJob


def test_a_waiting_job_is_changed_if_it_still_is_what_was_seen(client, trigger):
    job_id = trigger(time_limit_sec=5)
    address = f"/api/v1/jobs/{job_id}"
    seen = client.get(address).headers["ETag"]

    changed = client.patch(address, json={"priority": 1, "time_limit_sec": None}, headers={"If-Match": seen})
    stale = client.patch(address, json={"priority": 2}, headers={"If-Match": seen})
    again = client.patch(address, json={"priority": 3}, headers={"If-Match": changed.headers["ETag"]})

    assert (changed.json["priority"], changed.json["time_limit_sec"]) == (1, None)
    assert (stale.status_code, stale.json["code"]) == (412, "changed")
    assert again.json["priority"] == 3
    assert client.patch(address, json={"priority": 4}).json["priority"] == 4
    assert client.patch(address, json={"priority": 5}, headers={"If-Match": "*"}).json["priority"] == 5
    assert client.patch(address, json={"priority": 6}, headers={"If-Match": '"a", "b"'}).status_code == 412
    assert client.patch(address, json={"priority": 7}, headers={"If-Match": '"*y>/", ""'}).status_code == 412


@pytest.mark.parametrize(
    ("change", "field"),
    [({}, "body"), ({"queue": "x"}, "queue"), ({"priority": -1}, "priority"), ({"lease_ttl_sec": 1}, "lease_ttl_sec"),
     ({"retry": {"kind": "x"}}, "retry")],
)  # fmt: skip
def test_impossible_change_has_field_errors(client, trigger, change, field):
    response = client.patch(f"/api/v1/jobs/{trigger()}", json=change)

    assert response.status_code == 400
    assert [error["field"] for error in response.json["errors"]] == [field]


def test_masked_arg_keeps_the_value_of_the_job(client, trigger, queue):
    job_id = trigger(args={"password": "s3cret!", "url": "https://u:p4ss@host/x", "n": 1})
    path = f"/api/v1/jobs/{job_id}"
    shown = client.get(path).json["args"]

    changed = client.patch(path, json={"args": {**shown, "n": 2}})
    clone_id = client.post(f"{path}/clone", json={"args": {**shown, "n": 3}}).json["job_id"]

    kept = {"password": "s3cret!", "url": "https://u:p4ss@host/x"}
    assert (shown["password"], changed.json["args"]) == ("***", {**shown, "n": 2})
    assert dict(queue.get(UUID(job_id)).args) == {**kept, "n": 2}
    assert dict(queue.get(UUID(clone_id)).args) == {**kept, "n": 3}


def test_a_job_is_cloned_with_what_is_given(client, trigger):
    job_id = trigger(args={"n": 1}, priority=7, idempotency_key="once", live_key="one")

    made = client.post(f"/api/v1/jobs/{job_id}/clone", json={"args": {"n": 2}, "idempotency_key": "twice"}).json
    again = client.post(f"/api/v1/jobs/{job_id}/clone", json={"args": {"n": 2}, "idempotency_key": "twice"}).json

    result = client.get(f"/api/v1/jobs/{made['job_id']}").json
    assert made == again
    assert made["job_id"] != job_id
    assert (result["args"], result["priority"], result["live_key"]) == ({"n": 2}, 7, None)


def test_only_finished_is_deleted_and_only_queued_edited(client, trigger):
    job_id = trigger()
    address = f"/api/v1/jobs/{job_id}"
    assert client.delete(address).json["code"] == "not_deletable"
    client.post(f"{address}/cancel")

    assert client.patch(address, json={"priority": 1}).json["code"] == "not_editable"
    assert client.delete(address, headers={"If-Match": '"1.x"'}).status_code == 412
    assert client.delete(address).json == {"job_id": job_id, "deleted": True}
    assert client.get(address).status_code == 404


def test_dashboard_clones_what_the_api_clones(client, queue):
    webhook = {"url": "https://hooks.example.com/x", "events": ["job.failed"]}
    original = NewJob(queue="etl", task="noop", lock_key="k", consumer_group="reports", webhook=webhook, tags=["a"])
    job_id = queue.enqueue(original).job_id

    clones = [
        client.post(f"/api/v1/jobs/{job_id}/clone", json={}).json["job_id"],
        client.post(f"/jobs/{job_id}/clone", data={"args": "{}"}).headers["Location"].rpartition("/")[2],
    ]

    for clone in clones:
        job = queue.get(UUID(clone))
        assert (job.consumer_group, job.webhook, job.tags) == ("reports", webhook, ["a"])
