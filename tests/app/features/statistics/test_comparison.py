"""Two spans of time side by side."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from dataloader.app.db.statements import parse_statements
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.statistics import comparison
from dataloader.app.features.statistics.comparison import SpanStatistics
from tests.support import eventually
from tests.support.databases import execute_sql

STATEMENTS = parse_statements(Path(comparison.__file__).with_name("rows.sql").read_text(encoding="utf-8"), "public")
END = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
HOUR = """
INSERT INTO dl_statistics (span_sec, started_at, queue, task, measure, bucket, count, total_sec)
VALUES (3600, '{at}', 'etl', '{task}', 'succeeded', 0, {succeeded}, 0),
       (3600, '{at}', 'etl', '{task}', 'failed', 0, {failed}, 0),
       (3600, '{at}', 'etl', '{task}', 'ran', {bucket}, {succeeded}, {succeeded} * 10),
       (-3600, '{at}', '', '', 'succeeded', 0, {succeeded}, 0)
    ON CONFLICT (span_sec, started_at, queue, task, measure, bucket)
    DO UPDATE SET count = dl_statistics.count + excluded.count;
"""


@pytest.fixture(autouse=True)
def two_weeks(dsn: str) -> None:
    """Of `slow` jobs take twice as long this week, of `broken` more fail, `steady` is as it was."""
    hours = [
        ("slow", 1, 10, 0, 22), ("slow", 8, 10, 0, 20), ("broken", 2, 5, 5, 20), ("broken", 9, 9, 1, 20),
        ("steady", 3, 20, 0, 20), ("steady", 10, 20, 0, 20), ("old", 20, 7, 0, 20),
    ]  # fmt: skip
    execute_sql(dsn, "TRUNCATE dl_statistics, dl_dataset_events;" + "".join(
        HOUR.format(at=END - timedelta(days=days), task=task, succeeded=succeeded, failed=failed, bucket=bucket)
        for task, days, succeeded, failed, bucket in hours
    ))  # fmt: skip
    execute_sql(
        dsn,
        f"""
INSERT INTO dl_dataset_events (dataset, kind, task, at, job_id, partition_key, rows)
VALUES ('sales', 'produced', 'slow', '{END - timedelta(days=8)}', gen_random_uuid(), '', 1000),
       ('sales', 'produced', 'slow', '{END - timedelta(days=1)}', gen_random_uuid(), '', 400);
""",
    )


@pytest.fixture
def own_connection(dsn: str) -> Iterator[Any]:
    with closing(psycopg2.connect(dsn)) as connection:
        yield connection


def test_weeks_are_compared_by_task_and_together(pool):
    spans = SpanStatistics(pool).compare("7d", END)

    assert [compared.task for compared in spans.tasks] == ["broken", "steady", "slow"]
    assert (spans.total.now.succeeded, spans.total.before.succeeded) == (35, 39)
    slow = spans.tasks[-1]
    assert (slow.rows_before, slow.rows_now) == (1000, 400)
    assert slow.now.run_time.p50 == pytest.approx(2 * (slow.before.run_time.p50 or 0), rel=0.01)


def test_one_task_is_its_own_total(pool):
    spans = SpanStatistics(pool).compare("7d", END, task="broken")

    assert [compared.task for compared in spans.tasks] == ["broken"]
    assert (spans.total.now.failed, spans.total.before.failed) == (5, 1)


def test_page_marks_what_got_worse(client):
    page = client.get("/compare").text
    of_task = client.get("/compare?task=slow&span=7d").text

    assert page.index(">broken</a>") < page.index(">steady</a>")
    assert '<td data-l="Change" class="num bad">+100 %</td>' in of_task
    assert '<td data-l="Change" class="num">−60 %</td>' in of_task  # of rows
    assert "By task" not in of_task


def test_failures_after_none_are_marked_as_new(client, dsn):
    execute_sql(dsn, HOUR.format(at=END - timedelta(hours=1), task="slow", succeeded=0, failed=3, bucket=22))

    page = client.get("/compare?task=slow&span=1d").text

    assert '<td data-l="Change" class="num bad">new</td>' in page


def test_page_answers_at_once_while_figures_are_read(client, own_connection):
    """The tables are locked meanwhile, as if they were slow to read."""
    with own_connection.cursor() as cursor:
        cursor.execute("LOCK TABLE dl_statistics IN ACCESS EXCLUSIVE MODE")
    path = "/compare?span=28d&until=2026-01-05"
    started_at = time.monotonic()
    answer = client.get(path)
    took_sec = time.monotonic() - started_at

    assert (answer.status_code, answer.headers["Refresh"]) == (200, "1")
    assert "are being read" in answer.text
    assert took_sec < 1.0  # a tenth of a second and the page itself; the query takes until the lock is gone

    own_connection.rollback()
    eventually(lambda: "Refresh" not in client.get(path).headers)
    assert "No job has ended in these two spans" in client.get(path).text


def test_page_of_figures_that_cannot_be_read_is_unavailable(client, monkeypatch):
    def fail(*_args, **_options):
        raise DatabaseUnavailable("gone")

    monkeypatch.setattr(SpanStatistics, "compare", fail)

    answer = client.get("/compare?span=28d&until=2026-01-04")

    assert (answer.status_code, "Refresh" in answer.headers) == (503, False)


def test_page_of_a_time_without_jobs_is_empty(client):
    page = client.get("/compare?span=1d&until=2020-01-01").text

    assert "No job has ended in these two spans" in page
    assert 'role="alert"' in client.get("/compare?until=soon").text


def test_route_answers_what_the_page_shows(client):
    answer = client.get("/api/v1/compare?span=7d").json

    assert [task["task"] for task in answer["tasks"]] == ["broken", "steady", "slow"]
    assert (answer["total"]["now"]["succeeded"], answer["total"]["before"]["succeeded"]) == (35, 39)
    assert (answer["tasks"][-1]["rows_before"], answer["tasks"][-1]["rows_now"]) == (1000, 400)
    assert client.get("/api/v1/compare?span=2d").status_code == 400


def test_comparison_is_read_once_for_requests_of_ten_seconds(client, dsn):
    path = "/api/v1/compare?span=1d&until=2020-01-02T00:00:00Z"
    first = client.get(path).json
    execute_sql(dsn, HOUR.format(at="2020-01-01T10:00Z", task="late", succeeded=1, failed=0, bucket=1))
    second = client.get(path).json

    assert (first["tasks"], second) == ([], first)
    assert client.get("/api/v1/compare?span=1d&until=2020-01-01T12:00:00Z").json["tasks"][0]["task"] == "late"


def test_reported_rows_are_read_once_however_many_reports_there_are(dsn):
    execute_sql(
        dsn,
        f"""
INSERT INTO dl_dataset_events (dataset, kind, task, at, job_id, partition_key, rows)
SELECT 'sales', 'produced', 'slow', '{END - timedelta(days=1)}', gen_random_uuid(), '', 1 FROM generate_series(1, 3000);
ANALYZE dl_dataset_events;
""",
    )
    values = {"since": END - timedelta(days=7), "until": END, "task": None}
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {STATEMENTS['span_rows'].text}", values)
        plan = json.dumps(cursor.fetchall())

    assert set(re.findall(r'"Actual Loops": (\d+)', plan)) == {"1"}
