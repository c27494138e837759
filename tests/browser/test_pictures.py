"""The pictures of the documentation: the dashboard with the loads of a small company. `make screenshots` keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, ViewportSize, expect

from dataloader import Client
from dataloader.app.db.schema import migrate
from dataloader.app.queue.job import Status
from tests.browser.conftest import ObservedPage
from tests.support import Databases, Process, eventually
from tests.support.processes import ROOT
from tests.support.real_service import RunningService, ServiceStarter, query_rows

pytestmark = [pytest.mark.browser, pytest.mark.full]

SERVED = '[{"queue":"etl.default","concurrency":6},{"queue":"report.default","concurrency":2}]'
# task, rows done, rows, minutes since its start
RUNNING = (
    ("load.orders", 1_840_000, 2_400_000, 47),
    ("load.web_events", 9_300_000, 31_000_000, 68),
    ("load.invoices", 61_500, 84_000, 12),
)
# task, minutes that its runs take
TYPICAL = {"load.orders": 58, "load.web_events": 205, "load.invoices": 16, "load.exchange_rates": 0.2, "load.stock": 4,
           "load.supplier_prices": 7, "report.daily_sales": 21}  # fmt: skip
STOCK_ROWS = (48_210, 47_950, 48_440, 48_105, 48_300, 21_700)
# Jobs that ended in each half hour of a day, from midnight on: the nightly loads, then those of each hour.
ENDED = [4, 3, 5, 4, 22, 31, 27, 18, 14, 12, 26, 9, 11, 8, 7, 6, 5, 6] + [4, 5] * 15


@pytest.fixture(scope="module")
def company(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("company")
    with databases.fresh() as dsn:
        migrate(dsn)
        started: list[Process] = []

        def start(*args: str, env: Any = None) -> Process:
            started.append(Process.dataloader(*args, output=folder / "service.log", env=env))
            return started[-1]

        settings = {"DL_PIPELINES": "tests.support.company", "WORKERS_JSON": SERVED, "ENVIRONMENT": "production"}
        try:
            running = ServiceStarter(start, dsn)("serve", **settings, TIMEZONE="UTC", DL_RETENTION_ENABLED="false")
            running.wait_until_ready()
            fill(Client(f"http://127.0.0.1:{running.port}"), dsn)
            yield running
        finally:
            for process in started:
                process.kill()


def fill(client: Client, dsn: str) -> None:
    yesterday = f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"
    for n, rows in enumerate(STOCK_ROWS):
        job = client.trigger("load.stock", {"day": f"2026-11-{20 + n}", "rows": rows})
        client.wait(job["job_id"])
    for n in range(2):
        job = client.trigger("load.supplier_prices", {"day": yesterday}, lock_key=f"prices-{n}", max_attempts=1)
        client.wait(job["job_id"])
    for task, done, rows, _ in RUNNING:
        client.trigger(task, {"day": yesterday, "rows": rows, "done": done})
    client.trigger("load.orders", {"day": yesterday, "rows": 1, "done": 0}, live_key="again")  # blocked by its key
    client.trigger("report.daily_sales", {"day": "2026-11-26"}, available_at=datetime.now(UTC) + timedelta(hours=2))
    eventually(lambda: len([j for j in client.jobs(status=Status.RUNNING, limit=9) if j["progress"]]) == 3, 20)
    for task, _, _, minutes in RUNNING:
        ago = f"{minutes} minutes"
        of_task = "WHERE task = %s AND status = 'running' RETURNING job_id"
        ((job_id,),) = query_rows(dsn, f"UPDATE dl_jobs SET started_at = now() - %s::interval {of_task}", ago, task)
        query_rows(dsn, "UPDATE dl_job_events SET ts = now() - %s::interval WHERE job_id = %s", ago, str(job_id))
    write_history(dsn)


def write_history(dsn: str) -> None:
    """The statistics of the day before, and eighteen earlier runs of each task."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    ends = [
        (midnight + timedelta(days=day, minutes=30 * n), measure, ended)
        for day in (-1, 0)
        for n, count in enumerate(ENDED)
        for measure, ended in (("failed", 2 * (n == 8)), ("succeeded", count - 2 * (n == 8)))
    ]
    query_rows(
        dsn,
        "INSERT INTO dl_statistics (span_sec, started_at, queue, task, measure, bucket, count)"
        " SELECT span, at, '', '', measure, 0, ended"
        " FROM unnest(%s::timestamptz[], %s::text[], %s::int[]) AS e (at, measure, ended),"
        " (VALUES (-900), (900)) AS s (span) WHERE at < now() - interval '40 minutes' ON CONFLICT DO NOTHING",
        *(list(column) for column in zip(*ends, strict=True)),
    )
    query_rows(
        dsn,
        "UPDATE dl_recent_runs SET ran_sec = CASE task WHEN 'load.stock' THEN 250 + random() * 30 ELSE 3 END;"
        " INSERT INTO dl_recent_runs (task, event_id, job_id, queue, ended_at, outcome, attempt, ran_sec)"
        " SELECT task, -n, gen_random_uuid(), 'etl.default', now() - n * interval '1 day',"
        " CASE WHEN n IN (4, 11) THEN 'retried' ELSE 'succeeded' END, 1, minutes * 60 * (0.9 + random() / 5)"
        " FROM generate_series(1, 18) n, unnest(%s::text[], %s::float8[]) AS t (task, minutes)",
        [*TYPICAL], [*map(float, TYPICAL.values())],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "path", "scheme"),
    [
        ("overview-desktop-light", "/", "light"),
        ("tasks-desktop-light", "/tasks", "light"),
        ("warned-desktop-dark", "", "dark"),
    ],
)
def test_picture_shows_the_loads_of_a_company(
    company: RunningService, browser: Browser, name: str, path: str, scheme: Any
):
    client = Client(f"http://127.0.0.1:{company.port}")
    path = path or f"/jobs/{client.jobs(warnings='true', limit=1)[0]['job_id']}"
    context = browser.new_context(viewport=ViewportSize(width=1440, height=900), color_scheme=scheme)
    window = ObservedPage(context.new_page(), company)
    window.watch()

    page = window.go(path)

    expect(page.locator("main")).to_contain_text("load.")
    text = page.locator("body").inner_text()
    window.save_screenshot(name)
    context.close()
    assert "test." not in text
    assert "nobody" not in text
    assert (ROOT / "docs/images" / f"{name}.png").exists()
    assert window.problems == []
