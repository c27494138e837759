"""The grid of runs by day: what ended, and what was due and did not run."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from html import unescape

import psycopg2
import pytest

from dataloader.app.features.runs.grid import DayRuns


def execute(dsn: str, statement: str, *values: object) -> None:
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement, values)


TODAY = datetime.now(UTC).date()
NOON = datetime(TODAY.year, TODAY.month, TODAY.day, 12, tzinfo=UTC)
DAILY = (
    "INSERT INTO dl_schedules (schedule_id, name, source, task, overrides, created_at, last_at, next_at, changed_at)"
    " VALUES ('01900000-0000-7000-8000-000000000001', 'nightly', 'people', 'load.daily',"
    """ '{"kind": "cron", "expression": "30 1 * * *", "zone": "UTC"}', %s, %s, now(), now());"""
)


def days_ago(count: int) -> datetime:
    return NOON - timedelta(days=count)


@pytest.fixture
def clean(dsn: str) -> None:
    execute(dsn, "TRUNCATE dl_statistics, dl_schedules, dl_firings CASCADE")


def end(dsn: str, task: str, outcome: str, at: datetime, count: int = 1) -> None:
    execute(
        dsn,
        "INSERT INTO dl_statistics (span_sec, started_at, queue, task, measure, bucket, count)"
        " VALUES (3600, date_trunc('hour', %s::timestamptz), 'etl', %s, %s, 0, %s)",
        at, task, outcome, count,
    )  # fmt: skip


def read(client, **query: object) -> dict[str, dict[str, dict[str, int]]]:
    answer = client.get("/api/v1/runs", query_string={"zone": "UTC", **query})
    assert answer.status_code == 200, answer.text
    tasks = answer.get_json()["tasks"]
    return {
        task["task"]: {day.pop("day"): {n: c for n, c in day.items() if c} for day in task["days"]} for task in tasks
    }


def test_ended_jobs_are_counted_by_their_day(client, dsn, clean):
    end(dsn, "load.a", "succeeded", days_ago(1), 5)
    end(dsn, "load.a", "failed", days_ago(1), 2)
    end(dsn, "load.a", "lost", days_ago(3))
    end(dsn, "load.a", "succeeded", days_ago(40))

    found = read(client)["load.a"]

    assert len(found) == 7
    assert found[str(TODAY - timedelta(days=1))] == {"succeeded": 5, "failed": 2}
    assert found[str(TODAY - timedelta(days=3))] == {"lost": 1}
    assert [found[str(TODAY - timedelta(days=n))] for n in (0, 2, 4, 5, 6)] == [{}] * 5


def test_day_begins_at_midnight_of_the_zone(client, dsn, clean):
    end(dsn, "load.a", "succeeded", datetime(TODAY.year, TODAY.month, TODAY.day, 22, tzinfo=UTC) - timedelta(days=2))

    in_moscow = read(client, zone="Europe/Moscow", days=7, until=str(TODAY))["load.a"]

    assert in_moscow[str(TODAY - timedelta(days=1))] == {"succeeded": 1}


def test_time_that_made_no_job_is_missed(client, dsn, clean):
    fired_until = days_ago(3).replace(hour=1, minute=30)
    execute(dsn, DAILY, days_ago(20), fired_until)
    execute(
        dsn,
        "INSERT INTO dl_firings (schedule_id, fire_at, due_at, outcome, until, made_by) SELECT schedule_id, %s, %s,"
        " 'paused_skipped', %s, 'clock' FROM dl_schedules",
        days_ago(5).replace(hour=1, minute=30),
        days_ago(5),
        days_ago(4).replace(hour=1, minute=30),
    )

    found = read(client)["load.daily"]

    assert {day for day, counts in found.items() if counts.get("missed")} == {
        str(TODAY - timedelta(days=n)) for n in (5, 4, 2, 1)
    } | ({str(TODAY)} if datetime.now(UTC) > NOON.replace(hour=1, minute=32) else set())
    assert found[str(TODAY - timedelta(days=3))] == {}, "it fired"
    assert all(counts.get("missed", 0) <= 1 for counts in found.values())


def test_time_before_the_schedule_existed_is_not_missed(client, dsn, clean):
    execute(dsn, DAILY, days_ago(1), None)

    found = read(client)["load.daily"]

    assert {day for day, counts in found.items() if counts.get("missed")} <= {str(TODAY)}


def test_page_shows_the_worst_of_a_day_and_links_its_jobs(client, dsn, clean):
    end(dsn, "load.a", "succeeded", days_ago(1), 5)
    end(dsn, "load.a", "failed", days_ago(1), 2)
    end(dsn, "load.b", "succeeded", days_ago(1), 1234)
    execute(dsn, DAILY, days_ago(20), days_ago(2))

    page = unescape(client.get("/runs").text)

    assert "2 tasks with failed or missing runs" in page
    assert 'class="run-day st failed" href="/jobs?task=load.a&status=failed%2Clost&finished_from=' in page
    assert "5 succeeded, 2 failed" in page
    assert 'class="run-day st missed" href="/schedules/nightly"' in page
    assert page.index("load.a") < page.index("load.b"), "what failed comes first"
    only = client.get("/runs?only=problems").text
    assert ("load.a" in only, "load.b" in only) == (True, False)
    assert "load.b" not in client.get("/runs?q=load.a").text


def test_link_of_a_day_filters_the_list_of_jobs(client, dsn, clean):
    end(dsn, "load.a", "succeeded", days_ago(1))
    page = unescape(client.get("/runs").text)
    link = page.partition('class="run-day st succeeded" href="')[2].partition('"')[0]

    jobs = client.get(link)

    assert link.startswith("/jobs?task=load.a&finished_from=")
    assert (jobs.status_code, 'aria-invalid="true"' in jobs.text) == (200, False)


def test_earlier_days_are_linked(client, clean):
    page = unescape(client.get("/runs?until=2020-01-31").text)

    assert 'href="/runs?until=2020-01-24"' in page
    assert 'href="/runs?until=2020-02-07"' in page
    assert client.get("/runs?until=x&days=x&page=x").status_code == 200


@pytest.mark.parametrize(
    ("query", "field"), [({"days": 32}, "days"), ({"until": "x"}, "until"), ({"zone": "x"}, "zone")]
)
def test_refused_query_names_its_field(client, query, field):
    answer = client.get("/api/v1/runs", query_string=query)

    assert (answer.status_code, field in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ({"failed": 1, "missed": 1, "succeeded": 9}, "failed"), ({"missed": 1, "succeeded": 9}, "missed"),
        ({"open": 1, "succeeded": 9}, "open"), ({"canceled": 1, "succeeded": 1}, "canceled"), ({}, "none"),
    ],
)  # fmt: skip
def test_state_of_a_day_is_the_worst(counts, state):
    assert DayRuns(day=date(2030, 1, 1), **counts).state == state
