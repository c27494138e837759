"""The search of the header: what opens at once, what is listed, and what becomes a search for text."""

from __future__ import annotations

import pytest


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
