"""What an operator does, each with its number of clicks."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from dataloader import Client
from tests.browser.conftest import ObservedPage
from tests.support.real_service import RunningService

pytestmark = pytest.mark.browser

OpenPage = Callable[..., ObservedPage]


@pytest.fixture
def client(service: RunningService) -> Client:
    return Client(f"http://127.0.0.1:{service.port}")


class Operator:
    """Clicks, and counts it."""

    def __init__(self, page: Page) -> None:
        self.page, self.clicks = page, 0

    def click(self, target: Locator) -> None:
        target.click()
        self.clicks += 1

    def open(self, name: str) -> None:
        self.click(self.page.get_by_role("navigation", name="Main").get_by_role("link", name=re.compile(f"^{name}")))


def test_failures_of_an_hour_take_two_clicks(seen: OpenPage):
    operator = Operator(seen().go("/"))
    operator.open("Failures")
    operator.click(operator.page.locator(".hours a.failed").last)

    expect(operator.page).to_have_url(re.compile("since=.*until="))
    expect(operator.page.get_by_role("table", name="Failures")).to_contain_text("test.secret")
    assert operator.clicks == 2


def test_missing_and_failed_runs_of_a_week_take_one_click(seen: OpenPage):
    operator = Operator(seen().go("/"))
    operator.open("Runs by day")

    cell = operator.page.locator("#runs-test\\.secret .run-day.failed")
    expect(cell).to_contain_text("2 failed")
    assert operator.clicks == 1
    operator.click(cell)
    expect(operator.page).to_have_url(re.compile("/jobs.*task=test.secret.*finished_from="))
    expect(operator.page.locator("#jobs, table.data").first).to_contain_text("test.secret")
    assert operator.clicks == 2


def test_job_is_found_by_its_lock_key_without_a_click(seen: OpenPage):
    operator = Operator(seen().go("/"))
    operator.page.keyboard.press("/")
    operator.page.keyboard.type("bad-0")
    operator.page.keyboard.press("Enter")

    expect(operator.page).to_have_url(re.compile("lock_key=bad-0"))
    expect(operator.page.locator("table.data tbody tr")).to_have_count(1)
    expect(operator.page.locator("table.data tbody tr")).to_contain_text("test.secret")
    assert operator.clicks == 0


def test_alert_is_added_with_two_clicks(seen: OpenPage):
    operator = Operator(seen().go("/"))
    operator.open("Alerts")
    operator.page.get_by_label("Name (required)").fill("late loads")
    operator.page.get_by_label("Kind").select_option("stalled")
    operator.page.get_by_label("Threshold (required)").fill("15m")
    operator.click(operator.page.get_by_role("button", name="Create"))

    expect(operator.page.get_by_role("table", name="Rules")).to_contain_text("late loads")
    assert operator.clicks == 2


def test_receivers_of_alerts_are_tested_with_two_clicks(seen: OpenPage, client: Client):
    url = "https://hooks.slack.com/services/T0/B0/none"
    body = {"url": url, "format": "slack", "events": ["alert.firing"], "description": "on call", "task": "noop"}
    hook = client.request("POST", "/api/v1/webhooks", body=body)
    client.request("PATCH", f"/api/v1/webhooks/{hook['webhook_id']}", body={"url": "https://192.0.2.1.invalid/none"})
    operator = Operator(seen().go("/"))
    operator.open("Alerts")
    operator.click(operator.page.get_by_role("button", name="Send a test"))

    row = operator.page.locator(f"#receiver-{hook['webhook_id']}")
    expect(row).to_contain_text("Slack")
    expect(row.get_by_role("link", name="test", exact=True)).to_be_visible()
    assert operator.clicks == 2
    client.request("DELETE", f"/api/v1/webhooks/{hook['webhook_id']}")


def test_grid_of_runs_works_without_scripts(seen: OpenPage):
    page = seen(scripts=False).go("/runs")
    page.get_by_role("searchbox", name="Task").fill("test.secret")
    page.get_by_role("button", name="Apply").click()

    expect(page.locator("#runs-test\\.secret")).to_be_visible()
    expect(page.locator("#runs-test\\.nap")).to_have_count(0)
