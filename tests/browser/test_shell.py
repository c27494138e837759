"""The frame of the pages in a browser: search, command palette, menu, keys, zone, number of problems."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from dataloader import Client
from tests.browser.conftest import ObservedPage

pytestmark = pytest.mark.browser

OpenPage = Callable[..., ObservedPage]


def test_slash_and_search_open_a_task(seen: OpenPage):
    page = seen().go("/charts")

    page.keyboard.press("/")
    page.keyboard.type("load.cbr.rates")
    page.keyboard.press("Enter")

    expect(page).to_have_url(re.compile("/search"))  # a task and its schedule have the name
    page.get_by_role("link", name="load.cbr.rates").first.click()
    expect(page.locator("h1")).to_have_text("load.cbr.rates")


def test_palette_is_used_by_keyboard_and_passes_axe(seen: OpenPage):
    window = seen()
    page = window.go("/audit")

    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Go to")
    expect(palette.get_by_role("option", name="Overview")).to_have_attribute("aria-selected", "true")
    page.keyboard.type("test.meas")
    expect(palette.get_by_role("option").first).to_contain_text("test.measure")
    assert window.accessibility_problems() == []
    page.keyboard.press("ArrowDown")
    expect(palette.get_by_role("option").nth(1)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")

    expect(page.locator("h1")).to_have_text("test.measure")


def test_menu_opens_on_a_phone_without_scripts(seen: OpenPage):
    page = seen(size="phone", scripts=False).go("/")
    link = page.get_by_role("navigation", name="Main").get_by_role("link", name="Workers")

    expect(link).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    link.click()

    expect(page.locator("h1")).to_have_text("Workers")


def test_question_mark_lists_the_keys(seen: OpenPage):
    window = seen()
    page = window.go("/workers")

    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keyboard")
    expect(keys).to_be_visible()
    assert window.accessibility_problems() == []
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()


def test_times_can_be_shown_in_utc(seen: OpenPage):
    page = seen().go("/jobs?status=succeeded")
    expect(page.locator("#clock")).to_contain_text("MSK")

    page.get_by_role("link", name="show UTC").click()

    expect(page).to_have_url(re.compile(r"/jobs\?status=succeeded$"))
    expect(page.locator("#clock")).to_contain_text("UTC")
    expect(page.locator(".foot")).to_contain_text("times in UTC")


def test_problem_count_is_refreshed_with_the_page(seen: OpenPage):
    window = seen()
    page = window.go("/audit")
    count = page.locator("#problem-count a")
    before = count.inner_text()

    Client(window.url).trigger("noop", queue="counted", lock_key="counted")  # no worker serves it

    expect(count).not_to_have_text(before, timeout=15_000)
    expect(count).to_have_attribute("href", "/#problems")
