"""The pages of tasks, without scripts."""

from __future__ import annotations

import re
from contextlib import closing
from datetime import date
from html import unescape

import psycopg2
import pytest
from pydantic import BaseModel

from dataloader.app.state.statistics import RowSummary, Statistics
from dataloader.pipelines.contract import Daily

ERROR = re.compile(r'<small class="bad" id="submit_task_start-(\w+)-error">([^<]+)</small>')


class Rates(BaseModel):
    day: date
    currencies: list[str] = ["USD"]
    password: str = ""


@pytest.fixture
def pipelines(pipelines):
    @pipelines.register(
        "rates", args=Rates, queue="etl", lock_key="rates:{day}", partitions=Daily("2026-01-01", zone="UTC")
    )
    def rates(args):
        """Rates of the bank."""

    return pipelines


@pytest.fixture(autouse=True)
def none_before(dsn):
    execute(dsn, "TRUNCATE dl_statistics, dl_recent_runs, dl_breakers, dl_schedules, dl_queues, dl_slices CASCADE")


def execute(dsn, statement, *values):
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


def add_run(dsn, outcome, seconds, *, task="rates"):
    execute(
        dsn,
        "INSERT INTO dl_recent_runs (task, event_id, job_id, queue, ended_at, outcome, attempt, ran_sec)"
        " SELECT %s, coalesce(max(event_id), 0) + 1, gen_random_uuid(), 'etl', now(), %s, 1, %s FROM dl_recent_runs",
        task, outcome, seconds,
    )  # fmt: skip


def start(client, **fields):
    form = {"arg_day": "2026-11-22", "arg_currencies": "USD\nEUR", "queue": "etl", "lock_key": "rates:{day}"}
    return client.post("/tasks/rates", data={**form, **fields})


def started(client, **fields):
    response = start(client, **fields)
    assert response.status_code == 303, response.text
    return client.get(f"/api/v1{response.headers['Location']}").json


def test_list_shows_runs_waiting_jobs_and_schedules(client, dsn, trigger):
    for outcome in ("succeeded", "failed"):
        add_run(dsn, outcome, 2.5)
    trigger(task="noop")
    body = {"task": "rates", "expression": "0 6 * * *", "args": {"day": "{interval_start:%Y-%m-%d}"}}
    client.put("/api/v1/schedules/rates-morning", json=body)
    client.put("/api/v1/tasks/noop/breaker", json={"state": "open"})

    page = client.get("/tasks").text

    assert page.index('class="cell succeeded"') < page.index('class="cell failed"')  # the oldest first
    assert 'href="/schedules/rates-morning"' in page
    assert re.search(r'status=queued">1</a>', page.replace("&amp;", "&"))
    assert '<span class="st paused">paused</span>' in page


def test_list_is_filtered_by_a_text(client):
    page = client.get("/tasks?q=BANK").text

    assert "/tasks/rates" in page
    assert "/tasks/noop" not in page
    assert "No task matches" in client.get("/tasks?q=nothing+has+this").text


def test_page_shows_the_definition_runs_and_figures_of_the_chart(client, dsn):
    for seconds in (1.0, 2.0, 4.0):
        add_run(dsn, "succeeded", seconds)

    page = client.get("/tasks/rates").text

    assert "Rates of the bank." in page
    assert "Median 2 s, p95 4 s, longest 4 s." in page
    assert page.count("<circle") == 3
    assert "rates:{day}" in page
    assert 'data-key="2026-01-01"' in page or "All slices" in page
    assert client.get("/tasks/unknown").status_code == 404


def test_page_groups_failures_by_fingerprint(client, dsn, trigger):
    for n in range(3):
        job_id = trigger(task="noop", lock_key=str(n))
        error = "HTTPError: 503" if n else "ValueError: bad"
        execute(
            dsn,
            "UPDATE dl_jobs SET status = 'failed', finished_at = now(), error = %s, error_fingerprint = %s"
            " WHERE job_id = %s",
            error, error.partition(":")[0], job_id,
        )  # fmt: skip

    page = unescape(client.get("/tasks/noop").text)

    assert page.index("HTTPError: 503") < page.index("ValueError: bad")
    assert "Retry 2…" in page
    job_filter = page.partition('name="filter" value="')[2].partition('"')[0]
    preview = client.post("/jobs/bulk", data={"filter": job_filter, "all": "on", "action": "redrive"})
    assert "Retry 2 jobs" in preview.text


def test_job_is_started_with_the_defaults_of_its_task(client):
    job = started(client)

    assert job["args"] == {"day": "2026-11-22", "currencies": ["USD", "EUR"]}
    assert (job["queue"], job["lock_key"], job["priority"]) == ("etl", "rates:2026-11-22", 100)


def test_job_is_started_with_all_it_may_have(client, trigger):
    parent = trigger()
    job = started(
        client, priority="7", max_attempts="2", time_limit_sec="60", lease_ttl_sec="90", idempotency_key="once",
        fair_key="shop", tags="finance, daily", lock_key="own", after=parent, after_on="ended", need="any",
        available_at="2040-01-31T06:00", more='{"limits": {"bank": 2}}',
    )  # fmt: skip

    expected = {
        "priority": 7, "max_attempts": 2, "time_limit_sec": 60, "lease_ttl_sec": 90, "idempotency_key": "once",
        "fair_key": "shop", "lock_key": "own", "need": "any", "limits": {"bank": 2},
        "tags": ["finance", "daily"],
    }  # fmt: skip
    assert {name: job[name] for name in expected} == expected
    assert job["available_at"].startswith("2040-01-31T03:00:00")  # in the zone of the pages
    assert start(client, idempotency_key="once", arg_day="2026-11-23").status_code == 409
    assert '<a href="/jobs?tag=daily">daily</a>' in client.get(f"/jobs/{job['job_id']}").text
    assert f"/jobs/{job['job_id']}" in client.get("/jobs?tag=daily").text
    assert f"/jobs/{job['job_id']}" not in client.get("/jobs?tag=weekly").text


def test_slice_gives_its_interval_and_one_job_at_a_time(client):
    job = started(client, partition_key="2026-02-01")

    assert (job["partition_key"], job["live_key"]) == ("2026-02-01", "slice:rates:2026-02-01")
    assert job["interval_start"].startswith("2026-02-01T00:00:00")
    assert started(client, partition_key="2026-02-01")["job_id"] == job["job_id"]
    assert ERROR.findall(start(client, partition_key="2026-02-30").text)[0][0] == "partition_key"


def test_refused_start_keeps_the_form_with_messages(client, dsn):
    refused = start(client, arg_day="2026-99-99", priority="high", queue="", after="nonsense")

    assert refused.status_code == 422
    assert {name for name, _ in ERROR.findall(refused.text)} == {"arg_day", "priority", "after"}
    assert 'aria-invalid="true" aria-describedby="submit_task_start-arg_day-error"' in refused.text
    assert 'value="high"' in refused.text
    assert "USD\nEUR</textarea>" in refused.text
    assert '<details class="fold" id="advanced" open>' in refused.text
    assert execute(dsn, "SELECT count(*) FROM dl_jobs") == [(0,)]


@pytest.mark.parametrize("time", ["0001-01-01T00:00+03:00", "9999-12-31T23:00-03:00"])
def test_time_outside_of_the_calendar_is_refused(client, time):
    assert ERROR.findall(start(client, available_at=time).text)[0][0] == "available_at"


def test_draining_queue_is_refused_at_its_field(client):
    client.patch("/api/v1/queues", json={"queue": "etl", "state": "draining"})

    assert ERROR.findall(start(client).text) == [
        ("queue", "queue &#39;etl&#39; is being drained and takes no new jobs")
    ]


def test_form_is_filled_in_from_a_job(client, trigger):
    args = {"day": "2026-11-21", "currencies": ["CNY"], "password": "hush"}
    job_id = trigger(task="rates", args=args, lock_key="rates:2026-11-21", priority=9)

    page = client.get(f"/tasks/rates?from={job_id}").text

    assert 'value="2026-11-21"' in page
    assert "CNY</textarea>" in page
    assert 'value="rates:{day}"' in page  # so that another day has another key
    assert "hush" not in page
    masked = re.search(r'name="arg_password"[^>]*value="([^"]+)"', page)
    assert masked is not None
    job = started(client, arg_day="2026-11-21", arg_password=masked[1], from_job=job_id)
    assert job["job_id"] != job_id
    assert "Filled in" not in client.get(f"/tasks/noop?from={job_id}").text  # a job of another task


def test_secret_of_the_job_is_kept(client, dsn, trigger):
    job_id = trigger(task="rates", args={"day": "2026-11-21", "password": "s3"}, lock_key="x")
    masked = re.search(r'name="arg_password"[^>]*value="([^"]+)"', client.get(f"/tasks/rates?from={job_id}").text)
    assert masked is not None

    job = started(client, arg_password=masked[1], from_job=job_id)

    assert execute(dsn, "SELECT args ->> 'password' FROM dl_jobs WHERE job_id = %s", job["job_id"]) == [("s3",)]


def test_args_can_be_written_as_json(client):
    page = client.get("/tasks/rates?args=json").text
    response = client.post("/tasks/rates", data={"args": '{"day": "2026-11-20"}', "queue": "etl", "lock_key": "x"})
    refused = client.post("/tasks/rates", data={"args": '{"day": 5}', "queue": "etl", "lock_key": "x"})

    assert 'name="args"' in page
    assert 'name="arg_day"' not in page
    assert response.status_code == 303
    assert ERROR.findall(refused.text)[0][0] == "args"
    assert "{&#34;day&#34;: 5}</textarea>" in refused.text


def test_task_is_paused_and_resumed(client):
    def act(action, **fields):
        return client.post("/breakers/rates", data={"action": action, **fields})

    act("pause", reason="the bank moves")
    page = client.get("/tasks/rates").text
    assert "the bank moves" in page
    assert "Resume task" in page
    act("resume")
    assert "Pause task…" in client.get("/tasks/rates").text
    act("breaker", failures="3", resume_sec="60")
    assert client.get("/api/v1/tasks/rates/breaker").json["failures"] == 3
    assert act("breaker", failures="none").status_code == 422
    act("delete_breaker")
    assert client.get("/api/v1/tasks/rates/breaker").status_code == 404
    assert act("dance").status_code == 422


def test_datasets_and_rows_of_the_last_runs_are_shown(client, dsn, pool):
    for _ in range(6):
        add_run(dsn, "succeeded", 1.0)
    add_run(dsn, "failed", 1.0)
    execute(
        dsn,
        "INSERT INTO dl_dataset_events (dataset, kind, task, job_id, partition_key, rows)"
        " SELECT 'dwh.rates', 'produced', 'rates', job_id, '', 1000 * row_number() OVER (ORDER BY event_id)"
        "   FROM dl_recent_runs WHERE outcome = 'succeeded'",
    )

    runs = Statistics(pool).recent_runs(task="rates")["rates"]
    found = Statistics(pool).datasets_of_runs(runs)
    page = client.get("/tasks/rates").text

    assert (found.produced, found.consumed) == (["dwh.rates"], [])
    assert found.summary == RowSummary(last=6000, low=2000, high=4000)
    assert "<dd>6 000 <small" in page
    assert "usually 2 000–4 000" in page
    assert page.count(", 6 000 rows") == 4  # the cell and the point, each in two texts
    assert 'href="/datasets/dwh.rates"' in page


def test_rows_of_runs_are_left_out_where_none_are_reported(client, dsn):
    add_run(dsn, "succeeded", 1.0)

    assert "Rows a run" not in client.get("/tasks/rates").text
    assert RowSummary.of([7]) == RowSummary(7, None, None)
