"""The pages of schedules and the calendar, without scripts."""

from __future__ import annotations

import html
import re
from contextlib import closing
from datetime import UTC, datetime

import psycopg2
import pytest

from dataloader.app.features.schedules import calendar_page
from dataloader.app.features.schedules import pages as schedules
from dataloader.app.features.schedules.clock_changes import affected_schedules
from tests.support.databases import execute_sql

DAILY = {
    "name": "sales by day", "task": "load", "queue": "etl", "expression": "0 6 * * *", "zone": "UTC",
    "args": '{"day": "{interval_start:%Y-%m-%d}"}',
}  # fmt: skip
PAGE = "/schedules/sales%20by%20day"
ERROR = re.compile(r'<small class="bad" id="\w+-(\w+)-error">([^<]+)</small>')


@pytest.fixture(autouse=True)
def none_before(dsn):
    execute_sql(dsn, "DELETE FROM dl_schedules; DELETE FROM dl_jobs")


def act(client, action, **fields):
    return client.post(f"{PAGE}/act", data={"action": action, **fields})


def test_a_schedule_is_previewed_created_and_shown(client):
    assert "There are no schedules" in client.get("/schedules").text
    preview = client.get("/schedules", query_string=DAILY).text
    assert "At 06:00 every day, UTC" in preview
    assert "T06:00:00+00:00" in preview
    assert client.get("/api/v1/schedules").json == {"schedules": []}

    made = client.post("/schedules", data=DAILY)
    assert (made.status_code, made.headers["Location"]) == (303, PAGE)
    page = client.get(PAGE).text
    assert "It has not fired yet" in page
    assert "sales by day" in client.get("/schedules").text


def test_what_is_wrong_is_shown(client):
    shown = client.get("/schedules", query_string={**DAILY, "expression": "61 * * * *"})
    assert "expression: &#39;61&#39; is no valid minute" in shown.text
    refused = client.post("/schedules", data={**DAILY, "args": "[", "priority": "high"})
    assert refused.status_code == 422
    assert ERROR.findall(refused.text) == [
        ("args", "it is not JSON: Expecting value at line 1, column 2"),
        ("priority", "&#39;high&#39; is not a whole number from 0 to 2147483647"),
    ]
    assert 'value="0 6 * * *"' in refused.text
    assert client.get("/schedules/none").status_code == 404
    assert act(client, "pause").status_code in (404, 409)


def test_a_schedule_is_paused_resumed_run_changed_and_deleted(client):
    client.post("/schedules", data=DAILY)
    act(client, "pause", reason="moving <b>")
    assert "moving &lt;b&gt;" in client.get(PAGE).text
    assert "Resume and catch up" in client.get(PAGE).text
    act(client, "resume")
    run = act(client, "run", at="2026-01-31T06:00")
    assert run.headers["Location"].startswith("/jobs/")
    page = client.get(PAGE).text
    assert 'class="cell ready"' in page
    assert "has fired" in act(client, "run", at="2026-01-31T06:00").text
    assert act(client, "run", at="2026-01-31T06:00", again="yes").status_code == 303
    assert client.post(f"{PAGE}/change", data={"expression": "0 7 * * *", "args": '{"day": "x"}'}).status_code == 303
    assert "At 07:00 every day" in client.get(PAGE).text
    assert client.post(f"{PAGE}/change", data={"expression": "0 7 * * *"}).status_code == 422
    assert act(client, "explode").status_code == 422
    assert act(client, "delete").status_code == 422
    assert act(client, "delete", confirmed="yes").headers["Location"] == "/schedules"
    assert client.get(PAGE).status_code == 404


def test_fields_that_differ_from_code_are_reset(client, dsn):
    client.post("/schedules", data=DAILY)
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "UPDATE dl_schedules SET source = 'code', declared = overrides, overrides = %s",
            ('{"expression": "0 9 * * *"}',),
        )
    connection.close()
    page = client.get(PAGE).text
    assert "Differs from code" in page
    assert "Reset expression" in page
    act(client, "reset", fields="expression")
    assert "Differs from code" not in client.get(PAGE).text


def test_the_calendar_shows_a_month_and_a_day(client):
    client.post("/schedules", data=DAILY)
    act(client, "run")
    today = datetime.now(UTC).astimezone().date()

    month = client.get("/calendar").text
    assert "planned" in month
    assert f"/calendar?day={today.isoformat()}" in month or "ready" in month
    assert "sales by day" in client.get("/calendar?day=2040-01-31").text
    assert "No schedule has a time" in client.get("/calendar?day=2001-01-31").text
    for query in ("month=nonsense", "day=0001-01-01", "month=9999-12"):
        assert client.get(f"/calendar?{query}").status_code == 200
    assert "there is no schedule" in client.get("/calendar?schedule=nope").text


def test_calendar_follows_changes_of_a_schedule(client):
    client.post("/schedules", data=DAILY)
    day = "/calendar?day=2040-01-31"
    assert "06:00:00" in client.get(day).text

    client.post(f"{PAGE}/change", data={"expression": "0 7 * * *", "args": '{"day": "x"}'})
    changed = client.get(day).text
    act(client, "pause")

    assert ("06:00:00" in changed, "07:00:00" in changed) == (False, True)
    assert "No schedule has a time" in client.get(day).text


def test_change_is_previewed_with_the_fields_that_were_sent(client):
    client.post("/schedules", data=DAILY)

    page = client.get(PAGE, query_string={"expression": "0 9 * * *", "priority": "7"}).text
    wrong = client.get(PAGE, query_string={"zone": "Mars"}).text

    assert "At 09:00 every day, UTC" in page
    assert 'value="7"' in page
    assert client.get("/api/v1/schedules/sales by day").json["definition"]["expression"] == "0 6 * * *"
    assert "no IANA time zone" in wrong


def test_all_fields_are_changed_and_emptied_ones_have_their_default(client):
    client.post("/schedules", data={**DAILY, "priority": "7", "jitter_sec": "30"})
    fields = {
        "priority": "", "jitter_sec": "60", "overlap": "skip", "catch_up": "all", "catch_up_max": "3", "fold": "both",
        "gap": "skip", "excluded": "2026-12-31\r\n2027-01-01", "starts_at": "2026-01-01T00:00", "limits": '{"dwh": 2}',
        "grace_sec": "90", "fair_key": "shop",
    }  # fmt: skip

    assert client.post(f"{PAGE}/change", data={**DAILY, **fields}).status_code == 303

    definition = client.get("/api/v1/schedules/sales by day").json["definition"]
    assert definition["priority"] == 100
    assert definition["excluded"] == ["2026-12-31", "2027-01-01"]
    assert definition["starts_at"].startswith("2026-01-01T00:00:00+03:00")  # in the zone of the pages
    assert definition["limits"] == {"dwh": 2}
    shown = client.get(PAGE).text
    assert 'value="60"' in shown
    assert "2026-12-31\n2027-01-01</textarea>" in shown


def test_schedules_of_other_kinds_are_created(client):
    made = client.post(
        "/schedules", data={"name": "often", "task": "load", "queue": "etl", "kind": "interval", "expression": "600"}
    )
    updated = {
        "name": "on update",
        "task": "load",
        "queue": "etl",
        "kind": "dataset",
        "after": "dwh.a\ndwh.b",
        "need": "any",
    }
    client.post("/schedules", data={**updated, "is_paused": "yes"})

    page = client.get("/schedules").text

    assert made.status_code == 303
    assert "every 10 min" in page
    assert "When one of dwh.a, dwh.b are updated" in page
    assert client.get("/api/v1/schedules/on update").json["paused_at"] is not None
    assert "often" in client.get("/schedules?q=OFT").text
    assert "No schedule matches" in client.get("/schedules?q=nothing").text


def test_month_folds_what_fires_often(client):
    client.post("/schedules", data={**DAILY, "name": "hourly", "expression": "0 * * * *", "zone": "Europe/Moscow"})
    client.post("/schedules", data={**DAILY, "name": "six", "expression": "0 */6 * * *", "zone": "Europe/Moscow"})

    month = client.get("/calendar?month=2040-02").text
    day = client.get("/calendar?day=2040-02-01&schedule=hourly").text

    assert month.count("hourly or more × 24") == 29
    assert month.count("six × 4") == 29
    assert day.count('<th scope="row"') == 24  # from midnight on
    assert "× 24" not in client.get("/calendar?month=2040-02&every=yes").text
    assert "× 24" not in client.get("/calendar?month=2040-02&outcome=failed").text


def test_frequent_schedules_hide_no_daily_load(client, dsn, trigger):
    trigger()
    client.post("/schedules", data={**DAILY, "expression": "0 22 * * *"})
    for n in range(6):
        client.post("/schedules", data={**DAILY, "name": f"often {n}", "kind": "interval", "expression": "60"})
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO dl_firings (schedule_id, fire_at, due_at, outcome, made_by)
               SELECT schedule_id, at, at, 'late_skipped', 'clock'
                 FROM dl_schedules, generate_series(timestamptz '2020-02-03Z', '2020-02-03 23:59Z', '1 min') at
                WHERE name LIKE 'often%' OR at = timestamptz '2020-02-03 22:00Z'"""
        )

    past, future = client.get("/calendar?month=2020-02").text, client.get("/calendar?month=2040-02").text
    due = client.get("/").text.partition("Due next")[2]

    assert past.count(" sales by day</a>") == 1
    assert future.count(" sales by day</a>") == 29
    assert [page.count("hourly or more × 100+") for page in (past, future)] == [2, 29]  # in Moscow two days are past
    assert "days with more than" not in past + future
    assert ">sales by day</a>" in client.get("/calendar?day=2040-02-03").text
    assert (">sales by day</a>" in due, ">6 schedules</a> that fire hourly" in due) == (True, True)


def test_calendar_shows_the_first_times_of_each_day(client, dsn, monkeypatch):
    monkeypatch.setattr(calendar_page, "_TIMES_READ", 3)
    monkeypatch.setattr(calendar_page, "_TIMES_LISTED", 5)
    for minute in range(4):
        client.post("/schedules", data={**DAILY, "name": f"at {minute}", "expression": f"{minute} */2 * * *"})
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO dl_firings (schedule_id, fire_at, due_at, outcome, made_by)
               SELECT schedule_id, at, at, 'late_skipped', 'clock'
                 FROM dl_schedules, generate_series(timestamptz '2020-02-01Z', '2020-02-29Z', '1 h') at"""
        )

    past, future = client.get("/calendar?month=2020-02&every=yes").text, client.get("/calendar?month=2040-02").text
    day = client.get("/calendar?day=2040-02-03").text

    assert past.count("days with more than 3 times") == future.count("days with more than 3 times") == 1
    assert past.count('class="st skipped" href') == 3 * 29
    assert [future.count(f" at {minute}</a>") for minute in range(4)] == [29, 29, 29, 0]
    assert day.count('<th scope="row"') == 5
    assert "more than 5 times" in day


def test_schedules_are_listed_in_pages(client, monkeypatch):
    monkeypatch.setattr(schedules, "_SCHEDULES_SHOWN", 2)
    for name in ("a", "b&b", "c", "other"):
        client.post("/schedules", data={**DAILY, "name": name})

    first = client.get("/schedules").text
    (link,) = re.findall(r'href="([^"]+)" rel="next"', first)
    second = client.get(html.unescape(link)).text

    assert re.findall(r'<tr data-text="(\S+) ', first) == ["a", "b&amp;b"]
    assert re.findall(r'<tr data-text="(\S+) ', second) == ["c", "other"]
    assert ("4 active" in second, 'rel="next"' in second, "First page" in second) == (True, False, True)


def test_late_schedules_are_counted_and_marked(client, dsn):
    client.post("/schedules", data=DAILY)
    page = client.get("/schedules").text
    assert ("1 active" in page, " late" in page.partition("<thead")[0]) == (True, False)

    execute_sql(dsn, "UPDATE dl_schedules SET next_at = now() - interval '5 min'")

    page = client.get("/schedules").text
    assert '<span class="st failed">1 late</span>' in page
    assert re.search(r'<span class="bad">late <time [^>]*>5 min', page)
    client.post(f"{PAGE}/act", data={"action": "pause"})
    assert "1 late" not in client.get("/schedules").text


def test_secrets_in_args_are_masked_and_kept_by_a_change(client, dsn):
    client.post("/schedules", data={**DAILY, "args": '{"day": "x", "password": "geheim"}'})
    address = "/api/v1/schedules/sales by day"
    masked = {"day": "x", "password": "***"}

    pages = [client.get(path).text for path in (PAGE, address, f"{address}/preview", "/api/v1/schedules")]
    assert [("***" in page, "geheim" in page) for page in pages] == [(True, False)] * 4
    assert client.post(f"{PAGE}/change", data={"args": '{"day": "y", "password": "***"}'}).status_code == 303
    assert stored_args(dsn) == {"day": "y", "password": "geheim"}
    assert client.patch(address, json={"args": masked}).json["definition"]["args"] == masked
    whole = {"task": "load", "queue": "etl", "expression": "0 7 * * *", "args": masked}
    assert client.put(address, json=whole).status_code == 200
    assert stored_args(dsn) == {"day": "x", "password": "geheim"}


def stored_args(dsn):
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT overrides->'args' FROM dl_schedules")
        ((args,),) = cursor.fetchall()
    return args


def test_schedule_that_a_clock_change_moves_is_named_with_its_times(client, monkeypatch):
    def find(timings, now):
        return affected_schedules(timings, datetime(2027, 3, 20, tzinfo=UTC))

    monkeypatch.setattr(schedules, "affected_schedules", find)
    client.post("/schedules", data={**DAILY, "zone": "Europe/Berlin", "expression": "30 2 * * *"})
    client.post("/schedules", data={**DAILY, "name": "noon", "zone": "Europe/Berlin", "expression": "0 12 * * *"})

    for page in (client.get("/schedules").text, client.get(PAGE).text):
        note = page.partition("Clock change.")[2].partition("</div>")[0]
        assert "fires later on 28 Mar 2027:" in note
        assert "03:00 +0200" in note
        assert "noon" not in note
    assert "Clock change." not in client.get("/schedules/noon").text
