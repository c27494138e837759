"""Takes the pictures of README and docs from `dataloader demo`, in Chromium: `make pictures` renews docs/images.

python -m docs.pictures [FOLDER]
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from dataloader import Client
from docs.film import Film, encode, open_film
from docs.stills import take_where_stills

IMAGES = Path(__file__).resolve().parent / "images"
FILM = "demo.webp"
_MAX_FILM_BYTES = 2_000_000
_START_SEC, _WAIT_SEC = 120.0, 90.0
_LONG_TASK = "build.margins"
_ARTICLES = 3_200_000
_YOUNG_SEC = 1.0


@dataclass
class Demo:
    url: str
    folder: Path  # of its temporary files
    output: Path

    @property
    def client(self) -> Client:
        return Client(self.url)

    def connect(self, **options: Any) -> Any:
        """A connection to its database."""
        (sockets,) = self.folder.glob("dataloader-demo-*/data/postgres/run")
        return psycopg2.connect(host=str(sockets), user="dataloader", dbname="postgres", **options)

    def session(self, pid: int) -> tuple[str, float] | None:
        """State of a session of the server, and seconds in it; None: there is none."""
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(
                "SELECT state, extract(epoch FROM clock_timestamp() - query_start)"
                " FROM pg_stat_activity WHERE pid = %s",
                (pid,),
            )
            row = cursor.fetchone()
        return (str(row[0]), float(row[1])) if row else None


@contextmanager
def running_demo() -> Iterator[Demo]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="dl-pictures-"))
    folder.chmod(0o755)  # of root, too: its server runs as another account
    demo = Demo(f"http://127.0.0.1:{port}", folder, folder / "output")
    argv = [sys.executable, "-m", "dataloader", "demo", "--no-browser", "--port", str(port)]
    with demo.output.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output, env={"TMPDIR": str(folder), "LANG": "C.UTF-8"})
    try:
        _wait_for(lambda: "is ready at" in demo.output.read_text() or process.poll() is not None, _START_SEC)
        if process.poll() is not None:
            raise RuntimeError(demo.output.read_text())
        yield demo
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        shutil.rmtree(folder)


@contextmanager
def running_browser() -> Iterator[Browser]:
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]  # in a container
        with playwright.chromium.launch(executable_path=executable, args=arguments) as browser:
            yield browser


def take_pictures(browser: Browser, demo: Demo, folder: Path) -> None:
    """Write all files of docs/images into the folder."""
    expect.set_options(timeout=20_000)
    _wait_for(lambda: len(demo.client.failures()) > 1 and bool(demo.client.jobs(warnings="true", limit=1)), _WAIT_SEC)
    warned = demo.client.jobs(warnings="true", limit=1)[0]["job_id"]
    film = record_film(open_film(browser), demo)
    (folder / FILM).write_bytes(encode(browser, film.frames))
    graph = demo.client.request("GET", "/api/v1/graphs")["graphs"][0]["graph_id"]
    stills = {
        "overview-desktop-light": "/",
        "tasks-desktop-light": "/tasks",
        "warned-desktop-dark": f"/jobs/{warned}",
        "runs-desktop-light": "/runs",
        "compare-desktop-dark": "/compare",
        "graph-desktop-light": f"/graphs/{graph}",
        "overview-phone-dark": "/",
        "failures-phone-light": "/failures",
    }
    for name, path in stills.items():
        _take_still(browser, demo, path, folder / f"{name}.png")
    take_where_stills(browser, demo, folder)


def _take_still(browser: Browser, demo: Demo, path: str, file: Path) -> None:
    """A picture in the size and scheme of the file's name; a long page from its top."""
    _, size, scheme = file.stem.split("-")
    viewport = ViewportSize(width=360, height=740) if size == "phone" else ViewportSize(width=1440, height=900)
    context = browser.new_context(viewport=viewport, color_scheme="dark" if scheme == "dark" else "light")
    page = context.new_page()
    page.goto(demo.url + path)
    page.wait_for_timeout(1000)
    is_whole = size == "desktop" and path not in ("/tasks", "/compare")
    page.screenshot(path=file, full_page=is_whole, timeout=60_000)
    context.close()


def record_film(film: Film, demo: Demo) -> Film:
    """A job that is started, what it does, why a second one waits for it, its cancel, and what is left."""
    page = film.page
    film.caption = "A small company's loads, and when each will end"
    page.goto(demo.url)
    page.wait_for_timeout(500)
    film.watch(2, 1300)

    film.caption = "Start a job"
    page.goto(f"{demo.url}/tasks/{_LONG_TASK}")
    film.click(page.get_by_role("link", name="Start a job…"))
    page.get_by_label("Args").fill(f'{{"articles": {_ARTICLES}}}')
    film.click(page.locator("#start").get_by_role("button", name="Start"))
    job_id = _job_of(page)

    film.caption = "Its progress"
    expect(page.locator("#progress")).to_contain_text("left", timeout=60_000)
    film.watch(2, 1000)

    film.caption = "Where it is: the line of Python, the SQL on the server"
    film.click(page.get_by_text("Where it is now"))
    expect(page.locator("#where-now")).to_contain_text("generate_series")
    pid = int(re.findall(r"pid (\d+)", page.locator("#where-now").inner_text())[0])
    page.locator("#progress").scroll_into_view_if_needed()
    for _ in range(2):
        state, sec = demo.session(pid) or ("gone", 0.0)
        film.fact = f"pg_stat_activity: pid {pid} {state} for {sec:.1f} s"
        film.watch(1, 1400)

    film.caption, film.fact = "A second job of the same key…", ""
    page.evaluate("scrollTo(0, 0)")
    film.click(page.get_by_role("link", name="Clone…"))
    film.click(page.get_by_role("button", name="Create job"))
    film.caption = "…waits, and says why"
    expect(page.locator("#state")).to_have_text("blocked")
    second = _job_of(page)
    film.watch(2, 1500)

    film.caption = "Cancel the first"
    film.click(page.get_by_role("main").get_by_role("link", name=re.compile(f"^{job_id[:4]}…")))
    _wait_for(lambda: (demo.session(pid) or ("", 9.0))[1] < _YOUNG_SEC, _WAIT_SEC)  # its statement has long to go
    return _finish(film, demo, pid, second, film.click(page.get_by_role("button", name="Cancel")))


def _finish(film: Film, demo: Demo, pid: int, second: str, canceled_at: float) -> Film:
    _wait_for(lambda: demo.session(pid) is None, _WAIT_SEC)
    film.caption = f"Canceled, and its SQL is gone after {time.monotonic() - canceled_at:.1f} s"
    film.fact = f"pg_stat_activity: no pid {pid}"
    expect(film.page.locator("#state")).to_have_text("canceled")
    film.watch(2, 1500)

    film.caption, film.fact = "The second has started by itself", ""
    film.page.goto(f"{demo.url}/jobs/{second}")
    expect(film.page.locator("#state")).to_have_text("running")
    expect(film.page.locator("#progress")).to_contain_text("left", timeout=60_000)
    film.watch(2, 1200)
    film.take(2000)
    return film


def _job_of(page: Page) -> str:
    page.wait_for_url(re.compile(r"/jobs/[0-9a-f-]{36}$"))
    return page.url.rpartition("/")[2]


def _wait_for(condition: Callable[[], Any], timeout_sec: float) -> None:
    deadline = time.monotonic() + timeout_sec
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the demo is not as it should be")
        time.sleep(0.05)


def main(folder: Path = IMAGES) -> None:
    with running_demo() as demo, running_browser() as browser:
        take_pictures(browser, demo, folder)
    if (size := (folder / FILM).stat().st_size) > _MAX_FILM_BYTES:
        sys.exit(f"{FILM} has {size} bytes, more than {_MAX_FILM_BYTES}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
