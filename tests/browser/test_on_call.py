"""What somebody on call meets: outages, long logs, values that were meant badly, and forms that come too late."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect

from app.client import Client
from app.client import Request as Wanted
from app.queue.job import Status
from app.queue.keys import Keys, NewKey, Scope
from app.queue.pool import Pool
from tests.browser.conftest import Seen
from tests.support import Databases, PrivateServer, Process
from tests.support.running import Runner, Running

pytestmark = pytest.mark.browser

Opening = Callable[..., Seen]
EVIL = "<script>document.title = 'taken'</script>\u202e" + "W" * 300


@pytest.fixture
def client(service: Running) -> Client:
    return Client(f"http://127.0.0.1:{service.port}")


def test_nothing_that_a_job_is_called_or_says_runs_or_breaks_its_page(seen: Opening, client: Client):
    args = {"html": EVIL, "big": "x" * 100_000}
    made = client.trigger(Wanted(queue="nobody", task=EVIL[:200], lock_key=EVIL, producer=EVIL, args=args))

    for size in ("desktop", "phone"):
        for path in ("/", f"/jobs/{made.job_id}", "/jobs?status=queued", "/queues"):
            page = seen(size=size).go(path)
            expect(page).to_have_title(re.compile("dataloader$"))
            wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wider <= 0, (size, path)
    expect(page.locator("h1")).to_have_text("Queues")


def test_what_was_refused_is_still_in_its_form(seen: Opening, client: Client):
    made = client.trigger(Wanted(queue="nobody", task="noop", lock_key="draft"))
    window = seen()
    page = window.go(f"/jobs/{made.job_id}")

    page.get_by_text("Change it while it waits").click()
    page.get_by_label("Args").first.fill("{nonsense")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("no JSON")
    window.faults.clear()  # the browser tells of the 409
    page.get_by_role("button", name="Back").click()

    expect(page.get_by_label("Args").first).to_have_value("{nonsense")
    expect(page.get_by_text("What you wrote is still here")).to_be_visible()


def test_what_somebody_has_opened_stays_open(seen: Opening):
    page = seen().go("/charts")
    page.get_by_text("The numbers of throughput").click()

    with page.expect_response(lambda answer: "/charts" in answer.url and answer.status == 200):
        pass

    expect(page.get_by_role("region", name="The numbers of throughput")).to_be_visible()


def test_the_whole_log_is_searched_also_without_scripts(seen: Opening, client: Client):
    running = client.jobs(status=Status.RUNNING, limit=1)[0]
    page = seen(scripts=False).go(f"/jobs/{running.job_id}")

    page.get_by_role("link", name="The whole log").click()
    page.get_by_label("Text in a line").fill("SLOW")
    page.get_by_role("button", name="Show").click()

    expect(page.locator(".log div")).to_have_count(1)
    expect(page.locator(".log div")).to_contain_text("the source is slow today")


def test_a_job_is_deleted_only_when_that_is_said_twice(seen: Opening, client: Client):
    made = client.trigger(Wanted(queue="nobody", task="noop", lock_key="gone"))
    client.cancel(made.job_id)
    page = seen().go(f"/jobs/{made.job_id}")

    expect(page.get_by_role("button", name="Delete it")).to_be_hidden()
    page.get_by_text("Delete …").click()
    page.get_by_role("button", name="Delete it").click()

    expect(page).to_have_url(re.compile("/jobs$"))
    assert all(job.job_id != made.job_id for job in client.jobs(limit=50))


def test_an_outage_is_said_on_top_of_what_was_seen_last_and_passes_by_itself(
    browser: Browser, server: PrivateServer, start: Callable[..., Process]
):
    service = Runner(start, server.dsn)("serve").until_ready()
    url = f"http://127.0.0.1:{service.port}"
    page, other = browser.new_page(), browser.new_page()
    page.goto(f"{url}/queues")
    expect(page.locator(".refresh")).to_contain_text("Refreshes by itself.")

    server.crash()
    expect(page.locator(".refresh")).to_contain_text("What you see is of", timeout=30_000)
    answer = other.goto(f"{url}/jobs")
    expect(other.get_by_role("alert")).to_contain_text("cannot be read now")
    assert answer is not None
    assert answer.status == 503

    server.start()
    expect(other.get_by_role("heading", name="Jobs", exact=True)).to_be_visible(timeout=30_000)
    expect(page.locator(".refresh")).to_contain_text("Refreshes by itself.", timeout=30_000)
    page.close()
    other.close()


def test_a_form_whose_session_was_over_is_there_again_after_the_login(
    browser: Browser, databases: Databases, start: Callable[..., Process]
):
    with databases.fresh(schema=True) as dsn:
        pool = Pool(dsn)
        _, token = Keys(pool).create(NewKey(name="Anna", scopes=frozenset({Scope.OPERATE}), created_by="test"))
        pool.close()
        service = Runner(start, dsn)("serve").until_ready()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{service.port}/tasks/noop")
        log_in(page, token)

        page.get_by_label("Queue").fill("nobody")
        page.get_by_label("Key").fill("written before the session was over")
        page.context.clear_cookies()
        page.get_by_role("button", name="Start").click()
        log_in(page, token)

        expect(page).to_have_url(re.compile("/tasks/noop$"))
        expect(page.get_by_label("Key")).to_have_value("written before the session was over")
        page.get_by_role("button", name="Start").click()
        expect(page).to_have_url(re.compile("/jobs/"))
        page.close()
        service.process.kill()


def log_in(page: Page, token: str) -> None:
    page.get_by_label("API key").fill(token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_label("API key")).to_have_count(0)
