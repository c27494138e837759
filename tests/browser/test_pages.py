"""Each page's main path, clicked through in a real browser against a real service."""

from __future__ import annotations

import re
from collections.abc import Callable
from uuid import UUID

import pytest
from playwright.sync_api import expect

from app.client import Client
from app.client import Request as Wanted
from app.queue.job import Status
from tests.browser.conftest import Seen
from tests.support import eventually
from tests.support.running import Running

pytestmark = pytest.mark.browser

Opening = Callable[..., Seen]
PAGES = {
    "now": "/",
    "jobs": "/jobs",
    "tasks": "/tasks",
    "task": "/tasks/load.cbr.rates",
    "queues": "/queues",
    "workers": "/workers",
    "charts": "/charts",
    "audit": "/audit",
    "api": "/docs",
    "login": "/login",
}


@pytest.fixture
def client(service: Running) -> Client:
    return Client(f"http://127.0.0.1:{service.port}")


@pytest.mark.timeout(300)  # a dozen pages, each looked at by axe in four ways
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_every_page_is_readable_by_everybody(size: str, seen: Opening, client: Client):
    window = seen(size=size)
    running = client.jobs(status=Status.RUNNING, limit=1)[0]
    failed = client.jobs(status=Status.FAILED, limit=1)[0]
    flaws = []

    for name, path in {**PAGES, "job": f"/jobs/{running.job_id}", "failed": f"/jobs/{failed.job_id}"}.items():
        window.dress("light")
        page = window.go(path)
        expect(page.locator("h1")).to_be_visible()
        flaws += [f"{name}: {flaw}" for flaw in window.flaws()]
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        flaws += [f"{name}: {wider} px wider than the window"] if wider > 0 else []
        window.keep(f"{name}-{size}-light")
        window.dress("dark")
        flaws += [f"{name}, dark: {flaw}" for flaw in window.flaws(of="colours")]
        window.keep(f"{name}-{size}-dark")

    assert flaws == []


def test_now_begins_with_what_is_wrong_and_shows_how_far_jobs_are(seen: Opening):
    page = seen().go("/")

    problems = page.get_by_role("list", name="Problems")
    expect(problems).to_contain_text("test.secret failed 2 of 2 times")
    expect(problems).to_contain_text("No live worker works on the queue nobody")
    row = page.get_by_role("row").filter(has_text="test.tell").first
    expect(row.get_by_role("progressbar")).to_have_attribute("value", "0.4000")
    expect(row).to_contain_text("40 of 100 rows")
    row.get_by_role("link").click()
    expect(page.locator("h1")).to_contain_text("test.tell")


def test_a_page_refreshes_itself_but_not_under_somebodys_hands(seen: Opening, client: Client):
    page = seen().go("/jobs?task=noop")
    expect(page.locator(".refresh")).to_contain_text("Refreshes by itself.")

    made = client.trigger(Wanted(queue="nobody", task="noop", lock_key="fresh"))
    expect(page.locator(f"#job-{made.job_id}")).to_be_visible()

    page.get_by_text("Do something to all that fit").click()
    page.get_by_label("What").focus()
    expect(page.locator(".refresh")).to_contain_text("Waits while you are at work here.")
    later = client.trigger(Wanted(queue="nobody", task="noop", lock_key="later"))
    expect(page.locator(".refresh")).to_contain_text("Waits while you are at work here.")
    expect(page.locator(f"#job-{later.job_id}")).to_have_count(0)

    page.get_by_text("Do something to all that fit").click()
    expect(page.locator(f"#job-{later.job_id}")).to_be_visible()


def test_it_can_be_told_to_pause(seen: Opening, client: Client):
    page = seen().go("/jobs?task=noop")

    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".refresh")).to_contain_text("Paused.")
    page.get_by_role("button", name="Go on").click()

    made = client.trigger(Wanted(queue="nobody", task="noop", lock_key="paused"))
    expect(page.locator(f"#job-{made.job_id}")).to_be_visible()


def test_jobs_are_found_by_filters_that_stand_in_the_address(seen: Opening):
    page = seen().go("/jobs")

    page.get_by_label("Status").select_option("failed")
    page.get_by_label("Task").fill("test.secret")
    page.get_by_role("button", name="Show").click()

    expect(page).to_have_url(re.compile(r"status=failed.*task=test\.secret"))
    expect(page.get_by_role("region", name="Jobs").get_by_role("row")).to_have_count(3)
    expect(page.get_by_text("2 jobs fit")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Task")).to_have_value("test.secret")


def test_a_slash_goes_to_the_search(seen: Opening):
    page = seen().go("/jobs")

    page.keyboard.press("/")
    page.keyboard.type("nothing has this")
    page.keyboard.press("Enter")

    expect(page.get_by_text("No job fits.")).to_be_visible()


def test_what_fits_is_counted_confirmed_and_done(seen: Opening, client: Client):
    wanted = [Wanted(queue="nobody", task="noop", lock_key=f"bulk-{n}", producer="bulk") for n in range(3)]
    made = [client.trigger(request) for request in wanted]
    page = seen().go("/jobs?producer=bulk&status=queued")

    page.get_by_text("Do something to all that fit").click()
    page.get_by_label("What").select_option("cancel")
    page.get_by_role("button", name="Count them").click()
    expect(page.locator("h1")).to_have_text("Cancel 3 jobs?")
    page.get_by_role("button", name="Cancel 3 jobs").click()

    expect(page.get_by_role("status").first).to_have_text("done")
    expect(page.get_by_text("3 of 3 changed")).to_be_visible()
    assert {client.status(job.job_id).status for job in made} == {Status.CANCELED}


def test_a_job_shows_its_log_and_is_canceled_and_retried(seen: Opening, client: Client):
    args = {"file": "/nowhere", "trace": "/dev/null"}
    made = client.trigger(Wanted(queue="q", task="test.tell", lock_key="one", args=args))
    page = seen().go(f"/jobs/{made.job_id}")
    log = page.locator(".log")
    expect(log).to_contain_text("reading the first page")

    page.get_by_label("Find in it").fill("slow")
    expect(page.locator("#found")).to_have_text("1 line of these; Enter searches all.")
    expect(log.get_by_text("reading the first page")).to_be_hidden()
    page.get_by_label("Find in it").fill("")

    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".status").first).to_have_text("canceled")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".status").first).to_have_text("running")
    expect(page.get_by_role("list").filter(has_text="picked")).to_contain_text("canceled")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".status").first).to_have_text("canceled")


def test_a_job_is_cloned_with_other_args_and_nobody_reads_its_secrets(seen: Opening, client: Client):
    failed = client.jobs(status=Status.FAILED, limit=1)[0]
    page = seen().go(f"/jobs/{failed.job_id}")
    expect(page.locator("main")).not_to_contain_text("hidden")

    page.get_by_text("Clone it with other args").click()
    page.get_by_label("Queue").last.fill("nobody")
    page.get_by_role("button", name="Start it").click()

    expect(page.locator("h1")).to_contain_text("test.secret")
    expect(page.locator(".status").first).to_have_text("queued")
    expect(page.get_by_text("No live worker")).to_be_visible()
    clone = UUID(page.url.rpartition("/")[2])
    assert clone != failed.job_id


def test_a_waiting_job_is_changed_and_says_why_it_waits(seen: Opening, client: Client):
    made = client.trigger(Wanted(queue="nobody", task="noop", lock_key="edit"))
    page = seen().go(f"/jobs/{made.job_id}")

    page.get_by_text("Change it while it waits").click()
    page.get_by_label("Priority").first.fill("7")
    page.get_by_role("button", name="Change", exact=True).click()

    expect(page.locator(".facts")).to_contain_text("priority7")
    expect(page.get_by_text("No live worker")).to_be_visible()


def test_a_task_is_started_by_a_form_made_from_its_args(seen: Opening):
    page = seen().go("/tasks")
    page.get_by_role("link", name="load.cbr.rates").click()

    page.get_by_label("date").fill("2024-99-99")
    page.get_by_label("Queue").fill("nobody")
    page.get_by_label("Key").fill("rates")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert")).to_contain_text("args.date")

    page.get_by_label("date").fill("2024-01-31")
    page.get_by_label("currencies").fill('["USD"]')
    page.get_by_role("button", name="Start").click()
    expect(page.locator("h1")).to_contain_text("load.cbr.rates")
    expect(page.locator("pre").filter(has_text="2024-01-31")).to_be_visible()


def test_the_last_runs_of_a_task_are_squares_that_lead_to_them(seen: Opening):
    page = seen().go("/tasks")

    row = page.get_by_role("row").filter(has_text="test.nap")
    expect(row.locator(".squares a.succeeded")).to_have_count(12)
    row.locator(".squares a").first.click()
    expect(page.locator("h1")).to_contain_text("test.nap")


def test_a_queue_is_paused_limited_and_opened(seen: Opening):
    page = seen().go("/queues")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="nobody", exact=True))

    row.get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("paused")
    row.get_by_role("button", name="Open").click()
    expect(row.get_by_role("button", name="Pause")).to_be_visible()

    page.get_by_text("Limit how much runs at once").click()
    page.get_by_role("combobox", name="Queue").select_option("nobody")
    page.get_by_label("in all processes together").fill("3")
    page.get_by_role("button", name="Set").click()
    expect(row).to_contain_text("3")


def test_a_worker_is_drained_and_claims_again(seen: Opening):
    page = seen().go("/workers")

    page.get_by_role("button", name="Drain").click()
    expect(page.get_by_role("heading", name="draining")).to_be_visible()
    page.get_by_role("button", name="Claim again").click()
    expect(page.get_by_role("button", name="Drain")).to_be_visible()


def test_charts_are_drawn_and_have_their_numbers_in_words(seen: Opening):
    page = seen().go("/charts")

    expect(page.locator(".chart canvas").first).to_be_visible()
    page.get_by_text("The numbers of throughput").click()
    expect(page.get_by_role("region", name="The numbers of throughput").get_by_role("row").nth(1)).to_be_visible()
    page.get_by_label("Period").select_option("7d")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("period=7d"))
    expect(page.locator(".chart canvas").first).to_be_visible()


def test_the_audit_tells_who_did_what(seen: Opening, client: Client):
    made = client.trigger(Wanted(queue="nobody", task="noop", lock_key="audit"))
    client.cancel(made.job_id)
    page = seen().go(f"/audit?subject_id={made.job_id}")

    expect(page.get_by_role("region", name="Audit").get_by_role("row").filter(has_text="cancel")).to_be_visible()


def test_the_essentials_are_readable_and_work_without_scripts(seen: Opening, client: Client):
    made = client.trigger(Wanted(queue="nobody", task="noop", lock_key="plain"))
    window = seen(scripts=False)

    for path in ("/", "/jobs", "/tasks", "/queues", "/workers", "/charts"):
        expect(window.go(path).locator("h1")).to_be_visible()
    page = window.go(f"/jobs/{made.job_id}")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".status").first).to_have_text("canceled")


def test_what_is_not_there_is_told_as_a_page(browser, service: Running):
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{service.port}/jobs/00000000-0000-0000-0000-000000000000")

    expect(page.get_by_role("alert")).to_contain_text("no job")
    eventually(lambda: page.title().endswith("dataloader"))
    page.close()
