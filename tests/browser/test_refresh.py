"""Each page after two refreshes of its live part: headings and pictures are visible, the focus is kept."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Route, expect

from dataloader import Client
from tests.browser.addresses import create_addresses
from tests.browser.conftest import ObservedPage
from tests.support.real_service import RunningService

pytestmark = pytest.mark.browser

PAGES_AT_A_TIME = 6
COUNT_REFRESHES = """() => {
  const { dataset } = document.documentElement;
  dataset.refreshes = "";
  document.addEventListener("htmx:after:swap", () => { dataset.refreshes += "x"; });
}"""
# The visible headings, pictures and bars, in order; a picture with its height. Their places depend on the data.
LAYOUT = """() => [...document.querySelectorAll("#live :is(h1, h2, svg, canvas, .chart)")]
  .filter((element) => element.checkVisibility() && !element.closest("tr"))
  .map((element) => {
    const isPicture = element.matches("svg, canvas");
    const height = isPicture ? Math.round(element.getBoundingClientRect().height) : 0;
    return `${element.tagName} ${element.id} ${height}`;
  })"""
FOCUS_FIRST_LINK = """() => {
  const link = [...document.querySelectorAll("#live a[href]")].find((candidate) => candidate.checkVisibility());
  link?.focus({ preventScroll: true });
  return link?.getAttribute("href") ?? null;
}"""
FOCUSED_LINK = "() => document.activeElement?.getAttribute('href') ?? null"


@pytest.fixture
def client(service: RunningService) -> Client:
    return Client(f"http://127.0.0.1:{service.port}")


def send_whole_part(route: Route) -> None:
    """Ask for the live part as if the browser had none, so that each refresh replaces it."""
    headers = {name: value for name, value in route.request.headers.items() if name != "x-seen"}
    route.continue_(headers=headers)


@pytest.mark.timeout(300)  # some forty pages
def test_every_page_is_unchanged_by_two_refreshes(seen: Callable[..., ObservedPage], client: Client):
    addresses = [*create_addresses(client).items()]
    refreshed: list[str] = []
    flaws = []

    for start in range(0, len(addresses), PAGES_AT_A_TIME):
        opened = {}
        for name, path in addresses[start : start + PAGES_AT_A_TIME]:
            window = seen()
            window.page.route("**/*", send_whole_part)
            page = window.go(path)
            if page.locator("#live[hx-get]").count():
                page.evaluate(COUNT_REFRESHES)
                opened[name] = page, page.evaluate(FOCUS_FIRST_LINK), page.evaluate(LAYOUT)
            else:
                page.close()
        for name, (page, focused, layout) in opened.items():
            expect(page.locator("html")).to_have_attribute("data-refreshes", re.compile("xx"))
            if page.evaluate(LAYOUT) != layout:
                flaws.append(f"{name}: {layout} became {page.evaluate(LAYOUT)}")
            if page.evaluate(FOCUSED_LINK) != focused:
                flaws.append(f"{name}: the focus was on {focused}, now on {page.evaluate(FOCUSED_LINK)}")
            refreshed.append(name)
            page.close()

    assert {"overview", "graph", "charts", "slices", "backfill", "job", "jobs", "tasks"} <= {*refreshed}
    assert flaws == []
