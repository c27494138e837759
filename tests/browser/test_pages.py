"""Each page's main path, clicked through in a real browser against a real service."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from dataloader import Client
from tests.browser.addresses import create_addresses
from tests.browser.conftest import ObservedPage
from tests.support import eventually
from tests.support.real_service import RunningService

pytestmark = pytest.mark.browser

OpenPage = Callable[..., ObservedPage]


@pytest.fixture
def client(service: RunningService) -> Client:
    return Client(f"http://127.0.0.1:{service.port}")


@pytest.mark.timeout(900)  # forty pages, each looked at by axe in four ways
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_every_page_passes_accessibility_checks(size: str, seen: OpenPage, client: Client):
    window = seen(size=size)
    flaws = []

    for name, path in create_addresses(client).items():
        window.set_color_scheme("light")
        page = window.go(path)
        expect(page.locator("h1")).to_be_visible()
        flaws += [f"{name}: {flaw}" for flaw in window.accessibility_problems()]
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        flaws += [f"{name}: {wider} px wider than the window"] if wider > 0 else []
        window.save_screenshot(f"{name}-{size}-light")
        window.set_color_scheme("dark")
        flaws += [f"{name}, dark: {flaw}" for flaw in window.accessibility_problems(scope="colours")]
        window.save_screenshot(f"{name}-{size}-dark")

    assert flaws == []


@pytest.mark.smoke
def test_overview_lists_issues_first_and_shows_progress(seen: OpenPage):
    page = seen().go("/")

    problems = page.get_by_role("list", name="Problems", exact=True)
    expect(problems).to_contain_text("test.secret failed 2 of 2 times")
    expect(problems).to_contain_text("No live worker serves queue nobody")
    row = page.get_by_role("row").filter(has_text="test.tell").first
    expect(row.get_by_role("progressbar")).to_have_attribute("value", "0.4000")
    expect(row).to_contain_text("40 of 100 rows")
    row.get_by_role("link").first.click()
    expect(page.locator("h1")).to_contain_text("test.tell")


def test_page_refresh_waits_while_a_form_is_in_use(seen: OpenPage, client: Client):
    page = seen().go("/jobs?task=noop")
    expect(page.locator(".refresh")).to_contain_text("Refreshing every 2 s")

    made = client.trigger("noop", queue="nobody", lock_key="fresh")
    expect(page.locator(f"#job-{made['job_id']}")).to_be_visible()

    box = page.locator(f"#job-{made['job_id']}").get_by_role("checkbox")
    box.check()
    expect(page.locator(".refresh")).to_contain_text("Paused while you edit")
    later = client.trigger("noop", queue="nobody", lock_key="later")
    expect(page.locator(".refresh")).to_contain_text("Paused while you edit")
    expect(page.locator(f"#job-{later['job_id']}")).to_have_count(0)

    box.uncheck()
    expect(page.locator(f"#job-{later['job_id']}")).to_be_visible()

    page.get_by_label("matching").check()
    expect(page.locator(".refresh")).to_contain_text("Paused while you edit")
    page.get_by_label("matching").uncheck()
    expect(page.locator(".refresh")).to_contain_text("Refreshing every 2 s")


def test_page_refresh_can_be_paused(seen: OpenPage, client: Client):
    page = seen().go("/jobs?task=noop")

    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".refresh")).to_contain_text("Paused")
    page.get_by_role("button", name="Resume").click()

    made = client.trigger("noop", queue="nobody", lock_key="paused")
    expect(page.locator(f"#job-{made['job_id']}")).to_be_visible()


def test_job_filters_are_kept_in_the_url(seen: OpenPage):
    page = seen().go("/jobs")

    page.get_by_role("navigation", name="State").get_by_role("link", name="failed").click()
    page.get_by_label("Search", exact=True).fill("task:test.secret")
    page.get_by_role("button", name="Apply").click()

    expect(page).to_have_url(re.compile(r"status=failed.*task=test\.secret"))
    expect(page.get_by_role("table", name="Jobs").get_by_role("row")).to_have_count(3)
    expect(page.get_by_text("2 matching jobs")).to_be_visible()
    page.reload()
    expect(page.get_by_role("list", name="Filter").get_by_role("link", name="task test.secret")).to_be_visible()


def test_slash_key_focuses_search(seen: OpenPage):
    page = seen().go("/jobs")

    page.keyboard.press("/")
    page.keyboard.type("nothing has this")
    page.keyboard.press("Enter")

    # A search that does not end at once continues by itself.
    expect(page.get_by_text(re.compile("No matching jobs|Searched all: 0 found"))).to_be_visible()


def test_queue_is_paused_limited_and_resumed(seen: OpenPage):
    page = seen().go("/queues")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="nobody", exact=True))

    row.get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("paused")
    page.locator("#done").get_by_role("button", name="Undo").click()
    expect(row.get_by_role("button", name="Pause")).to_be_visible()

    row.get_by_role("link", name="nobody", exact=True).click()
    expect(page.locator("h1")).to_have_text("nobody")
    page.get_by_label("Jobs at a time, all processes").fill("3")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".head")).to_contain_text("concurrency 3")


def test_worker_is_drained_and_resumed(seen: OpenPage):
    page = seen().go("/workers")

    page.get_by_role("button", name="Drain").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("drain")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Drain")).to_be_visible()


def test_charts_have_text_alternatives(seen: OpenPage):
    page = seen().go("/charts")

    expect(page.locator(".chart canvas").first).to_be_visible()
    page.get_by_text("Data: throughput").click()
    expect(page.get_by_role("region", name="Data: throughput").get_by_role("row").nth(1)).to_be_visible()
    expect(page.locator("#live .legend").first).to_contain_text("at most")
    page.get_by_role("link", name="Last week").click()
    expect(page).to_have_url(re.compile("period=7d"))
    expect(page.locator(".chart canvas").first).to_be_visible()


def test_audit_page_shows_actor_and_action(seen: OpenPage, client: Client):
    made = client.trigger("noop", queue="nobody", lock_key="audit")
    client.cancel(made["job_id"])
    page = seen().go(f"/audit?subject_id={made['job_id']}")

    expect(page.get_by_role("table", name="Audit").get_by_role("row").filter(has_text="cancel")).to_be_visible()


def test_essential_pages_work_without_scripts(seen: OpenPage, client: Client):
    made = client.trigger("noop", queue="nobody", lock_key="plain")
    window = seen(scripts=False)

    for path in ("/", "/jobs", "/tasks", "/queues", "/workers", "/charts"):
        expect(window.go(path).locator("h1")).to_be_visible()
    page = window.go(f"/jobs/{made['job_id']}")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#state")).to_have_text("canceled")
    page.get_by_role("status").get_by_role("button", name="Undo").click()
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#done")).to_contain_text("Undone.")


def test_missing_resource_renders_an_error_page(browser, service: RunningService):
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{service.port}/jobs/00000000-0000-0000-0000-000000000000")

    expect(page.get_by_role("alert")).to_contain_text("no job")
    eventually(lambda: page.title().endswith("dataloader"))
    page.close()
