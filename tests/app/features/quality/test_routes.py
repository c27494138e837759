"""Data checks and datasets over HTTP and on their pages."""

from __future__ import annotations

from collections.abc import Callable
from html import escape, unescape
from typing import Any

import pytest

from dataloader.app.queue.job import Reports, Settlement, Status, new_run_ids
from tests.support.databases import execute_sql


@pytest.fixture(autouse=True)
def no_reports(dsn):
    """Jobs are deleted before each test; their checks and dataset events are kept."""
    execute_sql(dsn, "DELETE FROM dl_checks; DELETE FROM dl_dataset_events")


@pytest.fixture
def record(queue, trigger) -> Callable[..., str]:
    """Return a function that makes a job which reported this; it returns the job's id."""

    def record(*, checks: tuple[Any, ...] = (), datasets: tuple[Any, ...] = (), **progress: Any) -> str:
        job_id: str = trigger()
        (job,), _ = queue.claim("etl", ["noop"], new_run_ids(1), "worker")
        queue.settle([(job, Settlement(Status.SUCCEEDED, reports=Reports(checks, datasets), progress=progress))])
        return job_id

    return record


def check(name: str, value: float, outcome: str = "passed") -> dict[str, Any]:
    return {
        "name": name, "value": value, "outcome": outcome, "low": 1.0, "high": None, "median": None, "detail": "because",
    }  # fmt: skip


def use(dataset: str, kind: str = "produced", rows: int | None = None) -> dict[str, Any]:
    return {"kind": kind, "dataset": dataset, "partition": None, "rows": rows, "schema": {"id": "int"}}


def test_job_has_its_checks_and_links(client, record):
    links = {"report": "https://host/x", "bad": "javascript:alert(1)"}
    job_id = record(checks=(check("rows", 7, "warned"),), links=links)

    job = client.get(f"/api/v1/jobs/{job_id}").json

    assert [(c["name"], c["value"], c["outcome"], c["low"]) for c in job["checks"]] == [("rows", 7.0, "warned", 1.0)]
    assert (job["links"], job["warnings"]) == ({"report": "https://host/x"}, 1)


def test_job_has_its_datasets(client, record):
    job_id = record(datasets=(use("warehouse.sales", rows=7), use("bank.rates", "consumed")))

    job = client.get(f"/api/v1/jobs/{job_id}").json
    page = client.get(f"/jobs/{job_id}").text

    assert [(d["dataset"], d["kind"], d["rows"]) for d in job["datasets"]] == [
        ("bank.rates", "consumed", None), ("warehouse.sales", "produced", 7),
    ]  # fmt: skip
    assert '<a href="/datasets/warehouse.sales">warehouse.sales</a>' in page
    assert "updated " in page
    assert "read " in page
    assert client.get(f"/api/v1/jobs/{record()}").json["datasets"] == []


def test_jobs_are_filtered_by_warnings(client, record):
    warned, passed = record(checks=(check("rows", 7, "warned"),)), record(checks=(check("rows", 7),))

    def listed(value: str) -> list[str]:
        return [job["job_id"] for job in client.get(f"/api/v1/jobs?warnings={value}").json["jobs"]]

    assert (listed("true"), listed("false")) == ([warned], [passed])
    assert client.get("/api/v1/jobs?warnings=maybe").status_code == 400


def test_checks_of_a_task_are_listed(client, record):
    jobs = [record(checks=(check("rows", n), check("nulls", 0))) for n in range(3)]

    found = client.get("/api/v1/tasks/noop/checks?limit=2").json

    assert [c["name"] for c in found["checks"]] == ["nulls", "rows"]
    assert [(r["value"], r["job_id"]) for r in found["checks"][1]["results"]] == [(2.0, jobs[2]), (1.0, jobs[1])]
    assert client.get("/api/v1/tasks/a%2Fb/checks").json == {"task": "a/b", "checks": []}


@pytest.mark.parametrize("name", ["warehouse.sales", "s3://raw/orders", "/data/orders/", "a b&c?<d>"])
def test_dataset_of_any_name_is_found(client, record, name):
    job_id = record(datasets=(use(name, rows=5), use("other", "consumed")))

    listed = client.get("/api/v1/datasets").json["datasets"]
    path = "/api/v1/datasets/" + "".join(f"%{byte:02X}" for byte in name.encode())
    found = client.get(path).json

    assert {dataset["dataset"] for dataset in listed} == {name, "other"}
    assert (found["dataset"], found["schema"], found["stale"]) == (name, {"id": "int"}, False)
    assert [(u["job_id"], u["rows"]) for u in found["updates"]] == [(job_id, 5)]
    assert [p["task"] for p in found["producers"]] == ["noop"]


def test_unknown_dataset_is_not_found(client):
    answer = client.get("/api/v1/datasets/nothing")

    assert (answer.status_code, answer.json["code"]) == (404, "dataset_not_found")
    assert client.get("/api/v1/datasets/" + "d" * 501).status_code == 404


def test_jobs_page_shows_and_filters_warnings(client, record):
    job_id = record(checks=(check("rows", 7, "warned"), check("nulls", 7, "warned")))
    record()

    page = unescape(client.get("/jobs?warnings=true").text)

    assert f'href="/jobs/{job_id}#checks">2 warnings</a>' in page
    assert page.count('<tr id="job-') == 1
    assert "expected one of" in client.get("/jobs?warnings=perhaps").text


def test_job_page_shows_checks_and_links(client, record):
    links = {"<report>": "https://host/x?a=1&b=2", "bad": "javascript:alert(1)"}
    page = client.get(f"/jobs/{record(checks=(check('rows', 1_234_567, 'warned'),), links=links)}").text

    assert '<a href="https://host/x?a=1&amp;b=2" rel="noopener noreferrer external">&lt;report&gt;</a>' in page
    assert 'href="javascript' not in page
    assert "1 234 567" in page
    assert '<span class="st warning">warned</span>' in page


def test_task_page_shows_the_history_of_checks(client, record):
    for value in (7, 8, 0):
        record(checks=(check("rows", value, "passed" if value else "failed"), check("nulls", 0)))

    page = unescape(client.get("/tasks/noop").text)

    assert page.index("Results: rows") < page.index("Results: nulls")  # what did not pass comes first
    assert '"names": ["value", "low"], "data": [' in page
    assert "[7.0, 8.0, 0.0], [1.0, 1.0, 1.0]]" in page
    assert "uplot" in page
    assert "uplot" not in client.get("/tasks/other").text


@pytest.mark.parametrize("name", ["warehouse.sales", "s3://raw/orders", "/data/orders/", "a b&c?<d>"])
def test_dataset_pages_show_updates_and_users(client, record, name):
    job_id = record(datasets=(use(name, rows=5_000), use("other", "consumed")))

    listed = client.get("/datasets").text
    link = unescape(listed.partition(f'">{escape(name)}</a>')[0].rpartition('href="')[2])
    page = client.get(link).text

    assert f"<h1>{escape(name)}</h1>" in page
    assert f"/jobs/{job_id}" in page
    assert "5 000" in page
    assert "No task has reported that it reads this dataset" in page
    assert client.get("/datasets/nothing").status_code == 404
    assert "No more datasets." in client.get("/datasets?after=zzz").text


def test_datasets_page_without_datasets_says_what_to_do(client):
    assert "ctx.produced" in client.get("/datasets").text
