"""The page of failures, without scripts."""

from __future__ import annotations

from html import unescape

import pytest

from dataloader.app.queue.job import Settlement, Status, new_run_ids


@pytest.fixture
def failed_job(queue, trigger) -> str:
    job_id: str = trigger()
    (job,), _ = queue.claim("etl", ["noop"], new_run_ids(1), "worker")
    queue.settle([(job, Settlement(Status.FAILED, error="no 'id'", error_fingerprint="KeyError a.py:b"))])
    return job_id


def test_group_has_its_history_and_queues(client, failed_job):
    page = unescape(client.get("/failures").text)

    assert "1 in the last 24 h, 1 in the last hour" in page
    assert '<span class="sub">etl</span>' in page


def test_redrive_of_a_group_shows_a_preview(client, failed_job):
    page = unescape(client.get("/failures").text)
    names = ("filter", "all", "action")
    fields = {name: page.partition(f'name="{name}" value="')[2].partition('"')[0] for name in names}

    preview = client.post("/jobs/bulk", data=fields | {"per_minute": "60"})

    assert (preview.status_code, "Redrive 1 job" in preview.text) == (200, True)
    assert client.get(f"/api/v1/jobs/{failed_job}").json["status"] == "failed"
