"""A service with something to see, and a real browser to see it with."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, ViewportSize, expect, sync_playwright

from dataloader import Client
from dataloader.app.db.schema import migrate
from dataloader.app.queue.job import Status
from tests.support import Databases, Process, eventually
from tests.support.real_service import RunningService, ServiceJobs, ServiceStarter

AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text(encoding="utf-8")
SCREENSHOTS = Path(os.environ.get("DL_TEST_SCREENSHOTS", "test-results/screenshots"))
COLOR_RULES = ["color-contrast", "link-in-text-block"]  # the rules that look at colours
SIZES = {"desktop": ViewportSize(width=1440, height=900), "phone": ViewportSize(width=360, height=740)}


def chromium() -> str:
    """The browser. Without one a laptop skips; the check fails, for there it must be."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no Chromium: apt-get install chromium")
        pytest.skip("needs a browser: apt-get install chromium")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ended with its module: Playwright runs an event loop in this thread, and other tests run one of their own."""
    executable = chromium()
    expect.set_options(timeout=20_000)
    with sync_playwright() as playwright:
        # As root, in a container, Chromium cannot make its own sandbox.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        with playwright.chromium.launch(executable_path=executable, args=arguments) as opened:
            yield opened
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


@dataclass
class ObservedPage:
    """A page, and what it did that no page of ours may do."""

    page: Page
    service: RunningService
    problems: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.service.port}"

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def watch(self) -> None:
        self.page.on("console", self._on_console_message)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", self._on_request)

    def _on_console_message(self, message: ConsoleMessage) -> None:
        is_refusal = "status of 422" in message.text  # the page of a refused form, which the browser calls an error
        if message.type in ("error", "warning") and not is_refusal:
            self.problems.append(f"console: {message.text}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:")):
            self.problems.append(f"asked another host: {request.url}")

    def set_color_scheme(self, scheme: Literal["light", "dark"]) -> None:
        """Switch the colour scheme of the page at once, without transitions."""
        self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")

    def accessibility_problems(self, scope: Literal["everything", "colours"] = "everything") -> list[str]:
        """What axe finds, in a line each. A page that has only changed its colours is asked for those alone."""
        # Preloading puts imported style sheets into <style> elements, which the policy forbids.
        options: dict[str, Any] = {"resultTypes": ["violations"], "preload": False}
        if scope == "colours":
            options["runOnly"] = COLOR_RULES
        # Playwright's own world is not under the page's policy.
        if not self.page.evaluate("'axe' in globalThis"):
            self.page.evaluate(AXE)
        found = self.page.evaluate("options => axe.run(document, options)", options)
        flaws = [(flaw, node) for flaw in found["violations"] for node in flaw["nodes"]]
        return [f"{flaw['id']}: {flaw['help']} at {node['target']}" for flaw, node in flaws]

    def save_screenshot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True, timeout=60_000)  # ms


@pytest.fixture(scope="session")
def service_dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh() as dsn:
        migrate(dsn)
        yield dsn


@pytest.fixture(scope="session")
def service(service_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """One with jobs in every status; two go on until the end."""
    folder = tmp_path_factory.mktemp("service")
    started: list[Process] = []

    def start(*args: str, env: Any = None) -> Process:
        started.append(Process.dataloader(*args, output=folder / "service.log", env=env))
        return started[-1]

    try:
        running = ServiceStarter(start, service_dsn)(
            "serve", DL_PIPELINES="dataloader.pipelines,tests.support.etl"
        ).wait_until_ready()
        fill(running, ServiceJobs(service_dsn, folder))
        yield running
    finally:
        for process in started:
            process.kill()


def fill(running: RunningService, jobs: ServiceJobs) -> None:
    client = Client(f"http://127.0.0.1:{running.port}")
    jobs.insert("test.nap", 12, seconds=0.01)
    for n in range(2):
        client.trigger("test.secret", {"password": "hidden"}, queue="q", lock_key=f"bad-{n}", max_attempts=1)
    for rows in (10_000, 9_800, 10_250, 9_900, 2_000):
        measured = client.trigger("test.measure", {"rows": rows}, queue="q", lock_key="measure")
        client.wait(measured["job_id"])  # the last is compared with the others: jobs of one key may pass each other
    jobs.insert("test.tell", 2)
    canceled = client.trigger("noop", queue="nobody", lock_key="x")
    client.cancel(canceled["job_id"])
    client.trigger("noop", queue="nobody", lock_key="y")
    jobs.wait_for_counts({"succeeded": 17, "failed": 2, "running": 2, "canceled": 1, "queued": 1}, 40)
    eventually(lambda: any(line["line"].startswith("reading") for line in running_job_log(client)), 20)
    eventually(lambda: running.get("/status")[0] == 200, 20)


def running_job_log(client: Client) -> list[dict[str, Any]]:
    (first, *_) = client.jobs(status=Status.RUNNING, limit=5)
    lines: list[dict[str, Any]] = client.logs(first["job_id"])["lines"]
    return lines


@pytest.fixture
def seen(browser: Browser, service: RunningService) -> Iterator[Callable[..., ObservedPage]]:
    """Open a browser's window: `seen(size="phone", dark=True).go("/jobs")`. Whatever faults it has fail the test."""
    opened: list[ObservedPage] = []

    def opening(*, size: str = "desktop", dark: bool = False, scripts: bool = True) -> ObservedPage:
        context = browser.new_context(
            viewport=SIZES[size], color_scheme="dark" if dark else "light", java_script_enabled=scripts
        )
        window = ObservedPage(context.new_page(), service)
        window.page.set_default_timeout(20_000)
        window.watch()
        opened.append(window)
        return window

    yield opening
    for window in opened:
        window.page.context.close()
    assert [fault for window in opened for fault in window.problems] == []
