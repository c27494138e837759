from __future__ import annotations

import psycopg2
import pytest

from app.admin.bulk import BulkOperations


@pytest.fixture(autouse=True)
def none_before(dsn):
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute("TRUNCATE dl_bulk")
    connection.close()


def test_all_that_fit_are_counted_confirmed_done_and_watched(client, trigger, pool):
    jobs = [trigger(lock_key=f"k{n}") for n in range(3)]
    wanted = {"action": "cancel", "filter": {"queue": "etl"}}

    assert client.post("/api/v1/bulk/count", json=wanted).json == {"jobs": 3, "exact": True, "scanned": 3}
    refused = client.post("/api/v1/bulk", json={**wanted, "expected": 2})
    started = client.post("/api/v1/bulk", json={**wanted, "expected": 3}).json
    bulk = BulkOperations(pool)
    while bulk.run_batch():
        pass

    assert (refused.status_code, refused.json["code"], refused.json["matching_count"]) == (409, "bulk_mismatch", 3)
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
