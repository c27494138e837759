"""Two weeks of a company's jobs, as the queue's own events would have made them."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dataloader.app.db.connection import Session
from dataloader.app.features.demo.company import LOADS
from dataloader.app.features.demo.history import DAYS, make_history, write_history
from tests.support.queue_fixture import QueueFixture

NOW = datetime(2030, 1, 31, 9, 47, tzinfo=UTC)


def test_each_task_has_ended_jobs_of_the_past():
    jobs = [job for chunk in make_history(NOW) for job in chunk.jobs]

    assert {job["task"] for job in jobs} == {load.name for load in LOADS}
    assert len({job["job_id"] for job in jobs}) == len(jobs) > 5_000
    assert min(job["created_at"] for job in jobs) < NOW - timedelta(days=DAYS - 1)
    assert all(job["created_at"] < job["started_at"] < job["finished_at"] < NOW for job in jobs)
    failed = Counter(job["task"] for job in jobs if job["status"] == "failed")
    assert set(failed) == {"load.supplier_prices", "export.partner_feed"}
    assert sum(job["attempt"] > 1 and job["status"] == "succeeded" for job in jobs) > 20


def test_history_of_a_time_is_always_the_same():
    assert list(make_history(NOW)) == list(make_history(NOW))


def test_events_agree_with_the_jobs():
    chunks = list(make_history(NOW))
    ends = {"done": "succeeded", "failed": "failed"}
    ended = {e["job_id"]: ends[e["kind"]] for chunk in chunks for e in chunk.events if e["kind"] in ends}
    starts = Counter(e["job_id"] for chunk in chunks for e in chunk.events if e["kind"] == "picked")

    jobs = [job for chunk in chunks for job in chunk.jobs]
    assert ended == {job["job_id"]: job["status"] for job in jobs}
    assert starts == {job["job_id"]: job["attempt"] for job in jobs}


@pytest.mark.superuser("as the account of the embedded server is: triggers are off")
def test_statistics_are_computed_from_it(queue_db: QueueFixture, superuser: Any):
    with closing(Session(superuser(queue_db.dsn), application_name="test")) as session:
        count = write_history(session, datetime.now(UTC))

    while queue_db.session.execute("aggregate_events", {"schema": "public", "limit": 20_000, "runs": 20})[0][0]:
        pass

    ended = "SELECT sum(count) FROM dl_statistics WHERE span_sec = -3600 AND measure IN ('succeeded', 'failed')"
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == queue_db.fetch_row(ended) == count
    assert queue_db.fetch_row("SELECT count(DISTINCT task) FROM dl_recent_runs") == len(LOADS)
    assert queue_db.fetch_row("SELECT count(*) FROM dl_slices WHERE state = 'succeeded'") > 50
    assert queue_db.fetch_row("SELECT count(*) FROM dl_job_events WHERE ts > now()") == 0
