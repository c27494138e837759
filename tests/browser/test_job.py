"""The pages of one job and of graphs, clicked through in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import expect

from dataloader import Client
from dataloader.app.features.jobs.progress_chart import MIN_POINTS
from dataloader.app.queue.job import Status
from tests.browser.conftest import ObservedPage
from tests.support import eventually
from tests.support.real_service import RunningService

pytestmark = pytest.mark.browser

OpenPage = Callable[..., ObservedPage]


@pytest.fixture
def client(service: RunningService) -> Client:
    return Client(f"http://127.0.0.1:{service.port}")


@pytest.mark.smoke
def test_job_page_shows_log_and_cancels_and_retries(seen: OpenPage, client: Client):
    args = {"file": "/nowhere", "trace": "/dev/null"}
    made = client.trigger("test.tell", args, queue="q", lock_key="one")
    page = seen().go(f"/jobs/{made['job_id']}")
    log = page.locator("#log")
    expect(log).to_contain_text("reading the first page")

    page.locator("#search").fill("slow")
    expect(page.locator("#match-count")).to_have_text("1 matching line shown; press Enter to search the full log")
    expect(log.get_by_text("reading the first page")).to_be_hidden()
    page.locator("#search").fill("")

    page.get_by_label("Follow").uncheck()
    with page.expect_response(lambda answer: answer.url == page.url and answer.status == 200):
        pass  # the page still refreshes
    expect(page.get_by_label("Follow")).not_to_be_checked()

    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#state")).to_have_text("canceled")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("#state")).to_have_text("running")
    expect(page.locator("article.attempt")).to_have_count(2)
    expect(page.locator("#a1")).to_contain_text("canceled")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#state")).to_have_text("canceled")


def test_progress_of_a_running_job_is_drawn_with_its_rate_and_the_time_left(seen: OpenPage, client: Client):
    made = client.trigger("test.advance", {"rows": 36_000}, queue="q", lock_key="advances")
    observed = seen()
    page = observed.go(f"/jobs/{made['job_id']}")
    chart, bar = page.locator("#progress-chart"), page.locator("#progress")
    picture = chart.get_by_role("img", name="Progress over time")
    expect(picture).to_be_visible()  # once there are some points, without a reload
    expect(picture).to_have_accessible_name(
        re.compile(r"^Progress over time: \d+ of 36\D?000 rows, now \d.+ highest \d")
    )
    expect(chart.locator("figcaption")).to_contain_text(re.compile(r"\d+ of 36\D?000 rows, now \d"))
    expect(bar).to_contain_text(re.compile(r"36\D?000 rows · .+ · .+ left"))
    expect(bar.get_by_role("progressbar")).to_have_attribute("value", re.compile(r"^0\.0"))
    assert chart.locator("rect title").count() > 0, "the rate, a bar for each part of the time"

    line = chart.locator("polyline")
    expect(line).not_to_have_attribute("points", line.get_attribute("points") or "")  # it goes on
    assert observed.accessibility_problems() == []

    client.cancel(made["job_id"])
    expect(page.locator("#state")).to_have_text("canceled")
    expect(chart.locator("figcaption")).to_contain_text(", mean ")
    expect(bar).not_to_contain_text("left")


def test_progress_is_drawn_without_scripts(seen: OpenPage, client: Client):
    made = client.trigger("test.advance", {"rows": 36_000}, queue="q", lock_key="advances without")
    points = eventually(lambda: _points(client, made["job_id"]), message="some progress is saved")

    page = seen(scripts=False).go(f"/jobs/{made['job_id']}")

    expect(page.get_by_role("img", name="Progress over time")).to_be_visible()
    drawn = page.locator("#progress-chart polyline").get_attribute("points") or ""
    assert len(drawn.split()) >= len(points)
    expect(page.locator("#progress")).to_contain_text(re.compile(r"36\D?000 rows · .+ · .+ left"))
    client.cancel(made["job_id"])


def _points(client: Client, job_id: str) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = client.progress(job_id)["points"]
    return points if len(points) >= MIN_POINTS else []


def test_log_is_filtered_downloaded_and_linked(seen: OpenPage, client: Client):
    running = client.jobs(status=Status.RUNNING, limit=1)[0]
    page = seen(scripts=False).go(f"/jobs/{running['job_id']}/log")
    expect(page.locator("#log")).to_contain_text("reading the first page")

    page.get_by_label("Search").fill("SLOW")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#log tbody tr")).to_have_count(1)
    page.get_by_label("Search").fill("")
    page.get_by_label("Level").select_option("WARNING")
    page.get_by_role("button", name="Filter").click()
    lines = page.locator("#log tbody tr")
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text("slow")
    expect(lines.locator("td").nth(2)).to_have_text("warning")

    lines.get_by_role("link").click()
    expect(page.locator("#log tr:target")).to_contain_text("slow")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert "reading the first page" in download.value.path().read_text(encoding="utf-8")


def test_job_clone_with_new_args_hides_secrets(seen: OpenPage, client: Client):
    failed = client.jobs(status=Status.FAILED, limit=1)[0]
    page = seen().go(f"/jobs/{failed['job_id']}")
    expect(page.locator("main")).not_to_contain_text("hidden")
    expect(page.locator("article.attempt > details > summary")).to_have_text(re.compile("Traceback, 1 own frame of"))
    expect(page.locator("article.attempt > details > pre")).to_contain_text("fail_with_secret")

    page.get_by_role("link", name="Clone…").click()
    page.get_by_role("textbox", name="Queue").fill("nobody")
    page.get_by_role("button", name="Create job").click()

    expect(page.locator("h1")).to_contain_text("test.secret")
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.get_by_text("No live worker")).to_be_visible()
    clone = UUID(page.url.rpartition("/")[2])
    assert clone != failed["job_id"]


def test_refused_edit_keeps_input_and_marks_the_field(seen: OpenPage, client: Client):
    made = client.trigger("noop", queue="nobody", lock_key="edit")
    window = seen()
    page = window.go(f"/jobs/{made['job_id']}")

    page.get_by_role("link", name="Edit…").click()
    page.get_by_label("Priority").fill("soon")
    page.get_by_label("Args").fill("{nonsense")
    with page.expect_response(lambda response: response.request.method == "POST") as refused:
        page.get_by_role("button", name="Save").click()

    assert refused.value.status == 422
    window.problems.clear()  # the browser reports the 422
    priority = page.get_by_label("Priority")
    expect(priority).to_have_attribute("aria-invalid", "true")
    expect(priority).to_have_accessible_description("'soon' is not a whole number from 0 to 2147483647")
    expect(priority).to_have_value("soon")
    expect(page.get_by_label("Args")).to_have_value("{nonsense")
    expect(page.get_by_label("Args")).to_have_attribute("aria-invalid", "true")

    page.get_by_label("Args").fill('{"n": 3}')
    priority.fill("7")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="Details")).to_contain_text("Priority7")
    history = page.get_by_role("row").filter(has_text="edited")
    expect(history).to_contain_text("priority 100 → 7")
    expect(history).to_contain_text("args.n none → 3")


def test_scheduled_job_starts_at_once(seen: OpenPage, client: Client):
    made = client.trigger("noop", queue="q", lock_key="later", available_at=datetime(2099, 1, 1, tzinfo=UTC))
    page = seen(scripts=False).go(f"/jobs/{made['job_id']}")
    expect(page.locator("#state")).to_have_text("scheduled")

    page.get_by_role("button", name="Run now").click()

    assert client.wait(made["job_id"])["status"] == Status.SUCCEEDED
    page.reload()
    expect(page.locator("#state")).to_have_text("succeeded")
    expect(page.get_by_role("button", name="Delete job")).to_be_hidden()
    page.get_by_text("Delete…").click()
    page.get_by_role("button", name="Delete job").click()
    expect(page.locator("h1")).to_contain_text("Jobs")
    assert all(job["job_id"] != made["job_id"] for job in client.jobs(limit=50))


def test_graph_is_drawn_from_left_to_right(seen: OpenPage, client: Client):
    job = {"queue": "unserved", "task": "noop"}
    graph = client.trigger_graph([
        job | {"key": "orders", "lock_key": "orders"},
        job | {"key": "rates", "lock_key": "rates"},
        job | {"key": "mart", "lock_key": "mart", "after": [{"job": "orders"}, {"job": "rates", "on": "ended"}]},
        job | {"key": "report", "lock_key": "report", "after": [{"job": "mart", "on": "failed"}]},
    ], name="drawn")  # fmt: skip

    page = seen().go("/graphs")
    page.get_by_role("link", name="drawn").click()

    nodes = page.locator("#picture a[data-node]")
    expect(nodes).to_have_count(4)
    left = {}
    for key, job_id in graph["jobs"].items():
        box = page.locator(f'#picture a[data-node="{job_id}"]').bounding_box()
        assert box is not None
        left[key] = box["x"]
    assert left["orders"] == left["rates"] < left["mart"] < left["report"]
    expect(page.locator("#picture path.edge")).to_have_count(3)
    expect(page.locator("#picture path.on-ended")).to_have_count(1)
    expect(page.locator("#picture path.on-failed")).to_have_count(1)
    client.cancel(graph["jobs"]["orders"])
    expect(page.locator(f'#picture a[data-node="{graph["jobs"]["mart"]}"]')).to_have_class("skipped")
    page.get_by_text("Cancel…").click()
    page.get_by_role("button", name="Cancel 1 job").click()
    expect(page.locator("#state")).to_have_text("canceled")
    expect(page.get_by_role("button", name="Retry 4 jobs")).to_be_visible()
    nodes.first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("noop")


def test_large_graph_is_grouped_by_layer_and_task(seen: OpenPage, client: Client):
    job = {"queue": "unserved", "task": "noop"}
    first = [job | {"key": f"part {n}", "lock_key": f"part {n}"} for n in range(300)]
    last = job | {"key": "all", "lock_key": "all", "after": [{"job": one["key"]} for one in first]}
    graph = client.trigger_graph([*first, last], name="large")

    page = seen().go(f"/graphs/{graph['graph_id']}")

    expect(page.locator("#picture [data-node]")).to_have_count(2)
    expect(page.locator("#picture")).to_contain_text("noop × 300")
    expect(page.locator("#picture")).to_contain_text("300 ready")
    expect(page.locator("#picture path.edge")).to_have_count(1)
