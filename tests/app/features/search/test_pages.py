"""The search of the header: what opens at once, what is listed, and what becomes a search for text."""

from __future__ import annotations

import pytest

from tests.support.databases import execute_sql


def location(client, text: str) -> str:
    response = client.get("/search", query_string={"q": text})
    assert response.status_code == 303
    return str(response.headers["Location"])


def test_job_id_opens_its_job_in_every_form(client, trigger):
    job_id = trigger()

    for text in (
        job_id,
        job_id.upper(),
        f" {job_id} ",
        job_id.replace("-", ""),
        job_id[:13],
        f"{job_id[:4]}…{job_id[-4:]}",
    ):
        assert location(client, text) == f"/jobs/{job_id}"


def test_idempotency_key_opens_its_job(client, trigger):
    job_id = trigger(idempotency_key="order 17")

    assert location(client, "order 17") == f"/jobs/{job_id}"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("noop", "/tasks/noop"),
        ("warehouse", "/jobs?lock_key=warehouse"),
        ("no such thing", "/jobs?q=no+such+thing"),
        ("deadbeefdeadbeef", "/jobs?q=deadbeefdeadbeef"),
        ("", "/jobs"),
    ],
)
def test_text_leads_to_what_it_names(client, trigger, text, path):
    trigger(lock_key="warehouse")

    assert location(client, text) == path


def test_dataset_and_limit_are_opened_by_name(client, dsn):
    execute_sql(
        dsn,
        "INSERT INTO dl_dataset_events (dataset, kind, task, at, job_id, partition_key)"
        " VALUES ('warehouse.sales', 'produced', 'load.sales', now(), gen_random_uuid(), '')",
    )
    client.put("/api/v1/limits/partner-api", json={"concurrency": 2})

    assert location(client, "warehouse.sales") == "/datasets/warehouse.sales"
    assert location(client, "partner-api") == "/limits#limit-partner-api"
    assert 'href="/datasets/warehouse.sales"' in client.get("/search?q=sales").text


def test_several_matches_are_listed(client, trigger):
    trigger(queue="noop", lock_key="other")

    page = client.get("/search?q=noop")

    assert page.status_code == 200
    assert 'href="/tasks/noop"' in page.text
    assert 'href="/queues/noop"' in page.text
    assert 'href="/jobs?q=noop"' in page.text


def test_part_of_a_name_lists_the_names(client):
    page = client.get("/search?q=NOO")

    assert 'href="/tasks/noop"' in page.text


def test_palette_has_pages_tasks_and_queues(client, trigger):
    trigger(queue="loads")

    entries = client.get("/palette").json["entries"]

    titles = {(entry["title"], entry["path"]) for entry in entries}
    assert {("Overview", "/"), ("noop", "/tasks/noop"), ("loads", "/queues/loads")} <= titles
