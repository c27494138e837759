"""What an operator finds out and changes, each with its number of clicks; the rest is in `test_operator_tasks.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from dataloader import Client
from dataloader.app.db.pool import Pool
from dataloader.app.http.auth.api_keys import ApiKeys, NewApiKey, Scope
from tests.browser.conftest import ObservedPage
from tests.browser.test_operator_tasks import Operator
from tests.support import Databases, Process, eventually
from tests.support.databases import execute_sql
from tests.support.real_service import RunningService, ServiceStarter

pytestmark = pytest.mark.browser

OpenPage = Callable[..., ObservedPage]
FAILED = """
INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, max_attempts, run_id, created_at, started_at, finished_at,
                     error, error_fingerprint)
SELECT 'night', 'load.night', 'night ' || n, 'failed', 1, 1, gen_random_uuid(), at, at, at,
       CASE WHEN n <= 37 THEN 'timed out' ELSE 'no such column' END, CASE WHEN n <= 37 THEN 'Timeout' ELSE 'Column' END
  FROM generate_series(1, 40) n CROSS JOIN LATERAL (SELECT now() - interval '8 h' - n * interval '1 s' AS at) times
"""
WORKERS = """
INSERT INTO dl_workers (worker_id, name, version, queues, tasks, threads, heartbeat_sec, seen_at)
VALUES (gen_random_uuid(), 'stuck-1:7', '1', '{elsewhere}', '{other}', 1, 10, now() - interval '1 h'),
       (gen_random_uuid(), 'full-1:1', '1', '{elsewhere}', '{other}', 1, 600, now()),
       (gen_random_uuid(), 'full-1:2', '1', '{elsewhere}', '{other}', 1, 600, now())
"""


@pytest.fixture
def client(service: RunningService) -> Client:
    return Client(f"http://127.0.0.1:{service.port}")


@pytest.fixture
def failures_of_a_night(service: RunningService, service_dsn: str) -> Iterator[None]:
    execute_sql(service_dsn, FAILED)
    yield
    execute_sql(service_dsn, "DELETE FROM dl_jobs WHERE queue = 'night'")


@pytest.fixture
def workers(service: RunningService, service_dsn: str) -> Iterator[None]:
    """One without a heartbeat, and a host with two processes."""
    execute_sql(service_dsn, WORKERS)
    yield
    execute_sql(service_dsn, "DELETE FROM dl_workers WHERE name LIKE 'stuck-1:%' OR name LIKE 'full-1:%'")


@pytest.fixture
def limited_jobs(client: Client) -> Iterator[list[str]]:
    """Two jobs of a closed limit."""
    client.request("PUT", "/api/v1/limits/bank", body={"concurrency": 0}, repeatable=True)
    made = [client.trigger("noop", queue="q", lock_key=f"bank-{n}", limits={"bank": 1})["job_id"] for n in range(2)]
    yield made
    for job_id in made:
        client.cancel(job_id)
    client.request("DELETE", "/api/v1/limits/bank", repeatable=True)


@pytest.fixture
def held_limit(client: Client, tmp_path: Path) -> Iterator[str]:
    """A limit of one that a running job holds, for which another one waits. The id of the one that runs."""
    client.request("PUT", "/api/v1/limits/partner-api", body={"concurrency": 1}, repeatable=True)
    args = {"file": str(tmp_path / "end"), "trace": str(tmp_path / "trace")}
    made = [
        client.trigger("test.until", args, queue="q", lock_key=f"{name} the api", limits={"partner-api": 1})["job_id"]
        for name in ("holds", "wants")
    ]
    eventually(lambda: "running" in {client.job(job_id)["status"] for job_id in made}, 20)
    (holder,) = (job_id for job_id in made if client.job(job_id)["status"] == "running")
    yield holder
    (tmp_path / "end").touch()
    for job_id in made:
        client.wait(job_id)
    client.request("DELETE", "/api/v1/limits/partner-api", repeatable=True)


def search(operator: Operator, text: str) -> None:
    operator.page.keyboard.press("/")
    operator.page.keyboard.type(text)
    operator.page.keyboard.press("Enter")


@pytest.mark.usefixtures("limited_jobs")
def test_why_a_job_waits_takes_no_click(seen: OpenPage):
    operator = Operator(seen().go("/"))
    search(operator, "bank-0")

    expect(operator.page.locator("table.data tbody tr")).to_contain_text("waits for limit bank")
    assert operator.clicks == 0


@pytest.mark.usefixtures("limited_jobs")
def test_limit_with_its_waiting_jobs_takes_one_click(seen: OpenPage):
    operator = Operator(seen().go("/"))
    operator.open("Limits")

    row = operator.page.locator("#limit-bank")
    expect(row).to_contain_text("0 of 0")
    expect(row.locator("[data-l=Waiting]")).to_contain_text("2")
    expect(row.locator("[data-l='Held by']")).to_contain_text("nothing")
    assert operator.clicks == 1


def test_job_that_holds_a_limit_is_named_without_a_click(seen: OpenPage, held_limit: str):
    operator = Operator(seen().go("/"))
    search(operator, "partner-api")

    row = operator.page.locator("#limit-partner-api")
    expect(row).to_contain_text("1 of 1")
    expect(row.locator("[data-l=Waiting]")).to_contain_text("1")
    holder = row.locator("[data-l='Held by']").get_by_role("link").first
    expect(holder).to_have_attribute("href", f"/jobs/{held_limit}")
    assert operator.clicks == 0
    operator.click(holder)
    expect(operator.page.locator("h1")).to_contain_text("test.until")
    assert operator.clicks == 1


def test_waiting_job_names_the_holder_of_its_limit(seen: OpenPage, client: Client, held_limit: str):
    (waiting,) = client.jobs(status="queued", task="test.until", limit=5)
    page = seen().go(f"/jobs/{waiting['job_id']}")

    note = page.locator(".note.limited")
    expect(note).to_contain_text("partner-api")
    expect(note.locator(f"a[href='/jobs/{held_limit}']")).to_be_visible()


def test_job_that_updated_a_dataset_is_named_without_a_click(seen: OpenPage, client: Client):
    operator = Operator(seen().go("/"))
    search(operator, "warehouse.sales")

    last = client.request("GET", "/api/v1/datasets/warehouse.sales")["updates"][0]
    line = operator.page.locator("#last-update")
    expect(line).to_contain_text(re.compile(r"by job \S+ of test\.measure, 2\D000 rows, slice 2030-01-31"))
    expect(line.get_by_role("link").first).to_have_attribute("href", f"/jobs/{last['job_id']}")
    assert operator.clicks == 0
    operator.click(line.get_by_role("link").first)
    expect(operator.page.locator("h1")).to_contain_text("test.measure")
    assert operator.clicks == 1


@pytest.mark.usefixtures("limited_jobs")
def test_limit_is_raised_and_the_change_undone_in_four_clicks(seen: OpenPage, client: Client):
    client.request("PUT", "/api/v1/limits/ops", body={"concurrency": 3}, repeatable=True)
    operator = Operator(seen().go("/"))
    operator.open("Limits")
    row = operator.page.locator("#limit-ops")
    operator.click(row.get_by_role("link", name="Change…"))
    operator.page.get_by_label("Jobs at a time").fill("5")
    operator.click(operator.page.get_by_role("button", name="Save"))
    expect(row).to_contain_text("0 of 5")
    operator.click(operator.page.locator("#done").get_by_role("button", name="Undo"))

    expect(row).to_contain_text("0 of 3")
    assert operator.clicks == 4
    client.request("DELETE", "/api/v1/limits/ops", repeatable=True)


@pytest.mark.usefixtures("failures_of_a_night")
def test_failures_of_a_cause_are_retried_in_five_clicks(seen: OpenPage, client: Client):
    operator = Operator(seen().go("/"))
    operator.open("Failures")
    row = operator.page.get_by_role("row").filter(has_text="timed out")
    operator.click(row.get_by_role("link", name="37", exact=True))
    operator.click(operator.page.get_by_label("all 37 matching"))
    operator.click(operator.page.get_by_role("button", name="Retry…"))
    operator.click(operator.page.get_by_role("button", name="Retry 37 jobs"))

    expect(operator.page.get_by_text("37 jobs matched (37 expected)")).to_be_visible()
    eventually(lambda: len(client.jobs(queue="night", status="queued", limit=50)) == 37, 20)
    assert operator.clicks == 5


def test_task_is_paused_and_resumed_in_five_clicks(seen: OpenPage):
    operator = Operator(seen().go("/"))
    operator.open("Tasks")
    operator.click(operator.page.get_by_role("link", name="test.until", exact=True))
    operator.click(operator.page.get_by_text("Pause task…"))
    operator.click(operator.page.get_by_role("button", name="Pause task", exact=True))
    expect(operator.page.locator(".note.paused")).to_be_visible()
    operator.click(operator.page.get_by_role("button", name="Resume task"))

    expect(operator.page.locator(".note.paused")).to_have_count(0)
    assert operator.clicks == 5


def test_what_runs_at_six_takes_one_click(seen: OpenPage, client: Client):
    body = {"expression": "0 6 * * *", "task": "noop", "queue": "unserved"}
    client.request("PUT", "/api/v1/schedules/at-six", body=body, repeatable=True)
    operator = Operator(seen().go("/"))
    operator.open("Schedules")

    expect(operator.page.get_by_role("row").filter(has_text="at-six")).to_contain_text(re.compile("0?6:00"))
    assert operator.clicks == 1
    client.request("DELETE", "/api/v1/schedules/at-six", repeatable=True)


def test_slice_of_a_dataset_its_rows_and_its_job_take_three_clicks(seen: OpenPage):
    operator = Operator(seen().go("/"))
    operator.open("Datasets")
    operator.click(operator.page.get_by_role("link", name="warehouse.sales"))
    row = operator.page.get_by_role("row").filter(has_text="2030-01-31").filter(has_text=re.compile(r"2\D000")).first
    expect(row).to_be_visible()
    operator.click(row.locator("a[href^='/jobs/']").first)

    expect(operator.page.locator("h1")).to_contain_text("test.measure")
    assert operator.clicks == 3


def test_log_line_is_found_in_two_clicks_and_opened_in_three(seen: OpenPage):
    operator = Operator(seen().go("/"))
    operator.open("Logs")
    operator.page.get_by_label("Text").fill("READING the first")
    operator.click(operator.page.get_by_role("button", name="Search"))
    row = operator.page.get_by_role("table", name="Log lines").get_by_role("row").filter(has_text="test.tell").first
    expect(row).to_contain_text("reading the first page")
    operator.click(row.get_by_role("link").first)

    expect(operator.page.locator("#log")).to_contain_text("reading the first page")
    assert operator.clicks == 3


def test_week_is_compared_with_the_one_before_by_one_click(seen: OpenPage):
    operator = Operator(seen().go("/"))
    operator.open("Compare")
    table = operator.page.get_by_role("table", name="All tasks")

    def is_shown() -> bool:
        operator.page.reload()  # statistics are some seconds late
        return table.count() > 0

    eventually(is_shown, 60)
    expect(table.get_by_role("row").filter(has_text="Failed")).to_be_visible()
    assert operator.clicks == 1


@pytest.mark.usefixtures("workers")
def test_stuck_worker_is_first_after_one_click(seen: OpenPage):
    operator = Operator(seen().go("/"))
    operator.open("Workers")

    row = operator.page.get_by_role("table", name="Workers").get_by_role("row").nth(1)
    expect(row).to_contain_text("stuck-1:7")
    expect(row).to_contain_text("no heartbeat")
    assert operator.clicks == 1


@pytest.mark.usefixtures("workers")
def test_host_is_drained_in_two_clicks(seen: OpenPage):
    operator = Operator(seen().go("/"))
    operator.open("Workers")
    row = operator.page.locator("#host-full-1")
    operator.click(row.get_by_role("button", name="Drain the host full-1"))

    expect(row).to_contain_text("2 drained")
    assert operator.clicks == 2


def test_api_key_is_rotated_in_three_clicks(browser: Browser, databases: Databases, start: Callable[..., Process]):
    with databases.fresh(schema=True) as dsn:
        pool = Pool(dsn)
        _, token = ApiKeys(pool).create(NewApiKey(name="Anna", scopes=frozenset({Scope.ADMIN}), created_by="test"))
        pool.close()
        service = ServiceStarter(start, dsn)("serve").wait_until_ready()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{service.port}/")
        page.get_by_label("API key").fill(token)
        page.get_by_role("button", name="Log in").click()
        operator = Operator(page)
        operator.open("API keys")
        operator.click(page.locator("summary", has_text="Rotate"))
        operator.click(page.get_by_role("button", name="Rotate Anna"))

        expect(page.locator("#secret")).to_contain_text("dlk_")
        expect(page.locator("main")).to_contain_text("The key before it")
        assert operator.clicks == 3
        page.close()
        service.process.kill()


def test_job_is_canceled_on_a_phone_in_three_clicks(seen: OpenPage, client: Client):
    job_id = client.trigger("noop", queue="unserved", lock_key="phone")["job_id"]
    operator = Operator(seen(size="phone").go("/"))
    operator.click(operator.page.get_by_role("button", name="Menu"))
    operator.open("Jobs")
    row = operator.page.locator(f"#job-{job_id}")
    operator.click(row.get_by_role("button", name="Cancel"))

    expect(row.get_by_text("canceled", exact=True)).to_be_visible()
    assert operator.clicks == 3


def test_page_is_opened_by_keyboard_alone(seen: OpenPage):
    operator = Operator(seen().go("/"))
    operator.page.keyboard.press("Control+k")
    operator.page.keyboard.type("limits")
    operator.page.keyboard.press("Enter")

    expect(operator.page.locator("h1")).to_have_text("Limits")
    assert operator.clicks == 0


def test_dark_page_is_dark_without_a_click(seen: OpenPage):
    page = seen(dark=True).go("/")

    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", color)[:3])) < 150


def test_job_is_canceled_and_retried_without_scripts_in_three_clicks(seen: OpenPage, client: Client):
    job_id = client.trigger("noop", queue="unserved", lock_key="no scripts")["job_id"]
    operator = Operator(seen(scripts=False).go("/"))
    operator.open("Jobs")
    row = operator.page.locator(f"#job-{job_id}")
    operator.click(row.get_by_role("button", name="Cancel"))
    expect(row).to_contain_text("canceled")
    operator.click(row.get_by_role("button", name="Retry"))

    expect(row).to_contain_text("ready")
    assert operator.clicks == 3


def test_waiting_job_is_edited_in_three_clicks(seen: OpenPage, client: Client):
    client.trigger("noop", {"day": "2026-11-21"}, queue="unserved", lock_key="to edit")
    operator = Operator(seen().go("/"))
    search(operator, "to edit")
    operator.click(operator.page.locator("#matching-jobs tbody a.mono"))
    operator.click(operator.page.get_by_role("link", name="Edit…"))
    operator.page.get_by_label("Args").fill('{"day": "2026-11-22"}')
    operator.click(operator.page.get_by_role("button", name="Save"))

    expect(operator.page.get_by_role("row").filter(has_text="edited")).to_contain_text("args.day")
    assert operator.clicks == 3
