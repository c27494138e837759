"""The pages of schedules and the calendar, without scripts."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import psycopg2
import pytest

DAILY = {
    "name": "sales by day", "task": "load", "queue": "etl", "expression": "0 6 * * *", "zone": "UTC",
    "args": '{"day": "{interval_start:%Y-%m-%d}"}',
}  # fmt: skip
PAGE = "/schedules/sales%20by%20day"
ERROR = re.compile(r'<small class="bad" id="\w+-(\w+)-error">([^<]+)</small>')


@pytest.fixture(autouse=True)
def none_before(dsn):
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM dl_schedules; DELETE FROM dl_jobs")
    connection.close()


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
        ("priority", "&#39;high&#39; is not a whole number"),
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
    act(client, "reset", field="expression")
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
    assert client.get("/calendar?month=nonsense").status_code == 200
    assert "there is no schedule" in client.get("/calendar?schedule=nope").text
