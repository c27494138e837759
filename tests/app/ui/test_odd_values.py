"""A row with the odd values of PostgreSQL's types, as another service may write it, breaks no page and no route."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dataloader.app.cli import text
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from tests.support.databases import execute_sql

TIME_COLUMNS = ("available_at", "expires_at", "created_at", "logical_at")
PATHS = (
    "/",
    "/jobs",
    "/jobs?status=queued",
    "/jobs/{job}",
    "/api/v1/jobs",
    "/api/v1/jobs/{job}",
    "/api/v1/jobs/{job}/why",
)


@pytest.mark.parametrize("zone", ["Etc/GMT+12", "Etc/GMT-14"])  # west of Greenwich, and east
@pytest.mark.parametrize("moment", ["infinity", "12000-06-01 00:00+00", "9999-12-31 23:59:59+00", "-infinity"])
def test_time_beyond_the_calendar_is_shown(queue, pipelines, pool, dsn, trigger, moment, zone):
    job_id = trigger()
    columns = ", ".join(f"{column} = '{moment}'" for column in TIME_COLUMNS)
    execute_sql(dsn, f"UPDATE dl_jobs SET {columns} WHERE job_id = '{job_id}'")
    options = replace(WebOptions(version="1", queues=("etl",)), timezone=zone)
    client = create_app(queue, pipelines, options, pool=pool).test_client()

    pages = {path: client.get(path.format(job=job_id)) for path in PATHS}

    assert {path: page.status_code for path, page in pages.items()} == dict.fromkeys(PATHS, 200)
    assert ("long ago" if moment.startswith("-") else "never") in pages["/jobs/{job}"].text


@pytest.mark.parametrize("progress", ["[1, 2]", '"half"', "7", "null", '{"processed": "x", "links": 5}'])
def test_progress_that_is_no_object_is_shown(client, dsn, trigger, progress):
    job_id = trigger()
    execute_sql(dsn, f"UPDATE dl_jobs SET progress = '{progress}' WHERE job_id = '{job_id}'")

    pages = {path: client.get(path.format(job=job_id)) for path in PATHS}

    assert {path: page.status_code for path, page in pages.items()} == dict.fromkeys(PATHS, 200)


@pytest.mark.parametrize("value", ["[1, 2]", '"x"', "7", "null", "true"])
def test_payload_of_events_that_is_no_object_is_shown(client, dsn, trigger, value):
    job_id = trigger()
    execute_sql(
        dsn,
        f"UPDATE dl_job_events SET payload = '{value}' WHERE job_id = '{job_id}'",
        f"INSERT INTO dl_job_events (job_id, queue, kind, payload) VALUES ('{job_id}', 'etl', 'picked', '{value}'),"
        f" ('{job_id}', 'etl', 'picked', '{{\"attempt\": \"first\", \"run_id\": \"x\"}}'),"
        f" ('{job_id}', 'etl', 'requeue', '{{\"reason\": [], \"error\": {{}}, \"pause_sec\": \"long\"}}')",
    )

    paths = (*PATHS, "/api/v1/jobs/{job}/events", "/jobs/{job}/log")
    pages = {path: client.get(path.format(job=job_id)) for path in paths}

    assert {path: page.status_code for path, page in pages.items()} == dict.fromkeys(paths, 200)


@pytest.mark.parametrize("moment", ["infinity", "-infinity"])
def test_list_has_a_job_that_ended_at_no_time(client, dsn, trigger, moment):
    job_id = trigger()
    execute_sql(
        dsn,
        f"UPDATE dl_jobs SET status = 'failed', started_at = now(), finished_at = '{moment}' WHERE job_id = '{job_id}'",
        f"INSERT INTO dl_job_events (job_id, queue, kind, payload) VALUES ('{job_id}', 'etl', 'picked', '{{}}')",
    )

    assert [client.get(path).status_code for path in ("/jobs?status=failed", "/jobs")] == [200, 200]


@pytest.mark.parametrize(
    ("progress", "shown"),
    [([1, 2], "[1, 2]"), ("half", '"half"'), (7, "7"), (None, ""), ({}, ""), ({"a": 1}, '{"a": 1}')],
)
def test_commands_show_progress_as_it_is(progress: Any, shown: str):
    assert text.format_progress(progress) == shown


def test_commands_show_times_beyond_the_calendar():
    assert text.format_time("9999-12-30T00:00:00Z") == "never"
    assert text.format_time("0001-01-02T00:00:00+00:00") == "long ago"
