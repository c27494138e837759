"""The pages of capacity, watch and settings: each act once, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from dataloader import Client
from tests.browser.conftest import ObservedPage
from tests.support.real_service import RunningService

pytestmark = pytest.mark.browser

OpenPage = Callable[..., ObservedPage]


@pytest.fixture
def client(service: RunningService) -> Client:
    return Client(f"http://127.0.0.1:{service.port}")


def row_of(page: Page, table: str, text: str):
    return page.get_by_role("table", name=table).get_by_role("row").filter(has_text=text)


def test_queue_is_paused_with_a_reason_and_resumed(seen: OpenPage, client: Client):
    client.trigger("noop", queue="ops", lock_key="ops")
    page = seen().go("/queues/ops")

    page.locator("#pause summary").click()
    page.locator("#pause").get_by_label("Reason").fill("moving the warehouse")
    page.locator("#pause").get_by_role("button", name="Pause").click()
    expect(page.locator(".note.paused")).to_contain_text("moving the warehouse")
    expect(page.get_by_role("heading", name="Changes")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#pause summary")).to_be_visible()


def test_refused_setting_of_a_queue_is_marked_and_corrected(seen: OpenPage, client: Client):
    client.trigger("noop", queue="ops", lock_key="ops 2")
    window = seen()
    page = window.go("/queues/ops")

    page.get_by_label("Share of one tenant").fill("2")
    page.get_by_role("button", name="Save").click()
    window.problems.clear()  # the browser logs the 422
    field = page.get_by_label("Share of one tenant")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("0.5")
    page.get_by_role("button", name="Save").click()
    expect(page).to_have_url(re.compile("/queues/ops$"))
    expect(page.get_by_label("Share of one tenant")).to_have_value("0.5")


def test_limit_is_created_changed_and_deleted(seen: OpenPage):
    page = seen().go("/limits")
    page.get_by_label("Name (required)").fill("ops-api")
    page.get_by_label("Jobs at a time").fill("3")
    page.get_by_role("button", name="Create").click()
    row = row_of(page, "Concurrency limits", "ops-api")
    expect(row).to_contain_text("0 of 3")

    row.get_by_role("link", name="Change… ops-api").click()
    page.get_by_label("Jobs at a time").fill("5")
    page.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("0 of 5")
    row.locator("summary").click()
    row.get_by_role("button", name="Delete ops-api").click()
    expect(row).to_have_count(0)
    expect(page.locator("#done")).to_contain_text("ops-api deleted")


def test_alert_rule_is_created_muted_switched_and_deleted(seen: OpenPage):
    page = seen().go("/alerts")
    page.get_by_label("Name (required)").fill("ops rule")
    page.get_by_label("Kind").select_option("stalled")
    page.get_by_label("Threshold (required)").fill("15m")
    page.get_by_role("button", name="Create").click()
    row = row_of(page, "Rules", "ops rule")
    expect(row).to_contain_text("has not changed for 15 min")

    row.locator("summary", has_text="Mute").click()
    row.get_by_role("button", name="Mute ops rule").click()
    expect(row).to_contain_text("muted")
    row.get_by_role("button", name="Unmute ops rule").click()
    row.get_by_role("button", name="Turn off ops rule").click()
    expect(row.get_by_role("button", name="Turn on ops rule")).to_be_visible()
    row.get_by_role("link", name="Edit… ops rule").click()
    page.locator("#edit").get_by_label("Threshold").fill("20m")
    page.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("20 min")
    row.locator("summary", has_text="Delete").click()
    row.get_by_role("button", name="Delete ops rule").click()
    expect(page.get_by_text("ops rule")).to_have_count(0)


def test_webhook_shows_its_secret_once_and_sends_a_test(seen: OpenPage):
    page = seen().go("/webhooks")
    page.get_by_label("Address (required)").fill("https://hooks.example.invalid/ops")
    page.get_by_label("alert.firing").check()
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#secret")).to_contain_text("whsec_")
    page.get_by_role("link", name="I have stored it").click()
    expect(page.locator("h1")).to_have_text("https://hooks.example.invalid/ops")

    page.get_by_role("button", name="Send test").click()
    expect(page.locator("h1")).to_contain_text("webhook.ping")
    page.get_by_role("button", name="Send again").click()
    page.go_back()
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Webhooks").click()
    page.get_by_role("link", name="https://hooks.example.invalid/ops").first.click()
    page.get_by_role("button", name="Turn off").click()
    expect(page.locator(".note.warning")).to_contain_text("It is off")
    page.locator("#delete summary").click()
    page.locator("#delete").get_by_role("button", name="Delete").click()
    expect(page).to_have_url(re.compile("/webhooks$"))


def test_key_that_would_lock_its_maker_out_is_refused(seen: OpenPage):
    window = seen()
    page = window.go("/keys")

    page.get_by_label("Name (required)").fill("reader")
    page.get_by_label("read: read jobs").check()
    page.get_by_role("button", name="Create").click()
    window.problems.clear()  # the browser logs the 422

    expect(page.locator("#refused")).to_contain_text("every caller needs one")
    expect(page.get_by_label("Name (required)")).to_have_value("reader")


def test_audit_unfolds_triggers_and_filters(seen: OpenPage, client: Client):
    for number in range(2):
        client.trigger("noop", queue="ops", lock_key=f"audit {number}")
    page = seen().go("/audit?action=trigger_job")

    page.get_by_role("link", name="Show each of them").first.click()
    expect(page.get_by_role("table", name="Audit").get_by_text("trigger job").nth(1)).to_be_visible()
    page.get_by_label("Triggers").select_option("none")
    page.get_by_role("button", name="Apply").click()
    expect(page).to_have_url(re.compile("triggers=none"))


def test_failures_are_redriven_after_a_preview(seen: OpenPage):
    page = seen().go("/failures?task=test.secret")
    row = row_of(page, "Failures", "test.secret").first

    row.locator("summary").click()
    row.get_by_role("button", name="Preview").click()

    expect(page.locator("h1")).to_contain_text("Retry 2 jobs")
