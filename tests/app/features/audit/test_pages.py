"""The audit page and its export, without scripts."""

from __future__ import annotations

import csv
import io
import re

import pytest

from tests.support.databases import execute_sql


@pytest.fixture(autouse=True)
def _no_entries(dsn: str) -> None:
    execute_sql(dsn, "TRUNCATE dl_audit")


def test_triggers_are_folded_and_shown_one_by_one(client, trigger):
    jobs = [trigger(lock_key=f"k{number}") for number in range(3)]

    page = client.get("/audit").text
    address = page[page.index("/audit?actor=") :].partition('"')[0].replace("&amp;", "&")

    assert "3 triggers" in page
    assert jobs[0] not in page
    unfolded = client.get(address).text
    assert all(job in unfolded for job in jobs)


def test_hidden_triggers_leave_the_changes(client, trigger):
    job_id = trigger()
    client.post(f"/api/v1/jobs/{job_id}/cancel")

    page = client.get("/audit?triggers=none").text

    assert "<b>cancel job</b>" in page
    assert "<b>trigger job</b>" not in page
    assert "status: queued → canceled" in page


def test_graph_is_one_row_with_its_jobs_and_tasks(client):
    job = {"queue": "loads", "task": "noop"}
    parts = [job | {"key": name, "lock_key": name} for name in ("a", "b", "c")]
    last = job | {"key": "all", "lock_key": "all", "after": [{"job": part["key"]} for part in parts]}
    assert client.post("/api/v1/graphs", json={"jobs": [*parts, last], "name": "daily"}).status_code == 200

    page = client.get("/audit").text

    assert page.count('<tr id="entry-') == 1
    assert "4 jobs" in page
    assert "tasks: noop" in page


def test_filters_are_chosen_from_known_values(client, trigger):
    job_id = trigger()
    client.post(f"/api/v1/jobs/{job_id}/cancel")

    page = client.get("/audit?action=cancel_job&actor=nobody+here").text

    assert "<option selected>cancel_job</option>" in page
    assert "<option>trigger_job</option>" in page
    assert "<option selected>nobody here</option>" in page
    assert "No matching entries" in page


def test_time_range_is_in_the_zone_of_the_pages(client, trigger):
    trigger()

    assert "No matching entries" in client.get("/audit?until=2026-01-01").text
    assert "trigger job" in client.get("/audit?since=2020-01-01T00:00").text
    assert "is not a time" in client.get("/audit?since=yesterday").text


def test_export_has_what_the_filter_matches(client, trigger):
    job_id = trigger()
    client.post(f"/api/v1/jobs/{job_id}/cancel")
    client.patch("/api/v1/queues", json={"queue": "=1+1", "concurrency": 3})

    exported = client.get("/audit/export?triggers=all")
    rows = list(csv.DictReader(io.StringIO(exported.text)))

    assert exported.headers["Content-Disposition"] == 'attachment; filename="audit.csv"'
    assert [row["action"] for row in rows] == ["change_queue_settings", "cancel_job", "trigger_job"]
    assert rows[0]["subject_id"] == "'=1+1"  # no formula of a spreadsheet
    assert [row["action"] for row in csv.DictReader(io.StringIO(client.get("/audit/export?triggers=none").text))] == [
        "change_queue_settings",
        "cancel_job",
    ]
    refused = client.get("/audit/export?since=x")
    assert (refused.status_code, refused.mimetype) == (400, "application/problem+json")
    assert "since" in refused.json["detail"]


@pytest.mark.parametrize("name", ["＝1+1", "＠SUM(1)", " =1+1", "a\n=1+1", "a\r\n=1+1"])
def test_export_has_no_cell_with_a_formula(client, name):
    client.patch("/api/v1/queues", json={"queue": name, "concurrency": 3})

    text = client.get("/audit/export?triggers=all").text
    (row,) = csv.DictReader(io.StringIO(text))

    assert row["subject_id"] in (f"'{name}", "a =1+1")
    assert len(text.splitlines()) == 2


def test_api_folds_triggers_too(client, trigger):
    for number in range(2):
        trigger(lock_key=f"k{number}")

    (folded,) = client.get("/api/v1/audit?triggers=folded").json["entries"]

    assert (folded["count"], folded["subject_id"]) == (2, None)
    assert len(client.get("/api/v1/audit").json["entries"]) == 2


def test_full_ids_are_no_text_of_the_audit(client, trigger):
    job_id = trigger()
    changed = client.post("/api/v1/webhooks", json={"url": "https://hooks.example.com/x"})
    client.patch(f"/api/v1/jobs/{job_id}", json={"args": {"of": job_id}}, headers={"If-Match": "*"})
    client.post("/api/v1/bulk", json={"action": "cancel", "filter": {"job_id": job_id}, "expected": 1})

    page = client.get("/audit?triggers=all").text

    assert changed.status_code == 200
    rows = page.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.sub(r'(href|id|title|aria-label)="[^"]*"|<pre.*?</pre>', "", rows, flags=re.DOTALL)
    assert f"{job_id[:4]}…{job_id[-4:]}" in rows
    assert re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}", rows) == []
