from __future__ import annotations

from datetime import timedelta

import pytest

from dataloader.app.features.jobs import job_rows
from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.features.jobs.job_rows import STATES, JobRows
from dataloader.app.features.jobs.job_search import Filter, JobSearch, MatchCount
from dataloader.app.queue.job import Status
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def rows(queue_db: QueueFixture) -> JobRows:
    return JobRows(queue_db.session)


def shift_events(queue_db: QueueFixture, age: timedelta) -> None:
    queue_db.sql("UPDATE dl_job_events SET ts = ts - %s", age)
    queue_db.sql("UPDATE dl_jobs SET started_at = started_at - %s, finished_at = finished_at - %s", age, age)


def test_duration_is_of_the_last_attempt_to_its_end_or_so_far(queue_db, rows):
    def durations() -> list[float | None]:
        page = JobSearch(queue_db.session).page(Filter(), sort="created_at")
        return [job.duration_ms for job in rows.with_durations(page.jobs)]

    run = queue_db.enqueue_and_claim("retried", max_attempts=2)
    shift_events(queue_db, timedelta(minutes=10))
    queue_db.settle(run, Status.QUEUED, error="no")
    shift_events(queue_db, timedelta(hours=1))
    queue_db.enqueue("waits")
    (retried, waits) = durations()
    assert retried == pytest.approx(600_000, abs=60_000)
    assert waits is None

    queue_db.make_due(run.id)
    run = queue_db.claim()[0]
    shift_events(queue_db, timedelta(minutes=1))
    assert durations()[0] == pytest.approx(60_000, abs=30_000)

    queue_db.settle(run)
    shift_events(queue_db, timedelta(hours=1))
    assert durations()[0] == pytest.approx(60_000, abs=30_000)
    assert JobReader(queue_db.session).detail(run.id).duration_ms == durations()[0]


def test_states_of_a_search_are_counted(queue_db, rows, monkeypatch):
    failed = queue_db.enqueue_and_claim("a")
    queue_db.settle(failed, Status.FAILED, error="no")
    queue_db.enqueue_and_claim("b")
    queue_db.enqueue("b")
    queue_db.enqueue("other", queue="q2")
    assert queue_db.claim() == []  # it finds that the key is locked

    def counts(wanted: Filter) -> dict[str, int]:
        found = rows.count_states(wanted)
        assert {*found} == {*STATES}
        return {state: count.jobs for state, count in found.items() if count is not None and count.jobs}

    assert counts(Filter()) == {"failed": 1, "running": 1, "blocked": 1, "ready": 1}
    assert counts(Filter(queue="q", status=frozenset({Status.FAILED}))) == {"failed": 1, "running": 1, "blocked": 1}
    assert counts(Filter(lock_key="b")) == {"running": 1, "blocked": 1}
    monkeypatch.setattr(job_rows, "MAX_ACTIVE", 2)
    assert rows.count_states(Filter())["ready"] is None


def test_few_lost_among_many_are_counted_not_estimated(queue_db, rows, monkeypatch):
    monkeypatch.setattr(job_rows, "_TIME_BUDGET_SEC", 0)
    monkeypatch.setattr(job_rows, "FIRST_COUNT_WINDOW_ROWS", 1)
    monkeypatch.setattr(job_rows, "SAMPLED_PAGES", 1)
    monkeypatch.setattr(job_rows, "_MAX_COUNTED", 60)
    queue_db.sql("ALTER TABLE dl_jobs DISABLE TRIGGER USER")
    queue_db.sql(
        """INSERT INTO dl_jobs (queue, task, lock_key, args, status, attempt, finished_at)
           SELECT 'q', 't', 'k' || n, '{}',
                  CASE WHEN n <= 53 THEN 'lost' WHEN n <= 2000 THEN 'failed' ELSE 'succeeded' END::dl_status, 1, now()
             FROM generate_series(1, 5000) n"""
    )
    queue_db.sql("ALTER TABLE dl_jobs ENABLE TRIGGER USER")

    counts = rows.count_states(Filter())
    of_none = rows.count_states(Filter(task="other"))

    assert counts["lost"] == MatchCount(53, True, 0)
    assert counts["canceled"] == MatchCount(0, True, 0)
    assert [of_none[state] for state in ("lost", "failed", "succeeded")] == [MatchCount(0, True, 0), None, None]
    assert all(count is None or not count.exact for count in (counts["failed"], counts["succeeded"]))


def test_details_have_args_and_what_a_job_waits_for(queue_db, rows):
    holder = queue_db.enqueue_and_claim("k", args={"day": 1})
    blocked = queue_db.enqueue("k")
    assert queue_db.claim() == []

    details = rows.details(JobSearch(queue_db.session).page(Filter()).jobs)

    assert details[holder.id].args == {"day": 1}
    assert details[holder.id].lock_holder is None
    assert details[blocked].lock_holder == holder.id
