"""The pages of backfills and of the slices of a task, without scripts."""

from __future__ import annotations

import re
from contextlib import closing

import psycopg2
import pytest

from dataloader.app.db.connection import Session
from dataloader.app.features.backfills.duty import BackfillsDuty
from dataloader.pipelines.contract import Daily, Hourly, Pipelines

JANUARY = {"task": "visits", "slices": {"from": "2026-01-01", "to": "2026-01-31"}, "mode": "all"}
CELL = re.compile(r'class="cell (\w+)" (?:href="/jobs/[0-9a-f-]+" )?title="([^"]+)"')


@pytest.fixture(autouse=True)
def none_before(dsn):
    execute(
        dsn,
        "DELETE FROM dl_backfills; DELETE FROM dl_slices; DELETE FROM dl_schedules; DELETE FROM dl_jobs;"
        " DELETE FROM dl_limits",
    )


def execute(dsn, statement):
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def pipelines(pipelines):
    @pipelines.register("visits", queue="etl", partitions=Daily("2024-01-01", zone="Europe/Moscow"))
    def visits(args): ...

    @pipelines.register("hourly", queue="etl", partitions=Hourly("2026-01-01T00", zone="UTC", end="2026-01-01T05"))
    def hourly(args): ...

    return pipelines


def make(dsn):
    with closing(Session(dsn, application_name="makes")) as session:
        duty = BackfillsDuty(session, Pipelines(), default_lease_sec=60)
        while duty.run() == 0.0:
            pass


def cells(page):
    return {key: state for _, title in CELL.findall(page) for key, _, state in [title.rpartition(": ")]}


def start(client, dsn, **more):
    created = client.post("/api/v1/backfills", json={**JANUARY, **more}).json["backfill"]
    make(dsn)
    return f"/backfills/{created['backfill_id']}"


def act(client, path, action, **fields):
    return client.post(f"{path}/act", data={"action": action, **fields})


def test_a_backfill_is_listed_and_shown_with_its_slices(client, dsn):
    assert "There are no backfills" in client.get("/backfills").text
    path = start(client, dsn, note="the source was wrong")
    execute(dsn, "UPDATE dl_jobs SET status = 'running', run_id = gen_random_uuid() WHERE partition_key = '2026-01-02'")
    execute(dsn, "UPDATE dl_jobs SET status = 'failed', finished_at = now() WHERE partition_key = '2026-01-03'")

    listed = client.get("/backfills").text
    page = client.get(path).text

    assert f'href="{path}"' in listed
    assert "2026-01-01 to 2026-01-31" in listed
    assert "the source was wrong" in listed
    assert path not in client.get("/backfills?task=other").text
    shown = cells(page)
    assert len(shown) == 31
    assert (shown["2026-01-02"], shown["2026-01-03"], shown["2026-01-04"]) == ("running", "failed", "queued")
    assert '<th scope="row">2026-01</th>' in page
    assert "1 of 31 slices ended" in page
    assert client.get("/backfills/00000000-0000-0000-0000-000000000000").status_code == 404


def test_a_backfill_is_paused_resumed_changed_and_canceled(client, dsn):
    path = start(client, dsn)
    for action, state in (("pause", "paused"), ("resume", "open")):
        act(client, path, action)
        assert client.get(f"/api/v1{path}").json["state"] == state
    act(client, path, "change", concurrency="7")
    assert client.get(f"/api/v1{path}").json["concurrency"] == 7
    assert "whole number" in act(client, path, "change", concurrency="many").text
    act(client, path, "cancel")
    assert client.get(f"/api/v1{path}").json["by_state"] == {"canceled": 31}
    assert "has ended" in act(client, path, "pause").text
    act(client, path, "retry")
    assert client.get(f"/api/v1{path}").json["state"] == "open"
    assert "Unknown action" in act(client, path, "dance").text


def test_backfill_shows_why_its_oldest_job_waits(client, dsn):
    path = start(client, dsn, slices={"from": "2026-01-01", "to": "2026-01-02"})

    (reason,) = re.findall(r"<dt>Oldest waiting</dt><dd>.*?</a> (.*?)</dd>", client.get(path).text)
    assert reason.startswith("No live worker serves queue")
    act(client, path, "cancel")
    assert "Oldest waiting" not in client.get(path).text


def test_slices_of_a_task_are_chosen_and_run(client, dsn):
    path = start(client, dsn, slices={"from": "2026-01-01", "to": "2026-01-03"})
    execute(dsn, "UPDATE dl_jobs SET status = 'succeeded', finished_at = now() WHERE partition_key <> '2026-01-02'")
    execute(dsn, "UPDATE dl_jobs SET status = 'failed', finished_at = now() WHERE partition_key = '2026-01-02'")
    act(client, path, "cancel")
    page = client.get("/slices/visits?before=2026-01-06").text
    shown = cells(page)
    assert (shown["2026-01-01"], shown["2026-01-02"], shown["2026-01-05"]) == ("succeeded", "failed", "missing")

    form = {"action": "run", "first": "2026-01-01", "last": "2026-01-06", "failed": "yes"}
    made = client.post("/slices/visits", data={**form, "slices": "2026-01-05..2026-01-06, 2026-01-01"})
    backfill = client.get(f"/api/v1{made.headers['Location']}").json
    assert backfill["slices"] == {"list": ["2026-01-05", "2026-01-06", "2026-01-01", "2026-01-02"]}
    make(dsn)
    assert cells(client.get(made.headers["Location"]).text) == dict.fromkeys(
        ["2026-01-05", "2026-01-06", "2026-01-01", "2026-01-02"], "queued"
    )

    client.post("/slices/visits", data={"action": "cancel", "slices": "2026-01-05"})
    assert cells(client.get("/slices/visits?before=2026-01-07").text)["2026-01-05"] == "canceled"
    missing = {"action": "run", "missing": "yes", "first": "2025-12-30", "last": "2026-01-03"}
    made = client.post("/slices/visits", data=missing)
    assert client.get(f"/api/v1{made.headers['Location']}").json["slices"] == {"list": ["2025-12-30", "2025-12-31"]}


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"action": "run"}, "no slice is chosen"),
        ({"action": "run", "slices": "2026-02-30"}, "2026-02-30"),
        ({"action": "run", "slices": "2020-01-01"}, "before the first slice"),
        ({"action": "run", "slices": "2024-01-01..2029-01-01"}, "after the last slice"),
        ({"action": "run", "slices": "2024-01-01..2026-12-01"}, "after the last slice"),
        ({"action": "run", "slices": "2024-01-01..2025-12-31, 2024-01..2025-12"}, None),
        ({"action": "run", "slices": "2024-01-01", "concurrency": "0"}, "greater than or equal to 1"),
        ({"action": "dance", "slices": "2024-01-01"}, "Unknown action"),
    ],
)
def test_bad_choices_are_refused(client, form, problem):
    response = client.post("/slices/visits", data=form)

    if problem is None:
        assert response.status_code in (302, 303), response.text
    else:
        assert response.status_code == 422
        assert problem in response.text


def test_rows_are_those_of_the_calendar(client, dsn):
    page = client.get("/slices/hourly").text
    assert len(cells(page)) == 6
    assert '<th scope="row">2026-01-01</th>' in page
    assert "No slice of this task" in client.get("/slices/noop").text
    assert "nonsense" in client.get("/slices/visits?after=nonsense").text
    pages = [client.get("/slices/visits").text]
    while earlier := re.search(r'href="\?before=([^"]+)">← Earlier', pages[-1]):
        pages.append(client.get(f"/slices/visits?before={earlier[1]}").text)
    keys = [key for page in pages for key in cells(page)]
    assert len(keys) == len(set(keys)) > 750
    assert min(keys) == "2024-01-01"


def test_slices_are_run_over_http(client, dsn):
    made = client.post("/api/v1/tasks/visits/slices/run", json={"keys": ["2026-01-01", "2026-01-05"], "concurrency": 1})
    assert (made.json["mode"], made.json["total"], made.json["concurrency"]) == ("all", 2, 1)
    make(dsn)
    found = client.get("/api/v1/tasks/visits/slices").json["slices"]
    assert [part["partition_key"] for part in found] == ["2026-01-01", "2026-01-05"]
    refused = client.post("/api/v1/tasks/visits/slices/run", json={"keys": ["2026-02-30"]})
    assert refused.status_code == 400


def test_the_limit_of_an_open_backfill_is_not_deleted(client, dsn):
    path = start(client, dsn)
    name = f"backfill:{path.rpartition('/')[2]}"
    refused = client.delete(f"/api/v1/limits/{name}")
    assert refused.status_code == 409
    assert "backfill" in refused.json["detail"]
    assert client.get(f"/api/v1/limits/{name}").json["concurrency"] == 2
    act(client, path, "cancel")
    assert client.delete(f"/api/v1/limits/{name}").status_code == 200


def test_backfill_is_previewed_and_created_from_its_form(client):
    form = {
        "task": "visits", "first": "2026-01-01", "last": "2026-01-31", "mode": "all", "concurrency": "3",
        "newest_first": "yes", "note": "again", "stop_after_failures": "5", "args": '{"day": "{partition}"}',
    }  # fmt: skip

    preview = client.get("/backfills", query_string=form).text
    assert "31 to load of 31" in preview
    assert "unknown: the task has not run in the last week" in preview
    assert "2026-01-31" in preview
    assert client.get("/api/v1/backfills").json == {"backfills": []}

    made = client.post("/backfills", data=form)
    backfill = client.get(f"/api/v1{made.headers['Location']}").json
    expected = {"total": 31, "concurrency": 3, "newest_first": True, "note": "again", "stop_after_failures": 5}
    assert {name: backfill[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"first": "2026-02-30", "last": "2026-03-01"}, "first"),
        ({"keys": "2026-01-01\n2026-13-01"}, "keys"),
        ({"first": "2026-01-01", "last": "2026-01-02", "concurrency": "0"}, "concurrency"),
        ({"first": "2026-01-01", "last": "2026-01-02", "priority": "high"}, "priority"),
        ({"first": "2026-01-01", "last": "2026-01-02", "args": "["}, "args"),
        ({"first": "2026-01-01", "last": "2026-01-02", "mode": "some"}, "mode"),
    ],
)
def test_refused_backfill_marks_its_field(client, fields, refused):
    response = client.post("/backfills", data={"task": "visits", **fields})

    assert response.status_code == 422
    assert f'id="create_backfill_from_form-{refused}-error"' in response.text
    assert client.get("/api/v1/backfills").json == {"backfills": []}


def test_failed_slices_are_shown_with_the_error_of_their_job(client, dsn):
    path = start(client, dsn)
    execute(
        dsn,
        "UPDATE dl_jobs SET status = 'failed', finished_at = now(), error = 'HTTPError: 404', attempt = 2"
        " WHERE partition_key = '2026-01-03'",
    )
    execute(dsn, "UPDATE dl_jobs SET status = 'running', run_id = gen_random_uuid() WHERE partition_key = '2026-01-04'")

    page = client.get(path).text

    assert "HTTPError: 404" in page
    assert "2 of 5" in page
    assert page.index('id="h-running"') < page.rindex("2026-01-04")


def test_secrets_in_args_are_masked(client, dsn):
    args = {"day": "{partition}", "password": "geheim"}
    path = start(client, dsn, args=args)
    plan = client.post("/api/v1/backfills", json={**JANUARY, "args": args, "dry_run": True}).text

    seen = [plan, *(client.get(found).text for found in (path, f"/api/v1{path}", "/api/v1/backfills"))]
    assert [("***" in text, "geheim" in text) for text in seen] == [(True, False)] * 4


def test_facts_of_a_backfill_have_rows_a_run_and_adopted_slices(client, dsn):
    start(client, dsn, slices={"from": "2026-01-01", "to": "2026-01-02"})
    path = start(client, dsn, slices={"from": "2026-01-01", "to": "2026-01-04"})
    finished = "UPDATE dl_jobs SET status = 'succeeded', attempt = 1, run_id = gen_random_uuid(), finished_at = now()"
    execute(dsn, finished + " WHERE partition_key >= '2026-01-03'")
    execute(dsn, "UPDATE dl_slices SET rows = 1000 * extract(day FROM interval_start + interval '12 h')")
    page = " ".join(client.get(path).text.split())

    assert "<dt>Already loaded</dt><dd>2 slices " in page
    assert "<dt>Rows a run</dt><dd>3 500 <small>7 000 in 2 slices" in page
    assert client.get(f"/api/v1{path}").json["adopted"] == 2


def test_slice_that_succeeded_with_warnings_is_shown_as_such(client, dsn):
    path = start(client, dsn)
    succeeded = "UPDATE dl_jobs SET status = 'succeeded', attempt = 1, run_id = gen_random_uuid(), finished_at = now()"
    execute(dsn, f"{succeeded}, warnings = 2 WHERE partition_key = '2026-01-02'")
    execute(dsn, f"{succeeded} WHERE partition_key = '2026-01-03'")
    page = client.get(path).text

    found = cells(page)
    assert (found["2026-01-02"], found["2026-01-03"]) == ("succeeded with warnings", "succeeded")
    assert 'class="cell warning" href="/jobs/' in page
    assert '<span class="cell warning"></span>succeeded with warnings 1' in page
