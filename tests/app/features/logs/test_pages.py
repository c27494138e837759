"""Logs of all jobs: the page without scripts, and the route."""

from __future__ import annotations

import re
from html import unescape

import pytest

from dataloader.app.features.logs import pages, rows
from tests.support.databases import execute_sql
from tests.support.log_lines import LINES


@pytest.fixture(autouse=True)
def lines(dsn: str) -> None:
    execute_sql(dsn, LINES)


def test_page_shows_matching_lines_with_links_to_them(client):
    page = client.get("/logs?text=line+2998&since=2020-01-01").text

    assert re.search(r'href="/jobs/[0-9a-f-]{36}/log\?after=(\d+)#L\d+"', page)
    assert page.count('<tr id="L') == 1
    assert 'href="/tasks/task%202"' in page


def test_page_that_is_not_full_is_continued_by_a_link(client, monkeypatch):
    monkeypatch.setattr(rows, "WINDOW_LINES", 500)
    monkeypatch.setattr(pages, "_SEARCH_BUDGET_SEC", 0.0)

    first = unescape(client.get("/logs?text=line+7&since=2020-01-01&level=ERROR").text)
    (link,) = re.findall(r'<a href="([^"]*)" rel="next" data-continue>Search further back</a>', first)
    second = client.get(link).text

    assert "Searched back to" in first
    assert (first.count('<tr id="L'), second.count('<tr id="L')) == (0, 11)
    assert 'name="text" value="line 7"' in second


@pytest.mark.parametrize("query", ["level=LOUD", "since=soon"])
def test_invalid_search_is_reported(query, client):
    assert 'role="alert"' in client.get(f"/logs?{query}").text


def test_route_answers_lines_and_where_it_ended(client):
    answer = client.get("/api/v1/logs?level=ERROR&limit=2").json

    assert [(line["line"], line["level"]) for line in answer["lines"]] == [
        ("line 3000", "ERROR"),
        ("line 2990", "ERROR"),
    ]
    assert answer["next"] == answer["lines"][-1]["log_id"]
    assert client.get("/api/v1/logs?level=LOUD").status_code == 400
