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
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, ViewportSize, sync_playwright

from app.client import Client, JobLogLine
from app.client import Request as Wanted
from app.queue.job import Status
from app.queue.schema import migrate
from tests.support import Databases, Process, eventually
from tests.support.running import Jobs, Runner, Running

AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text(encoding="utf-8")
SHOTS = Path(os.environ.get("DL_TEST_SCREENSHOTS", "test-results/screenshots"))
COLOURS = ["color-contrast", "link-in-text-block"]  # the rules that look at colours
SIZES = {"desktop": ViewportSize(width=1280, height=900), "phone": ViewportSize(width=360, height=740)}


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
    with sync_playwright() as playwright:
        # As root, in a container, Chromium cannot make its own sandbox.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        with playwright.chromium.launch(executable_path=executable, args=arguments) as opened:
            yield opened
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


@dataclass
class Seen:
    """A page, and what it did that no page of ours may do."""

    page: Page
    service: Running
    faults: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.service.port}"

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def watch(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console: {message.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:")):
            self.faults.append(f"asked another host: {request.url}")

    def dress(self, scheme: Literal["light", "dark"]) -> None:
        """Another set of colours for the page as it stands, at once: nothing fades."""
        self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")

    def flaws(self, of: Literal["everything", "colours"] = "everything") -> list[str]:
        """What axe finds, in a line each. A page that has only changed its colours is asked for those alone."""
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if of == "colours":
            options["runOnly"] = COLOURS
        # Playwright's own world is not under the page's policy.
        if not self.page.evaluate("'axe' in globalThis"):
            self.page.evaluate(AXE)
        found = self.page.evaluate("options => axe.run(document, options)", options)
        flaws = [(flaw, node) for flaw in found["violations"] for node in flaw["nodes"]]
        return [f"{flaw['id']}: {flaw['help']} at {node['target']}" for flaw, node in flaws]

    def keep(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


@pytest.fixture(scope="session")
def service(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One with jobs in every status; two go on until the end."""
    folder = tmp_path_factory.mktemp("service")
    with databases.fresh() as dsn:
        migrate(dsn)
        started: list[Process] = []

        def start(*args: str, env: Any = None) -> Process:
            started.append(Process.dataloader(*args, output=folder / "service.log", env=env))
            return started[-1]

        try:
            running = Runner(start, dsn)("serve", DL_PIPELINES="pipelines,tests.support.etl").until_ready()
            fill(running, Jobs(dsn, folder))
            yield running
        finally:
            for process in started:
                process.kill()


def fill(running: Running, jobs: Jobs) -> None:
    client = Client(f"http://127.0.0.1:{running.port}")
    jobs.insert("test.nap", 12, seconds=0.01)
    for n in range(2):
        client.trigger(
            Wanted(queue="q", task="test.secret", lock_key=f"bad-{n}", max_attempts=1, args={"password": "hidden"})
        )
    jobs.insert("test.tell", 2)
    canceled = client.trigger(Wanted(queue="nobody", task="noop", lock_key="x"))
    client.cancel(canceled.job_id)
    client.trigger(Wanted(queue="nobody", task="noop", lock_key="y"))
    jobs.until({"succeeded": 12, "failed": 2, "running": 2, "canceled": 1, "queued": 1}, 40)
    eventually(lambda: any(line.line.startswith("reading") for line in told(client)), 20)
    eventually(lambda: running.get("/status")[0] == 200, 20)


def told(client: Client) -> list[JobLogLine]:
    (first, *_) = client.jobs(status=Status.RUNNING, limit=5)
    return client.logs(first.job_id).lines


@pytest.fixture
def seen(browser: Browser, service: Running) -> Iterator[Callable[..., Seen]]:
    """Open a browser's window: `seen(size="phone", dark=True).go("/jobs")`. Whatever faults it has fail the test."""
    opened: list[Seen] = []

    def opening(*, size: str = "desktop", dark: bool = False, scripts: bool = True) -> Seen:
        context = browser.new_context(
            viewport=SIZES[size], color_scheme="dark" if dark else "light", java_script_enabled=scripts
        )
        window = Seen(context.new_page(), service)
        window.page.set_default_timeout(20_000)
        window.watch()
        opened.append(window)
        return window

    yield opening
    for window in opened:
        window.page.context.close()
    assert [fault for window in opened for fault in window.faults] == []
