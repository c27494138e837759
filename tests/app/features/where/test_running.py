"""The list of running jobs with where each of them is."""

from __future__ import annotations

from typing import Any

import pytest

from dataloader.app.features.where import where as where_module
from tests.app.features.where.conftest import WhereFixture
from tests.app.features.where.test_sessions import UPDATE, open_transaction
from tests.support.waiting import eventually


def read(where: WhereFixture, query: str = "") -> list[dict[str, Any]]:
    response = where.client.get(f"/api/v1/running{query}")
    assert response.status_code == 200, response.text
    jobs: list[dict[str, Any]] = response.get_json()["jobs"]
    return jobs


def test_each_running_job_is_located(where: WhereFixture, target_dsn: str):
    where.targets["warehouse"] = target_dsn
    assert read(where) == []
    with open_transaction(target_dsn, UPDATE):
        first = where.start("stay")
        second = where.start("query", statement=UPDATE, target="warehouse")

        def located() -> list[dict[str, Any]] | None:
            jobs = read(where)
            return jobs if len(jobs) == 2 and jobs[1]["blocked"] and "wait_for in" in jobs[0]["summary"] else None

        jobs = eventually(located, message="both are located")
        of_task, one = read(where, "?task=query"), read(where, "?limit=1")
        more = where.client.get("/api/v1/running?limit=1").get_json()["has_more"]

    assert jobs is not None
    assert [job["job_id"] for job in jobs] == [str(first), str(second)]
    assert (jobs[0]["task"], jobs[0]["isolation"], jobs[0]["blocked"]) == ("stay", "thread", False)
    assert 0 <= jobs[0]["running_sec"] < 600
    assert "for a lock on sales, held by pid " in jobs[1]["summary"]
    assert [job["job_id"] for job in of_task] == [str(second)]
    assert ([job["job_id"] for job in one], more) == ([str(first)], True)
    assert read(where, "?queue=other") == []


def test_silent_worker_does_not_hide_the_job(where: WhereFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(where_module, "LIST_WAIT_SEC", 0.3)
    job_id = where.pools.queue_fixture.enqueue_and_claim(task="stay").id

    (job,) = read(where)

    assert (job["job_id"], job["isolation"]) == (str(job_id), None)
    assert job["summary"] == "Its worker process has not answered within a second."


@pytest.mark.parametrize("query", ["?limit=0", "?limit=101", "?status=running"])
def test_wrong_query_is_refused(where: WhereFixture, query: str):
    assert where.client.get(f"/api/v1/running{query}").status_code == 400
