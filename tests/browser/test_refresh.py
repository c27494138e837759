"""Each page after two refreshes of its live part: pictures are visible, nothing has moved, the focus is kept, and axe
finds nothing at both sizes, in light and in dark.

Every refresh of a page gets the answer to its first one, so that a place can change only by the refresh itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import APIResponse, Route, expect

from dataloader import Client
from tests.browser.addresses import create_addresses
from tests.browser.conftest import SIZES, ObservedPage
from tests.support.real_service import RunningService

pytestmark = pytest.mark.browser

PAGES_AT_A_TIME = 6
COUNT_REFRESHES = """() => {
  const { dataset } = document.documentElement;
  dataset.refreshes = "";
  document.addEventListener("htmx:after:swap", () => { dataset.refreshes += "x"; });
}"""
# The visible headings and pictures, in order; a picture with its height.
VISIBLE = """() => [...document.querySelectorAll("#live :is(h1, h2, svg, canvas, .chart)")]
  .filter((element) => element.checkVisibility() && !element.closest("tr"))
  .map((element) => {
    const isPicture = element.matches("svg, canvas");
    return `${element.tagName} ${element.id} ${isPicture ? Math.round(element.getBoundingClientRect().height) : 0}`;
  })"""
# The same, tables, forms and bars, each with its place and size.
PLACES = """() => [...document.querySelectorAll("#live :is(h1, h2, h3, svg, canvas, .chart, table, form, progress)")]
  .filter((element) => element.checkVisibility())
  .map((element) => {
    const { x, y, width, height } = element.getBoundingClientRect();
    return `${element.tagName} ${element.id} ${[x, y + scrollY, width, height].map(Math.round)}`;
  })"""
COUNT_AGAIN = "() => { document.documentElement.dataset.refreshes = ''; }"
FOCUS_FIRST_LINK = """() => {
  const link = [...document.querySelectorAll("#live a[href]")].find((candidate) => candidate.checkVisibility());
  link?.focus({ preventScroll: true });
  return link?.getAttribute("href") ?? null;
}"""
WIDER_PX = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
FOCUSED_LINK = "() => document.activeElement?.getAttribute('href') ?? null"


@pytest.fixture
def client(service: RunningService) -> Client:
    return Client(f"http://127.0.0.1:{service.port}")


class HeldPart:
    """The live part of a page as its first refresh received it, for all refreshes, which replace it as a whole."""

    def __init__(self) -> None:
        self._response: APIResponse | None = None

    def send(self, route: Route) -> None:
        headers = {name: value for name, value in route.request.headers.items() if name != "x-seen"}
        if "hx-request" not in headers:
            route.continue_()
            return
        if self._response is None:
            self._response = route.fetch(headers=headers)
        route.fulfill(response=self._response)


def accessibility_problems(window: ObservedPage) -> list[str]:
    """What axe finds in the page as it is, at both sizes, in light and in dark."""
    flaws = []
    for size, viewport in SIZES.items():
        window.page.set_viewport_size(viewport)
        wider = window.page.evaluate(WIDER_PX)
        flaws += [f"{size}: {wider} px wider than the window"] if wider > 0 else []
        window.set_color_scheme("light")
        flaws += [f"{size}: {flaw}" for flaw in window.accessibility_problems()]
        window.set_color_scheme("dark")
        flaws += [f"{size}, dark: {flaw}" for flaw in window.accessibility_problems(scope="colours")]
    return flaws


@pytest.mark.timeout(1200)  # some fifty pages, each looked at by axe in four ways
def test_every_page_is_unchanged_by_two_refreshes(seen: Callable[..., ObservedPage], client: Client):
    addresses = [*create_addresses(client).items(), ("no job", "/jobs?q=status:none")]
    refreshed: list[str] = []
    flaws = []

    for start in range(0, len(addresses), PAGES_AT_A_TIME):
        opened, before = {}, {}
        for name, path in addresses[start : start + PAGES_AT_A_TIME]:
            window = seen()
            window.page.route("**/*", HeldPart().send)
            page = window.go(path)
            if page.locator("#live[hx-get]").count():
                page.evaluate(COUNT_REFRESHES)
                opened[name] = page, page.evaluate(VISIBLE), window
            else:
                page.close()
        for name, (page, _, _) in opened.items():
            expect(page.locator("html")).to_have_attribute("data-refreshes", re.compile("x"))
            before[name] = page.evaluate(FOCUS_FIRST_LINK), page.evaluate(PLACES)
            page.evaluate(COUNT_AGAIN)
        for name, (page, visible, _) in opened.items():
            focused, places = before[name]
            expect(page.locator("html")).to_have_attribute("data-refreshes", re.compile("xx"))
            for looked, query in ((visible, VISIBLE), (places, PLACES)):
                if page.evaluate(query) != looked:
                    flaws.append(f"{name}: {looked} became {page.evaluate(query)}")
            if page.evaluate(FOCUSED_LINK) != focused:
                flaws.append(f"{name}: the focus was on {focused}, now on {page.evaluate(FOCUSED_LINK)}")
            flaws += [f"{name}, {flaw}" for flaw in accessibility_problems(opened[name][2])]
            refreshed.append(name)
            page.close()

    assert {"overview", "graph", "charts", "slices", "backfill", "job", "jobs", "tasks"} <= {*refreshed}
    assert flaws == []
