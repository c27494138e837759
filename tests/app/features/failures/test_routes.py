"""Groups of failures over HTTP and on their page."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape
from urllib.parse import unquote_plus

import pytest

from dataloader.app.queue.job import Settlement, Status, new_run_ids

FINGERPRINT = "KeyError a&b.py:<lambda>"


@pytest.fixture
def fail(queue, trigger) -> Callable[..., str]:
    def fail(**fields: str) -> str:
        job_id: str = trigger(**fields)
        (job,), _ = queue.claim("etl", ["noop"], new_run_ids(1), "worker")
        queue.settle([(job, Settlement(Status.FAILED, error="no 'id'", error_fingerprint=FINGERPRINT))])
        return job_id

    return fail


def test_groups_are_listed_with_a_filter_that_finds_their_jobs(client, fail):
    jobs = [fail(lock_key=f"k{n}") for n in range(3)]

    answer = client.get("/api/v1/failures").json
    (group,) = answer["failures"]
    found = client.get("/api/v1/jobs", query_string={"task": group["task"], "fingerprint": group["fingerprint"]}).json

    assert (group["task"], group["fingerprint"], group["jobs"]) == ("noop", FINGERPRINT, 3)
    assert (group["job_id"], group["error"]) == (jobs[-1], "no 'id'")
    assert (answer["scanned"], answer["scanned_to"]) == (3, None)
    assert [job["job_id"] for job in found["jobs"]] == jobs[::-1]
    assert client.get(f"/api/v1/jobs/{jobs[0]}").json["error_fingerprint"] == FINGERPRINT
    assert client.get("/api/v1/failures?task=other").json["failures"] == []
    assert client.get("/api/v1/failures?size=1").status_code == 400


def test_page_links_the_jobs_of_a_group(client, fail):
    job_id = fail()

    page = unescape(client.get("/failures").text)
    link = page.partition('class="num"><a href="')[2].partition('"')[0]

    assert FINGERPRINT in page
    assert f"/jobs/{job_id}" in page
    assert f"/jobs/{job_id}" in client.get(link).text
    assert FINGERPRINT in unquote_plus(unescape(client.get(f"/jobs/{job_id}").text))
    assert "No failed or lost jobs." in client.get("/failures?task=other").text
