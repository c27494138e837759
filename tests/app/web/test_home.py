"""The first page."""

from __future__ import annotations


def test_the_newest_jobs_are_shown(client, trigger):
    first, second = trigger(), trigger()

    page = client.get("/").text

    assert page.index(second) < page.index(first)
    assert '<span class="status queued">queued</span>' in page
    assert 'href="/docs"' in page
    assert 'href="/status"' in page


def test_what_callers_wrote_is_shown_and_not_obeyed(client, trigger):
    trigger(queue="<script>alert(1)</script>", task='"><img src=x onerror=alert(1)>')

    page = client.get("/").text

    assert "&lt;script&gt;alert(1)" in page
    assert "<script>" not in page
    assert "<img" not in page


def test_without_a_job_it_says_where_to_begin(client):
    assert "No job yet" in client.get("/").text


def test_without_a_database_it_still_says_where_to_go(app_without_database):
    response = app_without_database().get("/")

    assert response.status_code == 200
    assert "cannot be read now (DatabaseUnavailable)" in response.text
    assert 'href="/status"' in response.text
