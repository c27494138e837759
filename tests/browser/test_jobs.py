"""The list of jobs in Chromium: search, selection, bulk actions with their undo, saved views."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from dataloader import Client
from dataloader.app.queue.job import Status
from tests.browser.conftest import ObservedPage
from tests.support import eventually
from tests.support.databases import execute_sql
from tests.support.real_service import RunningService

pytestmark = pytest.mark.browser

OpenPage = Callable[..., ObservedPage]


@pytest.fixture
def client(service: RunningService) -> Client:
    return Client(f"http://127.0.0.1:{service.port}")


def enqueue(client: Client, producer: str, count: int = 3) -> list[str]:
    return [
        client.trigger("noop", queue="nobody", lock_key=f"{producer}-{n}", producer=producer)["job_id"]
        for n in range(count)
    ]


def statuses(client: Client, job_ids: list[str]) -> list[str]:
    return [client.status(job_id)["status"] for job_id in job_ids]


@pytest.mark.smoke
def test_checked_jobs_are_canceled_and_the_cancel_undone(seen: OpenPage, client: Client):
    made = enqueue(client, "checked")
    page = seen().go("/jobs?producer=checked")

    page.locator(f"#job-{made[0]}").get_by_role("checkbox").check()
    page.locator(f"#job-{made[2]}").get_by_role("checkbox").click(modifiers=["Shift"])
    expect(page.locator("#selected-count")).to_have_text("3 selected")
    page.locator(f"#job-{made[1]}").get_by_role("checkbox").uncheck()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.locator("h1")).to_have_text("Cancel 2 jobs?")
    page.get_by_role("button", name="Cancel 2 jobs").click()

    expect(page.get_by_text("2 jobs matched (2 expected), 2 changed")).to_be_visible()
    assert statuses(client, made) == [Status.CANCELED, Status.QUEUED, Status.CANCELED]

    page.get_by_role("button", name="Retry the 2 canceled jobs…").click()
    expect(page.locator("h1")).to_have_text("Retry 2 jobs?")
    page.get_by_role("button", name="Retry 2 jobs").click()
    expect(page.get_by_text("2 jobs matched (2 expected), 2 changed")).to_be_visible()
    assert statuses(client, made) == [Status.QUEUED] * 3


def test_all_matching_get_another_priority_without_scripts(seen: OpenPage, client: Client):
    made = enqueue(client, "all-matching")
    page = seen(scripts=False).go("/jobs?producer=all-matching")

    page.get_by_label("all 3 matching").check()
    page.get_by_role("button", name="Priority…").click()
    page.get_by_label("New priority").fill("7")
    page.get_by_role("button", name="Change the priority of 3 jobs").click()

    expect(page.locator("h1")).to_have_text("Change of priority of jobs")
    eventually(lambda: {client.job(job_id)["priority"] for job_id in made} == {7}, 20)


def test_row_act_changes_its_job_at_once(seen: OpenPage, client: Client):
    (job_id,) = enqueue(client, "row", 1)
    page = seen().go("/jobs?producer=row")
    row = page.locator(f"#job-{job_id}")

    row.get_by_role("button", name="Cancel").click()
    expect(row.get_by_text("canceled", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile(r"/jobs\?producer=row$"))
    row.get_by_role("button", name="Retry").click()
    expect(row.get_by_text("ready", exact=True)).to_be_visible()


def test_tabs_count_and_filter_by_state(seen: OpenPage, client: Client):
    made = enqueue(client, "tabs")
    client.cancel(made[0])
    page = seen().go("/jobs?producer=tabs")
    tabs = page.get_by_role("navigation", name="State")

    expect(tabs.get_by_role("link", name="All 3")).to_have_attribute("aria-current", "true")
    tabs.get_by_role("link", name="ready 2").click()
    expect(page.locator("#matching-jobs tbody tr")).to_have_count(2)
    expect(page).to_have_url(re.compile("wait_state=ready"))
    tabs.get_by_role("link", name="canceled 1").click()
    expect(page.locator("#matching-jobs tbody tr")).to_have_count(1)


def test_views_are_saved_by_name_and_deleted(seen: OpenPage):
    page = seen().go("/jobs?task=noop&status=canceled")

    page.get_by_text("Views").click()
    page.get_by_label("Name").fill("My canceled")
    page.get_by_role("button", name="Save this view").click()
    page.goto(page.url.partition("?")[0])
    page.get_by_text("Views").click()
    page.get_by_role("link", name="My canceled").click()
    expect(page.get_by_role("list", name="Filter").get_by_role("link", name="task noop")).to_be_visible()

    page.get_by_text("Views").click()
    page.get_by_role("button", name="Delete the view My canceled").click()
    expect(page.get_by_role("link", name="My canceled")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("link", name="My canceled")).to_be_visible()
    page.get_by_role("button", name="Delete the view My canceled").click()
    page.reload()
    page.get_by_text("Views").click()
    expect(page.get_by_role("link", name="My canceled")).to_have_count(0)


OLD_JOBS = """
INSERT INTO dl_jobs (queue, task, lock_key, producer, status, attempt, run_id, created_at, started_at, finished_at,
                     error)
SELECT 'old', 'noop', 'old ' || n, 'old', 'succeeded', 1, gen_random_uuid(), at, at, at,
       CASE n WHEN 39999 THEN 'the needle' END
  FROM generate_series(1, 40000) n CROSS JOIN LATERAL (SELECT now() - interval '1 day' - n * interval '1 s' AS at) times
"""


@pytest.fixture
def old_jobs(service_dsn: str) -> Iterator[None]:
    """Jobs of yesterday, of which the last but one has an error with `needle`."""
    execute_sql(service_dsn, OLD_JOBS)
    yield
    execute_sql(service_dsn, "DELETE FROM dl_jobs WHERE producer = 'old'")


@pytest.mark.usefixtures("old_jobs")
def test_search_goes_further_back_by_itself(seen: OpenPage):
    page = seen().go("/jobs")
    page.get_by_label("Search", exact=True).fill("needle")
    page.keyboard.press("Enter")

    expect(page.locator("#matching-jobs tbody tr")).to_have_count(1)
    expect(page.locator("#scanned")).to_contain_text(re.compile(r"Searched all: 1 found in \d+.\d{3} jobs"))
    expect(page.get_by_role("link", name="Search further back")).to_have_count(0)


@pytest.mark.usefixtures("old_jobs")
def test_search_goes_further_back_by_a_link_without_scripts(seen: OpenPage):
    page = seen(scripts=False).go("/jobs?text=needle&created_from=2020-01-01")

    expect(page.locator("#scanned")).to_contain_text("Searched back to")
    link = page.get_by_role("link", name="Search further back")
    for _ in range(100):  # each reads a window of thousands of jobs at least
        if link.count() == 0:
            break
        link.click()
    expect(page.locator("#matching-jobs tbody tr")).to_have_count(1)


def test_args_are_found_by_key_and_value_and_removed_by_their_chip(seen: OpenPage, client: Client):
    for customer in (4711, 4712):
        client.trigger("noop", {"customer": customer}, queue="nobody", lock_key=f"c{customer}", producer="args")
    page = seen().go("/jobs?producer=args")
    page.get_by_label("Search", exact=True).fill("args.customer:4711")
    page.keyboard.press("Enter")

    expect(page.locator("#matching-jobs tbody tr")).to_have_count(1)
    page.get_by_role("list", name="Filter").get_by_role("link", name="args.customer 4711").click()
    expect(page.locator("#matching-jobs tbody tr")).to_have_count(2)
    expect(page).to_have_url(re.compile(r"/jobs\?producer=args$"))
