"""The frame of the pages: navigation, environment, zone."""

from __future__ import annotations

import re

import pytest

from dataloader.app.features.overview.problems import ProblemReader
from dataloader.app.features.registry import FEATURES
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from tests.support import eventually


def test_every_link_of_the_navigation_has_a_page(client):
    links = [link for feature in FEATURES for link in feature.navigation]

    assert [link.path for link in links if client.get(link.path).status_code != 200] == []


def test_navigation_marks_the_page_and_its_parent(client):
    marked = '<a href="/tasks" aria-current="page">'

    assert marked in client.get("/tasks").text
    assert marked in client.get("/tasks/noop").text
    assert marked not in client.get("/jobs").text


def test_header_names_the_environment(queue, pipelines, pool):
    options = WebOptions(version="1", environment="staging <1>")
    page = create_app(JobQueue(pool), pipelines, options, pool=pool).test_client().get("/jobs").text

    assert '<span class="env">staging &lt;1&gt;</span>' in page


def test_chosen_zone_holds_on_all_pages_until_changed_back(client):
    assert "times in Europe/Moscow (UTC+03:00)" in client.get("/jobs").text

    chosen = client.get("/zone?zone=utc&next=/queues?x=1")
    assert (chosen.status_code, chosen.headers["Location"]) == (303, "/queues?x=1")
    assert "times in UTC" in client.get("/jobs").text
    assert 'data-zone="UTC"' in client.get("/docs").text

    client.get("/zone?zone=service")
    assert "times in Europe/Moscow" in client.get("/queues").text


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "evil"])
def test_zone_redirects_only_within_the_service(client, target):
    assert client.get("/zone", query_string={"zone": "utc", "next": target}).headers["Location"] == "/"


def test_login_page_shows_neither_pages_nor_problems(client):
    page = client.get("/login").text

    assert 'id="nav"' not in page
    assert "problem-count" not in page


def test_refresh_sends_the_problem_count_along(client, trigger):
    trigger()

    fragment = client.get("/limits", headers={"HX-Request": "true"})
    again = client.get("/limits", headers={"HX-Request": "true", "X-Seen": fragment.headers["X-Version"]})

    assert '<span id="problem-count" hx-swap-oob="true"><a class="st alert"' in fragment.text
    assert again.status_code == 204


def test_navigation_shows_counts_without_a_query_for_each_page(client, trigger, monkeypatch):
    trigger()
    client.post("/queues", data={"queue": "etl", "state": "paused"})
    nav = eventually(lambda: _nav_counts(client.get("/settings").text))
    reads: list[int] = []
    monkeypatch.setattr(ProblemReader, "read", lambda self, shared: reads.append(1))

    assert nav["queues"] == "1 paused queue"
    assert nav[""] == "2 problems"
    assert [_nav_counts(client.get(path).text) for path in ("/jobs", "/limits")] == [nav, nav]
    assert len(reads) <= 1  # in the background, for all pages
    fragment = client.get("/limits", headers={"HX-Request": "true"}).text
    assert '<span id="nav-count-queues" hx-swap-oob="true">1 <small>paused<' in fragment


def _nav_counts(page: str) -> dict[str, str]:
    """Each number with its words, of which the page shows the first."""
    found = re.findall(
        r'<span id="nav-count-(\w*)"[^>]*>([^<]+)<small>([^<]+)(?:<span class="vh">([^<]+)</span>)?<', page
    )
    return {name: "".join(words) for name, *words in found}
