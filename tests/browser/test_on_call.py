"""The dashboard on call: outages, long logs, hostile values, and forms that are submitted too late."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect

from dataloader import Client
from dataloader.app.db.pool import Pool
from dataloader.app.http.auth.api_keys import ApiKeys, NewApiKey, Scope
from tests.browser.conftest import ObservedPage
from tests.support import Databases, PrivateServer, Process
from tests.support.real_service import RunningService, ServiceStarter

pytestmark = pytest.mark.browser

OpenPage = Callable[..., ObservedPage]
EVIL = "<script>document.title = 'taken'</script>\u202e" + "W" * 300


@pytest.fixture
def client(service: RunningService) -> Client:
    return Client(f"http://127.0.0.1:{service.port}")


def test_hostile_job_text_is_escaped_on_its_page(seen: OpenPage, client: Client):
    args = {"html": EVIL, "big": "x" * 100_000}
    made = client.trigger(EVIL[:200], args, queue="nobody", lock_key=EVIL, producer=EVIL)

    for size in ("desktop", "phone"):
        for path in ("/", "/tasks", f"/jobs/{made['job_id']}", "/jobs?status=queued", "/queues/nobody", "/queues"):
            page = seen(size=size).go(path)
            expect(page).to_have_title(re.compile("dataloader$"))
            wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wider <= 0, (size, path)
    expect(page.locator("h1")).to_have_text("Queues")


def test_opened_section_survives_refresh(seen: OpenPage):
    page = seen().go("/charts")
    page.get_by_text("Data: throughput").click()

    with page.expect_response(lambda answer: "/charts" in answer.url and answer.status == 200):
        pass

    expect(page.get_by_role("region", name="Data: throughput")).to_be_visible()


def test_outage_banner_appears_over_last_data_and_clears(
    browser: Browser, server: PrivateServer, start: Callable[..., Process]
):
    service = ServiceStarter(start, server.dsn)("serve").wait_until_ready()
    url = f"http://127.0.0.1:{service.port}"
    page, other = browser.new_page(), browser.new_page()
    page.goto(f"{url}/queues")
    expect(page.locator(".refresh")).to_contain_text("Refreshing every 2 s")

    server.crash()
    expect(page.locator(".refresh")).to_contain_text("Data from", timeout=30_000)
    answer = other.goto(f"{url}/jobs")
    expect(other.get_by_role("alert")).to_contain_text("cannot be read now")
    assert answer is not None
    assert answer.status == 503

    server.start()
    expect(other.get_by_role("heading", name="Jobs", exact=True)).to_be_visible(timeout=30_000)
    expect(page.locator(".refresh")).to_contain_text("Refreshing every 2 s", timeout=30_000)
    page.close()
    other.close()


def test_form_is_restored_after_session_expiry_and_login(
    browser: Browser, databases: Databases, start: Callable[..., Process]
):
    with databases.fresh(schema=True) as dsn:
        pool = Pool(dsn)
        _, token = ApiKeys(pool).create(NewApiKey(name="Anna", scopes=frozenset({Scope.OPERATE}), created_by="test"))
        pool.close()
        service = ServiceStarter(start, dsn)("serve").wait_until_ready()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{service.port}/tasks/noop")
        log_in(page, token)

        lock_key = page.locator('[name="lock_key"]')
        page.locator('[name="queue"]').fill("nobody")
        lock_key.fill("written before the session was over")
        page.context.clear_cookies()
        page.get_by_role("button", name="Start").click()
        log_in(page, token)

        expect(page).to_have_url(re.compile("/tasks/noop$"))
        expect(lock_key).to_have_value("written before the session was over")
        page.get_by_role("button", name="Start").click()
        expect(page).to_have_url(re.compile("/jobs/"))
        page.close()
        service.process.kill()


def log_in(page: Page, token: str) -> None:
    page.get_by_label("API key").fill(token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_label("API key")).to_have_count(0)
