"""The part of the job's page that shows where the job is, in a real browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from dataloader import Client
from dataloader.app.queue.job import Status
from tests.browser.conftest import ObservedPage
from tests.support.real_service import RunningService

pytestmark = pytest.mark.browser

OpenPage = Callable[..., ObservedPage]


@pytest.fixture
def job(service: RunningService) -> str:
    client = Client(f"http://127.0.0.1:{service.port}")
    return str(client.jobs(status=Status.RUNNING, limit=1)[0]["job_id"])


def test_panel_is_read_while_it_is_open(seen: OpenPage, job: str):
    observed = seen()
    page = observed.go(f"/jobs/{job}")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/where") else None)
    panel = page.locator("#where")
    with page.expect_response(lambda answer: answer.url == page.url and answer.status == 200):
        pass  # the page refreshes, and a closed panel asks nothing
    assert asked == []

    panel.get_by_text("Where it is now").click()
    expect(panel.locator(".frames").first).to_contain_text("etl")
    folded = panel.locator("details").first
    folded.locator("summary").click()
    with page.expect_response(lambda answer: answer.url.endswith("/where") and answer.status == 200):
        pass
    with page.expect_response(lambda answer: answer.url.endswith("/where") and answer.status == 200):
        pass
    expect(folded).to_have_attribute("open", "")
    assert observed.accessibility_problems() == []

    panel.get_by_text("Where it is now").click()
    expect(panel).not_to_have_attribute("open", "")


def test_panel_is_a_link_without_scripts(seen: OpenPage, job: str):
    page = seen(scripts=False).go(f"/jobs/{job}")

    page.get_by_text("Where it is now").click()
    page.locator("#where").get_by_role("link", name="Open").click()

    expect(page.get_by_role("heading", level=1)).to_contain_text("Where it is now")
    expect(page.locator("#where-now")).to_contain_text("Stack of the task")
