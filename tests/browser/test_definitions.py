"""Tasks, schedules, calendar, backfills and datasets, clicked through in a real browser against a real service."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from dataloader import Client
from tests.browser.conftest import ObservedPage
from tests.support.real_service import RunningService

pytestmark = pytest.mark.browser

OpenPage = Callable[..., ObservedPage]
JOB = {"queue": "unserved", "task": "noop"}


@pytest.fixture
def client(service: RunningService) -> Client:
    return Client(f"http://127.0.0.1:{service.port}")


@pytest.fixture
def paused_bank(client: Client) -> Iterator[None]:
    """The queue of the task with slices is paused: its task asks a bank."""
    body = {"queue": "etl.default"}
    client.request("PATCH", "/api/v1/queues", body=body | {"state": "paused"}, repeatable=True)
    yield
    client.request("PATCH", "/api/v1/queues", body=body | {"state": "open"}, repeatable=True)


def field(scope: Page | Locator, name: str) -> Locator:
    """The field of a form by its name: labels hold hints too."""
    return scope.locator(f'[name="{name}"]:not([type="hidden"])')


def open_menu(page: Page, label: str) -> None:
    page.locator("summary", has_text=label).click()


@pytest.mark.smoke
def test_task_form_is_made_from_args_schema(seen: OpenPage):
    page = seen().go("/tasks")
    page.locator("[data-filters]").fill("rates")
    expect(page.get_by_role("link", name="test.nap")).to_be_hidden()
    page.get_by_role("rowheader").get_by_role("link", name="load.cbr.rates", exact=True).click()
    form = page.locator("#start")

    field(form, "arg_date").fill("2024-01-31")
    field(form, "arg_currencies").fill("USD\nEUR")
    field(form, "queue").fill("nobody")
    field(form, "lock_key").fill("rates")
    form.get_by_text("Not before, priority").click()
    field(form, "after").fill("nonsense")
    form.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert")).to_contain_text("After")
    expect(field(form, "after")).to_have_attribute("aria-invalid", "true")
    expect(field(form, "arg_currencies")).to_have_value("USD\nEUR")

    field(form, "after").fill("")
    field(form, "available_at").fill("2040-01-31T06:00")
    form.get_by_role("button", name="Start").click()
    expect(page.locator("h1")).to_contain_text("load.cbr.rates")
    expect(page.locator("main")).to_contain_text("2024-01-31")
    job_id = page.url.rpartition("/")[2]

    page.goto(page.url.replace(f"/jobs/{job_id}", f"/tasks/load.cbr.rates?from={job_id}#start"))
    expect(field(form, "arg_date")).to_have_value("2024-01-31")
    expect(field(form, "lock_key")).to_have_value("rates")


def test_task_page_shows_runs_and_pauses_the_task(seen: OpenPage):
    page = seen().go("/tasks")
    row = page.get_by_role("row").filter(has_text="test.nap")
    expect(row.locator(".cells a.succeeded")).to_have_count(12)
    row.get_by_role("link", name="test.nap").click()

    expect(page.get_by_role("group", name=re.compile("^Duration of the last 12 runs"))).to_be_visible()
    open_menu(page, "Pause task…")
    field(page, "reason").fill("the source moves")
    page.get_by_role("button", name="Pause task", exact=True).click()
    expect(page.locator(".note.paused")).to_contain_text("the source moves")
    page.get_by_role("button", name="Resume task").click()
    expect(page.locator(".note.paused")).to_have_count(0)
    page.get_by_role("list", name="Last runs, oldest first").get_by_role("link").first.click()
    expect(page.locator("h1")).to_contain_text("test.nap")


def test_history_of_a_check_is_drawn_and_links_its_jobs(seen: OpenPage):
    page = seen().go("/jobs?warnings=true")

    page.get_by_role("link", name="1 warning").click()
    expect(page.locator("#checks")).to_contain_text("2000 is outside its limits")
    expect(page.get_by_role("link", name="report")).to_have_attribute("href", "https://reports.example.com/sales")
    page.get_by_role("link", name="History of the task's checks").click()
    expect(page.locator("#check-1 canvas")).to_be_visible()
    page.get_by_text("Results: rows").click()
    expect(page.get_by_role("table", name="Results: rows").get_by_role("row")).to_have_count(6)


def test_schedule_is_previewed_created_changed_run_and_deleted(seen: OpenPage):
    page = seen().go("/schedules#create")
    form = page.locator("#create")
    field(form, "name").fill("by hand")
    field(form, "task").fill("noop")
    field(form, "expression").fill("30 2 * * *")
    field(form, "zone").fill("Europe/Berlin")
    form.get_by_text("Queue, keys, priority").click()
    field(form, "queue").fill("unserved")
    field(form, "preview_from").fill("2027-03-27T00:00")
    form.get_by_role("button", name="Preview 10").click()
    expect(page.locator("#preview")).to_contain_text("moved this time does not exist")
    form.get_by_role("button", name="Create").click()

    expect(page.locator("h1")).to_have_text("by hand")
    field(page.locator("#edit"), "expression").fill("61 * * * *")
    page.get_by_role("button", name="Save").click()
    expect(field(page.locator("#edit"), "expression")).to_have_attribute("aria-invalid", "true")
    field(page.locator("#edit"), "expression").fill("0 7 * * *")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".head")).to_contain_text("At 07:00 every day")

    open_menu(page, "Pause…")
    field(page, "reason").fill("moving")
    page.get_by_role("button", name="Pause", exact=True).last.click()
    expect(page.locator(".head")).to_contain_text("moving")
    open_menu(page, "Resume…")
    page.get_by_role("button", name="Resume and catch up").click()
    open_menu(page, "Run…")
    field(page, "at").fill("2026-01-31T06:00")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("h1")).to_contain_text("noop")

    page.goto(page.url.partition("/jobs/")[0] + "/schedules/by%20hand")
    expect(page.locator(".cells .ready")).to_have_count(1)
    open_menu(page, "Delete…")
    page.get_by_label("delete it with its firings").check()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("h1")).to_have_text("Schedules")
    expect(page.get_by_role("link", name="by hand")).to_have_count(0)


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_calendar_leads_from_a_month_to_a_day(size: str, seen: OpenPage, client: Client):
    client.request("PUT", "/api/v1/schedules/hourly", body={"expression": "0 * * * *"} | JOB, repeatable=True)
    page = seen(size=size).go("/calendar?month=2040-02&schedule=hourly")

    expect(page.locator(".cal a.st")).to_have_count(29)
    page.locator(".cal a.st").first.click()
    expect(page.locator("h1")).to_contain_text("1 February 2040")
    expect(page.locator("table").get_by_text("planned", exact=True)).to_have_count(24)
    page.get_by_role("link", name="Next day →").click()
    expect(page.locator("h1")).to_contain_text("2 February 2040")
    client.request("DELETE", "/api/v1/schedules/hourly", repeatable=True)


@pytest.mark.usefixtures("paused_bank")
def test_backfill_is_previewed_created_changed_and_canceled(seen: OpenPage):
    page = seen().go("/backfills?task=load.cbr.rates#create")
    form = page.locator("#create")
    field(form, "first").fill("2026-01-01")
    field(form, "last").fill("2026-01-09")
    form.get_by_role("button", name="Preview").click()
    expect(page.locator("#plan")).to_contain_text("9 to load of 9")
    form.get_by_role("button", name="Create").click()

    expect(page.locator("h1")).to_contain_text("2026-01-01 to 2026-01-09")
    expect(page.get_by_role("link", name="2026-01-01: queued")).to_be_visible()
    field(page.locator("#change"), "concurrency").fill("5")
    page.get_by_role("button", name="Change").click()
    expect(page.locator(".stats")).to_contain_text("0 of 5")
    expect(page.get_by_text("Your input was kept")).to_have_count(0)  # it was submitted
    page.get_by_role("button", name="Pause", exact=True).last.click()
    page.get_by_role("button", name="Resume", exact=True).last.click()
    open_menu(page, "Cancel…")
    page.get_by_role("button", name="Cancel the backfill").click()
    expect(page.get_by_role("link", name="2026-01-01: canceled")).to_be_visible()
    page.get_by_role("button", name="Retry 9 unsuccessful").click()
    expect(page.locator(".head .st").first).to_have_text("open")
    open_menu(page, "Cancel…")
    page.get_by_role("button", name="Cancel the backfill").click()


@pytest.mark.usefixtures("paused_bank")
def test_slices_are_marked_by_mouse_and_keys_and_run(seen: OpenPage):
    page = seen().go("/slices/load.cbr.rates")
    chosen = field(page, "slices")

    page.locator('[data-key="2026-02-01"]').click(modifiers=["ControlOrMeta"])
    page.locator('[data-key="2026-02-04"]').click(modifiers=["Shift"])
    expect(chosen).to_have_value("2026-02-01..2026-02-04")
    page.locator('[data-key="2026-02-04"]').click(modifiers=["ControlOrMeta"])
    page.locator('[data-key="2026-02-04"]').focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press(" ")
    page.keyboard.press("Shift+ArrowRight")
    expect(chosen).to_have_value("2026-02-01..2026-02-03, 2026-03-04..2026-03-05")
    page.get_by_role("button", name="Mark by click").click()
    page.locator('[data-key="2026-03-05"]').click()
    page.locator('[data-key="2026-03-05"]').click()
    expect(page.get_by_text("5 marked")).to_be_visible()
    page.get_by_role("button", name="Run", exact=True).click()

    expect(page.locator("table.grid .cell")).to_have_count(5)
    expect(page.get_by_role("link", name="2026-02-01: queued")).to_be_visible()
    open_menu(page, "Cancel…")
    page.get_by_role("button", name="Cancel the backfill").click()
    expect(page.get_by_role("link", name="2026-02-01: canceled")).to_be_visible()


@pytest.mark.usefixtures("paused_bank")
def test_definitions_are_changed_without_scripts(seen: OpenPage):
    window = seen(size="phone", scripts=False)
    page = window.go("/slices/load.cbr.rates")
    field(page, "slices").fill("2026-02-30")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("2026-02-30")
    expect(field(page, "slices")).to_have_value("2026-02-30")

    page = window.go("/tasks/noop")
    field(page, "queue").fill("unserved")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("h1")).to_contain_text("noop")


def test_dataset_leads_to_a_schedule_by_its_updates(seen: OpenPage):
    page = seen().go("/datasets")
    page.get_by_role("link", name="warehouse.sales").click()

    expect(page.get_by_role("heading", name="Last updates")).to_be_visible()
    page.get_by_role("link", name="Schedule by its updates…").click()
    expect(field(page, "kind")).to_have_value("dataset")
    expect(field(page, "after")).to_have_value("warehouse.sales")


@pytest.mark.parametrize("scripts", [True, False])
def test_forms_show_the_fields_of_their_kind(seen: OpenPage, scripts: bool):
    page = seen(scripts=scripts).go("/alerts")
    form = page.locator("#new form")
    expect(field(form, "min_runs")).to_be_visible()
    expect(field(form, "dataset")).to_be_hidden()
    field(form, "kind").select_option("stale_dataset")
    expect(field(form, "dataset")).to_be_visible()
    expect(field(form, "min_runs")).to_be_hidden()

    page.goto(page.url.replace("/alerts", "/schedules"))
    form = page.locator("#create form")
    expect(field(form, "after")).to_be_hidden()
    field(form, "kind").select_option("dataset")
    expect(field(form, "after")).to_be_visible()
    expect(field(form, "expression")).to_be_hidden()


def test_refused_field_of_another_kind_is_shown(seen: OpenPage):
    page = seen().go("/alerts")
    form = page.locator("#new form")
    field(form, "name").fill("wrong")
    field(form, "threshold").fill("15m")
    field(form, "kind").select_option("stale_dataset")
    field(form, "dataset").fill("warehouse.sales")
    field(form, "kind").select_option("stalled")
    form.get_by_role("button", name="Create").click()

    expect(field(page.locator("#new form"), "dataset")).to_be_visible()
