"""The page of failures, without scripts."""

from __future__ import annotations

import re
from contextlib import closing
from html import unescape

import psycopg2
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

    assert "1 in 24 hours, 1 in the last of them" in page
    assert '<span class="sub">etl</span>' in page


def test_redrive_of_a_group_shows_a_preview(client, failed_job):
    page = unescape(client.get("/failures").text)
    names = ("filter", "all", "action")
    fields = {name: page.partition(f'name="{name}" value="')[2].partition('"')[0] for name in names}

    preview = client.post("/jobs/bulk", data=fields | {"per_minute": "60"})

    assert (preview.status_code, "Retry 1 job" in preview.text) == (200, True)
    assert client.get(f"/api/v1/jobs/{failed_job}").json["status"] == "failed"


def test_hours_are_links_to_their_failures(client, failed_job, dsn):
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("UPDATE dl_jobs SET finished_at = date_trunc('hour', now()) - interval '90 min',"
                       " created_at = now() - interval '3 h' WHERE job_id = %s", (failed_job,))  # fmt: skip
    page = unescape(client.get("/failures").text)
    hours = re.findall(r'<a href="(/failures\?since=[^"]+)" class="failed">\s*<b>1</b>', page)
    (bar,) = re.findall(r'<a class="failed" href="(/jobs\?[^"]+)" aria-label="1 job from', page)

    assert len(hours) == 1
    assert "KeyError a.py:b" in client.get(hours[0]).text
    assert failed_job in client.get(bar).text
    (other,) = re.findall(r'<a href="(/failures\?since=[^"]+)">\s*<b>0</b>', page)[-1:]
    assert "KeyError a.py:b" not in client.get(other).text


def test_time_that_is_none_is_marked(client, failed_job):
    answer = client.get("/failures?since=yesterdayish")

    assert (answer.status_code, 'role="alert"' in answer.text) == (200, True)
