from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from dataloader.app.features.statistics.rows import StatisticsWriter
from dataloader.app.queue.job import Status
from dataloader.app.state import statistics
from dataloader.app.state.statistics import DurationSummary, JobCounts
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def rollups(own_queue_db: QueueFixture) -> StatisticsWriter:
    return StatisticsWriter(own_queue_db.session)


def fold(rollups: StatisticsWriter) -> None:
    while rollups.aggregate() is not None:
        pass


def ends(queue_db: QueueFixture) -> None:
    """One of each kind of end, and a try that failed before."""
    first = queue_db.enqueue_and_claim("a", max_attempts=2)
    queue_db.settle(first, Status.QUEUED, retry_in_sec=0)
    (again,) = queue_db.claim()
    queue_db.settle(again, Status.SUCCEEDED)
    queue_db.settle(queue_db.enqueue_and_claim("b"), Status.FAILED)
    queue_db.lose_attempt(queue_db.enqueue_and_claim("c", max_attempts=1))
    queue_db.queue.cancel(queue_db.enqueue("d"))


def test_each_event_is_counted_once_in_every_span(own_queue_db, rollups):
    ends(own_queue_db)
    while rollups.aggregate(limit=3) is not None:
        pass
    fold(rollups)

    for period in ("1h", "24h", "7d"):
        (result,) = rollups.by_queue(period).values()
        assert (result.queued, result.started, result.retried) == (4, 4, 1)
        assert (result.succeeded, result.failed, result.lost, result.canceled) == (1, 1, 1, 1)
        assert (result.wait_time.count, result.run_time.count) == (4, 4)
        assert result.failure_rate == pytest.approx(2 / 3, abs=1e-4)
    assert rollups.by_queue().keys() == {"q"}
    assert rollups.by_task().keys() == {"t"}
    assert [run.outcome for run in rollups.recent_runs()["t"]] == ["lost", "failed", "succeeded", "retried"]


def test_totals_count_each_minute_of_the_period_once(own_queue_db, rollups):
    own_queue_db.sql(
        """INSERT INTO dl_statistics (span_sec, started_at, queue, task, measure, bucket, count)
           SELECT span, date_bin(make_interval(secs => span), minute, '2000-01-01T00:00Z'), 'q', 't', 'started', 0,
                  sum(n)
             FROM (SELECT n + 1 AS n, date_trunc('minute', now()) - n * interval '1 min' AS minute
                     FROM generate_series(0, 1600) n) minutes,
                  unnest(ARRAY[60, 900, 3600]) span
            GROUP BY 1, 2"""
    )

    def started(span: int, period: str) -> Any:
        spans = "span_sec = %s AND started_at > now() - %s::interval"
        return own_queue_db.fetch_row(f"SELECT sum(count)::int FROM dl_statistics WHERE {spans}", span, period)

    def expected() -> tuple[Any, Any, Any]:
        return started(60, "1 hour"), started(900, "1 day"), started(60, "5 min")

    before = expected()
    hour, day = rollups.by_queue("1h")["q"].started, rollups.by_task("24h", queue="q")["t"].started
    totals = (hour, day, rollups.last_minutes(5)["q"].started)
    assert all(total in pair for total, *pair in zip(totals, before, expected(), strict=True))


def test_batch_answers_how_late_it_is_while_there_are_more(own_queue_db, rollups):
    own_queue_db.enqueue("a")
    own_queue_db.enqueue("b")
    own_queue_db.sql("UPDATE dl_job_events SET ts = ts - interval '90 s'")

    lag_sec = rollups.aggregate(limit=1)
    assert lag_sec is not None
    assert 90 <= lag_sec < 120
    assert rollups.aggregate(limit=100) is None


def test_nothing_is_written_while_no_event_is_new(own_queue_db, rollups):
    own_queue_db.enqueue("a")
    fold(rollups)
    version = "SELECT xmin::text FROM dl_statistics_state"
    before = own_queue_db.fetch_row(version)

    assert rollups.aggregate() is None
    assert own_queue_db.fetch_row(version) == before

    own_queue_db.enqueue("b")
    fold(rollups)
    assert own_queue_db.fetch_row(version) != before
    assert rollups.by_queue()["q"].queued == 2


@pytest.fixture
def late(own_queue_db: QueueFixture, rollups: StatisticsWriter) -> QueueFixture:
    """A job is inserted, not yet committed, and another one, with a later event, is there already."""
    fold(rollups)
    with own_queue_db.open_transaction() as step:
        step("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 'late', 'l')")
        own_queue_db.enqueue("early", task="early")
        for _ in range(3):
            fold(rollups)
        assert rollups.by_task().keys() == {"early"}
    return own_queue_db


def test_an_event_that_is_committed_late_is_counted_too(late, rollups):
    fold(rollups)

    assert {name: result.queued for name, result in rollups.by_task().items()} == {"early": 1, "late": 1}


def test_missing_event_id_is_dropped_after_its_writers_end(own_queue_db, rollups):
    connection = own_queue_db.connect()
    connection.cursor().execute("INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('q', 't', 'l')")
    own_queue_db.enqueue("k")
    fold(rollups)
    assert own_queue_db.fetch_row("SELECT count(*) FROM dl_statistics_state, unnest(unread)") == 2
    connection.rollback()

    fold(rollups)
    fold(rollups)

    assert own_queue_db.fetch_row("SELECT count(*) FROM dl_statistics_state, unnest(unread)") == 1


def test_wait_counts_from_due_time_and_run_from_claim(own_queue_db, rollups):
    job_id = own_queue_db.enqueue("k")
    own_queue_db.sql("UPDATE dl_jobs SET available_at = clock_timestamp() - interval '20 s'")
    own_queue_db.sql("UPDATE dl_job_events SET ts = ts - interval '100 s'")
    (run,) = own_queue_db.claim()
    own_queue_db.sql("UPDATE dl_job_events SET ts = ts - interval '5 s' WHERE kind = 'picked'")
    own_queue_db.settle(run)
    fold(rollups)

    result = rollups.by_task()["t"]

    assert run.id == job_id
    assert result.wait_time.mean == pytest.approx(15, abs=5)
    assert result.run_time.mean == pytest.approx(5, abs=4)


@pytest.mark.parametrize("attempt", ['"one"', "1e99", "1.5", "-1", "null", "{}", '"99999999999"'])
def test_event_with_invalid_attempt_is_aggregated(own_queue_db, rollups, attempt):
    job_id = own_queue_db.enqueue("k")
    own_queue_db.sql(
        "INSERT INTO dl_job_events (job_id, queue, kind, payload)"
        " VALUES (%s, 'q', 'picked', jsonb_build_object('attempt', %s::jsonb))",
        str(job_id),
        attempt,
    )

    fold(rollups)

    assert (rollups.by_task()["t"].queued, rollups.by_task()["t"].started) == (1, 1)


def test_only_one_process_folds_at_a_time(own_queue_db, rollups):
    with own_queue_db.open_transaction() as step:
        step("SELECT pg_advisory_xact_lock(1684828527, 2)")
        own_queue_db.enqueue("k")
        assert rollups.aggregate() is None
        assert own_queue_db.fetch_row("SELECT count(*) FROM dl_statistics") == 0
    fold(rollups)
    assert own_queue_db.fetch_row("SELECT count(*) FROM dl_statistics WHERE span_sec = 60") == 1


def test_depths_are_noted_once_a_minute_and_old_numbers_go(own_queue_db, rollups):
    own_queue_db.enqueue_and_claim("a")
    own_queue_db.enqueue("a")
    own_queue_db.claim_once()
    own_queue_db.enqueue("b")
    own_queue_db.sql(
        "INSERT INTO dl_statistics VALUES (60, now() - interval '1 day', 'q', 't', 'queued', 0, 1, 0),"
        " (3600, now() - interval '1 day', 'q', 't', 'queued', 0, 1, 0)"
    )
    fold(rollups)
    rollups.record_depths()
    rollups.record_depths()
    rollups.prune()

    chart = rollups.chart("1h", queue="q")

    depth = chart.depths[-1]
    assert len({entry.at for entry in chart.depths}) == len(chart.depths)
    assert (depth.ready, depth.blocked, depth.running, depth.scheduled) == (1, 1, 1, 0)
    assert depth.oldest_ready_sec is not None
    assert len(chart.points) == 1
    assert chart.points[0].statistics.queued == 3
    assert rollups.by_queue("1h", queue=str(uuid4())) == {}
    assert own_queue_db.sql("SELECT span_sec FROM dl_statistics WHERE started_at < now() - interval '12 h'") == [
        (3600,)
    ]


def test_a_percentile_is_a_fifth_off_at_most(own_queue_db):
    for seconds in (0.004, 0.03, 1.0, 7.7, 3600.0):
        bucket = own_queue_db.fetch_row("SELECT dl_duration_bucket(%s::float8)", seconds)
        assert DurationSummary.from_histogram({bucket: 10}, 0.0).p95 == pytest.approx(seconds, rel=0.5)
    summary = DurationSummary.from_histogram({0: 1, 10: 98, 30: 1}, 200.0)
    assert (summary.count, summary.mean) == (100, 2.0)
    assert summary.p50 == pytest.approx(0.005 * 2**4.75, rel=0.2)
    assert DurationSummary.from_histogram({}, 0.0) == DurationSummary()


def test_more_runs_of_a_task_are_kept_than_a_list_shows(own_queue_db, rollups):
    for n in range(45):
        own_queue_db.settle(own_queue_db.enqueue_and_claim(f"run-{n}"), Status.SUCCEEDED)
    fold(rollups)

    assert len(rollups.recent_runs()["t"]) == 20
    assert len(rollups.recent_runs(task="t", limit=100)["t"]) == 40


def test_failures_of_a_task_are_grouped_by_fingerprint(own_queue_db, rollups, monkeypatch):
    for key, fingerprint in (("a", "Timeout"), ("b", "Timeout"), ("c", "Refused")):
        own_queue_db.settle(own_queue_db.enqueue_and_claim(key), Status.FAILED, error=f"{fingerprint}: {key}")
        own_queue_db.sql(f"UPDATE dl_jobs SET error_fingerprint = '{fingerprint}' WHERE lock_key = '{key}'")
    own_queue_db.sql("UPDATE dl_jobs SET finished_at = now() - interval '9 days' WHERE lock_key = 'c'")

    week = rollups.failures_of_task("t", period_sec=7 * 86_400)
    month = rollups.failures_of_task("t", period_sec=30 * 86_400)

    assert [(group.fingerprint, group.jobs, group.error) for group in week.groups] == [("Timeout", 2, "Timeout: b")]
    assert (week.jobs, week.complete) == (2, True)
    assert [(group.fingerprint, group.jobs) for group in month.groups] == [("Timeout", 2), ("Refused", 1)]
    assert rollups.failures_of_task("other", period_sec=1.0).groups == []
    monkeypatch.setattr(statistics, "MAX_FAILURES_SCANNED", 2)
    assert not rollups.failures_of_task("t", period_sec=30 * 86_400).complete


def test_waiting_jobs_are_counted_by_task(own_queue_db, monkeypatch):
    counts = JobCounts(own_queue_db.session)
    own_queue_db.enqueue_and_claim("running")
    for key in ("running", "free", "other"):
        own_queue_db.enqueue(key, task="load")
    own_queue_db.enqueue("late", task="report")
    own_queue_db.sql("UPDATE dl_jobs SET available_at = now() + interval '1 hour' WHERE lock_key = 'late'")

    assert (counts.waiting_by_task().by_task, counts.waiting_by_task().exact) == ({"load": 3, "report": 1}, True)
    monkeypatch.setattr(statistics, "MAX_WAITING_SCANNED", 1)
    assert not counts.waiting_by_task().exact
