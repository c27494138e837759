"""The list of jobs, without scripts: paging and the counts of its tabs."""

from __future__ import annotations

import re
from html import unescape

import pytest

from dataloader.app.features.jobs import jobs_page, state_counts
from dataloader.app.features.jobs.jobs_page import PAGE_SIZE
from dataloader.app.ui import base
from tests.support import eventually
from tests.support.databases import execute_sql

INSERT = """
INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, run_id, created_at, started_at, finished_at)
SELECT 'etl', 'noop', 'key ' || n, 'succeeded', 1, gen_random_uuid(),
       now() - (n + 1) / 2 * interval '1 min', now(), now()
  FROM generate_series(0, {last}) n
"""


def follow_pages(client, address: str) -> list[list[str]]:
    """The ids of the rows of each page, to the last one."""
    pages: list[list[str]] = []
    while address:
        text = unescape(client.get(address).text)
        pages.append(re.findall(r'<tr id="job-([0-9a-f-]{36})"', text))
        link = re.search(r'href="([^"]*)" rel="next"', text)
        address = link[1] if link else ""
    return pages


@pytest.mark.parametrize("address", ["/jobs", "/jobs?sort=created_at", "/jobs?status=succeeded&task=noop"])
def test_pages_list_each_job_once_to_the_last(client, dsn, address):
    """Pairs of jobs have one creation time, and a page ends between the two of a pair."""
    execute_sql(dsn, INSERT.format(last=2 * PAGE_SIZE + 20))

    pages = follow_pages(client, address)

    assert [len(rows) for rows in pages] == [PAGE_SIZE, PAGE_SIZE, 21]
    assert len({job_id for rows in pages for job_id in rows}) == 2 * PAGE_SIZE + 21


def test_invalid_position_in_the_list_is_reported(client):
    assert "The position in the list is invalid" in client.get("/jobs?after=WyIyMDI2Il0").text


def test_page_says_how_old_its_counts_are_until_an_action(client, trigger, monkeypatch):
    monkeypatch.setattr(state_counts, "_MIN_DURATION_SEC", 0.0)
    monkeypatch.setattr(state_counts, "_MAX_AGE_SEC", 60.0)
    job_id = trigger()

    assert "Counted" not in client.get("/jobs").text
    assert re.search(r"Counted <span data-counting>\d+ s</span> ago\.", client.get("/jobs?status=failed").text)

    client.post("/jobs/bulk", data={"row": f"cancel {job_id}"})
    assert "Counted" not in client.get("/jobs").text


def test_act_on_a_row_returns_to_the_filter_alone(client, trigger):
    sent = {"row": f"cancel {trigger()}", "filter": "status=queued&other=1\r\nSet-Cookie: a=b&text=a b"}

    response = client.post("/jobs/bulk", data=sent)

    assert (response.status_code, response.headers["Location"]) == (303, "/jobs?status=queued&text=a+b")


def test_refresh_of_waiting_jobs_is_empty_while_only_ages_change(client, trigger, monkeypatch):
    monkeypatch.setattr(base, "_COUNTING_PERIOD_SEC", 1e9)
    monkeypatch.setattr(state_counts, "_MIN_DURATION_SEC", 1e9)  # a count that took long is kept, and its age is shown
    job_id = trigger()
    trigger(available_at="2099-01-01T00:00:00Z")
    fragment = {"HX-Request": "true"}
    first = client.get("/jobs", headers=fragment)

    eventually(lambda: _ages(client.get("/jobs").text) != _ages(first.text))
    seen = fragment | {base.SEEN_HEADER: first.headers[base.VERSION_HEADER]}
    assert client.get("/jobs", headers=seen).status_code == 204

    client.post(f"/jobs/{job_id}/cancel")
    assert client.get("/jobs", headers=seen).status_code == 200


def test_refresh_sends_ages_again_after_a_period(client, trigger, monkeypatch):
    monkeypatch.setattr(base, "_COUNTING_PERIOD_SEC", 1e-3)
    trigger()
    first = client.get("/jobs", headers={"HX-Request": "true"})

    seen = {"HX-Request": "true", base.SEEN_HEADER: first.headers[base.VERSION_HEADER]}
    assert client.get("/jobs", headers=seen).status_code == 200


def _ages(text: str) -> list[str]:
    return re.findall(r"(?:<time [^>]*>|<span data-counting>)([^<]*)", text)


def test_words_of_the_search_become_fields_of_the_address(client, trigger):
    trigger(args={"customer": {"id": 4711}}, lock_key="a")
    trigger(args={"customer": {"id": "4711"}}, lock_key="b")
    trigger(args={"customer": {"id": 4712}}, lock_key="c")

    response = client.get("/jobs?task=noop&q=args.customer.id%3A4711+status%3Aready")
    address = response.headers["Location"]
    page = unescape(client.get(address).text)

    assert (response.status_code, address) == (
        303, "/jobs?status=queued&wait_state=ready&task=noop&args=customer.id%3A4711",
    )  # fmt: skip
    assert len(re.findall(r'<tr id="job-', page)) == 2
    assert 'href="/jobs?status=queued&wait_state=ready&task=noop"' in page  # without the args
    assert '<input type="hidden" name="args" value="customer.id:4711">' in page


def test_word_with_an_unknown_status_is_reported(client):
    page = client.get("/jobs?q=status%3Abroken").text

    assert "Unknown status" in page
    assert 'value="status:broken"' in page


def test_search_continues_from_where_the_first_page_ended(client, dsn, monkeypatch):
    """A page is not full, says how far back it is, and the link reaches the only match without counting again."""
    monkeypatch.setattr(jobs_page, "_SEARCH_BUDGET_SEC", 0.0)
    execute_sql(dsn, INSERT.format(last=2_000))
    execute_sql(dsn, "UPDATE dl_jobs SET error = 'the needle' WHERE lock_key = 'key 1999'")

    first = unescape(client.get("/jobs?text=needle").text)
    (link,) = re.findall(r'<a href="([^"]*)" rel="next" data-continue>Search further back</a>', first)
    second = client.get(link).text

    assert re.search(r"Searched back to [^:]*\d\d:\d\d[^<]*: no match in 200 jobs", first)
    assert (first.count('<tr id="job-'), second.count('<tr id="job-')) == (0, 1)
    assert "…" in second
    assert "continued" not in re.findall(r'name="filter" value="([^"]*)"', second)[0]
