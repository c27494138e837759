"""Takes small pictures of where a job is and where its time went, from the demo."""

from __future__ import annotations

import base64
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

from dataloader import Client

_WIDTH, _MAX_BYTES = 1100, 80_000
_QUALITY = 0.8
_ENCODE = """
async ([png, quality]) => {
  const image = await createImageBitmap(await (await fetch('data:image/png;base64,' + png)).blob());
  const canvas = Object.assign(document.createElement('canvas'), {width: image.width, height: image.height});
  canvas.getContext('2d', {alpha: false}).drawImage(image, 0, 0);
  return canvas.toDataURL('image/webp', quality).split(',')[1];
}
"""


class Demo(Protocol):
    url: str

    @property
    def client(self) -> Client: ...

    def connect(self, **options: Any) -> Any: ...


def take_where_stills(browser: Browser, demo: Demo, folder: Path) -> None:
    """Of a job behind a lock, a load that was twice as slow as usual, and the cost of a task by day."""
    context = browser.new_context(
        viewport=ViewportSize(width=_WIDTH, height=900), color_scheme="light", reduced_motion="reduce"
    )
    page = context.new_page()
    _show_lock(page, demo)
    _write(browser, page.locator("#where"), folder / "where-lock.webp")

    runs = demo.client.jobs(task="load.orders", status="succeeded", limit=10)
    slow = max(runs, key=lambda run: run["duration_ms"] or 0)
    page.goto(f"{demo.url}/jobs/{slow['job_id']}/account")
    expect(page.locator("#account-now")).to_contain_text("slower than usual")
    _write(browser, page.locator("main"), folder / "slow-load.webp")

    page.goto(f"{demo.url}/charts?task=load.orders")
    _write(browser, page.locator("section", has_text="Cost by task and day").last, folder / "cost-by-day.webp")
    context.close()


def _show_lock(page: Page, demo: Demo) -> None:
    """Open the part of a job whose statement waits for a session that has the table locked."""
    job_id = demo.client.trigger("build.margins", {"articles": 400_000}, lock_key="margins:picture")["job_id"]
    with closing(demo.connect(application_name="psql")) as connection:
        connection.cursor().execute("SET lock_timeout = '60s'; LOCK TABLE mart.margins IN SHARE MODE")
        page.goto(f"{demo.url}/jobs/{job_id}")
        page.get_by_text("Where it is now").click()
        expect(page.locator("#where")).to_contain_text("for a lock on mart.margins", timeout=120_000)
        page.wait_for_timeout(3000)


def _write(browser: Browser, part: Locator, file: Path) -> None:
    """As WebP."""
    part.scroll_into_view_if_needed()
    png = base64.b64encode(part.screenshot(timeout=60_000)).decode()
    encoder = browser.new_page()
    data = base64.b64decode(encoder.evaluate(_ENCODE, [png, _QUALITY]))
    encoder.close()
    if len(data) > _MAX_BYTES:
        raise ValueError(f"{file.name} has {len(data)} bytes, more than {_MAX_BYTES}")
    file.write_bytes(data)
